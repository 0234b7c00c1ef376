"""A schedule in words (S9), for a person to read back before trusting it.

cron-descriptor describes expressions well, but treats a step as a distance: `*/40` fires at minutes 0 and 40, not every
40 minutes. A step that does not divide its field is described by its values or, if these are many, as "every 3rd
minute". cron-descriptor also cannot describe lists that mix `L`, `#` or `W` with other days ("day L and 15"), and joins
two day fields by "or" where both must match. cronsim describes those, or they are shown as written.
"""

import re
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from ondot.model.schedule.cron import Cron
from ondot.model.schedule.dst import zone_info
from ondot.model.schedule.event import OnEvent
from ondot.model.schedule.expression import Expression, allowed_values, expression
from ondot.model.schedule.interval import Interval
from ondot.model.schedule.once import Once
from ondot.model.schedule.rrule import Rrule
from ondot.model.schedule.rrule_words import rrule_in_words
from ondot.model.schedule.spread import is_spread, resolve

if TYPE_CHECKING:
    from ondot.model.schedule.calendar import Calendar
    from ondot.model.schedule.rule import Schedule
    from ondot.model.schedule.when import When

_MOST_RULES = 3
_MOST_VALUES: Final = 10
_UNITS = (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000))


def in_words(schedule: "Schedule") -> str:
    """One line, 24-hour clock: "At 09:00, Monday through Friday, Europe/Berlin"."""
    parts = [_when(schedule.when)]
    parts.extend(_rules("and", schedule.include))
    parts.extend(_rules("except", schedule.exclude))
    if schedule.jitter_s > 0:
        parts.append(f"up to {duration(schedule.jitter_s)} late")
    if schedule.offset_s:
        parts.append(f"{duration(schedule.offset_s)} late")
    elif schedule.spread_s and schedule.offset_s is None:
        parts.append(f"spread over {duration(schedule.spread_s)}")
    if schedule.calendar is not None:
        parts.extend(_calendar(schedule.calendar))
    if schedule.start_at is not None:
        parts.append(f"from {_instant(schedule.start_at)}")
    if schedule.end_at is not None:
        parts.append(f"until {_instant(schedule.end_at)}")
    if schedule.max_fires is not None:
        parts.append(f"at most {schedule.max_fires} {'time' if schedule.max_fires == 1 else 'times'}")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """ "15 minutes", "1 hour 30 minutes", "1.5 seconds"."""
    rest = round(seconds * 1_000_000)
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(_count(str(count), unit))
    if rest or not parts:
        parts.append(_count(f"{rest / 1_000_000:.6f}".rstrip("0").rstrip("."), "second"))
    return " ".join(parts)


def _when(when: "When") -> str:
    match when:
        case Cron():
            return _cron(resolve(when.expression, when.spread), when.timezone) + _of_each_job(when)
        case Interval():
            every = duration(when.every_s)
            # "Every hour", but "Every 1 hour 30 minutes".
            return f"Every {every[2:] if every.startswith('1 ') and every.count(' ') == 1 else every}"
        case Once():
            return f"Once at {_instant_in(when.timezone, when.at)}"
        case Rrule():
            return f"{rrule_in_words(when)}, {when.timezone}"
        case OnEvent():
            return _event(when)
    assert_never(when)


def _event(when: OnEvent) -> str:
    source = ""
    if when.source is not None:
        source = f" from {when.source}"
    elif when.source_prefix is not None:
        source = f" from {when.source_prefix}…"
    return f"At each event {when.type}{source}{' that matches its filter' if when.filter is not None else ''}"


def _rules(joint: str, rules: "tuple[When, ...]") -> list[str]:
    described = [f"{joint} {_lower_first(_when(rule))}" for rule in rules[:_MOST_RULES]]
    more = len(rules) - _MOST_RULES
    return [*described, f"{joint} by {_count(str(more), 'more rule')}"] if more > 0 else described


def _lower_first(words: str) -> str:
    return words[0].lower() + words[1:]


def _of_each_job(cron: Cron) -> str:
    """Before the job exists, its values are not known."""
    if cron.spread or not is_spread(cron.expression):
        return ""
    return ", for example: each job gets its own values for H"


