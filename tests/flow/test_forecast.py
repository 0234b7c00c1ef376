"""The forecast counts the fires that the planner makes: by properties against one fire after another, and against the
executions of a real planner."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from itertools import accumulate
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.flow.change.change import pause
from ondot.flow.forecast.compute import add_up_jobs, forecast
from ondot.model import forecast as model
from ondot.model.forecast import Load, gather
from ondot.model.herd import Grid
from ondot.model.ids import DEFAULT_TENANT, JobId, PoolNo
from ondot.model.schedule import Calendar, Cron, Interval, Rrule, Schedule, for_job, next_fire, start_delay
from ondot.store.forecast import Recurring
from tests.proves import proves
from tests.world import World, cron, every, job, once

POOL = PoolNo(1)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
# Around the changes of the clocks in Berlin and New York, and on a day without one.
BEGINS = (
    datetime(2026, 3, 28, 12, tzinfo=UTC),
    datetime(2026, 10, 24, 12, tzinfo=UTC),
    datetime(2026, 10, 31, 20, tzinfo=UTC),
    datetime(2026, 7, 1, 23, tzinfo=UTC),
)
DAY = timedelta(days=1)

seconds_from_begin = st.integers(-86_400, 86_400)
rules = st.one_of(
    st.builds(
        lambda text, zone: Cron(expression=text, timezone=zone),
        st.sampled_from(
            (
                "* * * * *",
                "*/5 * * * *",
                "30 2 * * *",
                "0 * * * *",
                "H H * * *",
                "1-59/7 1-4 * * *",
                "0 3 * * 1-5",
                "@daily",
            )
        ),
        st.sampled_from(ZONES),
    ),
    st.builds(
        lambda every_s, ago, micro: Interval(
            every_s=every_s, anchor_at=BEGINS[0] + timedelta(seconds=ago, microseconds=micro)
        ),
        st.sampled_from((60, 61, 90, 300, 3600, 86_400)),
        st.integers(-400 * 86_400, 2 * 86_400),
        st.sampled_from((0, 1, 999_999)),
    ),
    st.just(Rrule(text="FREQ=HOURLY;INTERVAL=3", begins=datetime(2026, 1, 1))),  # noqa: DTZ001  wall time
)
extras = st.fixed_dictionaries(
    {},
    optional={
        "jitter_s": st.sampled_from((0.5, 30, 90, 4000)),
        "start": seconds_from_begin,
        "end": seconds_from_begin,
        "calendar": st.sampled_from((Calendar(exclude_dates=("2026-03-29",)), Calendar(business_days=True))),
        "exclude": st.just((Cron(expression="0 4 * * *"),)),
    },
)


def due(schedule: Schedule, job_id: JobId, grid: Grid, next_fire_at: datetime, fires_left: int | None) -> Counter[int]:
    """The fires of one job by step, one after another, as the planner finds them."""
    delay, found = start_delay(schedule, job_id), Counter[int]()
    at: datetime | None = next_fire_at
    while at is not None and at < grid.end_at and fires_left != 0:
        step = int((at + delay - grid.begin_at).total_seconds() // grid.step_s)
        if step < grid.steps:
            found[step] += 1
        fires_left = None if fires_left is None else fires_left - 1
        at = next_fire(schedule, at)
    return found


def recurring_of(schedule: Schedule, job_id: JobId, next_fire_at: datetime) -> Recurring:
    return Recurring(msgspec.json.encode(schedule).decode(), POOL, DEFAULT_TENANT, next_fire_at, [job_id])


@proves("S13", "S5")
@settings(max_examples=40, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(rules, extras, st.none() | st.integers(1, 40), st.floats(0.01, 900)), min_size=1, max_size=5
    ),
    begin_at=st.sampled_from(BEGINS),
    fine=st.booleans(),
    planned_s=st.integers(0, 4000),
    seed=st.integers(0, 2**64),
)
def test_a_forecast_has_the_fires_that_one_job_after_another_has(
    jobs: list[tuple[Cron | Interval | Rrule, dict[str, Any], int | None, float]],
    begin_at: datetime,
    fine: bool,
    planned_s: int,
    seed: int,
) -> None:
    grid = Grid(begin_at, 1, 3600, 900) if fine else Grid(begin_at, 60, 18 * 60, 60)
    planned_until = begin_at + timedelta(seconds=planned_s)
    recurring, durations, lists = [], {}, []
    for number, (rule, extra, fires_left, lasts_s) in enumerate(jobs):
        job_id = JobId(UUID(int=seed + number))
        fields = {name: value for name, value in extra.items() if name not in {"start", "end"}}
        fields |= {
            f"{name}_at": begin_at + timedelta(seconds=extra[name]) for name in ("start", "end") if name in extra
        }
        if isinstance(rule, Interval) and fields.keys() & {"calendar", "exclude"}:
            fields.pop("jitter_s", None)  # at steps of a minute, those are counted up to a minute early
        schedule = for_job(Schedule(when=rule, **fields), job_id)
        first_at = next_fire(schedule, planned_until - timedelta(microseconds=1))
        if first_at is None:
            continue
        text = msgspec.json.encode(schedule).decode()
        recurring.append(Recurring(text, POOL, DEFAULT_TENANT, first_at, [job_id], fires_left))
        durations[job_id] = lasts_s
        lists.append((job_id, due(schedule, job_id, grid, first_at, fires_left)))
    if not recurring:
        return
    load = add_up_jobs(recurring, durations, grid, begin_at).loads.get(POOL) or Load(grid.steps)
    assert load.is_complete
    fires, work_s = [0.0] * grid.steps, [0.0] * grid.steps
    for job_id, found in lists:
        for step, count in found.items():
            fires[step] += count
            work_s[step] += count * durations[job_id]
    assert list(load.fires) == fires
    assert max(abs(one - other) for one, other in zip(load.work_s, work_s, strict=True)) < 1e-6
    for number, bucket in enumerate(gather(load, grid, None)):
        steps = range(number * grid.steps_a_bucket, (number + 1) * grid.steps_a_bucket)
        largest = (durations[job_id] * sum(found[step] for step in steps) for job_id, found in lists)
        assert [work_s for _, work_s in bucket.top] == pytest.approx(nlargest(3, filter(None, largest)))


@proves("S13")
@settings(max_examples=20, deadline=None)
@given(
    text=st.sampled_from(("* * * * * *", "*/15 * * * * *", "5,50 */2 * * * *", "10 0,30 2 * * *", "0-59 0-59 * * * *")),
    zone=st.sampled_from(ZONES),
    begin_at=st.sampled_from(BEGINS),
    jitter_s=st.sampled_from((0, 45, 600)),
    planned_s=st.integers(0, 200),
)
def test_fires_within_a_minute_are_all_counted_at_most_a_minute_early(
    text: str, zone: str, begin_at: datetime, jitter_s: float, planned_s: int
) -> None:
    grid, job_id = Grid(begin_at, 60, 300), JobId(uuid4())
    schedule = Schedule(when=Cron(expression=text, timezone=zone), jitter_s=jitter_s)
    first_at = next_fire(schedule, begin_at + timedelta(seconds=planned_s))
    assert first_at is not None
    load = add_up_jobs([recurring_of(schedule, job_id, first_at)], {}, grid, begin_at).loads[POOL]
    fires, found = list(accumulate(load.fires)), due(schedule, job_id, grid, first_at, None)
    exact = list(accumulate(found[step] for step in range(grid.steps)))
    assert all(count >= floor for count, floor in zip(fires, exact, strict=True))
    assert all(count <= ceiling for count, ceiling in zip(fires[:-1], exact[1:], strict=True))


@proves("S13")
def test_long_work_of_a_steady_job_fills_its_slots_step_by_step() -> None:
    grid, job_id = Grid(BEGINS[3], 60, 10), JobId(uuid4())
    for schedule in (cron("* * * * *"), cron("0-59 0-23 * * *"), every(60, BEGINS[3])):
        recurring = [recurring_of(schedule, job_id, BEGINS[3])]
        load = add_up_jobs(recurring, {job_id: 180.0}, grid, BEGINS[3]).loads[POOL]
        assert list(load.busy_s) == pytest.approx([60, 120, *[180] * 8])
        assert list(load.work_s) == [180] * 10


@proves("S13")
def test_what_the_budget_does_not_suffice_for_is_spread_evenly_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid(BEGINS[3], 60, 1440, 60)
    texts = ["0 5 * * *", *(f"{minute}-59/2 * * * *" for minute in (0, 1))]
    recurring = [recurring_of(cron(text), JobId(uuid4()), grid.begin_at) for text in texts]
    monkeypatch.setattr(model, "FIRES_LISTED", 800)
    load = add_up_jobs(recurring, {}, grid, grid.begin_at).loads[POOL]
    assert not load.is_complete
    assert load.fires[6 * 60] == pytest.approx(2.5)  # the daily one, one that is listed, and a half of the other
    assert sum(load.fires) == pytest.approx(1441, abs=2)


@proves("S13", "S5", "S8")
async def test_the_forecast_is_what_a_real_planner_then_makes(world: World) -> None:
    now = world.now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    await world.advance((now - world.now).total_seconds())
    paused = await world.submit(job(schedule=cron("* * * * *")))
    for schedule in (
        cron("*/7 * * * *", jitter_s=400),
        cron("*/10 * * * * *"),
        cron("* * * * *", start_at=now + timedelta(minutes=5), end_at=now + timedelta(minutes=10)),
        cron("* * * * *", max_fires=5),
        cron("*/2 * * * *", exclude=(Cron(expression="10-20 * * * *"),)),
        cron("*/15 * * * *", spread_s=600, offset_s=125.0),
        every(90, now - timedelta(seconds=33), jitter_s=200),
        every(300, now - timedelta(days=3), max_fires=3),
        once(now + timedelta(minutes=13)),
    ):
        await world.submit(job(schedule=schedule))
    await pause(world.database, DEFAULT_TENANT, paused.id)
    await world.plan()
    until = now + timedelta(minutes=20)
    found = await forecast(world.database, DEFAULT_TENANT, now, now + timedelta(hours=7), 60, None)
    expected = {bucket.at: bucket.fires for bucket in found.pools[0].buckets if bucket.fires and bucket.at < until}
    for _ in range(3 * 20):
        await world.advance(20)
        await world.plan()
    rows = await world.fetch("SELECT date_trunc('minute', ready_at) AS at FROM ondot.execution")
    assert expected == Counter(row["at"] for row in rows if row["at"] < until)
