"""⑥ Complete: each outcome once, fenced; ended executions are in history, the others in the queue again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from ondot.model.completion import encode_error
from ondot.model.execution import Outcome, PriorityClass, State
from ondot.model.ids import DEFAULT_TENANT, ExecutionId
from ondot.model.outcome import AttemptError, Failed, Interrupted, NotBegun, Succeeded
from ondot.model.retry import Retry
from ondot.store.executions import AttemptRow, list_attempts
from ondot.telemetry.metrics import REPEATED, STALE
from tests.proves import proves
from tests.world import Worker, World, done, failed, job

FIXED = Retry(max_retries=2, backoff="fixed", initial_s=10, jitter=False)


async def attempts(world: World, id_: ExecutionId) -> list[AttemptRow]:
    async with world.database.connection() as connection:
        return await list_attempts(connection, DEFAULT_TENANT, id_)


@asynccontextmanager
async def writing(worker: Worker) -> AsyncIterator[None]:
    """The completer's own loop, as a worker runs it."""
    task = asyncio.create_task(worker.completer.run())
    try:
        async with asyncio.timeout(20):
            yield
            await worker.completer.drained()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@proves("E5", "P5", "P8")
async def test_a_success_is_in_history_with_its_result(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    await world.advance(2)
    await worker.complete(assignment, Succeeded('{"rows": 3}'))
    execution = await world.execution(assignment.leased.id)
    assert (execution.state, execution.result) == (State.SUCCEEDED, {"rows": 3})
    assert (execution.attempt_no, execution.worker_id, execution.ended_at) == (1, worker.id, world.now)
    assert await attempts(world, assignment.leased.id) == []
    assert (await world.count("execution"), await world.count("ready"), await world.count("lease")) == (0, 0, 0)


@proves("E4", "E10", "P7")
async def test_failures_are_retried_after_their_backoff_until_they_are_used_up(world: World) -> None:
    await world.submit(job(retry=FIXED))
    worker = await world.worker()
    for number in (1, 2, 3):
        [assignment] = await worker.lease()
        assert (assignment.leased.attempt_no, assignment.leased.failures) == (number, number - 1)
        await worker.complete(assignment, failed(f"attempt {number}"))
        assert await worker.lease() == []
        await world.advance(9.9)
        assert await worker.lease() == []
        await world.advance(0.1)
    execution = await world.execution(assignment.leased.id)
    assert (execution.state, execution.failures, execution.losses) == (State.FAILED, 3, 0)
    assert execution.reason == "2 retries used, none left"
    rows = await attempts(world, execution.id)
    assert [(row.attempt_no, row.outcome) for row in rows] == [(n, Outcome.FAILED) for n in (1, 2, 3)]
    assert [row.error and row.error["message"] for row in rows] == ["attempt 1", "attempt 2", "attempt 3"]
    [letter] = await world.fetch("SELECT * FROM ondot.dead_letter")
    assert (letter["execution_id"], letter["reason"]) == (execution.id, execution.reason)


@proves("E4")
async def test_an_error_that_is_not_retried_fails_at_once(world: World) -> None:
    await world.submit(job(retry=FIXED))
    worker = await world.worker()
    await worker.run_one(failed(retryable=False))
    assert await world.states() == [State.FAILED]


@proves("E4", "C3")
@pytest.mark.parametrize(
    ("at_s", "starts_s"),
    [(3600, 3600), (10, 20), (-3600, 20), (400 * 86_400, 366 * 86_400)],
    ids=["at the instant", "after the backoff", "of the past", "within a year"],
)
async def test_an_instant_to_retry_at_is_one_of_the_databases_clock(world: World, at_s: float, starts_s: float) -> None:
    await world.submit(job(retry=Retry(backoff="fixed", initial_s=20, jitter=False)))
    worker = await world.worker()
    # Tomorrow noon by that clock; by this machine's own it would be another delay.
    assignment = await worker.run_one(failed(retry_at=world.after(at_s)))
    assert (await world.execution(assignment.leased.id)).ready_at == world.after(starts_s)


@proves("E4")
async def test_a_retry_waits_for_the_retry_after_of_the_receiver(world: World) -> None:
    await world.submit(job(retry=FIXED))
    worker = await world.worker()
    await worker.run_one(failed(retry_after_s=30))
    [execution] = await world.executions()
    assert (execution.state, execution.ready_at) == (State.RETRYING, world.after(30))


@proves("E5", "P7")
async def test_an_execution_given_back_before_its_call_costs_nothing_and_is_served_first(world: World) -> None:
    await world.submit(job(retry=Retry(max_retries=0, max_worker_losses=0), priority="low"))
    worker = await world.worker()
    await worker.run_one(NotBegun("the worker stops"))
    [execution] = await world.executions()
    assert (execution.state, execution.failures, execution.losses) == (State.PENDING, 0, 0)
    assert execution.priority_class == PriorityClass.RECOVERED
    [assignment] = await worker.lease()
    assert assignment.leased.attempt_no == 2
    assert [row.outcome for row in await attempts(world, execution.id)] == [Outcome.PREEMPTED]


@proves("E6", "P7")
async def test_an_attempt_that_its_stopping_worker_interrupted_counts_as_a_loss(world: World) -> None:
    await world.submit(job(retry=Retry(max_worker_losses=1)))
    worker = await world.worker()
    await worker.run_one(Interrupted("stopped"))
    assert await world.states() == [State.RETRYING]
    await worker.run_one(Interrupted("stopped"))
    [execution] = await world.executions()
    assert (execution.state, execution.failures, execution.losses) == (State.FAILED, 0, 2)


@proves("E6")
async def test_the_lease_goes_with_its_last_member_and_not_before(world: World) -> None:
    await world.submit_all([job() for _ in range(3)])
    worker = await world.worker()
    first, second, third = await worker.lease()
    await worker.complete(first)
    await worker.complete(second, failed())
    assert await world.count("lease") == 1
    assert list(worker.completer.leases) == [first.lease_id]
    await worker.complete(third, NotBegun("stops"))
    assert await world.count("lease") == 0
    assert not worker.completer.leases


@proves("E11", "P6")
async def test_completion_of_a_stale_worker_is_refused_and_counted(world: World) -> None:
    await world.submit(job())
    stale, fresh = await world.worker(), await world.worker()
    [assignment] = await stale.lease()
    await stale.complete(assignment, failed())
    await world.advance(3600)
    [again] = await fresh.lease()
    before = STALE.value, REPEATED.value
    late = done(assignment)
    for wrong in (
        replace(late, completion=replace(late.completion, attempt_no=2)),
        replace(late, completion=replace(late.completion, attempt_no=3)),
    ):
        assert await stale.completer.write([wrong]) == []
    assert await fresh.completer.write([late]) == []
    assert (STALE.value, REPEATED.value) == (before[0] + 3, before[1])
    assert await world.states() == [State.RUNNING]
    await fresh.complete(again)
    assert await world.states() == [State.SUCCEEDED]


@proves("E11", "P5", "P6")
@pytest.mark.parametrize("report", [Succeeded('"done"'), failed(), failed(retryable=False), NotBegun("stops")])
async def test_an_outcome_that_is_written_twice_counts_once_and_is_not_taken_for_a_stale_one(
    world: World, report: Succeeded | Failed | NotBegun
) -> None:
    await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    assert len(await worker.complete(assignment, report)) == 1
    states = await world.states()
    before = STALE.value, REPEATED.value
    assert await worker.complete(assignment, report) == []
    assert (STALE.value, REPEATED.value) == (before[0], before[1] + 1)
    assert await world.states() == states


@proves("E11", "E14", "P5")
@pytest.mark.parametrize(
    "report",
    [
        Succeeded("no JSON at all"),
        Succeeded('"a NUL \0 byte"'),
        Succeeded('"half of a pair \ud800"'),
        Failed(AttemptError("broken", "fine"), result="{", retryable=False),
    ],
    ids=["not JSON", "NUL", "surrogate", "failed with a bad result"],
)
async def test_an_outcome_that_cannot_be_stored_fails_alone_with_that_reason(
    world: World, report: Succeeded | Failed
) -> None:
    await world.submit_all([job() for _ in range(5)])
    worker = await world.worker()
    assignments = await worker.lease()
    bad = assignments[2]
    async with writing(worker):
        for assignment in assignments:
            worker.completer.add(done(assignment, report if assignment is bad else None))
    states = {execution.id: execution.state for execution in await world.executions()}
    assert states.pop(bad.leased.id) is State.FAILED
    assert set(states.values()) == {State.SUCCEEDED}
    execution = await world.execution(bad.leased.id)
    assert execution.reason == "its outcome could not be stored"
    assert execution.error is not None
    assert execution.error["code"] == "unstorable"
    assert await world.count("lease") == 0


@proves("E14")
async def test_a_result_with_an_escaped_nul_is_kept_as_it_is(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    await worker.run_one(Succeeded('"a \\u0000 b"'))
    [execution] = await world.executions()
    assert execution.result == "a \0 b"


@proves("E11", "E14")
@pytest.mark.parametrize("message", ["NUL \0", "half of a pair \ud800", "\\u0000", "plain ✓"])
async def test_any_message_of_an_error_can_be_stored(world: World, message: str) -> None:
    await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    assert encode_error(AttemptError("failed", message))
    await worker.complete(assignment, failed(message))
    [attempt] = await attempts(world, assignment.leased.id)
    assert attempt.error is not None
    assert attempt.error["message"].split()[0] == message.split(maxsplit=1)[0].replace("\\u0000", "\\ufffd")


@proves("E11", "N2")
async def test_a_thousand_outcomes_are_written_in_batches(world: World) -> None:
    await world.submit_all([job() for _ in range(1000)])
    worker = await world.worker()
    assignments = await worker.lease(1000)
    async with writing(worker):
        for assignment in assignments:
            worker.completer.add(done(assignment))
    assert await world.value("SELECT count(*) FROM ondot.history WHERE state = 'SUCCEEDED'") == 1000
    assert worker.completer.leases == ()


@proves("L4", "P7")
async def test_outcomes_are_kept_until_the_database_is_back(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    async with world.second_connection() as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    async with writing(worker):
        worker.completer.add(done(assignment))
    assert await world.states() == [State.SUCCEEDED]


@proves("P8", "L4")
async def test_a_temporary_error_of_the_server_does_not_turn_a_success_into_a_failure(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    [attempt] = await worker.lease()
    await world.fetch("CREATE SEQUENCE ondot.tries")
    await world.fetch(
        "CREATE FUNCTION ondot.refuse_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('ondot.tries') = 1 THEN RAISE EXCEPTION 'out of shared memory' USING ERRCODE = '53200'; END IF;"
        " RETURN new; END $$"
    )
    await world.fetch(
        "CREATE TRIGGER refuse_once BEFORE INSERT ON ondot.history FOR EACH ROW EXECUTE FUNCTION ondot.refuse_once()"
    )
    async with writing(worker):
        worker.completer.add(done(attempt))
    assert (await world.execution(attempt.leased.id)).state is State.SUCCEEDED
    assert await world.value("SELECT last_value FROM ondot.tries") == 2