def _calendar(calendar: "Calendar") -> list[str]:
    parts = []
    of_country = f" of {calendar.exclude_holidays}" if calendar.exclude_holidays else ""
    if calendar.moves is not None:
        parts.append(f"on days off moved to the {calendar.moves} business day{of_country}")
    elif calendar.business_days:
        parts.append(f"on business days{of_country}")
    elif calendar.exclude_holidays:
        parts.append(f"except holidays of {calendar.exclude_holidays}")
    if calendar.exclude_dates:
        dates = calendar.exclude_dates
        listed = ", ".join(dates) if len(dates) <= 2 else f"{len(dates)} dates"
        parts.append(f"except on {listed}" if calendar.moves is None else f"with {listed} off")
    if calendar.blackouts:
        parts.append(f"except in {_count(str(len(calendar.blackouts)), 'blackout')}")
    return parts


@lru_cache(maxsize=1024)
def _cron(text: str, timezone: str) -> str:
    parsed = expression(text)
    words = _describe(parsed)
    # It follows real time, the same in every zone of whole hours: "Every 15 minutes, UTC" would only confuse.
    if timezone == "UTC" and set(parsed.fields[2:]) == {"*"}:
        return words
    return f"{words}, {timezone}"


def _describe(parsed: Expression) -> str:
    from cron_descriptor import FormatException, Options, get_description
    from cronsim import CronSim

    written, readable = parsed.fields, _make_readable(parsed.fields)
    days, weekdays = written[3], written[5]
    is_mixed = any("," in field and set(field) & set("LW#") for field in (days, weekdays))
    both_must_match = days != "*" and weekdays != "*" and (days.startswith("*") or weekdays.startswith("*"))
    if readable is not None and not is_mixed and not both_must_match:
        options = Options()
        options.use_24hour_time_format = True
        # It cannot describe some lists.
        with suppress(FormatException):
            return readable.with_ordinals(get_description(_text(readable.fields), options))
    if any(term.rstrip("W").isdigit() and term.endswith("W") for term in days.split(",")):
        return f"At the times of cron {_text(written)}"
    times = written if readable is None else readable.fields
    return CronSim(_text((*times[:3], *written[3:])), datetime(2000, 1, 1, tzinfo=UTC)).explain()


def _text(fields: tuple[str, ...]) -> str:
    return " ".join(fields[1:] if fields[0] == "0" else fields)


class _Readable(NamedTuple):
    """The fields of an expression, with steps only where they read well; those of `ordinals` as "every 3rd"."""

    fields: tuple[str, ...]
    ordinals: frozenset[str]

    def with_ordinals(self, words: str) -> str:
        def ordinal(found: re.Match[str]) -> str:
            every, number, unit = found.groups()
            return f"{every} {_nth(int(number))} {unit}" if unit in self.ordinals else found[0]

        return _EVERY.sub(ordinal, words)


class _Cycle(NamedTuple):
    unit: str
    last: int
    size: int | None  # None: it does not repeat at an even distance, as days of months do not


_CYCLES: Final = (
    _Cycle("second", 59, 60),
    _Cycle("minute", 59, 60),
    _Cycle("hour", 23, 24),
    _Cycle("day", 31, None),
    _Cycle("month", 12, 12),
    _Cycle("day of the week", 6, 7),
)
_EVERY: Final = re.compile(r"\b([Ee]very) (\d+) (second|minute|hour|day|month)s\b")


def _make_readable(fields: tuple[str, ...]) -> _Readable | None:
    """None for a list with steps and many values."""
    readable, ordinals = list(fields), set()
    for index, (field, cycle) in enumerate(zip(fields, _CYCLES, strict=True)):
        if "/" not in field or set(field) & set("LW#"):
            continue
        values = sorted(allowed_values(field, index))
        first_and_last, _, step = field.partition("/")
        if "," not in field and len(values) > 1 and len(values) * int(step) == cycle.size:
            continue  # the distance is even
        if len(values) <= _MOST_VALUES:
            readable[index] = ",".join(map(str, values))
        elif "," in field:
            return None
        else:
            last = first_and_last.partition("-")[2] or cycle.last
            readable[index] = f"{values[0]}-{last}/{step}"
            ordinals.add(cycle.unit)
    return _Readable(tuple(readable), frozenset(ordinals))


def _nth(number: int) -> str:
    suffix = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _count(number: str, unit: str) -> str:
    return f"{number} {unit}" if number == "1" else f"{number} {unit}s"


def _instant_in(timezone: str, instant: datetime) -> str:
    if timezone == "UTC":
        return _instant(instant)
    local = instant.astimezone(zone_info(timezone))
    return f"{local:%Y-%m-%d %H:%M:%S}".removesuffix(":00") + f", {timezone}"


def _instant(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
