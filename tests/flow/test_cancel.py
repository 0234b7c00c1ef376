"""Cancel in all its cases, also in a race with the outcome; start deadlines; each end is recorded."""

import asyncio

import pytest

from ondot.flow.cancel import cancel
from ondot.flow.change.change import pause, resume
from ondot.flow.complete import Done
from ondot.flow.gate import expire_pass
from ondot.flow.run import run_attempt
from ondot.model.errors import Conflict, NotFound
from ondot.model.execution import Outcome, State
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, ExecutionId
from ondot.model.outcome import Cancelled, Interrupted, NotBegun, Report, Succeeded
from ondot.store.audit import By
from ondot.store.endings import find_cancels, request_cancels
from ondot.store.executions import ExecutionRow
from tests.proves import proves
from tests.world import World, every, failed, job, once


async def cancelled(world: World, id_: ExecutionId, reason: str | None = None) -> ExecutionRow:
    return await cancel(world.database, world.dispatcher, DEFAULT_TENANT, id_, by=By("ops", reason))


@proves("E8")
async def test_an_execution_that_is_not_due_or_waits_in_the_queue_is_cancelled_at_once(world: World) -> None:
    due = await world.submit(job())
    to_come = await world.submit(job(schedule=once(world.after(10))))
    for accepted in (due, to_come):
        [row] = await world.executions(accepted.id)
        ended = await cancelled(world, row.id, "not needed")
        assert (ended.state, ended.reason) == (State.CANCELLED, "cancelled by ops: not needed")
    await world.advance(10)
    assert await (await world.worker()).lease() == []
    assert await world.count("ready") == 0


@proves("E8", "E13")
async def test_an_execution_in_line_is_cancelled_and_the_next_one_moves_up(world: World) -> None:
    limits = Limits(key="k", key_concurrency=1)
    first, second, third = await world.submit_all([job(limits=limits) for _ in range(3)])
    worker = await world.worker()
    [running] = await worker.lease()
    assert running.leased.job_id == first.id
    [waiting] = await world.executions(second.id)
    await cancelled(world, waiting.id)
    await worker.complete(running)
    [then] = await worker.lease()
    assert then.leased.job_id == third.id


