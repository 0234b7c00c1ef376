"""When a job fires: schedules as data, and the pure functions over them.

    once · interval · cron · rrule   the rules, each with its next instant; `when` is any of them
    event                            a rule without instants: events start the job
    expression · days · spread       cron text → slots of wall time; its day fields; H in it, spread by job
    dst                              slots of wall time → instants, by the job's policy
    calendar · business              excluded days and windows; slots moved to business days
    exclude                          rules that exclude fires of other rules
    rule                             Schedule, and `next_fire` over all of these, within start and end
    counting                         how many fires a range has, and which are the last
    check                            what is wrong with a schedule, and how to fix it
    jitter · words · preview         deliberate delay; a schedule in words; the next fires

Nothing here reads a clock: instants are passed in as arguments, aware and in UTC, and returned the same way. Wall time
exists only between `expression` or `rrule` and `dst`.
"""

from ondot.model.misfire import Misfire
from ondot.model.schedule.calendar import Blackout, Calendar
from ondot.model.schedule.check import check
from ondot.model.schedule.cron import Cron
from ondot.model.schedule.dst import Dst, tzdata_version
from ondot.model.schedule.event import OnEvent
from ondot.model.schedule.interval import Interval, every_of
from ondot.model.schedule.jitter import jitter_offset
from ondot.model.schedule.once import Once
from ondot.model.schedule.preview import Fire, Preview, Remark, Skipped, preview
from ondot.model.schedule.rrule import Rrule
from ondot.model.schedule.rule import GivenUp, Schedule, for_job, next_fire, start_delay, unrestricted
from ondot.model.schedule.when import When
from ondot.model.schedule.words import in_words

__all__ = [
    "Blackout",
    "Calendar",
    "Cron",
    "Dst",
    "Fire",
    "GivenUp",
    "Interval",
    "Misfire",
    "OnEvent",
    "Once",
    "Preview",
    "Remark",
    "Rrule",
    "Schedule",
    "Skipped",
    "When",
    "check",
    "every_of",
    "for_job",
    "in_words",
    "jitter_offset",
    "next_fire",
    "preview",
    "start_delay",
    "tzdata_version",
    "unrestricted",
]
