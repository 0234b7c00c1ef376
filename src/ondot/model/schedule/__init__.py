"""When a job fires: schedules as data, and the pure functions over them.

    once · interval · cron     the rules, each with its next instant
    expression                 cron text → slots of wall time
    dst                        slots of wall time → instants, by the job's policy
    calendar                   which days and windows are left out
    rule                       Schedule, and `next_fire` over all rules, within start and end, without those left out
    check                      what is wrong with a schedule, said so that it can be put right
    jitter · words · preview   how late on purpose; told in words; the coming fires

Nothing here reads a clock: instants come in as arguments, aware and in UTC, and go out the same. Wall time
exists between `expression` and `dst` and nowhere else in ondot.
"""

from ondot.model.misfire import Misfire
from ondot.model.schedule.calendar import Blackout, Calendar
from ondot.model.schedule.check import check
from ondot.model.schedule.cron import Cron
from ondot.model.schedule.dst import Dst
from ondot.model.schedule.interval import Interval
from ondot.model.schedule.jitter import jitter_offset
from ondot.model.schedule.once import Once
from ondot.model.schedule.preview import Fire, Preview, Remark, Skipped, preview
from ondot.model.schedule.rule import Schedule, When, next_fire
from ondot.model.schedule.words import in_words

__all__ = [
    "Blackout",
    "Calendar",
    "Cron",
    "Dst",
    "Fire",
    "Interval",
    "Misfire",
    "Once",
    "Preview",
    "Remark",
    "Schedule",
    "Skipped",
    "When",
    "check",
    "in_words",
    "jitter_offset",
    "next_fire",
    "preview",
]
