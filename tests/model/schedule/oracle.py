"""What a cron schedule should do, found the slow way, with no code of `ondot` (only `datetime` and `zoneinfo`).

`Reading` reads an expression by its own rules and decides about one wall time at a time: is this date one of its
days, this hour and minute one of its times? `Clock` walks through real time minute by minute and notes what a zone's
clock showed once, twice or never. `fires` puts the two together by the policy. Nothing is clever here: a month's last
weekday is found by listing its weekdays, a gap by noticing that the clock jumped.

Offset changes lie on whole minutes, and offsets are whole minutes, in every zone since 1972: `Clock` checks that.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Reading:
    """An expression of five or six fields, or a macro."""

    def __init__(self, text: str) -> None:
        fields = MACROS.get(text.strip().lower(), text).upper().split()
        second, minute, hour, self._day, month, self._weekday = fields if len(fields) == 6 else ["0", *fields]
        self.seconds = sorted(values(second, 0, 59))
        self.minutes = values(minute, 0, 59)
        self.hours = values(hour, 0, 23)
        self.months = values(month, 1, 12, MONTHS)
        self.is_straight = minute.startswith("*") or hour.startswith("*")
        self._known: dict[date, bool] = {}

    def has_minute(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and self.has_day(wall.date())

    def has_day(self, day: date) -> bool:
        if day not in self._known:
            self._known[day] = day.month in self.months and self._by_both_fields(day)
        return self._known[day]

    def _by_both_fields(self, day: date) -> bool:
        by_day = any(is_day_of_month(term, day) for term in self._day.split(","))
        by_weekday = any(is_day_of_week(term, day) for term in self._weekday.split(","))
        both_restricted = self._day[0] not in "*?" and self._weekday[0] not in "*?"
        return (by_day or by_weekday) if both_restricted else (by_day and by_weekday)


def values(text: str, low: int, high: int, names: tuple[str, ...] = ()) -> set[int]:
    """What a list of numbers, names, ranges and steps means."""
    found: set[int] = set()
    for term in text.split(","):
        what, slash, step = term.partition("/")
        first, dash, last = what.partition("-")
        if what == "*":
            begin, end = low, high
        elif dash:
            begin, end = number(first, low, names), number(last, low, names)
            if end == 0 and begin > 0 and names is WEEKDAYS:
                end = 7  # FRI-SUN
        else:
            begin = number(first, low, names)
            end = high if slash else begin
        found.update(range(begin, end + 1, int(step) if slash else 1))
    return found


def number(text: str, low: int, names: tuple[str, ...]) -> int:
    return names.index(text) + low if text in names else int(text)


def is_day_of_month(term: str, day: date) -> bool:
    if term == "?":
        return True
    if term == "L":
        return day == days_of_month(day)[-1]
    if term == "LW":
        return day == weekdays_of_month(day)[-1]
    if term.endswith("W"):
        wanted = int(term[:-1])
        exists = wanted <= len(days_of_month(day))
        return exists and day == min(weekdays_of_month(day), key=lambda each: abs(each.day - wanted))
    return day.day in values(term, 1, 31)


def is_day_of_week(term: str, day: date) -> bool:
    numbers = {day.isoweekday() % 7, day.isoweekday()}  # Sunday is 0 and 7
    if term == "?":
        return True
    if "#" in term:
        weekday, _, which = term.partition("#")
        return number(weekday, 0, WEEKDAYS) in numbers and same_weekdays(day).index(day) == int(which) - 1
    if term.endswith("L"):
        return number(term[:-1], 0, WEEKDAYS) in numbers and day == same_weekdays(day)[-1]
    return bool(numbers & values(term, 0, 7, WEEKDAYS))


def days_of_month(day: date) -> list[date]:
    first = day.replace(day=1)
    return [first + n * DAY for n in range(31) if (first + n * DAY).month == day.month]


def weekdays_of_month(day: date) -> list[date]:
    return [each for each in days_of_month(day) if each.isoweekday() <= 5]


def same_weekdays(day: date) -> list[date]:
    return [each for each in days_of_month(day) if each.isoweekday() == day.isoweekday()]


def minutes(tz: ZoneInfo, begin_at: datetime, end_at: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Each minute, and the wall time then; the offset is asked for once an hour if it is the same at the hour's end."""
    at, utc = begin_at, begin_at.replace(tzinfo=None)
    while at <= end_at:
        offset = at.astimezone(tz).utcoffset() or timedelta(0)
        assert offset % MINUTE == timedelta(0), "offsets are whole minutes"
        for _ in range(60 if offset == (at + HOUR).astimezone(tz).utcoffset() else 1):
            yield at, utc + offset
            at, utc = at + MINUTE, utc + MINUTE


