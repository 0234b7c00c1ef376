"""What a search may look at: schedules made to exhaust are refused or given up, and all others answer as before."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.model.errors import InvalidSchedule
from ondot.model.schedule import Calendar, Cron, GivenUp, Interval, Rrule, Schedule, When, check, next_fire, preview
from ondot.model.schedule.check import LOOKS_TO_CHECK
from ondot.model.schedule.looks import A_REQUEST, Spent, TooCostly, allowed
from ondot.model.schedule.rrule import require_slot
from ondot.model.schedule.when import next_after
from tests.proves import proves

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
BEGINS = NOON.replace(tzinfo=None)
EVERY_SECOND = Cron(expression="* * * * * *")


def seconds(every_s: int, offset_s: int = 0) -> Interval:
    return Interval(every_s=every_s, anchor_at=NOON + timedelta(seconds=offset_s))


def rrule(text: str) -> Rrule:
    return Rrule(text=text, begins=BEGINS)


BOMBS: dict[str, Schedule] = {
    "two halves": Schedule(when=EVERY_SECOND, exclude=(seconds(2), seconds(2, 1))),
    "one in an hour": Schedule(
        when=seconds(1),
        exclude=(
            *(seconds(100, n) for n in range(1, 98)),
            rrule(f"FREQ=SECONDLY;BYMINUTE={','.join(map(str, range(59)))}"),
        ),
    ),
    "an hour without": Schedule(
        when=EVERY_SECOND, exclude=(rrule(f"FREQ=SECONDLY;BYHOUR={','.join(map(str, range(23)))}"),)
    ),
    "a period in thousands": Schedule(when=rrule("FREQ=SECONDLY;INTERVAL=3599;BYMINUTE=0;BYSECOND=0;BYHOUR=3")),
    "a count of rare ones": Schedule(when=rrule("FREQ=SECONDLY;INTERVAL=3599;BYMINUTE=0;BYSECOND=0;COUNT=9000")),
    "rare ones, many times": Schedule(
        when=EVERY_SECOND,
        include=tuple(rrule(f"FREQ=SECONDLY;INTERVAL={3600 - n};BYMINUTE=0;BYSECOND=0") for n in range(1, 60, 2)),
    ),
    "days off": Schedule(
        when=Cron(expression="* * * * * *"),
        calendar=Calendar(
            business_days="next", exclude_dates=tuple(f"{NOON + timedelta(days=n):%Y-%m-%d}" for n in range(1000))
        ),
    ),
}


@proves("S12")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_schedule_that_takes_too_long_is_refused_with_the_part_to_change(bomb: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        check(BOMBS[bomb], NOON)
    [fault] = refused.value.faults
    assert fault.pointer in {"/exclude", "/rrule", "/include", "/calendar"}
    assert "too long to compute" in fault.message or "leave" in fault.message


@proves("S12")
@pytest.mark.parametrize("bomb", BOMBS)
def test_what_a_search_costs_is_the_same_each_time(bomb: str) -> None:
    left = []
    for _ in range(2):
        with allowed(A_REQUEST) as looks, suppress(GivenUp, Spent):
            check_cost(BOMBS[bomb])
        left.append(looks.left)
    assert left[0] == left[1]


def check_cost(schedule: Schedule) -> None:
    for rule in (schedule.when, *schedule.include):
        if isinstance(rule, Rrule):
            require_slot(rule)
    preview(schedule, NOON, 3)


@proves("S12")
def test_99_rules_that_exclude_something_now_and_then_are_cheap() -> None:
    rules = tuple(Cron(expression=f"{n % 60} {n // 60} * * * *") for n in range(99))
    schedule = Schedule(when=EVERY_SECOND, exclude=rules)
    check(schedule, NOON)
    with allowed(LOOKS_TO_CHECK):
        shown = preview(schedule, NOON, 1000)
    assert len(shown.fires) == 1000
    assert shown.fires[0].fire_at == NOON + timedelta(seconds=99)


@proves("S12")
def test_a_request_that_asks_for_too_much_is_given_up() -> None:
    sparse = Schedule(when=EVERY_SECOND, exclude=(rrule(f"FREQ=SECONDLY;BYSECOND={','.join(map(str, range(59)))}"),))
    check(sparse, NOON)
    assert len(preview(sparse, NOON, 10).fires) == 10
    with pytest.raises(GivenUp):
        preview(sparse, NOON, 1000)


@proves("S12")
def test_a_search_that_gives_up_can_go_on_from_where_it_stands() -> None:
    hours = ",".join(map(str, range(12, 23)))
    schedule = Schedule(when=EVERY_SECOND, exclude=(rrule(f"FREQ=SECONDLY;BYHOUR={hours}"),))
    after, found, tries = NOON, None, 0
    while found is None:
        tries += 1
        assert tries < 10
        before = after
        try:
            with allowed(20_000):
                found = next_fire(schedule, after)
        except GivenUp as search:
            after = search.reached_at - timedelta(microseconds=1)
        assert found is not None or after > before
    assert found == NOON.replace(hour=23)
    assert tries > 2
    with pytest.raises(TooCostly), allowed(20_000, is_strict=True):
        next_fire(schedule, NOON)


@proves("S12")
def test_what_is_spent_inside_a_budget_is_taken_from_the_one_around_it() -> None:
    schedule = Schedule(when=EVERY_SECOND, exclude=(seconds(2),))
    with allowed(A_REQUEST) as outer:
        with allowed(A_REQUEST) as inner:
            next_fire(schedule, NOON)
        assert A_REQUEST > inner.left == outer.left
    with allowed(1) as outer:
        with allowed(A_REQUEST):
            preview(schedule, NOON, 5)
        assert outer.is_spent


_RULES = st.sampled_from(
    [
        *(
            Cron(expression=text, timezone=zone)
            for text in ("*/7 * * * * *", "0 */5 * * * *", "30 2 * * *", "0 0 29 2 *")
            for zone in ("UTC", "Europe/Berlin")
        ),
        *(seconds(every_s, offset_s) for every_s in (7, 60, 3600) for offset_s in (0, 14)),
        rrule("FREQ=MINUTELY;INTERVAL=3"),
        rrule("FREQ=HOURLY;BYMINUTE=0,5,30;BYSECOND=30"),
    ]
)


def _plainly(rules: list[When], excluded: list[When], after: datetime, n: int) -> list[datetime]:
    """The same without a budget, a queue or a memory: each rule is asked each time."""
    fires: list[datetime] = []
    at: datetime | None = after
    for _ in range(2000):
        ats = [found for rule in rules if at is not None and (found := next_after(rule, at)) is not None]
        at = min(ats, default=None)
        if at is None or len(fires) == n:
            break
        if all(next_after(rule, at - timedelta(microseconds=1)) != at for rule in excluded):
            fires.append(at)
    return fires


@settings(max_examples=60, deadline=None)
@given(
    st.lists(_RULES, min_size=1, max_size=3),
    st.lists(_RULES, max_size=4),
    st.integers(0, 10**8),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_a_budget_changes_no_answer_in_whichever_order_it_is_asked(
    rules: list[When], excluded: list[When], offset_s: int, order: list[int]
) -> None:
    after = NOON + timedelta(seconds=offset_s)
    schedule = Schedule(when=rules[0], include=tuple(rules[1:]), exclude=tuple(excluded))
    expected = _plainly(rules, excluded, after, 31)
    with allowed(A_REQUEST):
        found, at = [], after
        for _ in islice(expected, 30):
            fire_at = next_fire(schedule, at)
            assert fire_at is not None
            found.append(fire_at)
            at = fire_at
        assert found == expected[:30]
        for place in order:
            if place + 1 < len(expected):
                assert next_fire(schedule, expected[place]) == expected[place + 1]
