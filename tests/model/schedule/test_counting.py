"""S6 and S7: the last, the newest and the number of fires in a range are those of a walk through all of them."""

import time
from datetime import datetime, timedelta
from itertools import product, takewhile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from ondot.model.schedule import Blackout, Calendar, Dst, Interval, Once, Rrule, Schedule
from ondot.model.schedule.counting import count_fires, last_fire, newest_fires
from tests.model.schedule.making import Fold, Gap, cron, fields, fires_after, utc
from tests.proves import proves

BERLIN = "Europe/Berlin"
ENOUGH = 100_000
MICROSECOND = timedelta(microseconds=1)
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

GAPS: tuple[Gap, ...] = ("shift", "skip")
FOLDS: tuple[Fold, ...] = ("first", "last", "both")
POLICIES = list(product(GAPS, FOLDS))

# A zone and an instant near one of its odd changes: gaps and folds of a half, one, two, three and 24 hours, at
# midnight, at the turn of a year, with negative summer time.
NEAR = [
    *((BERLIN, utc(day)) for day in ("2026-03-29", "2026-10-25", "2026-12-31")),
    *(("Australia/Lord_Howe", utc(day)) for day in ("2026-04-04", "2026-10-03")),
    *(("Antarctica/Troll", utc(day)) for day in ("2027-03-28", "2027-10-31")),
    *(("Africa/Casablanca", utc(day)) for day in ("2027-02-07", "2027-03-14")),
    *(("America/Havana", utc(day)) for day in ("2030-03-10", "2030-11-03")),
    *(("Europe/Dublin", utc(day)) for day in ("2027-03-28", "2027-10-31")),
    ("Asia/Beirut", utc("2030-03-31")),
    ("Antarctica/Casey", utc("2020-10-03")),
    ("Pacific/Apia", utc("2011-12-30")),
    ("Pacific/Kwajalein", utc("1993-08-21")),
    ("America/St_Johns", utc("2010-11-07")),
    ("UTC", utc("2028-02-29")),
]


@st.composite
def plain_crons(draw: st.DrawFn) -> tuple[Schedule, datetime]:
    zone, near_at = draw(st.sampled_from(NEAR))
    second = draw(st.sampled_from(["", "", "0 ", "*/20 ", "7,59 "]))
    minute = draw(st.one_of(st.sampled_from(["*", "*/15", "0", "30", "5,45", "0-59/20"]), fields(0, 59).map(_text)))
    hour = draw(
        st.one_of(st.sampled_from(["*", "*/2", "0-23", "1-3", "0,2,23", "2", "1", "3"]), fields(0, 23).map(_text))
    )
    day = draw(st.sampled_from(["*", "*", "*", "L", "15W", "1,15,28-31", "*/2"]))
    month = draw(st.sampled_from(["*", "*", "3-10", "*/2"]))
    weekday = draw(st.sampled_from(["*", "*", "*", "1-5", "0", "0L", "SAT#1"]))
    gap, fold = draw(st.sampled_from(POLICIES))
    return cron(f"{second}{minute} {hour} {day} {month} {weekday}", zone, gap, fold), near_at


def _text(field: tuple[str, frozenset[int]]) -> str:
    return field[0]


@st.composite
def ranges(draw: st.DrawFn, near_at: datetime) -> tuple[datetime, datetime]:
    """From some hours before to some hours after; often on a whole hour, where fires and seams are."""
    distances = st.one_of(
        st.integers(-48, 48).map(lambda hours: timedelta(hours=hours)),
        st.integers(-100_000, 100_000).map(lambda seconds: timedelta(seconds=seconds)),
        st.integers(-(10**11), 10**11).map(lambda microseconds: timedelta(microseconds=microseconds)),
    )
    after, until = near_at + draw(distances), near_at + draw(distances)
    return (after, until) if after < until or draw(st.booleans()) else (until, after)


def walked(schedule: Schedule, after: datetime, until: datetime) -> list[datetime]:
    return list(takewhile(lambda at: at <= until, fires_after(schedule, after)))