class Clock:
    """What a zone's clock shows from one instant to another, both on whole minutes, minute by minute."""

    def __init__(self, zone: str, begin_at: datetime, end_at: datetime) -> None:
        tz = ZoneInfo(zone)
        self.shown: dict[datetime, list[datetime]] = {}  # each wall time shown, with the instants at which it was
        self.left_out: list[tuple[datetime, datetime]] = []  # each wall time in a gap, with the instant of the gap
        before = None
        for at, wall in minutes(tz, begin_at, end_at):
            if wall in self.shown:
                self.shown[wall].append(at)
            else:
                self.shown[wall] = [at]
            if before is not None and wall != before + MINUTE:
                second_before = (at - timedelta(seconds=1)).astimezone(tz)
                assert second_before.utcoffset() != at.astimezone(tz).utcoffset(), "changes are on whole minutes"
                missing = before + MINUTE
                while missing < wall:
                    self.left_out.append((missing, at))
                    missing += MINUTE
            before = wall

    def of(self, reading: Reading) -> "Clock":
        """The same clock, without the minutes that a reading does not name: to ask about several policies."""
        only = Clock.__new__(Clock)
        only.shown = {}
        day, last_day = min(self.shown).date(), max(self.shown).date()
        while day <= last_day:
            for hour in reading.hours if reading.has_day(day) else ():
                for minute in reading.minutes:
                    wall = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001
                    if wall in self.shown:
                        only.shown[wall] = self.shown[wall]
            day += DAY
        only.left_out = [(wall, gap_at) for wall, gap_at in self.left_out if reading.has_minute(wall)]
        return only


def fires(
    reading: Reading, clock: Clock, *, gap: str, fold: str, begin_at: datetime, end_at: datetime
) -> list[datetime]:
    """All fires in (begin_at, end_at]; the clock must reach beyond both by more than a fold is long."""
    if reading.is_straight:
        gap, fold = "skip", "both"
    fired: set[datetime] = set()
    for wall, instants in clock.shown.items():
        if reading.has_minute(wall):
            for at in {"first": instants[:1], "last": instants[-1:], "both": instants}[fold]:
                for second in reading.seconds:
                    fired.add(at + timedelta(seconds=second))
    if gap == "shift":
        fired.update(gap_at for wall, gap_at in clock.left_out if reading.has_minute(wall))
    return sorted(at for at in fired if begin_at < at <= end_at)


def offset_changes(zone: str, begin_at: datetime, end_at: datetime, look: timedelta = HOUR) -> list[datetime]:
    """The instants in (begin_at, end_at] at which the zone's offset changes, none closer together than a look."""
    tz = ZoneInfo(zone)
    found = []
    at, offset = begin_at, begin_at.astimezone(tz).utcoffset()
    while at < end_at:
        then, at = at, min(at + look, end_at)
        if at.astimezone(tz).utcoffset() != offset:
            change_at = then
            for step in (HOUR, MINUTE, timedelta(seconds=1)):
                while (change_at + step).astimezone(tz).utcoffset() == offset:
                    change_at += step
            change_at += timedelta(seconds=1)
            found.append(change_at)
            offset = at.astimezone(tz).utcoffset()
    return found


def year_changes(zone: str, year: int) -> list[datetime]:
    return offset_changes(zone, datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC))