@proves("E8")
async def test_an_execution_that_waits_for_its_next_attempt_is_cancelled(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    assignment = await worker.run_one(failed())
    assert (await cancelled(world, assignment.leased.id)).state is State.CANCELLED
    await world.advance(3600)
    assert await worker.lease() == []


@proves("E8")
async def test_a_running_execution_is_asked_to_end_and_its_worker_finds_the_request(world: World) -> None:
    await world.submit(job())
    worker, other = await world.worker(), await world.worker()
    [assignment] = await worker.lease()
    row = await cancelled(world, assignment.leased.id, "too slow")
    assert (row.state, row.cancel_at) == (State.RUNNING, world.now)
    async with world.database.connection() as connection:
        assert await find_cancels(connection, worker.id) == [(assignment.leased.id, 1)]
        assert await find_cancels(connection, other.id) == []
    await worker.complete(assignment, Cancelled("it ended by itself"))
    ended = await world.execution(assignment.leased.id)
    assert (ended.state, ended.reason) == (State.CANCELLED, "cancelled by ops: too slow")
    [attempt] = await world.fetch("SELECT outcome, error FROM ondot.attempt")
    assert attempt["outcome"] == "CANCELLED"
    assert '"forced": false' in attempt["error"]


@proves("E8", "P5")
@pytest.mark.parametrize(
    ("report", "state", "outcome"),
    [
        (Succeeded("1"), State.SUCCEEDED, None),
        (failed(), State.CANCELLED, "FAILED"),
        (failed(retryable=False), State.FAILED, "FAILED"),
        (Interrupted("the worker stopped"), State.CANCELLED, "WORKER_LOST"),
        (NotBegun("the worker stops"), State.CANCELLED, "PREEMPTED"),
        (Cancelled("ended", forced=True), State.CANCELLED, "CANCELLED"),
    ],
)
async def test_an_outcome_that_races_a_cancel_is_recorded_as_it_was_and_nothing_is_retried(
    world: World, report: Report, state: State, outcome: str | None
) -> None:
    await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    await cancelled(world, assignment.leased.id)
    await worker.complete(assignment, report)
    assert (await world.execution(assignment.leased.id)).state is state
    assert [row["outcome"] for row in await world.fetch("SELECT outcome FROM ondot.attempt")] == (
        [outcome] if outcome else []
    )
    await world.advance(3600)
    assert await worker.lease() == []


@proves("E6", "E8")
async def test_a_cancelled_execution_whose_worker_is_lost_is_not_run_again(world: World) -> None:
    await world.submit(job())
    lost = await world.worker()
    [assignment] = await lost.lease()
    await cancelled(world, assignment.leased.id)
    await world.value("UPDATE ondot.worker SET state = 'LOST' WHERE id = $1", lost.id)
    await world.recover()
    assert (await world.execution(assignment.leased.id)).state is State.CANCELLED


@proves("E8")
async def test_a_second_cancel_changes_nothing_and_an_ended_execution_cannot_be_cancelled(world: World) -> None:
    await world.submit_all([job(), job()])
    worker = await world.worker()
    first, second = await worker.lease()
    for _ in range(2):
        assert (await cancelled(world, first.leased.id, "first")).cancel_reason == "cancelled by ops: first"
    await worker.complete(second)
    with pytest.raises(Conflict, match="has ended SUCCEEDED"):
        await cancelled(world, second.leased.id)
    with pytest.raises(NotFound):
        await cancelled(world, ExecutionId(world.database.clock.new_id()))
    assert await world.value("SELECT count(*) FROM ondot.audit WHERE action = 'execution.cancel'") == 1


@proves("E8", "P5", "P6")
async def test_cancels_in_a_race_with_leases_and_outcomes_leave_one_end_each(world: World) -> None:
    await world.submit_all([job() for _ in range(60)])
    rows = await world.executions()
    worker, other = await world.worker(), await world.worker()

    async def work() -> None:
        while assignments := await worker.lease(7):
            await worker.complete_all(assignments[:4])
            await worker.complete_all(assignments[4:], failed())

    async def end(ids: list[ExecutionId]) -> None:
        for id_ in ids:
            try:
                await cancelled(world, id_)
            except Conflict:
                continue

    async with asyncio.timeout(60):
        await asyncio.gather(work(), end([row.id for row in rows[::2]]), end([row.id for row in rows[1::3]]))
    await world.advance(86_400)
    while assignments := await other.lease():
        await other.complete_all(assignments)
        await world.advance(86_400)
    states = await world.states()
    assert len(states) == 60
    assert set(states) <= {State.SUCCEEDED, State.CANCELLED}
    assert [await world.count(table) for table in ("ready", "execution", "lease")] == [0, 0, 0]


@proves("E16", "P4")
async def test_an_execution_that_is_not_started_by_its_deadline_is_recorded_as_skipped(world: World) -> None:
    accepted = await world.submit(job(schedule=once(world.after(5)), start_deadline_s=30))
    await world.advance(35)
    assert await expire_pass(world.database) == 0
    await world.advance(0.001)
    assert await expire_pass(world.database) == 1
    [row] = await world.executions(accepted.id)
    assert (row.state, row.reason) == (State.SKIPPED, "expired")
    assert await world.count("ready") == 0


@proves("E16")
async def test_the_deadline_is_for_the_first_start_and_not_for_retries(world: World) -> None:
    await world.submit(job(start_deadline_s=1))
    worker = await world.worker()
    await worker.run_one(failed())
    await world.advance(3600)
    assert await expire_pass(world.database) == 0
    [again] = await worker.lease()
    assert again.leased.attempt_no == 2


@proves("E16")
async def test_an_execution_leased_after_its_deadline_makes_no_call(world: World) -> None:
    accepted = await world.submit(job(start_deadline_s=1))
    await world.advance(2)
    worker = await world.worker()
    [assignment] = await worker.lease()
    completion = await run_attempt(assignment, {}, lambda *_: pytest.fail("a call"), lambda: None)
    assert (completion.state, completion.outcome) == (State.SKIPPED, Outcome.PREEMPTED)
    await worker.completer.write([Done(completion, assignment.lease_id)])
    assert await world.states(accepted.id) == [State.SKIPPED]


@proves("E16", "E13")
async def test_a_deadline_passes_in_line_before_a_gate_too(world: World) -> None:
    limits = Limits(concurrency=1)
    accepted = await world.submit(job(schedule=every(5, world.now), limits=limits, start_deadline_s=7))
    await world.plan()
    await world.advance(5)
    worker = await world.worker()
    [running] = await worker.lease()
    await world.advance(13)
    await expire_pass(world.database)
    assert (await world.states(accepted.id))[:3] == [State.RUNNING, State.SKIPPED, State.PENDING]
    await worker.complete(running)
    assert len(await worker.lease()) == 1


@proves("E8", "P3", "S8")
async def test_a_change_plans_again_all_coming_fires_but_those_that_were_cancelled(world: World) -> None:
    accepted = await world.submit(job(schedule=every(4, world.now)))
    to_come = await world.executions(accepted.id)
    await cancelled(world, to_come[0].id)
    await cancelled(world, to_come[1].id)
    changed = job(schedule=every(2, world.now), limits=Limits(concurrency=1))
    await world.update(accepted.id, changed)
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id)
    rows = await world.executions(accepted.id)
    fires = [((row.fire_at - world.now).total_seconds(), row.state) for row in rows]
    assert fires == [(2.0 * n, State.CANCELLED if n in {2, 4} else State.PENDING) for n in range(1, 11)]


@proves("E8", "P5")
@pytest.mark.parametrize("by_recovery", [False, True])
async def test_an_outcome_that_is_written_as_a_cancel_commits_ends_the_execution(
    world: World, by_recovery: bool
) -> None:
    """The statement read the row before the cancel, then waits for it: "again" and "ended" are both wrong."""
    await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    if by_recovery:
        await world.value("UPDATE ondot.worker SET state = 'LOST' WHERE id = $1", worker.id)
    async with world.second_connection() as other, asyncio.timeout(20):
        transaction = other.transaction()
        await transaction.start()
        await request_cancels(other, DEFAULT_TENANT, [assignment.leased.id], "enough")
        writing = asyncio.ensure_future(world.recover() if by_recovery else worker.complete(assignment, failed()))
        await world.until_a_lock_is_awaited()
        await transaction.commit()
        await writing
    if by_recovery:
        assert await world.count("lease") == 1
        await world.recover()
    row = await world.execution(assignment.leased.id)
    assert (row.state, row.reason) == (State.CANCELLED, "enough")
    assert await world.count("lease") == 0
