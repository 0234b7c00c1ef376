"""S2 and S4 against an oracle that shares no code with the model, and both against what Vixie cron documents.

First the oracle itself: it imports nothing of ondot, and does what crontab(5) and cron(8) say, sentence by sentence.
Then the model by property: its fires are those that the oracle finds in a slow walk through real time.
"""

import ast
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise, takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ondot.model.errors import InvalidSchedule
from ondot.model.schedule import check, next_fire
from tests.model.schedule import oracle
from tests.model.schedule.making import Field, Fold, Gap, cron, fields, fires_after, next_fires, utc
from tests.proves import proves

# Shifts of a half, one, two and three hours, at midnight, around Ramadan, with negative summer time; and
# days that a zone never had.
CHANGES = [
    *((zone, year) for zone in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe") for year in (2026, 2035)),
    *((zone, 2030) for zone in ("America/Santiago", "America/Havana", "Asia/Beirut", "Africa/Cairo", "Asia/Gaza")),
    *((zone, 2027) for zone in ("Africa/Casablanca", "Antarctica/Troll", "Europe/Dublin", "Pacific/Easter")),
    ("Antarctica/Casey", 2020),
    ("Asia/Pyongyang", 2018),
    ("America/Caracas", 2016),
    ("America/Scoresbysund", 2024),
    ("Pacific/Apia", 2011),
    ("Pacific/Kwajalein", 1993),
]
SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
BERLIN = "Europe/Berlin"  # 2026-03-29 02:00 → 03:00; 2026-10-25 03:00 → 02:00
SUNDAY = "2026-11-15 08:00"


def test_the_oracle_shares_no_code_with_the_model() -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(oracle.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert imported == {"collections.abc", "datetime", "zoneinfo"}


# The quotes are from crontab(5) and cron(8); fires are in the zone's local time.
VIXIE = [
    ("A field may be an asterisk (*), which always stands for first-last.", "* 9 * * *", SUNDAY,
     ["15 09:00", "15 09:01"]),
    ("… which always stands for first-last.", "59 23 * * *", SUNDAY, ["15 23:59", "16 23:59"]),
    ("8-11 for an hours entry specifies execution at hours 8, 9, 10 and 11.", "0 8-11 * * *", SUNDAY,
     ["15 09:00", "15 10:00", "15 11:00", "16 08:00"]),
    ("A list is a set of numbers (or ranges) separated by commas.", "0 1,2,5,9 * * *", SUNDAY,
     ["15 09:00", "16 01:00", "16 02:00", "16 05:00", "16 09:00"]),
    ("Examples: 1,2,5,9, 0-4,8-12.", "0 0-4,8-12 * * *", "2026-11-15 11:30",
     ["15 12:00", "16 00:00", "16 01:00", "16 02:00", "16 03:00", "16 04:00", "16 08:00"]),
    ("0-23/2 can be used in the hours field to specify command execution every other hour", "0 0-23/2 * * *", SUNDAY,
     ["15 10:00", "15 12:00", "15 14:00"]),
    ("(the alternative in the V7 standard is 0,2,4,6,8,10,12,14,16,18,20,22).",
     "0 0,2,4,6,8,10,12,14,16,18,20,22 * * *", SUNDAY, ["15 10:00", "15 12:00", "15 14:00"]),
    ("Steps are also permitted after an asterisk, so if you want to say every two hours, just use */2.",
     "0 */2 * * *", SUNDAY, ["15 10:00", "15 12:00", "15 14:00"]),
    ("Following a range with /number specifies skips of the number's value through the range.", "0 9-17/3 * * *",
     SUNDAY, ["15 09:00", "15 12:00", "15 15:00", "16 09:00"]),
    ("day of week: 0-7 (0 or 7 is Sunday, or use names).", "0 9 * * 0", SUNDAY, ["15 09:00", "22 09:00"]),
    ("day of week: 0-7 (0 or 7 is Sunday, or use names).", "0 9 * * 7", SUNDAY, ["15 09:00", "22 09:00"]),
    ("Use the first three letters of the particular day or month (case doesn't matter).", "0 9 * nOv sUn", SUNDAY,
     ["15 09:00", "22 09:00"]),
    ("30 4 1,15 * 5 would cause a command to be run at 4:30 am on the 1st and 15th of each month, plus every Friday.",
     "30 4 1,15 * 5", "2026-10-31 12:00", ["01 04:30", "06 04:30", "13 04:30", "15 04:30", "20 04:30"]),
    ("If both fields are restricted (i.e., do not contain the * character), … when either field matches.",
     "0 0 */5 * 1", "2026-10-31 12:00", ["16 00:00", "21 00:00", "11 00:00"]),
    ("If both fields are restricted …: an asterisk as weekday leaves the day of month alone.", "0 0 13 * *", SUNDAY,
     ["13 00:00", "13 00:00"]),
    ("If both fields are restricted …: an asterisk as day of month leaves the weekday alone.", "0 0 * * 5", SUNDAY,
     ["20 00:00", "27 00:00"]),
    ("run five minutes after midnight, every day", "5 0 * * *", SUNDAY, ["16 00:05", "17 00:05"]),
    ("run at 2:15pm on the first of every month", "15 14 1 * *", SUNDAY, ["01 14:15", "01 14:15"]),
    ("run at 10 pm on weekdays", "0 22 * * 1-5", SUNDAY, ["16 22:00", "17 22:00"]),
    ("run 23 minutes after midn, 2am, 4am ..., everyday", "23 0-23/2 * * *", SUNDAY, ["15 08:23", "15 10:23"]),
    ("run at 5 after 4 every sunday", "5 4 * * sun", SUNDAY, ["22 04:05", "29 04:05"]),
    ("@yearly: Run once a year, 0 0 1 1 *.", "@yearly", SUNDAY, ["01 00:00"]),
    ("@annually: (same as @yearly)", "@annually", SUNDAY, ["01 00:00"]),
    ("@monthly: Run once a month, 0 0 1 * *.", "@monthly", SUNDAY, ["01 00:00"]),
    ("@weekly: Run once a week, 0 0 * * 0.", "@weekly", SUNDAY, ["22 00:00"]),
    ("@daily: Run once a day, 0 0 * * *.", "@daily", SUNDAY, ["16 00:00"]),
    ("@midnight: (same as @daily)", "@midnight", SUNDAY, ["16 00:00"]),
    ("@hourly: Run once an hour, 0 * * * *.", "@hourly", SUNDAY, ["15 09:00"]),
    ("If time has moved forward, those jobs that would have run in the interval … skipped will be run immediately.",
     "30 2 * * *", "2026-03-28 12:00", ["29 03:00", "30 02:30"]),
    ("… will be run immediately: each once, however often it would have run.", "0,20,40 2 * * *", "2026-03-28 12:00",
     ["29 03:00", "30 02:00"]),
    ("Conversely, if time has moved backward, care is taken to avoid running jobs twice.", "30 2 * * *",
     "2026-10-24 12:00", ["25 02:30", "26 02:30"]),
    ("This only applies to jobs that run at a specific time …", "0 1,2,3 * * *", "2026-10-24 12:00",
     ["25 01:00", "25 02:00", "25 03:00", "26 01:00"]),
    ("Jobs that run more frequently are scheduled normally.", "30 * * * *", "2026-03-29 01:00",
     ["29 01:30", "29 03:30"]),
    ("Jobs that run more frequently are scheduled normally.", "30 * * * *", "2026-10-25 01:00",
     ["25 01:30", "25 02:30", "25 02:30", "25 03:30"]),
    ("… scheduled normally: an hour field that begins with * counts as frequent.", "0 */2 * * *", "2026-10-25 01:00",
     ["25 02:00", "25 02:00", "25 04:00"]),
    ("… scheduled normally: so does a minute field that begins with *.", "*/30 2 * * *", "2026-03-28 12:00",
     ["30 02:00", "30 02:30"]),
]  # fmt: skip


@proves("S2", "S4")
@pytest.mark.parametrize(("sentence", "expression", "after", "expected"), VIXIE)
def test_what_vixie_cron_documents_is_what_happens(
    sentence: str, expression: str, after: str, expected: list[str]
) -> None:
    tz = ZoneInfo(BERLIN)
    after_at = datetime.fromisoformat(after).replace(tzinfo=tz).astimezone(UTC)
    begins = f"{after_at:%Y-%m-%d %H:%M}"
    found = [utc(fire_at) for fire_at in next_fires(cron(expression, BERLIN), begins, len(expected))]
    assert [f"{fire_at.astimezone(tz):%d %H:%M}" for fire_at in found] == expected, sentence
    if found[-1] - after_at < 9 * DAY:
        clock = oracle.Clock(BERLIN, after_at - DAY, found[-1] + DAY)
        by_oracle = oracle.fires(
            oracle.Reading(expression), clock, gap="shift", fold="first", begin_at=after_at, end_at=found[-1]
        )
        assert by_oracle == found, sentence


@st.composite
def near_a_change(draw: st.DrawFn) -> tuple[str, datetime, datetime]:
    zone, year = draw(st.sampled_from(CHANGES))
    changes = oracle.year_changes(zone, year)
    assume(changes)  # governments change their minds: a later tzdata may know of none in a year to come
    change_at = draw(st.sampled_from(changes))
    return zone, change_at, change_at + timedelta(seconds=draw(st.integers(-4 * 3600, 4 * 3600)))


@st.composite
def times(draw: st.DrawFn) -> str:
    second = draw(st.sampled_from(["", "", "0 ", "59 ", "*/20 ", "5,6 "]))
    minute = draw(st.sampled_from(["*", "*/15", "0", "30", "5,45", "10-20", "0-59/20", "59", "7/20"]))
    hour = draw(st.sampled_from([23, 0, 1, 2, 2, 3, 4]))
    return f"{second}{minute} " + draw(
        st.sampled_from(["*", "*/2", "0-23", "1-3", "0,2,23", str(hour), str(hour), f"{hour}/1"])
    )


DAYS = st.sampled_from(["* * *", "* * *", "* * *", "L * *", "? * 0L", "*/2 * *", "1-7 * SUN", "29 * 6", "LW * *"])


@proves("S4", "S2")
@SETTINGS
@given(
    near=near_a_change(),
    time=times(),
    days=DAYS,
    gap=st.sampled_from(["shift", "skip"]),
    fold=st.sampled_from(["first", "last", "both"]),
)
def test_fires_near_an_offset_change_are_those_of_the_oracle(
    near: tuple[str, datetime, datetime], time: str, days: str, gap: Gap, fold: Fold
) -> None:
    zone, change_at, after = near
    end_at = after + timedelta(hours=30)
    # More than a whole day around: Samoa's gap is as long as that.
    clock = oracle.Clock(zone, change_at - timedelta(hours=31), change_at + timedelta(hours=61))
    expression = f"{time} {days}"
    expected = oracle.fires(oracle.Reading(expression), clock, gap=gap, fold=fold, begin_at=after, end_at=end_at)
    found = list(takewhile(lambda at: at <= end_at, fires_after(cron(expression, zone, gap, fold), after)))
    assert found == expected
    assert all(earlier < later for earlier, later in pairwise([after, *found]))


# Days of change, and days that come once in years.
RARE = ("* 3 0L", "* 10 0L", "29 2 *", "29 3 *", "29 2 */7", "1-7 10 0", "* 3 SUN#2", "31 12 *", "1 1 *", "L 2 *")


@proves("S4", "S2")
@settings(SETTINGS, max_examples=25)
@given(
    zone=st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia"]),
    time=st.sampled_from(["30 2", "0 0", "15 2", "45 1", "*/30 2", "59 30 2", "0 9"]),
    days=st.sampled_from(RARE),
    gap=st.sampled_from(["shift", "skip"]),
    fold=st.sampled_from(["first", "last", "both"]),
    after=st.datetimes(datetime(2005, 1, 1), datetime(2032, 1, 1)),  # noqa: DTZ001
)
def test_fires_that_are_years_away_are_found_beyond_all_the_changes_before_them(
    zone: str, time: str, days: str, gap: Gap, fold: Fold, after: datetime
) -> None:
    expression = f"{time} {days}"
    reading = oracle.Reading(expression)
    after, end_at = after.replace(tzinfo=UTC), after.replace(tzinfo=UTC) + 5 * 366 * DAY
    expected: set[datetime] = set()
    midnight = datetime(after.year, after.month, after.day, tzinfo=UTC) - 2 * DAY
    while midnight < end_at + 2 * DAY:
        if reading.has_day(midnight.date()):
            # What this day's times become, wherever on earth: the days beside it are looked at for their own.
            clock = oracle.Clock(zone, midnight - 42 * HOUR, midnight + 66 * HOUR)
            expected.update(
                oracle.fires(
                    reading, clock, gap=gap, fold=fold, begin_at=midnight - 15 * HOUR, end_at=midnight + 39 * HOUR
                )
            )
        midnight += DAY
    found = list(takewhile(lambda at: at <= end_at, fires_after(cron(expression, zone, gap, fold), after)))
    assert found == sorted(at for at in expected if after < at <= end_at)


@st.composite
def day_of_month(draw: st.DrawFn) -> str:
    numbers: st.SearchStrategy[str] = fields(1, 31).map(lambda field: field[0])
    terms = st.one_of(numbers, st.sampled_from(["L", "LW"]), st.integers(1, 31).map(lambda day: f"{day}W"))
    return draw(st.one_of(st.sampled_from(["*", "?"]), st.lists(terms, min_size=1, max_size=2).map(",".join)))


@st.composite
def day_of_week(draw: st.DrawFn) -> str:
    name = st.sampled_from([*oracle.WEEKDAYS, *"01234567"])
    numbers: st.SearchStrategy[str] = fields(0, 7).map(lambda field: field[0])
    terms = st.one_of(
        numbers,
        name,
        st.sampled_from(["MON-FRI", "FRI-SUN", "tue-thu", "SAT-SUN"]),
        st.tuples(name, st.integers(1, 5)).map(lambda pair: f"{pair[0]}#{pair[1]}"),
        name.map(lambda weekday: f"{weekday}L"),
    )
    return draw(st.one_of(st.sampled_from(["*", "?"]), st.lists(terms, min_size=1, max_size=2).map(",".join)))


@proves("S2")
@settings(SETTINGS, max_examples=150)
@given(
    day=day_of_month(),
    month=st.one_of(fields(1, 12).map(lambda field: field[0]), st.sampled_from(["feb", "JAN,JUL", "*", "*"])),
    weekday=day_of_week(),
    after=st.dates(date(1999, 1, 1), date(2090, 1, 1)),
)
def test_days_are_those_of_the_oracle(day: str, month: str, weekday: str, after: date) -> None:
    expression = f"0 0 {day} {month} {weekday}"
    reading = oracle.Reading(expression)
    expected = [each for n in range(1, 500) if reading.has_day(each := after + n * DAY)]
    midnight = datetime(after.year, after.month, after.day, tzinfo=UTC)
    if refused(expression):
        assert not expected
        return
    found = takewhile(lambda at: at < midnight + 500 * DAY, fires_after(cron(expression), midnight))
    assert [fire_at.date() for fire_at in found] == expected


def refused(expression: str) -> bool:
    """Whether there is no such day at all: the 31st of June, the fifth Monday that is a first."""
    try:
        check(cron(expression))
    except InvalidSchedule as refusal:
        return "never fires" in refusal.message
    return False


@proves("S2")
@SETTINGS
@given(second=fields(0, 59), minute=fields(0, 59), hour=fields(0, 23), after=st.integers(0, 86_399))
def test_times_of_day_are_those_of_a_walk_through_a_day(second: Field, minute: Field, hour: Field, after: int) -> None:
    day = datetime(2026, 5, 5, tzinfo=UTC)
    expected = next(
        day + timedelta(seconds=at)
        for at in range(after + 1, 2 * 86_400)
        if at % 60 in second[1] and at // 60 % 60 in minute[1] and at // 3600 % 24 in hour[1]
    )
    found = next_fire(cron(f"{second[0]} {minute[0]} {hour[0]} * * *"), day + timedelta(seconds=after))
    assert found == expected
