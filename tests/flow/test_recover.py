"""Recover: a worker that is lost by two clocks loses its work, once and at a cost; no other worker does."""

from dataclasses import dataclass

import pytest

from ondot.flow.recover import lose_pass
from ondot.model.execution import Outcome, PriorityClass, State
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.liveness import Beat, Watch
from ondot.model.outcome import Interrupted
from ondot.model.retry import Retry
from ondot.model.target import HttpTarget
from ondot.store.executions import list_attempts
from ondot.store.workers import forget_workers, lose_worker, read_beats
from ondot.telemetry.metrics import STALE
from tests.proves import proves
from tests.world import Worker, World, failed, job


@dataclass(slots=True)
class Housekeeper:
    """One watch, with a monotonic clock of its own."""

    world: World
    watch: Watch
    monotonic_s: float = 1000.0

    async def look_after(self, seconds: float, *, database_s: float | None = None) -> int:
        self.monotonic_s += seconds
        await self.world.advance(seconds if database_s is None else database_s)
        return await lose_pass(self.world.database, self.watch, lambda: self.monotonic_s)


async def lose(world: World, worker: Worker) -> None:
    """Mark a worker lost, as a housekeeper that has waited would."""
    async with world.database.connection() as connection:
        beats, _ = await read_beats(connection)
        [beat] = [beat for beat in beats if beat.worker_id == worker.id]
        assert await lose_worker(connection, beat)


@proves("E6", "L3")
async def test_a_worker_is_lost_once_its_beat_stood_still_for_the_timeout_by_both_clocks(world: World) -> None:
    worker = await world.worker()
    keeper = Housekeeper(world, Watch(timeout_s=10))
    assert [await keeper.look_after(3) for _ in range(4)] == [0, 0, 0, 0]
    assert await keeper.look_after(3) == 1
    assert await worker.beat() is None
    assert await keeper.look_after(3) == 0


@proves("E6", "L4")
async def test_a_worker_that_beats_or_is_silent_by_one_clock_only_is_not_lost(world: World) -> None:
    worker = await world.worker()
    keeper = Housekeeper(world, Watch(timeout_s=10))
    for _ in range(6):
        assert await keeper.look_after(3) == 0
        await worker.beat()
    await keeper.look_after(3)
    assert await keeper.look_after(4, database_s=3600) == 0
    assert await keeper.look_after(100) == 0
    assert [await keeper.look_after(3) for _ in range(2)] == [0, 0]
    await worker.beat()
    assert await keeper.look_after(3) == 0


@proves("E6", "P6")
async def test_a_beat_after_the_judgement_saves_the_worker(world: World) -> None:
    worker = await world.worker()
    async with world.database.connection() as connection:
        [beat], _ = await read_beats(connection)
        await worker.beat()
        assert not await lose_worker(connection, beat)
        assert await lose_worker(connection, Beat(beat.worker_id, beat.beat_no + 1, beat.beat_at))
        assert not await lose_worker(connection, Beat(beat.worker_id, beat.beat_no + 1, beat.beat_at))


@proves("E6", "L3", "P7")
async def test_work_of_a_lost_worker_goes_back_to_be_served_first_and_costs_a_loss(world: World) -> None:
    await world.submit_all([job(), job(retry=Retry(max_retries=0))])
    worker = await world.worker()
    assignments = await worker.lease()
    assert await world.recover() == 0
    await lose(world, worker)
    assert await world.recover() == 1
    assert await world.recover() == 0
    assert await world.count("lease") == 0
    for execution in await world.executions():
        assert (execution.state, execution.failures, execution.losses) == (State.RETRYING, 0, 1)
        assert (execution.priority_class, execution.ready_at) == (PriorityClass.RECOVERED, world.now)
        async with world.database.connection() as connection:
            [attempt] = await list_attempts(connection, DEFAULT_TENANT, execution.id)
        assert (attempt.outcome, attempt.worker_id) == (Outcome.WORKER_LOST, worker.id)
    again = await (await world.worker()).lease()
    assert {entry.leased.id for entry in again} == {entry.leased.id for entry in assignments}
    assert {entry.leased.attempt_no for entry in again} == {2}


@proves("E6", "E16")
async def test_a_worker_that_is_lost_with_what_it_took_after_a_start_deadline_made_no_call(world: World) -> None:
    late = await world.submit(job(start_deadline_s=1))
    await world.advance(2)
    in_time = await world.submit(job(start_deadline_s=1))
    worker = await world.worker()
    await worker.lease()
    await lose(world, worker)
    assert await world.recover() == 1
    assert (await world.states(late.id), await world.states(in_time.id)) == ([State.SKIPPED], [State.RETRYING])


@proves("E6", "P7")
async def test_recovery_leaves_executions_alone_that_have_ended_or_wait_again(world: World) -> None:
    await world.submit_all([job() for _ in range(3)])
    worker = await world.worker()
    first, second, _ = await worker.lease()
    await worker.complete(first)
    await worker.complete(second, failed())
    await lose(world, worker)
    await world.recover()
    states = {execution.id: (execution.state, execution.losses) for execution in await world.executions()}
    assert states.pop(first.leased.id) == (State.SUCCEEDED, 0)
    assert states.pop(second.leased.id) == (State.RETRYING, 0)
    assert list(states.values()) == [(State.RETRYING, 1)]


