"""② Look ahead: each fire is planned once, by compare-and-set; missed fires are settled by policy and recorded."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from ondot.flow import plan
from ondot.flow.change.change import delete, pause, resume
from ondot.flow.plan import Planning, plan_timers
from ondot.model.execution import PriorityClass, State
from ondot.model.ids import DEFAULT_TENANT, PARTITIONS, JobId
from ondot.model.misfire import Misfire
from ondot.model.planning import Timer
from ondot.model.schedule import Blackout, Calendar, Cron, Rrule, Schedule, jitter_offset
from ondot.store.clock import DatabaseClock
from ondot.store.connection import Connection
from ondot.store.specs import Specs
from ondot.store.timers import Planned, lock_timer
from tests.proves import proves
from tests.world import DEFAULT_POOL, World, cron, every, job


async def read_timer(world: World, job_id: JobId) -> Timer:
    async with world.database.connection() as connection:
        timer = await lock_timer(connection, job_id)
    assert timer is not None
    return timer


async def plan_as_of(world: World, timer: Timer) -> Planned:
    """Plan as a node does that has read this `timer`."""
    spec = (await world.job(timer.job_id)).spec
    async with world.database.connection() as connection:
        return await plan_timers(
            connection,
            world.database.clock,
            [Planning(timer, spec, DEFAULT_POOL)],
            now=world.now,
            horizon_at=world.after(20),
        )


@proves("S3", "S6", "C2")
async def test_fires_are_planned_up_to_the_horizon_and_no_further(world: World) -> None:
    accepted = await world.submit(job(schedule=every(30, world.now)))
    assert await world.fires(accepted.id) == []
    await world.advance(10)
    assert await world.plan() == 1
    assert await world.fires(accepted.id) == [20]
    assert await world.plan() == 0


@proves("E11", "P3", "P6")
async def test_a_node_with_an_old_snapshot_moves_nothing(world: World) -> None:
    accepted = await world.submit(job(schedule=every(30, world.now)))
    timer = await read_timer(world, accepted.id)
    await world.advance(15)
    for old in (
        replace(timer, version=timer.version + 1),
        replace(timer, next_fire_at=world.after(16)),
        replace(timer, version=0),
    ):
        assert await plan_as_of(world, old) == Planned(0, 0, ())
    assert await world.states() == []
    assert (await plan_as_of(world, timer)).planned == 1
    assert await plan_as_of(world, timer) == Planned(0, 0, ())
    assert await world.fires(accepted.id) == [15]


@proves("P6", "P10", "S8")
async def test_a_node_that_read_before_an_update_plans_nothing_by_the_old_schedule(world: World) -> None:
    """Also where the next fire is the same in both: only the version differs."""
    accepted = await world.submit(job(schedule=every(30, world.now)))
    looked = await read_timer(world, accepted.id)
    spec = job(schedule=every(50, world.after(-20)))
    await world.update(accepted.id, spec)
    assert (await read_timer(world, accepted.id)).next_fire_at == looked.next_fire_at
    await world.advance(15)
    assert await plan_as_of(world, looked) == Planned(0, 0, ())
    assert await world.states() == []


@proves("E11", "P3")
async def test_a_fire_that_has_an_execution_gets_no_second_one_and_its_timer_still_moves(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    assert await world.fires(accepted.id) == [10, 20]
    await world.fetch("UPDATE ondot.timer SET next_fire_at = $1, fired_through = NULL", world.after(10))
    assert await plan_as_of(world, await read_timer(world, accepted.id)) == Planned(1, 0, ())
    assert await world.fires(accepted.id) == [10, 20]
    assert (await read_timer(world, accepted.id)).next_fire_at == world.after(30)


@proves("P3", "C3")
async def test_a_fire_does_not_repeat_after_the_clock_was_set_back(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    await world.advance(10)
    worker = await world.worker()
    await worker.run_one()
    await world.advance(-3600)
    await world.plan()
    assert [execution.state for execution in await world.executions(accepted.id)] == [State.SUCCEEDED, State.PENDING]
    await world.advance(3600)
    await world.plan()
    assert await world.fires(accepted.id) == [0, 10, 20]


@proves("S5", "P9")
async def test_jitter_moves_the_start_and_never_the_fire(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now, jitter_s=30)))
    later = jitter_offset(accepted.id, 30)
    assert timedelta(0) < later <= timedelta(seconds=30)
    executions = await world.executions(accepted.id)
    assert [execution.fire_at for execution in executions] == [world.after(10), world.after(20)]
    assert [execution.ready_at - execution.fire_at for execution in executions] == [later, later]


@proves("S8")
async def test_a_job_fires_as_often_as_it_may_and_then_ends(world: World) -> None:
    accepted = await world.submit(job(schedule=every(15, world.now, max_fires=3)))
    for _ in range(10):
        await world.advance(10)
        await world.plan()
    assert len(await world.executions(accepted.id)) == 3
    assert (await read_timer(world, accepted.id)).next_fire_at is None


@proves("S6", "L2")
async def test_an_outage_shorter_than_the_grace_misses_nothing(world: World) -> None:
    accepted = await world.submit(job(schedule=every(25, world.now)))
    await world.advance(70)
    await world.plan()
    assert await world.fires(accepted.id) == [-45, -20, 5]
    assert await world.skipped(accepted.id) == []
    assert {execution.priority_class for execution in await world.executions()} == {PriorityClass.NORMAL}
    assert {execution.ready_at for execution in await world.executions()} == {world.now, world.after(5)}


@proves("S6", "P4")
@pytest.mark.parametrize(
    ("misfire", "caught_up", "skipped"),
    [
        (Misfire(policy="skip"), [], [(-500, -100, "misfire", 5)]),
        (Misfire(policy="once"), [-100], [(-500, -200, "coalesced", 4)]),
        (Misfire(policy="all"), [-500, -400, -300, -200, -100], []),
        (Misfire(policy="all", window_s=300), [-300, -200, -100], [(-500, -400, "misfire", 2)]),
        (Misfire(policy="all", limit=2), [-200, -100], [(-500, -300, "misfire", 3)]),
    ],
    ids=lambda value: value.policy if isinstance(value, Misfire) else "",
)
async def test_missed_fires_run_by_policy_and_the_others_are_recorded(
    world: World, misfire: Misfire, caught_up: list[float], skipped: list[tuple[float, float, str, int]]
) -> None:
    accepted = await world.submit(job(schedule=every(100, world.now, misfire=misfire)))
    await world.advance(600)
    await world.plan()
    await world.work_off()
    executions = await world.executions(accepted.id)
    late = [execution for execution in executions if execution.priority_class == PriorityClass.CATCH_UP]
    assert [(execution.fire_at - world.now).total_seconds() for execution in late] == caught_up
    assert next(execution for execution in executions if execution not in late).fire_at == world.now
    assert await world.skipped(accepted.id) == skipped
    await world.plan()
    assert len(await world.executions(accepted.id)) == len(caught_up) + 1


@proves("S6", "P4")
async def test_an_outage_of_any_length_is_settled_in_one_step_and_counted(world: World) -> None:
    accepted = await world.submit(job(schedule=every(1, world.now, misfire=Misfire(policy="skip", grace_s=10))))
    planned = len(await world.executions(accepted.id))
    year_s = 365 * 86_400
    await world.advance(year_s)
    assert await world.planner.one_pass(range(PARTITIONS)) == 1
    assert await world.skipped(accepted.id) == [(planned + 1 - year_s, -11, "misfire", year_s - planned - 11)]
    assert await world.fires(accepted.id) == [n - year_s for n in range(1, planned + 1)] + list(range(-10, 21))


@proves("N3", "L2")
async def test_a_backlog_larger_than_a_statement_is_planned_completely(world: World) -> None:
    specs = [job(schedule=every(1, world.after(21 + n), misfire=Misfire(policy="all"))) for n in range(30)]
    await world.submit_all(specs)
    await world.advance(600)
    assert await world.planner.one_pass(range(PARTITIONS)) < 30
    await world.plan()
    overdue = await world.value("SELECT count(*) FROM ondot.timer WHERE next_fire_at <= $1", world.after(20))
    assert overdue == 0


@proves("S2")
async def test_a_cron_job_fires_at_the_full_minute(world: World) -> None:
    accepted = await world.submit(job(schedule=cron("* * * * *")))
    await world.advance(45)
    await world.plan()
    assert await world.fires(accepted.id) == [15]


@proves("L6", "P4")
async def test_a_schedule_that_cannot_be_computed_does_not_stop_the_others(world: World) -> None:
    broken = await world.submit(job("broken", schedule=cron("* * * * *")))
    good = await world.submit(job("good", schedule=every(60, world.now)))
    await world.fetch(
        "UPDATE ondot.job_version SET spec = replace(spec::text, '* * * * *', 'nonsense')::json WHERE job_id = $1",
        broken.id,
    )
    await world.advance(50)
    world.database.specs = Specs()
    await world.plan()
    assert len(await world.executions(good.id)) == 1
    assert await world.executions(broken.id) == []


@proves("S6", "P4")
async def test_catch_up_runs_in_bounded_turns_behind_live_work(world: World) -> None:
    schedule = every(1, world.now, misfire=Misfire(policy="all", window_s=3600, limit=250))
    accepted = await world.submit(job(schedule=schedule))
    await world.advance(4000)
    await world.plan()
    behind = "SELECT count(*) FROM ondot.execution WHERE class = 4"
    for made in (100, 100):  # and no more until those have ended
        await world.work_off()
        assert await world.value(behind) == made
        await world.advance(1)
    worker = await world.worker()
    order: list[int] = []
    for _ in range(10):
        while assignments := await worker.lease(100):
            order += [assignment.leased.priority_class for assignment in assignments]
            await worker.complete_all(assignments)
        await world.work_off()
        await world.advance(1)
    assert order.count(PriorityClass.CATCH_UP) == 250
    assert order[:80] == [PriorityClass.NORMAL] * 80
    assert await world.count("owed") == 0
    assert [count for *_, count in await world.skipped(accepted.id)] == [4000 - 20 - 61 - 250]


@proves("S10", "P4")
async def test_fires_that_the_calendar_leaves_out_are_recorded_once_the_next_fire_is_planned(world: World) -> None:
    blackout = Blackout(from_at=world.after(95), to_at=world.after(405))
    accepted = await world.submit(job(schedule=every(100, world.now, calendar=Calendar(blackouts=(blackout,)))))
    await world.advance(490)
    await world.plan()
    assert await world.skipped(accepted.id) == [(-390, -90, "calendar", 4)]
    await world.advance(100)
    await world.plan()
    assert len(await world.skipped(accepted.id)) == 1


@proves("S10", "P4")
async def test_fires_that_the_calendar_leaves_out_are_recorded_when_the_job_is_paused_before_its_next_fire(
    world: World,
) -> None:
    blackout = Blackout(from_at=world.after(95), to_at=world.after(405))
    accepted = await world.submit(job(schedule=every(100, world.now, calendar=Calendar(blackouts=(blackout,)))))
    await world.advance(250)
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    await world.advance(350)
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id)
    assert await world.skipped(accepted.id) == [
        (-500, -400, "calendar", 2),
        (-300, -200, "calendar", 2),
        (-100, 0, "paused", 2),
    ]


@proves("S8", "S10", "P4")
async def test_fires_that_the_calendar_leaves_out_of_a_pause_are_recorded_when_the_job_is_changed(
    world: World,
) -> None:
    """They come before and after those of the pause: these were recorded, the others were lost."""
    times = ((0, 250), (550, 900))
    blackouts = tuple(Blackout(from_at=world.after(from_s), to_at=world.after(to_s)) for from_s, to_s in times)
    accepted = await world.submit(job(schedule=every(100, world.now, calendar=Calendar(blackouts=blackouts))))
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    await world.advance(150)
    await world.update(accepted.id, (await world.job(accepted.id)).spec)
    assert await world.skipped(accepted.id) == [(-50, -50, "calendar", 1)]
    await world.advance(550)
    await delete(world.database, DEFAULT_TENANT, accepted.id)
    assert await world.skipped(accepted.id) == [
        (-600, -600, "calendar", 1),
        (-500, -500, "calendar", 1),
        (-400, -200, "paused", 3),
        (-100, 0, "calendar", 2),
    ]


@proves("S12", "L6")
async def test_a_slow_schedule_is_planned_alone_and_no_other_job_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = ",".join(str(minute) for minute in range(60) if minute != world.now.minute)
    # Each second of one minute per hour, and thousands of looks from one hour to the next.
    rule = Rrule(text=f"FREQ=SECONDLY;BYMINUTE={minutes}", begins=world.now.replace(tzinfo=None))
    schedule = Schedule(when=Cron(expression="* * * * * *"), exclude=(rule,))
    costly = await world.submit(job(schedule=schedule))
    others = [await world.submit(job(schedule=every(7, world.now))) for _ in range(3)]
    await world.advance(50)
    order: list[JobId] = []
    real = plan.write_steps

    async def noted(connection: Connection, clock: DatabaseClock, steps: plan.Steps) -> Planned:
        order.extend(planning.timer.job_id for planning, _ in steps)
        return await real(connection, clock, steps)

    monkeypatch.setattr(plan, "write_steps", noted)
    monkeypatch.setattr(plan, "COMPUTED_S", math.inf)  # a slow machine would leave some of the others to the next pass
    await world.plan()
    *first, last = dict.fromkeys(order)
    assert last == costly.id
    assert set(first) == {other.id for other in others}
    assert (await world.fires(costly.id))[-1] == 59 - 50
    assert (await read_timer(world, costly.id)).next_fire_at == world.now.replace(second=0) + timedelta(hours=1)
