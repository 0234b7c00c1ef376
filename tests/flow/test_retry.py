"""Retry by hand: the next attempt now, or a replay of an ended execution; two requests make one execution."""

import asyncio
import json
from uuid import UUID

import pytest

from ondot.flow.cancel import cancel
from ondot.flow.replay import Replay, make_replays
from ondot.flow.retry import Retried, retry
from ondot.flow.work import Work
from ondot.model.errors import Conflict, NotFound, Unavailable
from ondot.model.execution import State
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, TenantNo
from ondot.model.retry import Retry
from ondot.store.audit import By, list_audit
from ondot.store.dead_letters import lock_ended
from tests.proves import proves
from tests.world import World, failed, job

SLOW = Retry(max_retries=3, backoff="fixed", initial_s=600.0, jitter=False)


async def retried(
    world: World, id_: ExecutionId, how: Replay | None = None, tenant_no: TenantNo = DEFAULT_TENANT
) -> ExecutionId:
    def answer(done: Retried) -> str:
        return str(done.execution.id)

    text = await retry(world.database, world.dispatcher, tenant_no, id_, how or Replay(), by=By("ann"), render=answer)
    return ExecutionId(UUID(text))


async def waiting_for_a_retry(world: World, limits: Limits | None = None) -> ExecutionId:
    await world.submit(job(retry=SLOW, limits=limits))
    worker = await world.worker()
    return (await worker.run_one(failed())).leased.id


@proves("E10", "E4")
async def test_an_execution_that_waits_for_its_next_attempt_starts_it_now(world: World) -> None:
    id_ = await waiting_for_a_retry(world)
    worker = await world.worker()
    assert await worker.lease() == []
    assert await retried(world, id_) == id_
    [assignment] = await worker.lease()
    assert (assignment.leased.id, assignment.leased.attempt_no, assignment.leased.failures) == (id_, 2, 1)
    assert await world.count("ready") == 0
    async with world.database.connection() as connection:
        [entry] = await list_audit(connection, DEFAULT_TENANT, subject=id_, limit=9)
    assert (entry.actor, entry.action) == ("ann", "execution.retry")


@proves("E10")
async def test_two_retries_of_a_waiting_execution_leave_it_one_place_in_the_queue(world: World) -> None:
    id_ = await waiting_for_a_retry(world)
    assert await asyncio.gather(*(retried(world, id_) for _ in range(4))) == [id_] * 4
    assert await world.count("ready") == 1


@proves("E10", "E13")
@pytest.mark.parametrize(
    "limits", [Limits(key="db", key_concurrency=1), Limits(overlap="queue")], ids=["for an attempt", "until the end"]
)
async def test_a_gated_execution_has_its_next_attempt_now_and_one_place(world: World, limits: Limits) -> None:
    id_ = await waiting_for_a_retry(world, limits)
    assert await retried(world, id_) == id_
    worker = await world.worker()
    [assignment] = await worker.lease()
    assert (assignment.leased.id, assignment.leased.attempt_no) == (id_, 2)
    await worker.complete(assignment)
    assert [await world.count(table) for table in ("ready", "waiting", "slot", "gated")] == [0, 0, 0, 0]


@proves("E10", "E11")
async def test_a_lease_before_a_retry_wins_and_the_retry_reports_that_it_runs(world: World) -> None:
    id_ = await waiting_for_a_retry(world)
    async with world.second_connection() as other:
        leasing = other.transaction()
        await leasing.start()
        await other.execute("DELETE FROM ondot.ready WHERE execution_id = $1", id_)
        asking = asyncio.create_task(retried(world, id_))
        await world.until_a_lock_is_awaited()
        await other.execute("UPDATE ondot.execution SET state = 'RUNNING', attempt_no = 2 WHERE id = $1", id_)
        await leasing.commit()
        with pytest.raises(Conflict, match="running"):
            await asking
    assert await world.count("ready") == 0


