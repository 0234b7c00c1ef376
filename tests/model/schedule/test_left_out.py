"""S10: the fires that only the calendar leaves out, found without walking those that it keeps."""

from datetime import datetime, timedelta
from time import perf_counter
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.model.schedule import Blackout, Calendar, Cron, Interval, Schedule, left_out
from ondot.model.schedule.calendar import exclusion_at
from tests.model.schedule.making import cron, fires_after, utc
from tests.proves import proves

BERLIN = "Europe/Berlin"
NOON = utc("2026-11-15 12:00")
DAY = timedelta(days=1)
YEAR_LONG = Calendar(blackouts=(Blackout(from_at=NOON, to_at=NOON + 365 * DAY),))


def texts(fires: list[datetime]) -> list[str]:
    return [f"{fire_at:%m-%d %H:%M:%S}" for fire_at in fires]


@proves("S10")
@given(
    expression=st.sampled_from(["0 9 * * *", "*/20 * * * *", "0 0 1 * *", "0 */5 * * 1-5", "30 2 * * *"]),
    zone=st.sampled_from(["UTC", BERLIN, "Pacific/Auckland", "America/New_York"]),
    excluding=st.sampled_from(["", "0 * * * *", "* * * * 3"]),
    dates=st.sets(st.integers(0, 30), max_size=5),
    windows=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 200)), max_size=3),
    weekends=st.sampled_from([False, True, "next"]),
    after=st.integers(-100, 700),
    hours=st.integers(0, 400),
    at_most=st.integers(0, 30),
)
@settings(max_examples=200, deadline=None)
def test_they_are_the_fires_without_calendar_that_it_excludes(
    expression: str,
    zone: str,
    excluding: str,
    dates: set[int],
    windows: list[tuple[int, int]],
    weekends: bool | Literal["next"],
    after: int,
    hours: int,
    at_most: int,
) -> None:
    origin = utc("2026-03-20 00:30")
    calendar = Calendar(
        exclude_dates=tuple(f"{origin + n * DAY:%Y-%m-%d}" for n in dates),
        business_days=weekends,
        blackouts=tuple(
            Blackout(from_at=origin + timedelta(hours=a), to_at=origin + timedelta(hours=a + n)) for a, n in windows
        ),
    )
    schedule = Schedule(
        when=Cron(expression=expression, timezone=zone),
        exclude=(Cron(expression=excluding),) if excluding else (),
        calendar=calendar,
        start_at=origin,
    )
    after_at = origin + timedelta(hours=after)
    until_at = after_at + timedelta(hours=hours)
    without = Calendar(exclude_dates=calendar.exclude_dates, business_days=weekends) if weekends == "next" else None
    everything = Schedule(
        when=schedule.when, exclude=schedule.exclude, calendar=without, start_at=origin, end_at=until_at
    )
    expected = [
        fire_at for fire_at in fires_after(everything, after_at) if exclusion_at(calendar, zone, fire_at) is not None
    ]
    assert left_out(schedule, after_at, until_at, at_most) == expected[:at_most]


@proves("S10")
def test_holidays_and_weekends_are_listed_and_what_a_rule_excludes_is_not() -> None:
    schedule = Schedule(
        when=cron("0 9 * * *", BERLIN).when,
        exclude=(cron("0 9 26 12 *", BERLIN).when,),
        calendar=Calendar(exclude_holidays="DE", business_days=True),
    )
    found = left_out(schedule, utc("2026-12-24 12:00"), utc("2026-12-31 00:00"), 10)
    assert texts(found) == ["12-25 08:00:00", "12-27 08:00:00"]


@proves("S10")
def test_a_schedule_whose_fires_move_has_only_those_of_blackouts() -> None:
    moving = Schedule(when=cron("0 9 * * *").when, calendar=Calendar(business_days="next"))
    assert left_out(moving, NOON, NOON + 30 * DAY, 10) == []
    window = Blackout(from_at=utc("2026-11-16 00:00"), to_at=utc("2026-11-17 00:00"))
    moving = Schedule(when=moving.when, calendar=Calendar(business_days="next", blackouts=(window,)))
    assert texts(left_out(moving, NOON, NOON + 30 * DAY, 10)) == ["11-16 09:00:00"]


@proves("S10")
def test_bounds_hold_and_a_schedule_without_calendar_has_none() -> None:
    when = Interval(every_s=3600, anchor_at=NOON)
    assert left_out(Schedule(when=when), NOON, NOON + DAY, 10) == []
    bounded = Schedule(
        when=when, calendar=YEAR_LONG, start_at=NOON + timedelta(hours=5), end_at=NOON + timedelta(hours=6)
    )
    assert texts(left_out(bounded, NOON - DAY, NOON + DAY, 10)) == ["11-15 17:00:00", "11-15 18:00:00"]
    assert texts(left_out(bounded, NOON + timedelta(hours=5), NOON + timedelta(hours=6), 10)) == ["11-15 18:00:00"]
    assert left_out(bounded, NOON, NOON + DAY, 0) == []


@proves("S10")
def test_neither_a_year_of_kept_fires_nor_a_year_of_those_left_out_is_walked() -> None:
    per_second = Schedule(when=Cron(expression="* * * * * *", timezone=BERLIN), calendar=YEAR_LONG)
    began = perf_counter()
    assert len(left_out(per_second, NOON - 365 * DAY, NOON + 365 * DAY, 3)) == 3
    late = Schedule(when=per_second.when, calendar=Calendar(exclude_dates=("2026-12-24",)))
    assert texts(left_out(late, utc("2026-01-01 00:00"), utc("2026-12-31 00:00"), 1)) == ["12-23 23:00:00"]
    assert left_out(late, utc("2026-12-24 23:00"), utc("2027-12-24 23:00"), 1) == []
    assert perf_counter() - began < 1  # 5 ms
    assert left_out(late, NOON, NOON.replace(year=9999), 1) != []
