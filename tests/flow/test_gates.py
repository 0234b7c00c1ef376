"""Limits of jobs: overlap, order, concurrency and rates. Executions wait or are skipped, and no slot is lost."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from ondot.flow import gate
from ondot.flow.change.change import delete, pause
from ondot.flow.gate import Tidying, admit_pass
from ondot.flow.lease import Assignment
from ondot.model.execution import State
from ondot.model.gates import Limits, Rate
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.job import JobSpec
from ondot.model.outcome import Cancelled, Interrupted, NotBegun
from ondot.model.retry import Retry
from ondot.store.queue import oldest_due
from tests.proves import proves
from tests.world import DEFAULT_POOL, Worker, World, every, failed, job, once


def limited(**limits: Any) -> JobSpec:
    return job(limits=Limits(**limits), retry=Retry(jitter=False))


async def slots(world: World) -> int:
    return await world.count("slot")


@proves("E13", "P11")
async def test_no_more_of_a_job_run_at_once_than_its_limit(world: World) -> None:
    recurring = await world.submit(job(schedule=every(3600, world.now), limits=Limits(concurrency=2)))
    for _ in range(5):
        await world.run_now(recurring.id)
    worker = await world.worker()
    first = await worker.lease()
    assert len(first) == 2
    assert await worker.lease() == []
    await worker.complete(first[0])
    assert len(await worker.lease()) == 1
    assert await slots(world) == 2


@proves("E13", "P11")
async def test_jobs_that_share_a_key_share_its_limit(world: World) -> None:
    await world.submit_all([limited(key="customer-7", key_concurrency=1) for _ in range(3)])
    await world.submit(limited(key="customer-8", key_concurrency=1))
    worker = await world.worker()
    assert len(await worker.lease()) == 2
    assert await worker.lease() == []


@proves("E13")
async def test_a_retry_gives_its_slot_back_and_waits_in_line_again(world: World) -> None:
    await world.submit_all([limited(key="k", key_concurrency=1) for _ in range(2)])
    worker = await world.worker()
    [first] = await worker.lease()
    await worker.complete(first, failed())
    assert (await world.execution(first.leased.id)).state is State.RETRYING
    [second] = await worker.lease()
    assert second.leased.id != first.leased.id
    await world.advance(1)
    assert await worker.lease() == []
    await worker.complete(second)
    [again] = await worker.lease()
    assert (again.leased.id, again.leased.attempt_no) == (first.leased.id, 2)
    await worker.complete(again)
    assert (await slots(world), await world.count("gated"), await world.count("waiting")) == (0, 0, 0)


@proves("E6", "E13")
async def test_a_lost_worker_leaves_no_slot_behind(world: World) -> None:
    await world.submit_all([limited(key="k", key_concurrency=1) for _ in range(2)])
    lost = await world.worker()
    [assignment] = await lost.lease()
    await world.value("UPDATE ondot.worker SET state = 'LOST' WHERE id = $1", lost.id)
    await world.recover()
    worker = await world.worker()
    [taken] = await worker.lease()
    assert await worker.lease() == []
    await worker.complete(taken)
    [other] = await worker.lease()
    await worker.complete(other)
    assert {taken.leased.id, other.leased.id} >= {assignment.leased.id}
    assert await slots(world) == 0


@proves("E6", "E13", "L3")
@pytest.mark.parametrize("limits", [{"key_concurrency": 1}, {"key_rate": Rate(limit=1, per_s=1)}])
async def test_work_of_a_lost_worker_is_first_in_line_again(world: World, limits: dict[str, Any]) -> None:
    """Not behind the work that became due before the worker was marked lost."""
    first = await world.submit(limited(key="k", **limits))
    await world.advance(1)
    lost = await world.worker()
    assert len(await lost.lease()) == 1
    for _ in range(3):
        await world.submit(limited(key="k", **limits))
    await world.value("UPDATE ondot.worker SET state = 'LOST' WHERE id = $1", lost.id)
    await world.advance(0.5)
    await world.recover()
    await world.advance(0.5)
    [again] = await (await world.worker()).lease()
    assert (again.leased.job_id, again.leased.attempt_no) == (first.id, 2)


@proves("L7", "C3", "E6")
@pytest.mark.parametrize("seconds", [600, -3600])
async def test_work_that_a_lost_worker_ran_for_long_does_not_count_as_late_or_wait_for_the_old_clock(
    world: World, seconds: int
) -> None:
    await world.submit(limited(key="k", key_concurrency=1))
    lost = await world.worker()
    assert len(await lost.lease()) == 1
    await world.advance(seconds)
    await world.value("UPDATE ondot.worker SET state = 'LOST' WHERE id = $1", lost.id)
    await world.recover()
    async with world.database.connection() as connection:
        assert (await oldest_due(connection)).lag_s == 0
    assert len(await (await world.worker()).lease()) == 1


@proves("E12", "P4")
async def test_a_fire_that_finds_its_job_running_is_skipped_on_record(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now), limits=Limits(overlap="skip")))
    await world.plan()
    await world.advance(10)
    worker = await world.worker()
    [running] = await worker.lease()
    await world.advance(10)
    assert await worker.lease() == []
    skipped = [row for row in await world.executions(accepted.id) if row.state is State.SKIPPED]
    assert [row.reason for row in skipped] == ["overlap"]
    await worker.complete(running)
    await world.plan()
    await world.advance(10)
    assert len(await worker.lease()) == 1


@proves("E12")
async def test_a_run_by_hand_waits_where_a_fire_would_be_skipped(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now), limits=Limits(overlap="skip")))
    first, second = await world.run_now(accepted.id), await world.run_now(accepted.id)
    worker = await world.worker()
    [running] = await worker.lease()
    assert await worker.lease() == []
    await worker.complete(running)
    [then] = await worker.lease()
    assert [running.leased.id, then.leased.id] == [first, second]


@proves("E12")
async def test_queued_fires_run_one_after_another_in_order_also_over_retries(world: World) -> None:
    accepted = await world.submit(
        job(schedule=every(5, world.now), limits=Limits(overlap="queue"), retry=Retry(jitter=False))
    )
    await world.plan()
    await world.advance(11)
    worker = await world.worker()
    [first] = await worker.lease()
    await worker.complete(first, failed())
    assert await worker.lease() == []  # the retry goes first: it keeps its slot to the end
    await world.advance(1)
    [again] = await worker.lease()
    assert again.leased.id == first.leased.id
    await worker.complete(again)
    [second] = await worker.lease()
    assert second.leased.fire_at == first.leased.fire_at + timedelta(seconds=5)
    assert (await world.job(accepted.id)).state == "ACTIVE"


@proves("E12", "E8")
async def test_the_running_execution_is_cancelled_when_the_next_fire_is_due(world: World) -> None:
    await world.submit(job(schedule=every(10, world.now), limits=Limits(overlap="cancel")))
    await world.plan()
    await world.advance(10)
    worker = await world.worker()
    [running] = await worker.lease()
    await world.advance(10)
    assert await worker.lease() == []
    row = await world.execution(running.leased.id)
    assert row.cancel_at == world.now
    assert row.cancel_reason == "overlap: the next fire is due"
    await worker.complete(running, Cancelled("it ended"))
    ended = await world.execution(running.leased.id)
    assert (ended.state, ended.reason) == (State.CANCELLED, "overlap: the next fire is due")
    assert len(await worker.lease()) == 1


@proves("E12")
async def test_only_the_newest_fire_waits_for_a_cancel(world: World) -> None:
    accepted = await world.submit(job(schedule=every(5, world.now), limits=Limits(overlap="cancel")))
    await world.plan()
    await world.advance(5)
    worker = await world.worker()
    [running] = await worker.lease()
    await world.advance(5)
    await worker.lease()
    await world.advance(5)
    await worker.lease()
    await worker.complete(running, Cancelled("it ended"))
    [newest] = await worker.lease()
    states = await world.states(accepted.id)
    assert states[:3] == [State.CANCELLED, State.CANCELLED, State.RUNNING]
    assert newest.leased.fire_at == world.now


@proves("E12", "E8")
async def test_an_execution_that_waits_for_its_next_attempt_is_cancelled_for_the_next_fire(world: World) -> None:
    accepted = await world.submit(
        job(schedule=every(10, world.now), limits=Limits(overlap="cancel"), retry=Retry(initial_s=3600, jitter=False))
    )
    await world.plan()
    await world.advance(10)
    worker = await world.worker()
    await worker.run_one(failed())
    await world.advance(10)
    await worker.lease()
    await world.advance(1)
    await worker.lease()
    assert (await world.states(accepted.id))[:2] == [State.CANCELLED, State.RUNNING]


@proves("E16")
async def test_work_with_one_order_key_runs_strictly_in_order(world: World) -> None:
    jobs = await world.submit_all([limited(order_key="account-1") for _ in range(4)])
    worker = await world.worker()
    order = []
    for _ in jobs:
        [assignment] = await worker.lease()
        await worker.complete(assignment, failed())
        assert await worker.lease() == []
        await world.advance(1)
        [again] = await worker.lease()
        assert again.leased.id == assignment.leased.id
        await worker.complete(again)
        order.append(again.leased.job_id)
    assert order == [accepted.id for accepted in jobs]


@proves("E13", "P11")
async def test_a_rate_spaces_starts_evenly_and_each_attempt_takes_a_token(world: World) -> None:
    await world.submit_all([limited(key="k", key_rate=Rate(limit=2, per_s=1)) for _ in range(3)])
    worker = await world.worker()
    begun = world.now
    starts = []
    for _ in range(40):
        for assignment in await worker.lease():
            starts.append((world.now - begun).total_seconds())
            await worker.complete(assignment, failed() if len(starts) == 1 else None)
        await world.advance(0.05)
    assert starts == [0.0, 0.5, 1.0, 1.5]


@proves("E13")
async def test_a_burst_lets_that_many_start_at_once(world: World) -> None:
    await world.submit_all([limited(key="k", key_rate=Rate(limit=10, per_s=10, burst=3)) for _ in range(5)])
    worker = await world.worker()
    assert len(await worker.lease()) == 3
    await world.advance(1)
    assert len(await worker.lease()) == 1


@proves("E13", "P11")
async def test_a_pool_runs_no_more_at_once_than_its_limit(world: World) -> None:
    await world.value("UPDATE ondot.pool SET concurrency = 2 WHERE pool_no = 1")
    await world.submit_all([job() for _ in range(5)])
    worker, other = await world.worker(), await world.worker()
    first = await worker.lease()
    assert len(first) == 2
    assert await other.lease() == []
    await worker.complete(first[0], failed())
    assert len(await other.lease()) == 1
    await worker.complete(first[1], Interrupted("stopped"))
    assert await slots(world) == 1


@proves("E13", "P11")
async def test_a_pool_starts_no_more_than_its_rate(world: World) -> None:
    await world.value("UPDATE ondot.pool SET rate_limit = 4, rate_per_s = 1, rate_burst = 1 WHERE pool_no = 1")
    await world.submit_all([job() for _ in range(5)])
    worker = await world.worker()
    starts = []
    begun = world.now
    for _ in range(20):
        starts += [(world.now - begun).total_seconds() for _ in await worker.lease()]
        await world.advance(0.05)
    assert starts == pytest.approx([0.0, 0.25, 0.5, 0.75])
    assert len(await worker.lease()) == 1


@proves("E13")
async def test_an_execution_passes_several_gates_one_after_another(world: World) -> None:
    spec = limited(order_key="o", concurrency=1, key="k", key_concurrency=1, key_rate=Rate(limit=1, per_s=1))
    await world.submit_all([spec, spec])
    worker = await world.worker()
    taken = []
    for _ in range(10):
        taken += await worker.lease()
        if taken:
            break
        await world.advance(0.02)
    assert len(taken) == 1
    assert await slots(world) == 3
    await worker.complete(taken[0])
    for _ in range(60):
        if more := await worker.lease():
            await worker.complete(more[0])
            break
        await world.advance(0.02)
    assert await world.states() == [State.SUCCEEDED] * 2
    assert (await slots(world), await world.count("waiting"), await world.count("gated")) == (0, 0, 0)


@proves("E13", "S8")
async def test_pause_and_delete_also_end_executions_in_line(world: World) -> None:
    paused = await world.submit(job(schedule=every(10, world.now), limits=Limits(concurrency=1)))
    deleted = await world.submit(job(schedule=every(10, world.now), limits=Limits(overlap="queue")))
    await world.plan()
    await world.advance(11)
    await pause(world.database, DEFAULT_TENANT, paused.id)
    await delete(world.database, DEFAULT_TENANT, deleted.id)
    assert (await slots(world), await world.count("waiting"), await world.count("gated")) == (0, 0, 0)
    assert await world.states(paused.id) == [State.SKIPPED]
    assert await world.states(deleted.id) == [State.CANCELLED]


@proves("E12", "P11")
async def test_a_limit_set_while_more_run_counts_them_and_lets_none_pass_before_there_is_room(world: World) -> None:
    accepted = await world.submit(job(schedule=once(world.after(3600))))
    worker = await world.worker()
    for _ in range(2):
        await world.run_now(accepted.id)
    running = await worker.lease()
    limits = Limits(key="k", key_concurrency=1)
    await world.update(accepted.id, job(schedule=once(world.after(3600)), limits=limits))
    assert (len(running), await world.count("slot")) == (2, 2)
    await world.run_now(accepted.id)
    for assignment in running:
        assert await worker.lease() == []
        await worker.complete(assignment)
    assert len(await worker.lease()) == 1


@proves("E13", "S8")
async def test_an_updated_limit_holds_for_executions_in_line(world: World) -> None:
    accepted = await world.submit(job(schedule=every(5, world.now), limits=Limits(concurrency=1)))
    await world.plan()
    await world.advance(15)
    worker = await world.worker()
    [running] = await worker.lease()
    spec = (await world.job(accepted.id)).spec
    await world.update(accepted.id, job(schedule=spec.schedule))
    assert len(await worker.lease()) == 2
    limits = Limits(concurrency=3)
    await world.update(accepted.id, job(schedule=spec.schedule, limits=limits))
    assert running.leased.job_version == 1


@proves("E13")
async def test_an_execution_given_back_without_a_call_passes_its_gates_again(world: World) -> None:
    await world.submit(limited(concurrency=1))
    worker = await world.worker()
    [assignment] = await worker.lease()
    await worker.complete(assignment, NotBegun("the worker stops"))
    [again] = await worker.lease()
    await worker.complete(again)
    assert (await slots(world), await world.states()) == (0, [State.SUCCEEDED])


@proves("E13")
async def test_executions_in_line_cost_nothing_and_are_called_when_a_slot_is_freed(world: World) -> None:
    await world.submit_all([limited(key="k", key_concurrency=1) for _ in range(50)])
    worker = await world.worker()
    [running] = await worker.lease()
    assert await world.value("SELECT bool_and(look_at = 'infinity') FROM ondot.line")
    assert await admit_pass(world.database, [DEFAULT_POOL]) == 0
    await worker.complete(running)
    assert await world.value("SELECT look_at FROM ondot.line") == world.now


@proves("E13", "P11")
async def test_many_workers_at_one_gate_never_exceed_it_and_leave_nothing_behind(world: World) -> None:
    await world.submit_all(
        [limited(key=f"k{n % 3}", key_concurrency=2, order_key=f"o{n % 7}", concurrency=5) for n in range(60)]
    )
    workers = [await world.worker() for _ in range(4)]
    most = 0

    async def work(number: int) -> None:
        nonlocal most
        for turn in range(200):
            assignments = await workers[number].lease(3)
            held = await world.fetch("SELECT count(*) FROM ondot.slot GROUP BY gate_id")
            most = max([most, *(row["count"] for row in held)])
            for assignment in assignments:
                report = failed() if (turn + number) % 5 == 0 else None
                await workers[number].complete(assignment, report)
            if not await world.count("execution"):
                return

    async def clock() -> None:
        for _ in range(2000):
            await world.advance(0.25)
            if not await world.count("execution"):
                return

    async with asyncio.timeout(60):
        await asyncio.gather(clock(), *(work(number) for number in range(4)))
    assert most <= 2
    assert (await slots(world), await world.count("waiting"), await world.count("gated")) == (0, 0, 0)
    assert set(await world.states()) <= {State.SUCCEEDED, State.FAILED}
    await Tidying(world.database).one_pass()
    assert await world.count("gate") == 0


@proves("L7", "E13")
async def test_an_execution_before_a_gate_without_workers_counts_as_late(world: World) -> None:
    await world.submit_all([limited(key="k", key_concurrency=1) for _ in range(2)])
    await world.advance(40)
    async with world.database.connection() as connection:
        assert (await oldest_due(connection)).lag_s == 40
    worker = await world.worker()
    await worker.lease()
    await world.advance(40)
    async with world.database.connection() as connection:
        assert (await oldest_due(connection)).lag_s == 0  # the second waits for the first, not for a worker


@proves("E12", "E16")
async def test_a_fire_is_skipped_for_an_execution_that_waits_for_its_turn_in_order(world: World) -> None:
    limits = Limits(overlap="skip", order_key="o")
    accepted = await world.submit(job(schedule=every(5, world.now), limits=limits))
    await world.submit(limited(order_key="o"))
    worker = await world.worker()
    assert len(await worker.lease()) == 1
    await world.advance(10)
    await worker.lease()
    assert (await world.states(accepted.id))[:2] == [State.PENDING, State.SKIPPED]


@proves("E13")
async def test_all_gates_that_are_free_are_passed_at_once(world: World) -> None:
    await world.submit(limited(order_key="o", overlap="queue", key="k", key_concurrency=1))
    assert len(await (await world.worker()).lease()) == 1


@proves("E13", "P5")
async def test_an_execution_on_its_way_to_a_removed_gate_finds_it_created_again(world: World) -> None:
    """It waited before one gate while housekeeping removed the next; then a worker that was lost admitted it."""
    limits = Limits(key="k", key_concurrency=1, key_rate=Rate(limit=2, per_s=3, burst=2))
    accepted = await world.submit(job(schedule=every(3600, world.now), limits=limits))
    await world.run_now(accepted.id)
    await Tidying(world.database).one_pass()
    assert await world.count("gate") == 1
    lost = await world.worker()
    await world.value("UPDATE ondot.worker SET state = 'LOST' WHERE id = $1", lost.id)
    assert await lost.lease(1) == []
    [waiting] = await world.fetch(
        "SELECT g.kind, l.is_rate FROM ondot.waiting w LEFT JOIN ondot.gate g ON g.id = w.gate_id"
        " LEFT JOIN ondot.line l ON l.gate_id = w.gate_id AND l.pool_no = w.pool_no"
    )
    assert (waiting["kind"], waiting["is_rate"]) == ("rate", True)
    assert len(await (await world.worker()).lease(1)) == 1


@proves("E13", "P5")
async def test_all_in_one_line_pass_although_the_gates_behind_it_were_removed(world: World) -> None:
    """Each has another gate next, which is created when the execution is the first of its line."""
    limits = [Limits(order_key="o", key=f"k{n}", key_concurrency=1) for n in range(5)]
    await world.submit_all([limited(order_key="o")])
    await world.submit_all([job(limits=each) for each in limits])
    worker = await world.worker()
    [first] = await worker.lease()
    await Tidying(world.database).one_pass()
    assert await world.count("gate") == 1
    running = first
    for _ in limits:
        await worker.complete(running)
        [running] = await worker.lease() or await _a_moment_later(world, worker)
    await worker.complete(running)
    assert await world.states() == [State.SUCCEEDED] * 6


async def _a_moment_later(world: World, worker: Worker) -> list[Assignment]:
    await world.advance(0.02)
    return await worker.lease()


@proves("E13", "O1")
async def test_each_pass_looks_at_some_gates_until_all_idle_ones_are_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "GATES_A_PASS", 2)
    idle = await world.submit_all([limited(key=f"idle{n}", key_concurrency=1) for n in range(7)])
    worker = await world.worker()
    for _ in idle:
        await worker.complete_all(await worker.lease())
    held = await world.submit_all([limited(key=f"held{n}", key_concurrency=1) for n in range(7)])
    assert len(await worker.lease(4)) == 4
    assert await world.count("gate") == 14
    tidying = Tidying(world.database)
    for number in range(1, 8):
        before = await world.count("gate")
        removed = await tidying.one_pass()
        left = await world.count("gate")
        assert before - left == removed <= 2
        assert number < 7 or left == len(held)
    await tidying.one_pass()
    assert await tidying.one_pass() == 0, "the next pass may wait for its minute"
    assert await world.count("gate") == len(held)
