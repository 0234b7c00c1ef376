"""iCalendar recurrence as text: parsed once into data, or rejected with what to write instead (S10).

The text is one rule, `FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17`, with or without `RRULE:` before it, or lines of RFC 5545:

    DTSTART[;TZID=Zone]:20260101T090000[Z]     at most one; a `Z` puts the whole recurrence into UTC
    RRULE:FREQ=…                               up to ten; the times of all of them are due
    RDATE:20260501T120000,…                    due as well
    EXDATE:20261225,20261231T090000            not due, whichever line lists it

Case does not matter, folded lines are joined, and a line may end in a literal `\\n`, as in text pasted from JSON. Times
without `Z` are wall time in the schedule's zone; a `TZID` on RDATE or EXDATE must repeat that of DTSTART. A date
without a time is its midnight in DTSTART and RDATE, and the whole day in EXDATE and UNTIL. Text that RFC 5545 forbids
or gives no meaning is rejected, and so is EXRULE, which it has withdrawn. Three of its *must nots* have an obvious
meaning and are accepted as in dateutil: BYWEEKNO, BYYEARDAY and BYMONTHDAY narrow any FREQ. `rrule.py` documents the
parts.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct

from ondot.model.errors import Fault, InvalidSchedule
from ondot.model.schedule.dst import NEVER_AFTER, NEVER_BEFORE

LONGEST: Final = 4096
MOST_RULES: Final = 10
# Finding the last one means walking over all of them, a few microseconds each, so up to half a second, once.
LARGEST_COUNT: Final = 10_000


class Frequency(IntEnum):
    YEARLY = 0
    MONTHLY = 1
    WEEKLY = 2
    DAILY = 3
    HOURLY = 4
    MINUTELY = 5
    SECONDLY = 6


class Moment(NamedTuple):
    """A date or time as written: wall time, or UTC if it ends in `Z`."""

    time: datetime
    is_utc: bool
    is_date: bool


class Nth(NamedTuple):
    """`MO` is every Monday (0), `2MO` the second of the month or year, `-1MO` the last."""

    n: int
    weekday: int


class Rule(Struct, frozen=True, kw_only=True):
    """One RRULE. An empty tuple is a part that was not given."""

    frequency: Frequency
    interval: int = 1
    count: int | None = None
    until: Moment | None = None
    week_start: int = 0
    months: tuple[int, ...] = ()
    weeks: tuple[int, ...] = ()
    year_days: tuple[int, ...] = ()
    month_days: tuple[int, ...] = ()
    weekdays: tuple[Nth, ...] = ()
    hours: tuple[int, ...] = ()
    minutes: tuple[int, ...] = ()
    seconds: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()

    @property
    def is_straight(self) -> bool:
        """Whether it names no hour of the day, so that it follows real time across clock changes."""
        return self.frequency >= Frequency.HOURLY and not self.hours


class Recurrence(Struct, frozen=True, kw_only=True):
    """A parsed text. `text` is its canonical form: upper case except for the zone, one property per line."""

    text: str
    begins: Moment | None
    timezone: str | None
    rules: tuple[Rule, ...]
    dates: tuple[Moment, ...]
    excluded: tuple[Moment, ...]

    @property
    def is_straight(self) -> bool:
        return bool(self.rules) and all(rule.is_straight for rule in self.rules)


class _Range(NamedTuple):
    low: int
    high: int
    is_signed: bool
    example: str


_LISTS: Final = {
    "BYMONTH": _Range(1, 12, False, "1,7"),
    "BYWEEKNO": _Range(1, 53, True, "20"),
    "BYYEARDAY": _Range(1, 366, True, "1,100,-1"),
    "BYMONTHDAY": _Range(1, 31, True, "1,15,-1"),
    "BYHOUR": _Range(0, 23, False, "9,17"),
    "BYMINUTE": _Range(0, 59, False, "0,30"),
    "BYSECOND": _Range(0, 59, False, "0"),
    "BYSETPOS": _Range(1, 366, True, "1 or -1"),
}
_NUMBERS: Final = {
    "INTERVAL": _Range(1, 999_999_999, False, "2"),
    "COUNT": _Range(1, LARGEST_COUNT, False, "10"),
}
_PARTS: Final = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_LISTS)
_WEEKDAYS: Final = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_HINTS: Final = {
    "BYEASTER": "BYEASTER is not part of RFC 5545. List the days with RDATE",
    "BYWEEKDAY": "BYWEEKDAY is called BYDAY, for example BYDAY=MO,-1FR",
    "DTSTART": "DTSTART needs a line of its own, for example DTSTART:20260101T090000",
    "TZID": "the time zone is the schedule's timezone, or DTSTART;TZID=Europe/Berlin:20260101T090000 on its own line",
    "RSCALE": "only the Gregorian calendar is supported. Leave RSCALE and SKIP out",
    "EXRULE": "EXRULE was withdrawn from iCalendar. List times with EXDATE, or put the rule into `exclude`",
}
_PROPERTIES: Final = ("DTSTART", "RRULE", "RDATE", "EXDATE")

_ESCAPED: Final = re.compile(r"(?:\\r)?\\n")
_FOLD: Final = re.compile(r"\r?\n[ \t]")
_TZID: Final = re.compile(r"(?<=;TZID=)[^:;\n]+", re.IGNORECASE)
_INSIDE: Final = re.compile(r"(?<=[^\W_])[\s,;]*(DTSTART|RRULE|RDATE|EXDATE)[:;]")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")
_NTH: Final = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
_MOMENT: Final = re.compile(r"([0-9]{8})(?:T([0-9]{6})(Z)?)?")


class _Invalid(Exception):
    """Why a text cannot be parsed, and what to write instead."""


@lru_cache(maxsize=2048)
def read(text: str) -> Recurrence:
    """The parsed text; an error names the wrong part, what it allows, and an example."""
    try:
        return _read(text)
    except _Invalid as refusal:
        message = f'The recurrence rule "{text[:80]}" is not valid: {str(refusal).rstrip(".")}.'
        raise InvalidSchedule(message, faults=(Fault("/rrule", message),), rrule=text[:LONGEST]) from None


def begins_after(text: str, wall: datetime) -> datetime:
    """The start of a rule without DTSTART: this wall time, or the next full hour or minute.

    BYHOUR=9 means nine o'clock, not the minute and second at which it was written.
    """
    rules = read(text).rules
    whole = wall.replace(microsecond=0)
    if any(rule.hours for rule in rules):
        whole, step = wall.replace(minute=0, second=0, microsecond=0), timedelta(hours=1)
    elif any(rule.minutes for rule in rules):
        whole, step = wall.replace(second=0, microsecond=0), timedelta(minutes=1)
    else:
        return whole
    return whole if whole == wall else whole + step


def begins_of(text: str) -> tuple[datetime, str | None] | None:
    """DTSTART as wall time and its zone (None: the schedule's), if the text has one."""
    recurrence = read(text)
    return None if recurrence.begins is None else (recurrence.begins.time, recurrence.timezone)


class _Line(NamedTuple):
    name: str
    parameters: dict[str, str]
    value: str


def _read(text: str) -> Recurrence:
    if len(text) > LONGEST:
        raise _Invalid(f"it is longer than {LONGEST} characters. Split it into several jobs")
    unescaped = _ESCAPED.sub("\n", text)
    lines = [_upper(line) for line in _FOLD.sub("", unescaped.strip()).splitlines() if line.strip()]
    found: dict[str, list[_Line]] = {name: [] for name in _PROPERTIES}
    for line in map(_line, lines):
        found[line.name].append(line)
    if len(found["DTSTART"]) > 1:
        raise _Invalid("DTSTART may occur once. Split it into several jobs")
    if not found["RRULE"] and not found["RDATE"]:
        raise _Invalid("it has no rule. Write one, for example FREQ=WEEKLY;BYDAY=MO,TH;BYHOUR=9;BYMINUTE=0;BYSECOND=0")
    if len(found["RRULE"]) > MOST_RULES:
        raise _Invalid(f"it has more than {MOST_RULES} rules. Split it into several jobs")
    begins, zone = _begins(found["DTSTART"][0]) if found["DTSTART"] else (None, None)
    return Recurrence(
        text="\n".join(lines),
        begins=begins,
        timezone=zone,
        rules=tuple(_rule(line) for line in found["RRULE"]),
        dates=tuple(_moments(found["RDATE"], zone)),
        excluded=tuple(_moments(found["EXDATE"], zone)),
    )


def _upper(line: str) -> str:
    """Upper case, except for the zone, whose name has small letters too."""
    zone = _TZID.search(line)
    upper = line.strip().upper() if zone is None else line[: zone.start()].lstrip().upper() + zone[0]
    return upper if zone is None else upper + line[zone.end() :].rstrip().upper()


def _line(line: str) -> _Line:
    if inside := _INSIDE.search(line):
        raise _Invalid(
            f"{inside[1]} needs a line of its own, but follows {line[: inside.start()][-20:]!r}. "
            "Put a line break before it (\\n in JSON), without a blank after it"
        )
    before, colon, value = line.partition(":")
    if not colon:
        return _Line("RRULE", {}, line)
    name, *parameters = before.split(";")
    if name not in _PROPERTIES:
        hint = _HINTS.get(name, "only the lines DTSTART, RRULE, RDATE and EXDATE of an iCalendar event belong here")
        raise _Invalid(f"{name[:20]!r} is not supported. {hint[0].upper()}{hint[1:]}")
    given = dict(parameter.partition("=")[::2] for parameter in parameters)
    if set(given) - {"TZID", "VALUE"} or (name == "RRULE" and given):
        raise _Invalid(
            f"{name} allows {'no parameters' if name == 'RRULE' else 'TZID and VALUE only'}. Leave others out"
        )
    return _Line(name, {key: parameter.strip('"') for key, parameter in given.items()}, value.strip())


def _begins(line: _Line) -> tuple[Moment, str | None]:
    begins, zone = _moment(line, line.value), line.parameters.get("TZID")
    if begins.is_utc and zone is not None:
        raise _Invalid("DTSTART has both a TZID and a Z, which is UTC. Leave one of them out")
    return begins, "UTC" if begins.is_utc else zone


def _moments(lines: Iterable[_Line], zone: str | None) -> Iterator[Moment]:
    for line in lines:
        if line.parameters.get("TZID", zone) != zone:
            raise _Invalid(
                f"the TZID of {line.name} is not that of DTSTART. Leave it out, or end its times in Z for UTC"
            )
        yield from (_moment(line, term) for term in line.value.split(","))


def _moment(line: _Line, term: str) -> Moment:
    moment = _moment_of(line.name, term.strip())
    value = line.parameters.get("VALUE", "DATE" if moment.is_date else "DATE-TIME")
    if value != ("DATE" if moment.is_date else "DATE-TIME"):
        raise _Invalid(f"{line.name} has VALUE={value[:20]} but the value {term[:20]!r}. Leave VALUE out")
    return moment


def _moment_of(name: str, term: str) -> Moment:
    if match := _MOMENT.fullmatch(term):
        try:
            time = datetime.strptime(match[1] + (match[2] or "000000"), "%Y%m%d%H%M%S")  # noqa: DTZ007  wall time
        except ValueError:
            pass
        else:
            if NEVER_BEFORE <= time < NEVER_AFTER:
                return Moment(time, is_utc=match[3] is not None, is_date=match[2] is None)
    raise _Invalid(f"{name} must be a time such as 20261231T090000, or 20261231T080000Z for UTC; got {term[:20]!r}")


def _rule(line: _Line) -> Rule:
    given: dict[str, str] = {}
    for part in line.value.removesuffix(";").split(";"):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in _PARTS:
            hint = _HINTS.get(name, f"the parts are {', '.join(_PARTS)}. Use them as in FREQ=DAILY;INTERVAL=2")
            raise _Invalid(f"{name[:20]!r} is not a part of a rule: {hint}")
        if name in given:
            raise _Invalid(f"{name} occurs twice. Write its values as one list, {name}=…,…")
        if not equals or not value:
            raise _Invalid(f"{name} has no value. Add one, or leave it out")
        given[name] = value
    frequency = given.get("FREQ", "")
    if frequency not in Frequency.__members__:
        raise _Invalid(f"FREQ must be one of {', '.join(Frequency.__members__)}, for example FREQ=DAILY")
    if given.get("WKST", "MO") not in _WEEKDAYS:
        raise _Invalid(f"WKST, the first day of the week, must be one of {', '.join(_WEEKDAYS)}")
    rule = Rule(
        frequency=Frequency[frequency],
        interval=_integer(given, "INTERVAL") or 1,
        count=_integer(given, "COUNT"),
        until=_moment_of("UNTIL", given["UNTIL"]) if "UNTIL" in given else None,
        week_start=_WEEKDAYS.index(given.get("WKST", "MO")),
        months=_integers(given, "BYMONTH"),
        weeks=_integers(given, "BYWEEKNO"),
        year_days=_integers(given, "BYYEARDAY"),
        month_days=_integers(given, "BYMONTHDAY"),
        weekdays=tuple(sorted({_nth(term) for term in given["BYDAY"].split(",")})) if "BYDAY" in given else (),
        hours=_integers(given, "BYHOUR"),
        minutes=_integers(given, "BYMINUTE"),
        seconds=_integers(given, "BYSECOND"),
        positions=_integers(given, "BYSETPOS"),
    )
    _check_combination(rule, given)
    return rule


def _check_combination(rule: Rule, given: dict[str, str]) -> None:
    if rule.count is not None and rule.until is not None:
        raise _Invalid("it has both COUNT and UNTIL. Leave one of them out")
    if any(nth.n for nth in rule.weekdays):
        if rule.frequency > Frequency.MONTHLY:
            raise _Invalid(f"BYDAY={given['BYDAY'][:20]} counts days of a month or year. Use FREQ=MONTHLY or YEARLY")
        if rule.weeks:
            raise _Invalid(
                f"BYDAY={given['BYDAY'][:20]} cannot be combined with BYWEEKNO. Write the days without numbers"
            )
    if rule.positions and not any(name.startswith("BY") and name != "BYSETPOS" for name in given):
        raise _Invalid("BYSETPOS selects from the times of other parts. Add one, for example BYDAY=MO,TU,WE,TH,FR")


def _integer(given: dict[str, str], name: str) -> int | None:
    if name not in given:
        return None
    value, of = given[name], _NUMBERS[name]
    if not _NUMBER.fullmatch(value) or not of.low <= int(value) <= of.high:
        raise _Invalid(f"{name}={value[:20]} must be {of.low} to {of.high}, as in {name}={of.example}")
    return int(value)


def _integers(given: dict[str, str], name: str) -> tuple[int, ...]:
    of, numbers = _LISTS[name], set()
    for term in given[name].split(",") if name in given else ():
        number = int(term) if _NUMBER.fullmatch(term.strip()) else of.low - 1
        if not of.low <= (abs(number) if of.is_signed else number) <= of.high:
            signed = f", or -{of.low} to -{of.high} from the end" if of.is_signed else ""
            leap = ". Leap seconds are not supported" if (name, number) == ("BYSECOND", 60) else ""
            raise _Invalid(
                f"{name}={given[name][:40]} must be numbers from {of.low} to {of.high}{signed}, "
                f"as in {name}={of.example}{leap}"
            )
        numbers.add(number)
    return tuple(sorted(numbers))


def _nth(term: str) -> Nth:
    match = _NTH.fullmatch(term.strip())
    n = int(match[1] or 0) if match else 0
    if match is None or (match[1] is not None and not 1 <= abs(n) <= 53):
        raise _Invalid(
            f"BYDAY allows {', '.join(_WEEKDAYS)}, or 2MO for the second and -1FR for the last; got {term[:20]!r}"
        )
    return Nth(n, _WEEKDAYS.index(match[2]))
