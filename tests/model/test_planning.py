"""What planning does to one timer: every due fire is accounted for once, whatever was missed."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.misfire import Misfire
from ondot.model.planning import (
    SkippedRange,
    Step,
    Timer,
    advance,
    calendar_range,
    cut,
    fired_through_after_take_back,
    fires_between,
    fires_from,
    settled_ranges,
)
from ondot.model.schedule import Blackout, Calendar, Cron, Interval, Once, Schedule, next_fire
from tests.proves import proves

NOON = datetime(2031, 3, 3, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def every(seconds: float, **fields: object) -> Schedule:
    return Schedule(when=Interval(every_s=seconds, anchor_at=NOON), **fields)  # type: ignore[arg-type]


def timer(next_fire_at: datetime | None, fires_left: int | None = None) -> Timer:
    return Timer(JobId(UUID(int=1)), DEFAULT_TENANT, 0, 1, 1, next_fire_at, fired_through=NOON, fires_left=fires_left)


def all_between(schedule: Schedule, from_at: datetime, to_at: datetime) -> list[datetime]:
    return fires_between(schedule, from_at - timedelta(microseconds=1), to_at, at_most=100_000)


def caught_up(schedule: Schedule, step: Step) -> list[datetime]:
    owed = all_between(schedule, step.owed.from_at, step.owed.to_at) if step.owed else []
    assert len(owed) == (step.owed.count if step.owed else 0)
    return [*([step.catch_up] if step.catch_up else []), *owed]


def run_dry(schedule: Schedule, current: Timer, *, now: datetime, horizon_at: datetime, limit: int) -> list[Step]:
    """Advance until nothing before the horizon is left, as the planner does."""
    steps = []
    while current.next_fire_at is not None and current.next_fire_at <= horizon_at:
        step = advance(schedule, current, now=now, horizon_at=horizon_at, limit=limit)
        assert step.next_fire_at is None or step.next_fire_at > current.next_fire_at
        steps.append(step)
        current = replace(
            current,
            next_fire_at=step.next_fire_at,
            fired_through=step.fired_through,
            fires_left=step.fires_left,
        )
    return steps


policies = st.builds(
    Misfire,
    policy=st.sampled_from(["skip", "once", "all"]),
    grace_s=st.integers(0, 120),
    window_s=st.integers(0, 2000),
    limit=st.integers(1, 30),
)


@given(
    misfire=policies,
    every_s=st.integers(1, 120),
    now_s=st.integers(0, 3000),
    horizon_s=st.integers(5, 60),
    limit=st.integers(1, 100),
)
@proves("S6", "P3", "P4")
def test_every_fire_up_to_the_horizon_is_planned_or_skipped_exactly_once(
    misfire: Misfire, every_s: int, now_s: int, horizon_s: int, limit: int
) -> None:
    schedule = every(every_s, misfire=misfire)
    now, horizon_at = at(now_s), at(now_s + horizon_s)
    steps = run_dry(schedule, timer(at(every_s)), now=now, horizon_at=horizon_at, limit=limit)
    planned = [fire for step in steps for fire in (*caught_up(schedule, step), *step.fires)]
    skipped = [
        fire for step in steps for entry in step.skipped for fire in all_between(schedule, entry.from_at, entry.to_at)
    ]
    assert sum(entry.count or 0 for step in steps for entry in step.skipped) == len(skipped)
    due = all_between(schedule, at(1), horizon_at)
    assert sorted(planned + skipped) == due
    grace = timedelta(seconds=misfire.grace_s)
    assert {fire for step in steps for fire in step.fires} == {fire for fire in due if fire + grace >= now}
    if steps:
        assert steps[-1].fired_through == due[-1]


@proves("S6", "P4")
@pytest.mark.parametrize(("policy", "run"), [("skip", 0), ("once", 1), ("all", 100)])
def test_an_outage_of_years_is_one_step_and_runs_no_more_than_the_policy_allows(policy: str, run: int) -> None:
    schedule = every(1, misfire=Misfire(policy=policy))  # type: ignore[arg-type]
    seconds = 5 * 365 * 86_400
    [step, *_] = run_dry(schedule, timer(at(1)), now=at(seconds), horizon_at=at(seconds), limit=100)
    newest = seconds - 61
    assert caught_up(schedule, step) == [at(newest - n) for n in reversed(range(run))]
    assert [entry.count for entry in step.skipped] == [newest - run]


@given(
    closed=st.lists(st.tuples(st.integers(0, 600), st.integers(1, 200)), max_size=3),
    misfire=policies,
    every_s=st.integers(5, 90),
    stops=st.lists(st.integers(0, 900), min_size=1, max_size=4),
)
@proves("S6", "S10", "P4")
def test_every_fire_with_those_that_the_calendar_leaves_out_has_one_end_on_record(
    closed: list[tuple[int, int]], misfire: Misfire, every_s: int, stops: list[int]
) -> None:
    blackouts = tuple(Blackout(from_at=at(begin), to_at=at(begin + length)) for begin, length in closed)
    schedule = every(every_s, misfire=misfire, calendar=Calendar(blackouts=blackouts))
    unrestricted = every(every_s)
    current = timer(next_fire(schedule, NOON))
    planned: list[datetime] = []
    ranges: list[SkippedRange] = []
    for now_s in sorted(stops):
        for step in run_dry(schedule, current, now=at(now_s), horizon_at=at(now_s + 20), limit=7):
            planned += [*caught_up(schedule, step), *step.fires]
            ranges += step.skipped
            current = replace(current, next_fire_at=step.next_fire_at, fired_through=step.fired_through)
    assert current.fired_through is not None
    recorded = [fire for entry in ranges for fire in all_between(unrestricted, entry.from_at, entry.to_at)]
    assert sorted(planned + recorded) == all_between(unrestricted, at(1), current.fired_through)


@given(
    every_s=st.integers(1, 50),
    first=st.integers(0, 20),
    length=st.integers(1, 20),
    inside=st.tuples(st.integers(0, 19), st.integers(1, 20)),
    counted=st.booleans(),
)
@proves("S7", "P4")
def test_a_skipped_range_is_cut_to_what_was_not_filled(
    every_s: int, first: int, length: int, inside: tuple[int, int], counted: bool
) -> None:
    schedule = every(every_s)
    fires = [at((first + n) * every_s) for n in range(length)]
    filled = fires[inside[0] : inside[0] + inside[1]] or fires[-1:]
    whole = SkippedRange(fires[0], fires[-1], "paused", len(fires) if counted else None)
    parts = cut(whole, schedule, filled)
    left = [fire for part in parts for fire in all_between(schedule, part.from_at, part.to_at)]
    assert left == [fire for fire in fires if fire not in filled]
    assert all(part.reason == "paused" for part in parts)
    if counted:
        assert sum(part.count or 0 for part in parts) == len(left)


closed_times = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=3)


def with_closed_times(closed: list[tuple[int, int]]) -> Schedule:
    blackouts = tuple(Blackout(from_at=at(begin), to_at=at(begin + length)) for begin, length in closed)
    return every(1, calendar=Calendar(blackouts=blackouts))


def check_ranges(schedule: Schedule, ranges: list[SkippedRange], expected: list[datetime]) -> None:
    """The ranges hold these fires, each once, and each range counts the ones that its reason concerns."""
    assert [fire for part in ranges for fire in all_between(every(1), part.from_at, part.to_at)] == expected
    for part in ranges:
        kept = all_between(schedule, part.from_at, part.to_at)
        assert (part.reason == "calendar") == (not kept)
        assert part.count == len(kept or all_between(every(1), part.from_at, part.to_at))


@given(closed=closed_times, first_s=st.integers(0, 40), now_s=st.integers(0, 90))
@proves("S8", "S10", "P4")
def test_a_pause_skips_the_fires_that_the_calendar_leaves_out_before_and_after_the_others(
    closed: list[tuple[int, int]], first_s: int, now_s: int
) -> None:
    schedule = with_closed_times(closed)
    ranges = settled_ranges(schedule, at(first_s), at(now_s), paused=True)
    check_ranges(schedule, ranges, all_between(every(1), at(first_s + 1), at(now_s)))


@given(
    closed=closed_times,
    first_s=st.integers(0, 40),
    length=st.integers(1, 50),
    filled_s=st.sets(st.integers(0, 90), min_size=1, max_size=4),
)
@proves("S7", "S10", "P4")
def test_a_cut_keeps_the_fires_that_the_calendar_leaves_out_beside_the_one_that_ran(
    closed: list[tuple[int, int]], first_s: int, length: int, filled_s: set[int]
) -> None:
    schedule = with_closed_times(closed)
    fires = all_between(every(1), at(first_s), at(first_s + length))
    filled = [fire for fire in fires if fire in {at(second) for second in filled_s}]
    whole = SkippedRange(fires[0], fires[-1], "misfire", None)
    check_ranges(schedule, cut(whole, schedule, filled), [fire for fire in fires if fire not in filled])


@given(every_s=st.integers(1, 50), seconds=st.integers(0, 500), at_most=st.integers(0, 30))
@proves("S7")
def test_a_range_is_worked_off_from_its_one_end_or_from_the_other(every_s: int, seconds: int, at_most: int) -> None:
    schedule = every(every_s)
    whole = all_between(schedule, NOON, at(seconds))
    assert fires_from(schedule, NOON, at(seconds), newest_first=False, at_most=at_most) == whole[:at_most]
    newest = whole[len(whole) - min(at_most, len(whole)) :]
    assert fires_from(schedule, NOON, at(seconds), newest_first=True, at_most=at_most) == newest


@given(max_fires=st.integers(1, 20), now_s=st.integers(0, 600), misfire=policies)
@proves("S8")
def test_no_more_is_fired_than_may_be_and_then_the_timer_stands_still(
    max_fires: int, now_s: int, misfire: Misfire
) -> None:
    schedule = every(10, misfire=misfire, max_fires=max_fires)
    steps = run_dry(schedule, timer(at(10), max_fires), now=at(now_s), horizon_at=at(now_s + 60), limit=5)
    fired = sum(len(caught_up(schedule, step)) + len(step.fires) for step in steps)
    assert fired <= max_fires
    if steps:
        assert steps[-1].fires_left == max_fires - fired
        assert (steps[-1].next_fire_at is None) == (fired == max_fires)


@proves("S1")
def test_a_one_time_job_fires_once_and_has_nothing_after() -> None:
    schedule = Schedule(when=Once(at=at(5)))
    step = advance(schedule, timer(at(5)), now=NOON, horizon_at=at(20), limit=100)
    assert (step.fires, step.next_fire_at, step.fired_through) == ((at(5),), None, at(5))


@proves("S6", "L2")
def test_a_fire_is_missed_only_when_its_grace_is_over() -> None:
    schedule = every(3600, misfire=Misfire(policy="skip", grace_s=60))
    in_time = advance(schedule, timer(NOON), now=at(60), horizon_at=at(80), limit=100)
    assert (in_time.fires, in_time.skipped) == ((NOON,), ())
    late = advance(schedule, timer(NOON), now=at(60.000001), horizon_at=at(80), limit=100)
    assert (late.fires, len(late.skipped)) == ((), 1)


@proves("S8", "P3")
def test_after_a_take_back_nothing_counts_as_fired_beyond_now() -> None:
    schedule = every(10)
    assert fired_through_after_take_back(schedule, at(20), None, at(5)) == at(20)
    assert fired_through_after_take_back(schedule, at(20), None, at(25)) == at(25)
    assert fired_through_after_take_back(schedule, at(20), at(10), at(5)) == at(5)


@given(now_s=st.integers(0, 100), ran=st.integers(0, 10))
@proves("S8", "P3", "C3")
def test_what_ran_before_the_clock_was_set_back_does_not_run_again_after_a_change(now_s: int, ran: int) -> None:
    schedule = every(10)
    now = at(now_s)
    first = next_fire(schedule, now)
    assert first is not None
    taken_from = first + timedelta(seconds=10 * ran)
    through = fired_through_after_take_back(schedule, taken_from + timedelta(seconds=50), taken_from, now)
    assert through is not None
    after = next_fire(schedule, max(now, through))
    assert after == taken_from


@given(
    closed=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 30)), max_size=4),
    weekends=st.sampled_from([False, True, "next", "previous"]),
    expression=st.sampled_from(["0 */5 * * *", "30 2 * * *", "0 9 15 * *", "*/40 1-3 * * *"]),
    excluding=st.sampled_from(["", "0 10 * * *"]),
)
@proves("S10", "P4")
def test_between_two_fires_the_calendar_leaves_out_what_it_excludes_and_nothing_else(
    closed: list[tuple[int, int]], weekends: bool, expression: str, excluding: str
) -> None:
    blackouts = tuple(
        Blackout(from_at=NOON + timedelta(hours=begin), to_at=NOON + timedelta(hours=begin + hours))
        for begin, hours in closed
    )
    calendar = Calendar(business_days=weekends, blackouts=blackouts, exclude_dates=("2031-03-05",))
    schedule = Schedule(
        when=Cron(expression=expression, timezone="Europe/Berlin"),
        exclude=(Cron(expression=excluding),) if excluding else (),
        calendar=calendar,
    )
    kept = fires_between(schedule, NOON, NOON + timedelta(days=30), at_most=30)
    for after, before in pairwise([NOON, *kept]):
        everything = structs.replace(schedule, calendar=structs.replace(calendar, blackouts=()))
        if weekends in {True, False}:
            everything = structs.replace(schedule, calendar=None)
        left = fires_between(everything, after, before - timedelta(microseconds=1), at_most=10_000)
        found = calendar_range(schedule, after, before)
        assert (found is None) == (not left)
        if found is not None:
            assert (found.from_at, found.to_at, found.count) == (left[0], left[-1], len(left))
