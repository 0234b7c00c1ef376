"""S10: slots on days off move to the next or previous business day; against a brute force that lists and sorts."""

from bisect import bisect_right
from datetime import date, datetime, timedelta
from itertools import islice, pairwise
from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.model.errors import InvalidSchedule
from ondot.model.schedule import (
    Blackout,
    Calendar,
    Cron,
    Interval,
    Once,
    Rrule,
    Schedule,
    check,
    in_words,
    next_fire,
    preview,
)
from ondot.model.schedule.business import move_slots
from tests.model.schedule.making import cron, fields, fires_after, next_fires, utc
from tests.proves import proves

Moves = Literal["next", "previous"]
BERLIN = "Europe/Berlin"
DAY = timedelta(days=1)
MONDAY = datetime(2026, 11, 2)  # noqa: DTZ001  wall time
NOON = utc("2026-11-15 12:00")


def moving(expression: str, moves: Moves, zone: str = BERLIN, country: str | None = None) -> Schedule:
    calendar = Calendar(business_days=moves, exclude_holidays=country)
    return Schedule(when=Cron(expression=expression, timezone=zone), calendar=calendar)


def target_of(day: date, off: set[date], moves: Moves) -> date:
    while day in off:
        day += DAY if moves == "next" else -DAY
    return day


@proves("S10")
@given(
    minutes=st.sets(st.integers(0, 40 * 24 * 12), max_size=60),
    off=st.sets(st.integers(-3, 45), max_size=40),
    after=st.integers(-300, 50 * 24 * 12),
    moves=st.sampled_from(["next", "previous"]),
)
@settings(max_examples=400, deadline=None)
def test_moved_slots_are_those_of_a_brute_force(minutes: set[int], off: set[int], after: int, moves: Moves) -> None:
    slots = sorted(MONDAY + timedelta(minutes=5 * n) for n in minutes)
    days_off = {MONDAY.date() + DAY * n for n in off}

    def slot_after(wall: datetime) -> datetime | None:
        index = bisect_right(slots, wall)
        return slots[index] if index < len(slots) else None

    expected = sorted({datetime.combine(target_of(slot.date(), days_off, moves), slot.time()) for slot in slots})
    moved_after = move_slots(slot_after, days_off.__contains__, moves)
    wall = MONDAY + timedelta(minutes=5 * after)
    expected = expected[bisect_right(expected, wall) :]
    found = []
    while (following := moved_after(wall)) is not None:
        found.append(wall := following)
        assert len(found) <= len(expected)
    assert found == expected


@proves("S10", "S4")
@given(
    hour=fields(0, 23),
    day=fields(1, 31),
    start=st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)),  # noqa: DTZ001
    moves=st.sampled_from(["next", "previous"]),
    zone=st.sampled_from(["UTC", BERLIN, "Australia/Lord_Howe", "America/New_York"]),
)
@settings(max_examples=100, deadline=None)
def test_moved_fires_strictly_increase_and_lie_on_business_days(
    hour: tuple[str, frozenset[int]], day: tuple[str, frozenset[int]], start: datetime, moves: Moves, zone: str
) -> None:
    schedule = moving(f"30 {hour[0]} {day[0]} * *", moves, zone)
    after = utc(f"{start:%Y-%m-%d %H:%M:%S}")
    fires = list(islice(fires_after(schedule, after), 20))
    assert all(sooner < later for sooner, later in pairwise([after, *fires]))
    shown = preview(schedule, after, 20).fires
    assert [fire.fire_at for fire in shown] == fires
    assert all(datetime.fromisoformat(fire.local).weekday() < 5 for fire in shown)
    if fires:
        for_each = next_fire(schedule, fires[-1] - timedelta(microseconds=1))
        assert for_each == fires[-1]


@proves("S10")
def test_payday_on_a_day_off_moves_to_the_business_day_that_was_asked_for() -> None:
    # 2026-08-15 is a Saturday, 2026-11-15 a Sunday, 2026-12-25 a holiday before a weekend.
    for day, moves, expected in [
        ("15 8", "next", "2026-08-17"),
        ("15 8", "previous", "2026-08-14"),
        ("15 11", "next", "2026-11-16"),
        ("15 11", "previous", "2026-11-13"),
        ("25 12", "next", "2026-12-28"),
        ("25 12", "previous", "2026-12-24"),
    ]:
        schedule = moving(f"0 9 {day} *", moves, "UTC", "DE")  # type: ignore[arg-type]
        check(schedule)
        assert next_fires(schedule, "2026-08-01 00:00", 1) == [f"{expected} 09:00:00"]


@proves("S10")
def test_a_slot_may_move_to_before_one_that_came_sooner() -> None:
    schedule = Schedule(
        when=cron("0 17 * * 5").when, include=(cron("0 9 * * 6").when,), calendar=Calendar(business_days="previous")
    )
    expected = ["2026-11-20 09:00:00", "2026-11-20 17:00:00", "2026-11-27 09:00:00"]
    assert next_fires(schedule, "2026-11-15 00:00", 3) == expected
    assert next_fires(moving("0 9,17 * * 5,6", "previous", "UTC"), "2026-11-15 00:00", 3) == expected