@proves("E10")
async def test_a_retry_of_an_execution_that_is_pending_or_runs_is_refused_with_advice(world: World) -> None:
    accepted = await world.submit(job())
    [pending] = [execution.id for execution in await world.executions(accepted.id)]
    with pytest.raises(Conflict, match="cancel"):
        await retried(world, pending)
    worker = await world.worker()
    await worker.lease()
    with pytest.raises(Conflict, match="wait for its end"):
        await retried(world, pending)
    with pytest.raises(NotFound):
        await retried(world, pending, tenant_no=TenantNo(2))


@proves("E10")
async def test_a_live_execution_keeps_its_payload_and_version(world: World) -> None:
    id_ = await waiting_for_a_retry(world)
    for how in (Replay(payload="{}"), Replay(current_version=True)):
        with pytest.raises(Conflict, match="cancel it"):
            await retried(world, id_, how)


@proves("E10")
async def test_a_failed_execution_is_replayed_and_its_letter_resolved(world: World) -> None:
    await world.submit(job(retry=Retry(max_retries=0)))
    worker = await world.worker()
    id_ = (await worker.run_one(failed())).leased.id
    again = await retried(world, id_)
    [letter] = await world.fetch("SELECT resolution, resolved_by, replay_id FROM ondot.dead_letter")
    assert tuple(letter.values()) == ("replayed", "ann", again)
    with pytest.raises(Conflict, match=str(again)):
        await retried(world, id_)
    assert (await worker.run_one()).leased.id == again


@proves("E10")
async def test_a_succeeded_execution_runs_again_with_another_payload_one_at_a_time(world: World) -> None:
    await world.submit(job(payload=b'{"n":1}'))
    worker = await world.worker()
    id_ = (await worker.run_one()).leased.id
    results = await asyncio.gather(
        *(retried(world, id_, Replay(payload='{"n":2}')) for _ in range(3)), return_exceptions=True
    )
    [again] = [result for result in results if not isinstance(result, BaseException)]
    assert [type(result) for result in results if isinstance(result, BaseException)] == [Conflict, Conflict]
    assignment = await worker.run_one()
    assert (assignment.leased.id, json.loads(assignment.payload)) == (again, {"n": 2})
    assert await retried(world, id_) not in {id_, again}
    assert [state for state in await world.states() if state is not State.SUCCEEDED] == [State.PENDING]


@proves("E10", "P3")
async def test_a_second_retry_waits_for_the_first_and_names_its_replay(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    id_ = (await worker.run_one()).leased.id
    async with world.second_connection() as other:
        first = other.transaction()
        await first.start()
        ended = await lock_ended(other, DEFAULT_TENANT, id_)
        assert ended is not None
        second = asyncio.create_task(retried(world, id_))
        await world.until_a_lock_is_awaited()
        [made], _ = await make_replays(Work(other, world.database, DEFAULT_TENANT), [ended], Replay(), By("nobody"))
        await first.commit()
        with pytest.raises(Conflict, match=str(made.replay_id)):
            await second


@proves("E10")
async def test_a_retry_of_an_execution_whose_job_is_gone_is_refused_with_advice(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    id_ = (await worker.run_one()).leased.id
    await world.value("DELETE FROM ondot.job_once")
    with pytest.raises(Conflict, match="gone"):
        await retried(world, id_)


@proves("E10", "E8")
async def test_a_retry_and_a_cancel_at_once_do_not_deadlock(world: World) -> None:
    id_ = await waiting_for_a_retry(world, Limits(key="db", key_concurrency=1))
    async with asyncio.timeout(30):
        results = await asyncio.gather(
            retried(world, id_),
            cancel(world.database, world.dispatcher, DEFAULT_TENANT, id_, by=By("bob")),
            retried(world, id_),
            return_exceptions=True,
        )
    assert not [result for result in results if isinstance(result, Unavailable)]
    assert not isinstance(results[1], BaseException)
    assert (await world.execution(id_)).state is State.CANCELLED
    for table in ("ready", "waiting", "slot", "gated"):
        assert await world.fetch(f"SELECT FROM ondot.{table} WHERE execution_id = $1", id_) == [], table
