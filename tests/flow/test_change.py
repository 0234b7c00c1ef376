"""②a Change: coming fires are taken back, due ones end or run the new version, started executions continue."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from ondot.flow.cancel import cancel
from ondot.flow.change import change as flow_change
from ondot.flow.change import take_back as flow_take_back
from ondot.flow.change.change import delete, pause, resume, update
from ondot.flow.explain import explain_execution
from ondot.flow.gate import admit_pass
from ondot.flow.run import run_attempt
from ondot.model.errors import Conflict, NotFound, PreconditionFailed
from ondot.model.execution import CANCEL, PriorityClass, State
from ondot.model.gates import Limits, Rate
from ondot.model.ids import DEFAULT_TENANT, JobId, PoolNo, TenantNo
from ondot.model.job import JobSpec, JobState
from ondot.model.misfire import Misfire, MissedPolicy
from ondot.model.outcome import NotBegun
from ondot.model.planning import next_or_look_again
from ondot.model.retry import Retry
from ondot.model.schedule import Blackout, Calendar, Interval, Rrule, Schedule
from ondot.ports.target import Call
from ondot.store.audit import By
from ondot.store.endings import end_queued
from ondot.store.jobs import JobRow
from ondot.store.planned import take_back_fires
from ondot.store.queue import sweep_late_ready
from tests.flow.test_stateful import OUT_OF_PLACE
from tests.proves import proves
from tests.world import DEFAULT_POOL, World, every, failed, job, once


async def change(world: World, job_id: JobId, spec: JobSpec, if_version: int | None = None) -> None:
    await world.update(job_id, spec, if_version=if_version)


async def stop(world: World, job_id: JobId) -> None:
    await pause(world.database, DEFAULT_TENANT, job_id)


async def go_on(world: World, job_id: JobId) -> None:
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, job_id)


async def remove(world: World, job_id: JobId) -> None:
    await delete(world.database, DEFAULT_TENANT, job_id)


@proves("S8", "P10")
async def test_an_update_takes_back_coming_fires_and_fires_by_the_new_schedule(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    assert await world.fires(accepted.id) == [10, 20]
    await world.advance(1)
    await change(world, accepted.id, job(schedule=every(7, world.now)))
    assert await world.fires(accepted.id) == [7, 14]
    assert [execution.job_version for execution in await world.executions()] == [2, 2]
    assert (await world.job(accepted.id)).version == 2


@proves("S8", "P10")
async def test_a_due_fire_that_has_not_started_runs_the_new_version_after_an_update(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    await world.advance(10)
    await change(world, accepted.id, job("new", schedule=every(3600, world.now)))
    assert await world.fires(accepted.id) == [0]
    [assignment] = await (await world.worker()).lease()
    assert assignment.spec is not None
    assert assignment.spec.name == "new"


@proves("S8", "E1", "L6")
@pytest.mark.parametrize(
    ("limits", "then", "is_admitted"),
    [
        (None, None, False),
        (None, Limits(concurrency=5), False),
        (Limits(concurrency=5), None, True),
        (Limits(concurrency=5), Limits(concurrency=4), True),
        (Limits(concurrency=5, rate=Rate(limit=9, per_s=1)), Limits(rate=Rate(limit=8, per_s=1)), True),
    ],
)
async def test_a_due_fire_follows_its_job_to_another_pool_and_priority(
    world: World, limits: Limits | None, then: Limits | None, is_admitted: bool
) -> None:
    """From a queue or a line into a queue or a line; and the workers of its new pool are woken."""
    accepted = await world.submit(job(schedule=every(10, world.now), pool="nobody", limits=limits))
    nobody = PoolNo(await world.value("SELECT pool_no FROM ondot.pool WHERE name = 'nobody'"))
    await world.advance(12)
    if is_admitted:
        await admit_pass(world.database, [nobody])
    spec = job("new", schedule=every(3600, world.now), priority="high", limits=then, start_deadline_s=60)
    await change(world, accepted.id, spec)
    assert DEFAULT_POOL in await woken(world)
    assert await world.fetch(OUT_OF_PLACE) == []
    [row] = await world.executions(accepted.id)
    assert (row.pool, row.priority_class, row.start_by) == ("default", PriorityClass.HIGH, world.after(-2 + 60))
    explained = await explain_execution(world.database, DEFAULT_TENANT, row.id)
    assert [reason for reason in explained.reasons if "nobody" in reason.message] == []
    assert await (await world.worker(pool_nos=[nobody])).lease() == []
    [assignment] = await (await world.worker()).lease()
    assert assignment.spec is not None
    assert (assignment.spec.name, assignment.leased.priority_class) == ("new", PriorityClass.HIGH)


@proves("S8", "E13", "P10")
async def test_started_requested_and_caught_up_executions_keep_their_place_in_an_update(world: World) -> None:
    """A retry and a run by hand keep pool and version, and the new limits apply; catch-up stays behind."""
    misfire = Misfire(policy="all", grace_s=1, window_s=3600)
    spec = job(schedule=every(100, world.now, misfire=misfire), retry=Retry(initial_s=1, jitter=False))
    accepted = await world.submit(spec)
    await world.advance(90)
    await world.plan()
    await world.advance(10)
    worker = await world.worker()
    await worker.run_one(failed())
    await world.run_now(accepted.id)
    await world.advance(250)
    await world.plan()
    await world.work_off()
    new = job("new", schedule=every(3600, world.now), pool="there", priority="low", limits=Limits(concurrency=1))
    await change(world, accepted.id, new)
    assert await world.fetch(OUT_OF_PLACE) == []
    rows = {(row.origin, row.state): row for row in await world.executions(accepted.id)}
    retried, by_hand = rows["fire", State.RETRYING], rows["run", State.PENDING]
    assert [(row.pool, row.job_version, row.priority_class) for row in (retried, by_hand)] == [
        ("default", 1, PriorityClass.NORMAL)
    ] * 2
    caught_up = rows["fire", State.PENDING]
    assert (caught_up.pool, caught_up.job_version, caught_up.priority_class) == ("there", 2, PriorityClass.CATCH_UP)
    assert len(await worker.lease()) == 1


async def woken(world: World) -> set[PoolNo]:
    """The pools that were woken so far."""
    dispatching = asyncio.create_task(world.dispatcher.run())
    async with asyncio.timeout(60):
        await world.transport.published.wait()
    dispatching.cancel()
    return {wake.pool_no for wake in world.transport.sent}


@proves("S8", "P10")
async def test_a_started_execution_keeps_its_version_in_its_retries_after_an_update(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    await world.advance(10)
    worker = await world.worker()
    [assignment] = await worker.lease()
    await worker.complete(assignment, failed())
    await change(world, accepted.id, job("new", schedule=every(3600, world.now)))
    await world.advance(60)
    [again] = await worker.lease()
    assert (again.leased.id, again.leased.job_version) == (assignment.leased.id, 1)


@proves("S8", "P3", "P10")
async def test_an_update_back_and_forth_makes_no_fire_twice(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    begin = world.now
    await world.advance(10)
    worker = await world.worker()
    await worker.run_one()
    for seconds in (5, 10, 1, 10):
        await change(world, accepted.id, job(schedule=every(seconds, begin)))
    fires = await world.fires(accepted.id)
    assert fires == [0, 10, 20]


@proves("S8", "S6", "P4")
async def test_the_fires_of_the_old_schedule_are_settled_before_the_new_one_takes_over(world: World) -> None:
    accepted = await world.submit(job(schedule=every(100, world.now, misfire=Misfire(policy="once"))))
    await world.advance(350)
    await change(world, accepted.id, job(schedule=every(3600, world.now)))
    assert await world.fires(accepted.id) == [-150, -50]
    assert await world.skipped(accepted.id) == [(-250, -250, "coalesced", 1)]


@proves("S8")
async def test_an_update_of_another_version_than_the_one_read_is_refused(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    await change(world, accepted.id, job("two", schedule=every(10, world.now)), if_version=1)
    with pytest.raises(PreconditionFailed):
        await change(world, accepted.id, job("three", schedule=every(10, world.now)), if_version=1)
    assert (await world.job(accepted.id)).spec.name == "two"


@proves("S8")
async def test_an_update_does_not_give_back_the_fires_that_a_job_has_used_up(world: World) -> None:
    accepted = await world.submit(job(schedule=every(5, world.now, max_fires=2)))
    await world.advance(5)
    worker = await world.worker()
    await worker.run_one()
    await change(world, accepted.id, job("new", schedule=every(5, world.now, max_fires=2)))
    assert await world.fires(accepted.id) == [0, 5]
    await world.advance(60)
    await change(world, accepted.id, job("newer", schedule=every(5, world.now, max_fires=2)))
    await world.plan()
    assert len(await world.executions(accepted.id)) == 2


@proves("S8", "P10", "P4")
async def test_a_paused_job_does_not_fire_and_its_due_fire_is_recorded_as_skipped(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    await world.advance(10)
    await stop(world, accepted.id)
    [execution] = await world.executions(accepted.id)
    assert (execution.state, execution.reason) == (State.SKIPPED, "paused")
    await world.advance(100)
    await world.plan()
    assert len(await world.executions(accepted.id)) == 1
    row = await world.job(accepted.id)
    assert (row.state, row.next_fire_at) == (JobState.PAUSED, None)
    await stop(world, accepted.id)


@proves("S8", "P4")
async def test_a_resumed_job_fires_from_now_on_and_its_pause_is_recorded_as_one_range(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    await world.advance(15)
    await stop(world, accepted.id)
    await world.advance(100)
    await go_on(world, accepted.id)
    assert await world.skipped(accepted.id) == [(-95, -5, "paused", 10)]
    assert await world.fires(accepted.id) == [-105, 5, 15]
    assert (await world.job(accepted.id)).state is JobState.ACTIVE
    await go_on(world, accepted.id)
    assert await world.fires(accepted.id) == [-105, 5, 15]


@proves("S8", "P4")
async def test_the_pause_of_a_job_that_never_fired_is_recorded_too(world: World) -> None:
    accepted = await world.submit(job(schedule=every(100, world.now)))
    await stop(world, accepted.id)
    await world.advance(350)
    await go_on(world, accepted.id)
    assert await world.skipped(accepted.id) == [(-250, -50, "paused", 3)]


@proves("S8", "P4")
async def test_the_fires_of_a_long_pause_are_counted_without_a_walk(world: World) -> None:
    accepted = await world.submit(job(schedule=every(1, world.now)))
    await stop(world, accepted.id)
    await world.advance(20_000_000)
    await go_on(world, accepted.id)
    assert await world.skipped(accepted.id) == [(-19_999_999, 0, "paused", 20_000_000)]


@proves("S6", "S8", "P4")
@pytest.mark.parametrize(
    ("missed", "run", "skipped"),
    [
        ("skip", [], [(-500, 0, "paused", 6)]),
        ("once", [0], [(-500, -100, "paused", 5)]),
        ("all", [-300, -200, -100, 0], [(-500, -400, "paused", 2)]),
    ],
)
async def test_a_resumed_job_runs_the_missed_fires_that_were_asked_for(
    world: World, missed: MissedPolicy, run: list[float], skipped: list[tuple[float, float, str, int]]
) -> None:
    accepted = await world.submit(job(schedule=every(100, world.now, misfire=Misfire(window_s=300))))
    await stop(world, accepted.id)
    await world.advance(600)
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id, missed=missed)
    await world.work_off()
    assert await world.fires(accepted.id) == run
    assert await world.skipped(accepted.id) == skipped


@proves("S8", "P4")
async def test_the_fires_of_a_pause_follow_the_schedule_that_was_paused(world: World) -> None:
    accepted = await world.submit(job(schedule=every(100, world.now)))
    await stop(world, accepted.id)
    await world.advance(250)
    await change(world, accepted.id, job(schedule=every(1000, world.now)))
    await world.advance(1500)
    await go_on(world, accepted.id)
    assert await world.skipped(accepted.id) == [(-1650, -1550, "paused", 2), (-500, -500, "paused", 1)]


@proves("S6", "P4", "P10")
@pytest.mark.parametrize(("end", "reason"), [(pause, "paused"), (delete, "deleted")])
async def test_owed_fires_are_recorded_as_skipped_when_their_job_stops(
    world: World, end: Callable[..., Awaitable[None]], reason: str
) -> None:
    accepted = await world.submit(job(schedule=every(100, world.now, misfire=Misfire(policy="all"))))
    await world.advance(650)
    await world.plan()
    await end(world.database, DEFAULT_TENANT, accepted.id)
    assert await world.skipped(accepted.id) == [(-550, -150, reason, 5)]
    assert await world.work_off() == 0


@proves("S6", "S10", "P4")
async def test_fires_that_the_calendar_left_out_stay_on_record_when_a_job_stops_before_its_owed_ones(
    world: World,
) -> None:
    closed = Calendar(blackouts=(Blackout(from_at=world.after(120.5), to_at=world.after(130.5)),))
    misfire = Misfire(policy="all", grace_s=2, window_s=3600, limit=1000)
    accepted = await world.submit(job(schedule=every(1, world.now, misfire=misfire, calendar=closed)))
    await world.advance(170)
    await world.plan()
    assert await world.skipped(accepted.id) == [(-49, -40, "calendar", 10)]
    await world.work_off()  # the 100 that follow the 20 planned ahead
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    assert await world.skipped(accepted.id) == [(-49, -40, "calendar", 10), (-39, -3, "paused", 37)]


@proves("S8")
async def test_owed_fires_run_the_new_version_at_the_instants_of_the_old(world: World) -> None:
    accepted = await world.submit(job(schedule=every(100, world.now, misfire=Misfire(policy="all"))))
    await world.advance(350)
    await world.plan()
    await change(world, accepted.id, job("new", schedule=every(7, world.after(1000))))
    await world.work_off()
    late = [execution for execution in await world.executions(accepted.id) if execution.fire_at < world.now]
    assert [(execution.fire_at - world.now).total_seconds() for execution in late] == [-250, -150, -50]
    assert {execution.job_version for execution in late} == {2}


@proves("S8")
async def test_a_paused_job_can_be_updated_and_stays_paused(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    await stop(world, accepted.id)
    await change(world, accepted.id, job("new", schedule=every(5, world.now)))
    assert (await world.job(accepted.id)).state is JobState.PAUSED
    assert await world.states() == []
    await go_on(world, accepted.id)
    assert await world.fires(accepted.id) == [5, 10, 15, 20]


@proves("S8", "P10")
async def test_a_fire_that_was_given_back_before_its_call_is_skipped_by_a_pause(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    await world.advance(10)
    worker = await world.worker()
    await worker.run_one(NotBegun("the worker stops"))
    await stop(world, accepted.id)
    assert await world.states(accepted.id) == [State.SKIPPED]


@proves("S8", "P10")
async def test_a_delete_cancels_waiting_executions_and_lets_running_ones_end(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    worker = await world.worker()
    await world.advance(10)
    [retried] = await worker.lease()
    await world.advance(10)
    [running] = await worker.lease()
    await worker.complete(retried, failed())
    await world.advance(10)
    await world.plan()
    await remove(world, accepted.id)
    assert await world.states(accepted.id) == [State.CANCELLED, State.RUNNING, State.CANCELLED]
    await worker.complete(running)
    await world.advance(100)
    await world.plan()
    assert await world.states(accepted.id) == [State.CANCELLED, State.SUCCEEDED, State.CANCELLED]
    assert (await world.job(accepted.id)).state is JobState.DELETED
    await remove(world, accepted.id)
    for changing in (change(world, accepted.id, accepted.spec), stop(world, accepted.id), go_on(world, accepted.id)):
        with pytest.raises(Conflict):
            await changing


@proves("S12", "S8")
async def test_the_key_of_a_deleted_job_is_free_for_a_new_one(world: World) -> None:
    first = await world.submit(job(key="nightly", schedule=every(10, world.now)))
    await remove(world, first.id)
    second = await world.submit(job(key="nightly", schedule=every(10, world.now)))
    assert second.id != first.id


@proves("S1", "S8")
@pytest.mark.parametrize("seconds", [0, 10, 100], ids=["due", "planned", "by timer"])
async def test_a_one_time_job_can_be_moved_before_it_runs(world: World, seconds: float) -> None:
    accepted = await world.submit(job(schedule=once(world.after(seconds))))
    await change(world, accepted.id, job("moved", schedule=once(world.after(5))))
    assert await world.fires(accepted.id) == [5]
    await world.advance(5)
    worker = await world.worker()
    [assignment] = await worker.lease()
    assert assignment.spec is not None
    assert assignment.spec.name == "moved"
    await worker.complete(assignment)
    await world.advance(200)
    await world.plan()
    assert await world.states(accepted.id) == [State.SUCCEEDED]
    assert (await world.job(accepted.id)).state is JobState.ENDED


@proves("S1", "S8", "P10")
@pytest.mark.parametrize("seconds", [0, 10, 100], ids=["due", "planned", "by timer"])
async def test_a_paused_one_time_job_runs_when_it_is_resumed(world: World, seconds: float) -> None:
    accepted = await world.submit(job(schedule=once(world.after(seconds))))
    await stop(world, accepted.id)
    assert await world.states(accepted.id) == []
    await world.advance(30)
    await go_on(world, accepted.id)
    await world.advance(max(seconds - 30, 0))
    await world.plan()
    assert len(await (await world.worker()).lease()) == 1


@proves("S1", "S8", "P10")
@pytest.mark.parametrize("seconds", [0, 10, 100], ids=["due", "planned", "by timer"])
async def test_a_deleted_one_time_job_never_runs(world: World, seconds: float) -> None:
    accepted = await world.submit(job(schedule=once(world.after(seconds))))
    await remove(world, accepted.id)
    await world.advance(200)
    await world.plan()
    assert await (await world.worker()).lease() == []
    assert (await world.job(accepted.id)).state is JobState.DELETED


@proves("S1", "S8")
async def test_a_one_time_job_that_runs_or_has_ended_cannot_be_changed(world: World) -> None:
    accepted = await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    for _ in ("running", "ended"):
        with pytest.raises(Conflict):
            await change(world, accepted.id, job(schedule=once(world.after(100))))
        with pytest.raises(Conflict):
            await stop(world, accepted.id)
        with pytest.raises(Conflict):
            await remove(world, accepted.id)
        await worker.complete(assignment)
    assert await world.states() == [State.SUCCEEDED]


@proves("S1", "S8", "P7")
async def test_a_one_time_job_that_waits_for_its_retry_can_be_deleted_but_not_moved(world: World) -> None:
    accepted = await world.submit(job())
    worker = await world.worker()
    await worker.run_one(failed())
    with pytest.raises(Conflict):
        await change(world, accepted.id, job(schedule=once(world.after(100))))
    assert await world.states() == [State.RETRYING]
    await remove(world, accepted.id)
    assert await world.states() == [State.CANCELLED]


@proves("S8")
async def test_a_recurring_job_that_became_a_one_time_job_can_be_changed_until_that_fire(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    await world.advance(10)
    worker = await world.worker()
    await worker.run_one()
    await change(world, accepted.id, job(schedule=once(world.after(50))))
    await change(world, accepted.id, job(schedule=once(world.after(15))))
    assert await world.fires(accepted.id) == [0, 15]
    await world.advance(15)
    await worker.run_one()
    assert (await world.job(accepted.id)).state is JobState.ENDED


@proves("P12", "T1")
async def test_a_job_of_another_tenant_cannot_be_changed(world: World) -> None:
    for spec in (job(schedule=every(10, world.now)), job(schedule=once(world.after(100)))):
        accepted = await world.submit(spec)
        for changing in (
            world.update(accepted.id, spec, tenant_no=TenantNo(2)),
            pause(world.database, TenantNo(2), accepted.id),
            resume(world.database, world.dispatcher, TenantNo(2), accepted.id),
            delete(world.database, TenantNo(2), accepted.id),
        ):
            with pytest.raises(NotFound):
                await changing


@proves("P10")
async def test_a_pause_ends_a_due_fire_that_is_being_swept_at_that_moment(world: World) -> None:
    worker = await world.worker()
    await world.submit(job())
    await worker.run_one()
    accepted = await world.submit(job(schedule=every(10, world.now)))
    await world.advance(11)
    await worker.beat()
    # As if its transaction had taken twenty seconds: below the bound of the worker.
    for table in ("ready", "execution"):
        await world.fetch(
            f"UPDATE ondot.{table} SET ready_at = ready_at - interval '20 s' WHERE ready_at <= ondot.clock()"
        )
    async with world.second_connection() as other:
        transaction = other.transaction()
        await transaction.start()
        assert await sweep_late_ready(other, 100)
        pausing = asyncio.create_task(stop(world, accepted.id))
        await world.until_a_lock_is_awaited()
        await transaction.commit()
    await pausing
    assert await world.states(accepted.id) == [State.SKIPPED]
    assert await worker.lease() == []


@proves("P10")
@pytest.mark.parametrize("end", [stop, remove])
async def test_a_fire_given_back_without_a_call_is_not_called_after_an_acknowledged_pause_or_delete(
    world: World, end: Callable[[World, JobId], Awaitable[None]]
) -> None:
    first, second = await world.worker(), await world.worker()
    accepted = await world.submit(job(schedule=every(10, world.now)))
    await world.advance(10)
    [attempt] = await first.lease()
    await end(world, accepted.id)
    await first.complete(attempt, NotBegun("the worker was stopping"))
    [again] = await second.lease()
    assert again.over in {"job paused", "job deleted"}

    def no_call(*_: object) -> Call:
        raise AssertionError("no call may be made")

    nothing: Any = None
    completion = await run_attempt(again, nothing, no_call, lambda: None)
    assert (completion.state, completion.reason) == (State.CANCELLED, again.over)


@proves("S8", "S1")
@pytest.mark.parametrize("seconds", [0, -5])
async def test_a_recurring_job_can_be_changed_to_run_once_now(world: World, seconds: float) -> None:
    accepted = await world.submit(job(schedule=every(100, world.now)))
    await world.advance(50)
    await change(world, accepted.id, job(schedule=once(world.after(seconds))))
    worker = await world.worker()
    await worker.run_one()
    assert (await world.job(accepted.id)).state is JobState.ENDED
    assert await world.fires(accepted.id) == [seconds]


@proves("S8", "S1")
async def test_a_one_time_job_that_came_due_while_it_was_paused_runs_whatever_its_misfire_policy(world: World) -> None:
    accepted = await world.submit(job(schedule=once(world.after(100), misfire=Misfire(policy="skip"))))
    await stop(world, accepted.id)
    await world.advance(1000)
    await go_on(world, accepted.id)
    assert await world.fires(accepted.id) == [-900]
    assert await world.skipped(accepted.id) == []


@proves("S8", "P4")
async def test_a_pause_gives_back_the_fires_that_were_owed_and_did_not_run(world: World) -> None:
    schedule = every(100, world.now, max_fires=10, misfire=Misfire(policy="all"))
    accepted = await world.submit(job(schedule=schedule))
    await world.advance(550)
    await world.plan()
    assert await world.value("SELECT fires_left FROM ondot.timer") == 5
    await stop(world, accepted.id)
    assert (
        await world.value("SELECT fires_left FROM ondot.timer") == 9
    )  # the fire at 500 s was not missed, and is skipped
    assert [count for *_, count in await world.skipped(accepted.id)] == [4]


@proves("S8", "P4")
async def test_a_job_that_has_used_up_its_fires_misses_none_when_it_is_paused(world: World) -> None:
    accepted = await world.submit(job(schedule=every(5, world.now, max_fires=2)))
    await world.advance(10)
    worker = await world.worker()
    await worker.complete_all(await worker.lease())
    await stop(world, accepted.id)
    await world.advance(1000)
    await remove(world, accepted.id)
    assert await world.skipped(accepted.id) == []


@proves("S8", "S10", "P4")
async def test_fires_that_a_calendar_left_out_run_when_the_calendar_is_removed(world: World) -> None:
    blackout = Blackout(from_at=world.after(8), to_at=world.after(15))
    accepted = await world.submit(job(schedule=every(2, world.now, calendar=Calendar(blackouts=(blackout,)))))
    assert await world.skipped(accepted.id) == [(8, 14, "calendar", 4)]
    await world.advance(11)
    await change(world, accepted.id, job(schedule=every(2, world.after(-11))))
    assert await world.skipped(accepted.id) == [(-3, -1, "calendar", 2)]
    assert [fire for fire in await world.fires(accepted.id) if fire > 0][:3] == [1, 3, 5]


@proves("P3", "C3", "S8")
async def test_after_the_clock_was_set_back_a_change_runs_nothing_again_and_loses_nothing(world: World) -> None:
    begun = world.now
    schedule = every(2, begun, misfire=Misfire(policy="all", grace_s=1))
    accepted = await world.submit(job(schedule=schedule))
    await world.advance(120)
    await world.plan()
    await world.work_off()
    worker = await world.worker()
    live = [entry for entry in await worker.lease() if entry.leased.priority_class == PriorityClass.NORMAL]
    await worker.complete_all(live)
    await world.advance(-60)
    await change(world, accepted.id, job("new", schedule=schedule))
    await world.advance(100)
    for _ in range(3):
        await world.plan()
        await world.work_off()
        await world.advance(1)
    fires = await world.fires(accepted.id)
    seconds = [round(fire + (world.now - begun).total_seconds()) for fire in fires]
    assert [second for second in seconds if second <= 160] == list(range(2, 161, 2))


@proves("S12", "P4", "P10")
async def test_a_schedule_with_more_exclusions_than_a_search_covers_loses_no_fire_and_blocks_no_job(
    world: World,
) -> None:
    begins = world.now.replace(tzinfo=None)
    long_run = Rrule(text="FREQ=SECONDLY;UNTIL=29991231T000000", begins=begins + timedelta(seconds=40))
    schedule = Schedule(when=Interval(every_s=1, anchor_at=world.now), exclude=(long_run,))
    accepted = await world.submit(job(schedule=schedule))
    for _ in range(4):
        await world.advance(10)
        await world.plan()
    assert len(await world.executions(accepted.id)) == 39
    timer = await world.timer(accepted.id)
    assert timer is not None
    assert timer["next_fire_at"] > world.after(10_000)
    await stop(world, accepted.id)
    await go_on(world, accepted.id)
    await remove(world, accepted.id)


@proves("S8")
async def test_two_changes_of_a_job_at_once_take_turns(world: World) -> None:
    accepted = await world.submit(job("one", schedule=every(10, world.now), key="mine"))
    names = [f"name-{n}" for n in range(8)]
    await asyncio.gather(*(world.submit(job(name, schedule=every(10, world.now), key="mine")) for name in names))
    await asyncio.gather(*(change(world, accepted.id, job(name, schedule=every(10, world.now))) for name in names))
    assert (await world.job(accepted.id)).version == 17


@proves("P4", "S8", "E8")
@pytest.mark.parametrize("ends_the_pause", ["resume", "update"])
async def test_a_fire_cancelled_before_a_pause_is_not_skipped_by_it_too(world: World, ends_the_pause: str) -> None:
    accepted = await world.submit(job(schedule=every(5, world.now)))
    executions = {execution.fire_at: execution.id for execution in await world.executions()}
    for fire_at in sorted(executions)[:2]:
        await cancel(world.database, world.dispatcher, DEFAULT_TENANT, executions[fire_at], by=By("ops"))
    await stop(world, accepted.id)
    await world.advance(31)
    if ends_the_pause == "resume":
        await go_on(world, accepted.id)
    else:
        await change(world, accepted.id, job(schedule=every(60, world.now)))
    ranges = await world.fetch("SELECT from_at, to_at, count, reason FROM ondot.skipped ORDER BY from_at")
    first_at = min(executions)
    assert [tuple(entry.values()) for entry in ranges] == [
        (first_at + timedelta(seconds=10), first_at + timedelta(seconds=25), 4, "paused")
    ]


@proves("P4", "P10", "S8")
async def test_a_fire_leased_in_the_middle_of_an_update_costs_the_new_schedule_no_fire(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = await world.submit(job(schedule=every(5, world.now)))
    await world.advance(4.9)
    worker = await world.worker()
    take_back = take_back_fires

    async def leased_meanwhile(*args: Any, **kwargs: Any) -> Any:
        await world.advance(0.1)
        assert len(await worker.lease()) == 1
        return await take_back(*args, **kwargs)

    monkeypatch.setattr(flow_take_back, "take_back_fires", leased_meanwhile)
    began_at = world.now
    await change(world, accepted.id, job(schedule=every(1, began_at)))
    rows = await world.executions()
    fires = sorted((row.fire_at - began_at).total_seconds() for row in rows if row.state is State.PENDING)
    assert fires[:5] == [1, 2, 3, 4, 5]
    assert [row.job_version for row in rows if row.state is State.RUNNING] == [1]


@proves("E8", "P10", "S8")
@pytest.mark.parametrize("number", [0, 1, 2], ids=["first", "second", "last"])
async def test_a_fire_whose_cancel_commits_in_the_middle_of_an_update_is_not_planned_again(
    world: World, number: int
) -> None:
    accepted = await world.submit(job(schedule=every(5, world.now)))
    planned = sorted(await world.executions(), key=lambda row: row.fire_at)
    cancelled = [planned[0], planned[1], planned[-1]][number]
    async with world.second_connection() as canceller, canceller.transaction():
        assert await end_queued(canceller, DEFAULT_TENANT, {cancelled.id: "cancelled by ops"}, CANCEL)
        changing = asyncio.create_task(change(world, accepted.id, job("new", schedule=every(5, world.now))))
        await world.until_a_lock_is_awaited()
    await changing
    rows = await world.executions()
    assert [row.state for row in rows if row.fire_at == cancelled.fire_at] == [State.CANCELLED]
    again = {row.fire_at for row in rows if row.state is State.PENDING and row.job_version == 2}
    assert again == {row.fire_at for row in planned if row is not cancelled}


@proves("P10", "S8")
async def test_an_update_computes_without_a_lock_and_again_if_the_job_was_changed_meanwhile(world: World) -> None:
    accepted = await world.submit(job("first", schedule=every(3600, world.now)))
    versions = []

    async def compute(row: JobRow, _now: datetime) -> JobSpec:
        versions.append(row.version)
        if row.version == 1:
            # Would time out if this update had locked the job already.
            await asyncio.wait_for(change(world, accepted.id, job("second", schedule=every(3600, world.now))), 10)
        return structs.replace(row.spec, labels={"after": row.spec.name})

    row = await update(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id, compute)
    assert versions == [1, 2]
    assert (row.version, row.spec.name, row.spec.labels) == (3, "second", {"after": "second"})
    assert row == await world.job(accepted.id)


@proves("P10", "C3")
async def test_an_update_whose_clock_was_wrong_computes_again_by_the_clock_of_the_database(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now)))
    nows = []

    async def compute(_row: JobRow, now: datetime) -> JobSpec:
        nows.append(now)
        return job(schedule=once(now + timedelta(minutes=5)))

    world.database.clock.freeze(world.now - timedelta(hours=1))
    row = await update(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id, compute)
    assert nows == [world.now - timedelta(hours=1), world.now]
    assert row.next_fire_at == world.now + timedelta(minutes=5)


@proves("S8")
async def test_a_change_computes_the_next_fire_of_a_slow_schedule_off_the_event_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now)))
    threads = []

    def note_thread(schedule: Schedule, after: datetime) -> tuple[datetime | None, datetime | None]:
        threads.append(threading.current_thread())
        return next_or_look_again(schedule, after)

    monkeypatch.setattr(flow_change, "next_or_look_again", note_thread)
    await change(world, accepted.id, job(schedule=every(60, world.now)))
    assert threads == [threading.main_thread()]
    slow = Schedule(
        when=Interval(every_s=60, anchor_at=world.now), exclude=(Interval(every_s=120, anchor_at=world.now),)
    )
    await change(world, accepted.id, job(schedule=slow))
    assert threads[1] is not threading.main_thread()
    assert (await world.job(accepted.id)).next_fire_at == world.after(60)