@proves("S10")
def test_what_lands_on_one_instant_fires_once() -> None:
    assert next_fires(moving("0 9 * * *", "next", "UTC"), "2026-11-12 12:00", 3) == [
        "2026-11-13 09:00:00",
        "2026-11-16 09:00:00",
        "2026-11-17 09:00:00",
    ]


@proves("S10", "S4")
def test_a_slot_that_moves_out_of_a_gap_is_not_shifted_by_it_and_one_that_moves_into_one_is() -> None:
    # Clocks change on Sundays, which are business days in Egypt and days off in Germany.
    assert next_fires(moving("30 2 29 3 *", "next"), "2026-03-01 00:00", 1) == ["2026-03-30 00:30:00"]
    calendar = Calendar(exclude_dates=("2026-03-28",), business_days="next", exclude_holidays="EG")
    sunday = Schedule(when=Cron(expression="30 2 28 3 *", timezone=BERLIN), calendar=calendar)
    assert next_fires(sunday, "2026-03-01 00:00", 1) == ["2026-03-29 01:00:00"]
    assert preview(sunday, utc("2026-03-01 00:00"), 1).fires[0].remark == "shifted"


@proves("S10")
def test_a_moved_fire_inside_a_blackout_is_left_out() -> None:
    window = Blackout(from_at=utc("2026-11-16 00:00"), to_at=utc("2026-11-17 00:00"))
    schedule = Schedule(
        when=cron("0 9 15,16,20 * *").when, calendar=Calendar(business_days="next", blackouts=(window,))
    )
    shown = preview(schedule, utc("2026-11-15 00:00"), 1)
    assert [fire.local for fire in shown.fires] == ["2026-11-20T09:00:00+00:00"]
    assert [(entry.local, entry.reason) for entry in shown.skipped] == [("2026-11-16T09:00:00+00:00", "blackout")]


@proves("S10", "S9")
def test_the_preview_marks_moved_fires_as_shifted_and_skips_none() -> None:
    shown = preview(moving("0 9 15 * *", "next", BERLIN, "DE"), utc("2026-11-01 00:00"), 3)
    assert [(fire.local, fire.remark) for fire in shown.fires] == [
        ("2026-11-16T09:00:00+01:00", "shifted"),
        ("2026-12-15T09:00:00+01:00", None),
        ("2027-01-15T09:00:00+01:00", None),
    ]
    assert shown.skipped == ()
    assert "on days off moved to the next business day of DE" in shown.in_words
    with_date = Schedule(
        when=cron("@daily").when, calendar=Calendar(business_days="next", exclude_dates=("2026-12-24",))
    )
    assert in_words(with_date).endswith("on days off moved to the next business day, with 2026-12-24 off")


@proves("S10")
def test_a_recurrence_moves_too() -> None:
    when = Rrule(text="FREQ=MONTHLY;BYMONTHDAY=15", begins=datetime(2026, 1, 1, 9), timezone=BERLIN)  # noqa: DTZ001
    schedule = Schedule(when=when, calendar=Calendar(business_days="previous"))
    check(schedule)
    assert next_fires(schedule, "2026-11-01 00:00", 2) == ["2026-11-13 08:00:00", "2026-12-15 08:00:00"]


@proves("S10")
@pytest.mark.parametrize("when", [Once(at=NOON), Interval(every_s=3600, anchor_at=NOON)])
def test_only_times_of_a_clock_can_move(when: Once | Interval) -> None:
    for schedule in (
        Schedule(when=when, calendar=Calendar(business_days="next")),
        Schedule(when=cron("@daily").when, include=(when,), calendar=Calendar(business_days="next")),
    ):
        with pytest.raises(InvalidSchedule) as refusal:
            check(schedule)
        (fault,) = refusal.value.faults
        assert fault.pointer == "/calendar/business_days"
        assert "use cron or rrule, or set business_days to true" in fault.message


@proves("S10")
def test_a_leap_day_is_found_over_empty_years_and_the_end_of_time_ends_the_search() -> None:
    assert next_fires(moving("0 9 29 2 *", "next", "UTC"), "2026-11-15 00:00", 2) == [
        "2028-02-29 09:00:00",
        "2032-03-01 09:00:00",  # the 29th is a Sunday
    ]
    assert next_fire(moving("0 9 * * *", "next"), utc("9899-12-31 00:00")) is None
    assert next_fire(moving("0 9 * * *", "previous"), utc("9999-12-01 00:00")) is None


@proves("S10")
def test_calendars_that_move_are_stored_and_read_back() -> None:
    for written in (b'{"business_days":"next"}', b'{"business_days":true}', b'{"business_days":"previous"}'):
        assert msgspec.json.encode(msgspec.json.decode(written, type=Calendar)) == written
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"business_days":"nearest"}', type=Calendar)