def assert_as_walked(schedule: Schedule, after: datetime, until: datetime, limit: int) -> None:
    expected = walked(schedule, after, until)
    assert count_fires(schedule, after, until, ENOUGH) == len(expected)
    before = [at for at in expected if at < until]
    assert last_fire(schedule, after, until) == (before[-1] if before else None)
    assert newest_fires(schedule, after, until, limit) == before[-limit:]


@proves("S6", "S7", "S4")
@SETTINGS
@given(data=st.data(), made=plain_crons(), limit=st.integers(1, 300))
def test_what_is_counted_of_a_cron_is_what_a_walk_finds(
    data: st.DataObject, made: tuple[Schedule, datetime], limit: int
) -> None:
    schedule, near_at = made
    after, until = data.draw(ranges(near_at))
    assert_as_walked(schedule, after, until, limit)


@proves("S6", "S7")
@SETTINGS
@given(
    data=st.data(),
    every_us=st.one_of(st.integers(10**6, 10**9), st.sampled_from([60_000_000, 3_600_000_000, 90_000_001])),
    anchor=st.integers(-(10**12), 10**11),
    limit=st.integers(1, 50),
)
def test_what_is_counted_of_an_interval_is_what_a_walk_finds(
    data: st.DataObject, every_us: int, anchor: int, limit: int
) -> None:
    near_at = utc("2026-10-25")
    when = Interval(every_s=every_us / 1e6, anchor_at=near_at + timedelta(microseconds=anchor))
    after, until = data.draw(ranges(near_at))
    assert_as_walked(Schedule(when=when), after, min(until, after + timedelta(hours=3)), limit)


@proves("S6", "S8")
@SETTINGS
@given(data=st.data(), made=plain_crons())
def test_start_and_end_bound_what_is_counted(data: st.DataObject, made: tuple[Schedule, datetime]) -> None:
    schedule, near_at = made
    start_at, end_at = data.draw(ranges(near_at))
    after, until = data.draw(ranges(near_at))
    for when in (schedule.when, Interval(every_s=1800, anchor_at=near_at - timedelta(hours=30))):
        assert_as_walked(Schedule(when=when, start_at=start_at, end_at=end_at), after, until, 7)
    # A bound is included to the microsecond.
    for end in walked(schedule, after, until)[:2]:
        assert count_fires(structs.replace(schedule, start_at=end, end_at=end), after, until, 0) == 1
        assert count_fires(structs.replace(schedule, end_at=end - MICROSECOND), end - MICROSECOND, until, 0) == 0


@proves("S6", "S10")
@SETTINGS
@given(data=st.data(), made=plain_crons(), limit=st.integers(1, 300))
def test_what_a_calendar_leaves_out_is_not_counted(
    data: st.DataObject, made: tuple[Schedule, datetime], limit: int
) -> None:
    schedule, near_at = made
    blackout = Blackout(from_at=near_at - timedelta(hours=5), to_at=near_at + timedelta(hours=1))
    calendar = Calendar(business_days=True, exclude_dates=("2026-10-26",), blackouts=(blackout,))
    after, until = data.draw(ranges(near_at))
    assert_as_walked(structs.replace(schedule, calendar=calendar), after, until, limit)


@proves("S6", "S12")
@settings(SETTINGS, max_examples=60)
@given(data=st.data(), made=plain_crons(), other=plain_crons(), limit=st.integers(1, 100))
def test_rules_that_are_included_count_and_those_excluded_do_not(
    data: st.DataObject, made: tuple[Schedule, datetime], other: tuple[Schedule, datetime], limit: int
) -> None:
    schedule, near_at = made
    after, until = data.draw(ranges(near_at))
    quarterly = Interval(every_s=900, anchor_at=near_at - timedelta(days=3))
    for including in ((other[0].when,), (quarterly, other[0].when)):
        for excluding in ((), (cron("0 */2 * * *", BERLIN).when,)):
            several = structs.replace(schedule, include=including, exclude=excluding)
            assert_as_walked(several, after, min(until, after + timedelta(hours=12)), limit)


@proves("S6", "S7")
def test_a_recurrence_rule_is_counted_as_a_walk_counts_it() -> None:
    begins = datetime(2026, 1, 5, 2, 30)  # noqa: DTZ001
    for text in ("FREQ=DAILY", "FREQ=WEEKLY;BYDAY=SU,WE", "FREQ=MONTHLY;BYMONTHDAY=-1;COUNT=7"):
        for gap, fold in POLICIES:
            when = Rrule(text=text, begins=begins, timezone=BERLIN, dst=Dst(gap=gap, fold=fold))
            assert_as_walked(Schedule(when=when), utc("2025-12-01"), utc("2026-11-15 01:30"), 50)


