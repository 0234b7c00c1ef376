"""S4 and S2 by property: the fires are exactly those that a slow walk through real time finds."""

from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise, takewhile

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ondot.model.schedule import next_fire
from tests.model.schedule import oracle
from tests.model.schedule.making import Field, Fold, Gap, cron, fields, fires_after
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
MINUTES = st.sampled_from(["*", "*/15", "0", "30", "5,45", "10-20", "0-59/20"])
SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


def values(text: str, size: int) -> frozenset[int]:
    """What a field of the few forms used here means."""
    found: set[int] = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        first, _, last = ("0-" + str(size - 1) if span == "*" else span).partition("-")
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return frozenset(found)


@st.composite
def near_a_change(draw: st.DrawFn) -> tuple[str, datetime, datetime]:
    zone, year = draw(st.sampled_from(CHANGES))
    changes = oracle.offset_changes(zone, year)
    assume(changes)  # governments change their minds: a later tzdata may know of none in a year to come
    change_at = draw(st.sampled_from(changes))
    after = change_at + timedelta(seconds=draw(st.integers(-4 * 3600, 4 * 3600)))
    return zone, change_at, after


@st.composite
def hours(draw: st.DrawFn) -> str:
    hour = draw(st.sampled_from([23, 0, 1, 2, 2, 3, 4]))
    return draw(st.sampled_from(["*", "*/2", "0-23", "1-3", "0,2,23", str(hour), str(hour)]))


def assert_strictly_increasing(found: list[datetime], after: datetime) -> None:
    assert all(earlier < later for earlier, later in pairwise([after, *found]))


@proves("S4", "S2")
@SETTINGS
@given(
    near=near_a_change(),
    minute=MINUTES,
    hour=hours(),
    gap=st.sampled_from(["shift", "skip"]),
    fold=st.sampled_from(["first", "last", "both"]),
)
def test_fires_near_an_offset_change_are_those_of_the_oracle(
    near: tuple[str, datetime, datetime], minute: str, hour: str, gap: Gap, fold: Fold
) -> None:
    zone, _, after = near
    end_at = after + timedelta(hours=30)
    is_straight = minute.startswith("*") or hour.startswith("*")
    in_minutes, in_hours = values(minute, 60), values(hour, 24)
    expected = oracle.fires(
        lambda wall: wall.minute in in_minutes and wall.hour in in_hours,
        zone,
        gap="skip" if is_straight else gap,
        fold="both" if is_straight else fold,
        begin_at=after.replace(second=0),
        end_at=end_at,
        step=MINUTE,
        margin=timedelta(hours=26),
    )
    schedule = cron(f"{minute} {hour} * * *", zone, gap, fold)
    found = list(takewhile(lambda at: at <= end_at, fires_after(schedule, after)))
    assert found == [at for at in expected if at > after]
    assert_strictly_increasing(found, after)


@proves("S4", "S2")
@settings(SETTINGS, max_examples=25)
@given(
    near=near_a_change(),
    second=st.sampled_from(["0", "59", "*/20", "*"]),
    minute=st.sampled_from(["*/15", "0", "30", "59"]),
    hour=hours(),
    gap=st.sampled_from(["shift", "skip"]),
    fold=st.sampled_from(["first", "last", "both"]),
)
def test_fires_with_a_seconds_field_are_those_of_the_oracle(
    near: tuple[str, datetime, datetime], second: str, minute: str, hour: str, gap: Gap, fold: Fold
) -> None:
    zone, change_at, _ = near
    assume(zone not in {"Pacific/Apia", "Pacific/Kwajalein"})
    after, end_at = change_at - timedelta(minutes=95), change_at + timedelta(minutes=95)
    is_straight = minute.startswith("*") or hour.startswith("*")
    in_seconds, in_minutes, in_hours = values(second, 60), values(minute, 60), values(hour, 24)
    expected = oracle.fires(
        lambda wall: wall.second in in_seconds and wall.minute in in_minutes and wall.hour in in_hours,
        zone,
        gap="skip" if is_straight else gap,
        fold="both" if is_straight else fold,
        begin_at=after,
        end_at=end_at,
        step=SECOND,
        margin=timedelta(hours=3),
    )
    schedule = cron(f"{second} {minute} {hour} * * *", zone, gap, fold)
    assert list(takewhile(lambda at: at <= end_at, fires_after(schedule, after))) == expected


@proves("S2")
@SETTINGS
@given(
    day=fields(1, 31),
    month=fields(1, 12),
    weekday=fields(0, 7),
    after=st.dates(date(1999, 1, 1), date(2090, 1, 1)),
)
def test_days_are_those_of_the_calendar(day: Field, month: Field, weekday: Field, after: date) -> None:
    """Vixie's rule: both day fields must match if one of them begins with `*`, otherwise either."""
    either = not (day[0].startswith("*") or weekday[0].startswith("*"))

    def matches(a_date: date) -> bool:
        by_day = a_date.day in day[1]
        by_weekday = bool({a_date.isoweekday(), a_date.isoweekday() % 7} & weekday[1])
        return a_date.month in month[1] and ((by_day or by_weekday) if either else (by_day and by_weekday))

    candidates = (after + timedelta(days=days) for days in range(1, 9 * 366))
    expected = next((a_date for a_date in candidates if matches(a_date)), None)
    assume(expected is not None)
    midnight = datetime(after.year, after.month, after.day, tzinfo=UTC)
    fire_at = next_fire(cron(f"0 0 {day[0]} {month[0]} {weekday[0]}"), midnight)
    assert fire_at is not None
    assert fire_at.date() == expected


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


@proves("S2")
@given(day=st.integers(1, 31), year=st.integers(2000, 2080), month=st.integers(1, 12))
def test_the_nearest_weekday_is_a_weekday_of_the_same_month_and_none_is_nearer(day: int, year: int, month: int) -> None:
    length = monthrange(year, month)[1]
    after = datetime(year, month, 1, tzinfo=UTC) - SECOND
    fire_at = next_fire(cron(f"0 0 {day}W * *"), after)
    assert fire_at is not None
    if day > length:
        assert (fire_at.year, fire_at.month) > (year, month)
        return
    weekdays = [d for d in range(1, length + 1) if date(year, month, d).weekday() < 5]
    nearest = min(weekdays, key=lambda d: abs(d - day))
    assert fire_at.date() == date(year, month, nearest)