@proves("E6", "E10")
async def test_an_execution_that_kills_its_workers_ends_as_poison(world: World) -> None:
    await world.submit(job(retry=Retry(max_worker_losses=2)))
    for losses in (1, 2):
        worker = await world.worker()
        await worker.lease()
        await lose(world, worker)
        await world.recover()
        assert [execution.losses for execution in await world.executions()] == [losses]
    worker = await world.worker()
    await worker.lease()
    await lose(world, worker)
    await world.recover()
    [execution] = await world.executions()
    assert (execution.state, execution.losses) == (State.FAILED, 3)
    assert execution.reason is not None
    assert execution.reason.startswith("poison: 3 workers")
    assert await world.count("dead_letter") == 1


@proves("P7")
async def test_with_no_retries_and_no_losses_allowed_there_is_one_call_at_most(world: World) -> None:
    await world.submit(job(retry=Retry(max_retries=0, max_worker_losses=0)))
    worker = await world.worker()
    await worker.lease()
    await lose(world, worker)
    await world.recover()
    assert await world.states() == [State.FAILED]
    assert await (await world.worker()).lease() == []


@proves("E11", "P6")
@pytest.mark.parametrize("budget", [0, 3], ids=["poison", "given back"])
async def test_the_late_completion_of_a_lost_worker_is_refused_and_counted_as_stale(world: World, budget: int) -> None:
    await world.submit(job(retry=Retry(max_worker_losses=budget)))
    worker = await world.worker()
    [assignment] = await worker.lease()
    await lose(world, worker)
    await world.recover()
    states = await world.states()
    before = STALE.value
    assert await worker.complete(assignment) == []
    assert STALE.value == before + 1
    assert await world.states() == states


@proves("E6", "P7")
async def test_a_lease_that_its_live_worker_never_names_is_given_back_without_cost(world: World) -> None:
    await world.submit(job(retry=Retry(max_retries=0, max_worker_losses=0)))
    worker = await world.worker()
    batch = await worker.leaser.one_pass(1)  # and the worker never learns of it: nothing is held
    assert len(batch.assignments) == 1
    every_s = world.database.settings.heartbeat_s / 3
    await world.advance(every_s)
    await worker.beat()
    assert await world.recover() == 0
    await world.advance(every_s + 0.001)
    assert await world.recover() == 0
    await worker.beat()
    assert await world.recover() == 1
    [execution] = await world.executions()
    assert (execution.state, execution.losses, execution.attempt_no) == (State.PENDING, 0, 1)
    assert await worker.beat() is not None


@proves("E6", "P7", "C3")
async def test_a_new_lease_is_not_given_back_because_of_a_beat_before_the_clock_was_set_back(
    world: World,
) -> None:
    worker = await world.worker()
    await world.advance(17)
    await worker.beat()
    await world.advance(-17)
    await world.submit(job(retry=Retry(max_retries=0, max_worker_losses=0)))
    assert len((await worker.leaser.one_pass(1)).assignments) == 1
    assert await world.recover() == 0
    assert await world.states() == [State.RUNNING]


@proves("E6")
async def test_a_lease_that_its_worker_names_stays_however_long_it_runs(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    await worker.lease()
    for _ in range(5):
        await world.advance(100)
        await worker.beat()
        assert await world.recover() == 0
    assert await world.states() == [State.RUNNING]


@proves("E6")
async def test_the_lease_of_a_worker_whose_row_is_missing_is_recovered_too(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    await worker.lease()
    await world.fetch("DELETE FROM ondot.worker")
    assert await world.recover() == 1
    assert await world.states() == [State.RETRYING]


@proves("E6")
async def test_a_worker_that_ended_is_forgotten_after_a_day_unless_it_holds_a_lease(world: World) -> None:
    await world.submit(job())
    for worker in (await world.worker(), await world.worker()):
        await worker.lease()
        await lose(world, worker)
    await world.advance(90_000)
    async with world.database.connection() as connection:
        await forget_workers(connection)
        assert await world.count("worker") == 1
        await world.recover()
        await forget_workers(connection)
    assert await world.count("worker") == 0


@proves("E6")
async def test_a_function_that_took_two_workers_with_it_is_a_suspect(world: World) -> None:
    accepted = await world.submit(job())
    classes = []
    for _ in range(3):
        worker = await world.worker()
        await worker.lease()
        await lose(world, worker)
        await world.recover()
        [row] = await world.executions(accepted.id)
        classes.append(PriorityClass(row.priority_class))
    assert classes == [PriorityClass.RECOVERED, PriorityClass.SUSPECT, PriorityClass.SUSPECT]
    await world.advance(3600)
    worker = await world.worker()
    await worker.complete((await worker.lease())[0], Interrupted("the child died", code="child_lost"))
    [row] = await world.executions(accepted.id)
    assert (row.state, row.losses) == (State.FAILED, 4)
    assert str(row.reason).startswith("poison: 4 workers were lost")


@proves("E6")
async def test_an_http_call_is_no_suspect_because_it_cannot_end_its_worker(world: World) -> None:
    accepted = await world.submit(job(target=HttpTarget(url="https://example.com")))
    for _ in range(2):
        worker = await world.worker()
        await worker.lease()
        await lose(world, worker)
        await world.recover()
    [row] = await world.executions(accepted.id)
    assert row.priority_class == PriorityClass.RECOVERED