@proves("S6", "S7")
@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("0 0 29 2 *", BERLIN),
        ("0 12 15W * *", BERLIN),
        ("30 2 L * *", "America/New_York"),
        ("0 0 13 * 5", "Asia/Beirut"),
        ("15 2 * 4,10 0", "Australia/Lord_Howe"),
        ("30 1,2 * * *", "Africa/Casablanca"),
        ("0 */6 */2 * 1-5", "Europe/Dublin"),
    ],
)
def test_decades_are_counted_as_a_walk_counts_them(expression: str, zone: str) -> None:
    for gap, fold in POLICIES:
        schedule = cron(expression, zone, gap, fold)
        assert_as_walked(schedule, utc("2017-06-30 22:17:03"), utc("2031-02-28 23:00"), 40)


@proves("S7")
def test_a_year_of_seconds_is_counted_at_once() -> None:
    every_second = cron("* * * * * *", BERLIN)
    began_s = time.process_time()
    assert count_fires(every_second, utc("2026-01-01"), utc("2027-01-01"), 0) == 365 * 86_400
    assert time.process_time() - began_s < 0.02
    # The clock shows every second of real time; a clock change neither removes nor adds one.
    assert count_fires(every_second, utc("2026-03-29"), utc("2026-03-30"), 0) == 86_400
    assert (
        count_fires(cron("0-59 0-59 0-23 * * *", BERLIN), utc("2026-10-24 22:00"), utc("2026-10-25 23:00"), 0) == 86_400
    )


@proves("S6")
@pytest.mark.timeout(60)
def test_the_newest_after_a_quiet_time_are_found_without_a_walk_through_a_day_of_seconds() -> None:
    mondays = cron("* * * * * 1", BERLIN)
    sunday = utc("2027-01-03")
    assert last_fire(mondays, utc("1990-01-01"), sunday) == utc("2026-12-28 22:59:59")
    newest = newest_fires(mondays, utc("1990-01-01"), sunday, 1000)
    assert newest == walked(mondays, utc("2026-12-28 22:43:19"), sunday)


@proves("S6", "S7")
def test_what_cannot_be_counted_by_arithmetic_is_counted_up_to_a_limit() -> None:
    hourly = structs.replace(cron("0 * * * *"), calendar=Calendar(exclude_dates=("2026-11-16",)))
    assert count_fires(hourly, utc("2026-11-15"), utc("2026-11-18"), 48) == 48
    assert count_fires(hourly, utc("2026-11-15"), utc("2026-11-18"), 47) is None
    once = Schedule(when=Once(at=utc("2026-11-15 12:00")))
    assert count_fires(once, utc("2026-11-15"), utc("2026-11-15 12:00"), 1) == 1
    assert count_fires(once, utc("2026-11-15 12:00"), utc("2026-11-16"), 1) == 0


@proves("S6", "S7")
def test_an_empty_range_holds_nothing() -> None:
    noon = utc("2026-11-15 12:00")
    for schedule in (cron("* * * * * *"), Schedule(when=Interval(every_s=1, anchor_at=noon))):
        for after, until in ((noon, noon), (noon, noon - timedelta(days=1))):
            assert count_fires(schedule, after, until, ENOUGH) == 0
            assert last_fire(schedule, after, until) is None
            assert newest_fires(schedule, after, until, 3) == []
        assert newest_fires(schedule, noon, noon + timedelta(days=1), 0) == []


@proves("S6")
def test_ranges_at_the_edges_of_time_are_counted() -> None:
    schedule = cron("0 0 1 1 *", "Asia/Tokyo")
    assert count_fires(schedule, utc("0001-01-01"), utc("1903-01-01"), ENOUGH) == 3
    never = datetime.max.replace(tzinfo=utc("2026-01-01").tzinfo)
    assert count_fires(schedule, utc("9890-01-01"), never, 100) == len(walked(schedule, utc("9890-01-01"), never))
