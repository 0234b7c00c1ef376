"""Keys of one-time jobs: unique, throttled, debounced; the outcome of each job is recorded."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from ondot.flow.change.change import delete, pause, update_locked
from ondot.flow.change.settle import lock
from ondot.flow.new_jobs import Accepted
from ondot.flow.unique_keys import claim_keys
from ondot.flow.work import begin
from ondot.model.errors import Conflict
from ondot.model.execution import State
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.job import Debounce, JobState, Throttle, Unique
from ondot.store.jobs import NewOnceJob
from tests.proves import proves
from tests.world import DEFAULT_POOL, World, job, once


@proves("E16")
async def test_a_second_job_with_a_unique_key_is_skipped_while_the_first_lives(world: World) -> None:
    first = await world.submit(job(unique=Unique(key="invoice-7")))
    second = await world.submit(job(unique=Unique(key="invoice-7")))
    assert (second.state, second.next_fire_at) == (JobState.ENDED, None)
    [row] = await world.executions(second.id)
    assert (row.state, row.reason) == (State.SKIPPED, f"unique: the job {first.id} has the key 'invoice-7'")
    worker = await world.worker()
    await worker.run_one()
    third = await world.submit(job(unique=Unique(key="invoice-7")))
    assert await world.states(third.id) == [State.PENDING]


@proves("E16")
async def test_a_job_due_later_keeps_its_unique_key_until_it_has_ended(world: World) -> None:
    await world.submit(job(unique=Unique(key="k"), schedule=once(world.after(3600))))
    assert (await world.submit(job(unique=Unique(key="k")))).state is JobState.ENDED
    assert (await world.submit(job(unique=Unique(key="other")))).state is JobState.ACTIVE


@proves("E16")
async def test_a_unique_key_can_be_kept_for_a_time_after_its_job_was_created(world: World) -> None:
    await world.submit(job(unique=Unique(key="k", within_s=60)))
    worker = await world.worker()
    await worker.run_one()
    await world.advance(59)
    assert (await world.submit(job(unique=Unique(key="k", within_s=60)))).state is JobState.ENDED
    await world.advance(1)
    assert (await world.submit(job(unique=Unique(key="k", within_s=60)))).state is JobState.ACTIVE


@proves("E16")
async def test_one_of_two_jobs_submitted_with_one_unique_key_at_once_runs(world: World) -> None:
    accepted = await asyncio.gather(*(world.submit(job(unique=Unique(key="k"))) for _ in range(8)))
    assert sorted(entry.state for entry in accepted) == [JobState.ACTIVE] + [JobState.ENDED] * 7


@proves("E16")
async def test_a_unique_key_counts_within_a_batch_too(world: World) -> None:
    accepted = await world.submit_all([job(unique=Unique(key="k")), job(), job(unique=Unique(key="k"))])
    assert [entry.state for entry in accepted] == [JobState.ACTIVE, JobState.ACTIVE, JobState.ENDED]


@proves("E16")
async def test_jobs_above_a_throttle_are_skipped_until_the_window_is_over(world: World) -> None:
    throttle = Throttle(key="k", per_s=60, limit=2)
    states = [(await world.submit(job(throttle=throttle))).state for _ in range(3)]
    assert states == [JobState.ACTIVE, JobState.ACTIVE, JobState.ENDED]
    await world.advance(60)
    assert (await world.submit(job(throttle=throttle))).state is JobState.ACTIVE
    reasons = [row.reason for row in await world.executions() if row.state is State.SKIPPED]
    assert len(reasons) == 1
    assert str(reasons[0]).startswith("throttle: the key 'k' takes no more jobs until")


@proves("E16")
async def test_the_last_of_several_debounced_jobs_runs_after_its_wait(world: World) -> None:
    debounce = Debounce(key="k", wait_s=10)
    first = await world.submit(job(debounce=debounce))
    await world.advance(5)
    second = await world.submit(job(debounce=debounce))
    assert await world.states(first.id) == [State.SKIPPED]
    assert second.next_fire_at == world.after(10)
    await world.advance(9)
    worker = await world.worker()
    assert await worker.lease() == []
    await world.advance(1)
    assert (await worker.run_one()).leased.job_id == second.id
    third = await world.submit(job(debounce=debounce))
    assert third.next_fire_at == world.after(10)
    assert [row.reason for row in await world.executions(first.id)] == [
        f"debounce: the job {second.id} replaced it, with the key 'k'"
    ]


@proves("E16")
async def test_a_debounced_job_due_after_the_horizon_is_replaced_too(world: World) -> None:
    debounce = Debounce(key="k", wait_s=600)
    first, second = await world.submit(job(debounce=debounce)), await world.submit(job(debounce=debounce))
    assert await world.timer(first.id) is None
    assert await world.states(first.id) == [State.SKIPPED]
    assert await world.timer(second.id) is not None


@proves("E16")
async def test_a_debounced_job_is_postponed_no_longer_than_its_bound(world: World) -> None:
    debounce = Debounce(key="k", wait_s=10, max_wait_s=15)
    await world.submit(job(debounce=debounce))
    await world.advance(8)
    second = await world.submit(job(debounce=debounce))
    assert second.next_fire_at == world.after(7)


@proves("E16")
async def test_the_last_of_a_batch_with_one_debounce_key_runs(world: World) -> None:
    debounce = Debounce(key="k", wait_s=1)
    accepted = await world.submit_all([job(debounce=debounce) for _ in range(3)])
    assert [entry.state for entry in accepted] == [JobState.ENDED, JobState.ENDED, JobState.ACTIVE]
    assert await world.states() == [State.SKIPPED, State.SKIPPED, State.PENDING]


@proves("E16")
async def test_keys_without_meaning_are_forgotten(world: World) -> None:
    await world.submit(job(unique=Unique(key="k")))
    await (await world.worker()).run_one()
    await world.submit(job(unique=Unique(key="live"), schedule=once(world.after(86_400))))
    await world.advance(120)
    await world.retain()
    assert await world.value("SELECT array_agg(key) FROM ondot.claim") == ["live"]


@proves("E16")
async def test_a_job_that_is_changed_to_have_no_key_releases_it(world: World) -> None:
    first = await world.submit(job(unique=Unique(key="k"), schedule=once(world.after(60))))
    spec = job(schedule=once(world.after(60)))
    await world.update(first.id, spec)
    assert (await world.submit(job(unique=Unique(key="k")))).state is JobState.ACTIVE


@proves("E16")
async def test_a_paused_job_keeps_its_unique_key_and_a_deleted_one_does_not(world: World) -> None:
    unique = Unique(key="k")
    first = await world.submit(job(unique=unique, schedule=once(world.after(100))))
    await pause(world.database, DEFAULT_TENANT, first.id)
    assert (await world.submit(job(unique=unique))).state is JobState.ENDED
    await world.advance(3600)
    await world.retain()
    assert (await world.submit(job(unique=unique))).state is JobState.ENDED, "housekeeping forgot it"
    await delete(world.database, DEFAULT_TENANT, first.id)
    assert (await world.submit(job(unique=unique))).state is JobState.ACTIVE


@proves("E16")
async def test_a_job_that_is_changed_to_another_unique_key_takes_it_and_releases_the_old_one(world: World) -> None:
    later = once(world.after(100))
    first = await world.submit(job(unique=Unique(key="old"), schedule=later))
    await world.update(first.id, job(unique=Unique(key="new"), schedule=later))
    assert (await world.submit(job(unique=Unique(key="new")))).state is JobState.ENDED
    assert (await world.submit(job(unique=Unique(key="old")))).state is JobState.ACTIVE


@proves("E16")
async def test_a_job_cannot_be_changed_to_a_unique_key_that_is_taken_and_keeps_its_own(world: World) -> None:
    later = once(world.after(100))
    first = await world.submit(job(unique=Unique(key="one"), schedule=later))
    second = await world.submit(job(unique=Unique(key="two"), schedule=later))
    with pytest.raises(Conflict, match=f"'two' is taken by the job {second.id}: choose another key"):
        await world.update(first.id, job(unique=Unique(key="two"), schedule=later))
    assert (await world.job(first.id)).spec.unique == Unique(key="one")
    assert [(await world.submit(job(unique=Unique(key=key)))).state for key in ("one", "two")] == [JobState.ENDED] * 2


@proves("E16")
async def test_two_jobs_that_are_changed_to_each_others_unique_keys_at_once_do_not_deadlock(world: World) -> None:
    later = once(world.after(100))
    first, second = [await world.submit(job(unique=Unique(key=key), schedule=later)) for key in ("one", "two")]

    async def change(job_id: JobId, key: str) -> None:
        await world.update(job_id, job(unique=Unique(key=key), schedule=later))

    results = await asyncio.gather(change(first.id, "two"), change(second.id, "one"), return_exceptions=True)
    assert [type(result) for result in results] == [Conflict, Conflict]


@proves("E16")
async def test_a_throttled_job_stays_counted_when_it_is_changed(world: World) -> None:
    throttle = Throttle(key="k", per_s=60)
    first = await world.submit(job(throttle=throttle, schedule=once(world.after(100))))
    await world.update(first.id, job(schedule=once(world.after(100))))
    assert (await world.submit(job(throttle=throttle))).state is JobState.ENDED


async def renamed(world: World, first: Accepted, **fields: Any) -> None:
    spec = structs.replace((await world.job(first.id)).spec, name="renamed", **fields)
    await world.update(first.id, spec)


async def runs(world: World) -> list[JobId]:
    """The jobs that run in the next hour."""
    worker, jobs = await world.worker(), []
    for _ in range(60):
        await world.plan()
        leased = await worker.lease()
        await worker.complete_all(leased)
        jobs += [assignment.leased.job_id for assignment in leased]
        await world.advance(60)
    return jobs


@pytest.mark.parametrize("wait_s", [5, 600], ids=["planned", "with a timer"])
@pytest.mark.parametrize("is_paused", [False, True], ids=["active", "paused"])
@proves("E16")
async def test_a_debounced_job_that_was_changed_is_replaced_too(world: World, wait_s: float, is_paused: bool) -> None:
    debounce = Debounce(key="k", wait_s=wait_s)
    first = await world.submit(job(debounce=debounce))
    await renamed(world, first)
    if is_paused:
        await pause(world.database, DEFAULT_TENANT, first.id)
    await world.advance(1)
    second = await world.submit(job(debounce=debounce))
    row = await world.job(first.id)
    assert (row.state, row.next_fire_at) == (JobState.ENDED, None)
    [skipped] = await world.executions(first.id)
    assert (skipped.state, skipped.job_version) == (State.SKIPPED, 2)
    assert skipped.reason == f"debounce: the job {second.id} replaced it, with the key 'k'"
    assert skipped.fire_at == first.next_fire_at
    with pytest.raises(Conflict, match="has started or ended"):
        await renamed(world, first, schedule=once(world.after(1800)))
    assert await runs(world) == [second.id]


@proves("E16")
async def test_a_job_that_is_no_longer_debounced_is_not_replaced(world: World) -> None:
    debounce = Debounce(key="k", wait_s=600)
    first = await world.submit(job(debounce=debounce))
    await renamed(world, first, debounce=None)
    second = await world.submit(job(debounce=debounce))
    assert sorted(await runs(world)) == sorted([first.id, second.id])


@pytest.mark.parametrize("wait_s", [5, 600], ids=["planned", "with a timer"])
@proves("E16")
async def test_a_job_submitted_while_a_debounced_one_is_being_changed_waits_and_replaces_it(
    world: World, wait_s: float
) -> None:
    debounce = Debounce(key="k", wait_s=wait_s)
    first = await world.submit(job(debounce=debounce))
    async with begin(world.database, DEFAULT_TENANT) as work, asyncio.timeout(60):
        locked = await lock(work, first.id)
        await update_locked(work, locked, structs.replace(locked.spec, name="renamed"))
        coming = asyncio.create_task(world.submit(job(debounce=debounce)))
        await world.until_a_lock_is_awaited()
    second = await coming
    assert (await world.job(first.id)).state is JobState.ENDED
    assert await runs(world) == [second.id]


@proves("E16")
async def test_each_job_of_a_batch_replaces_its_own_predecessor(world: World) -> None:
    keys = ("a", "b", "c")
    firsts = await world.submit_all([job(debounce=Debounce(key=key, wait_s=5)) for key in keys])
    fars = await world.submit_all([job(debounce=Debounce(key=f"far {key}", wait_s=600)) for key in keys])
    seconds = await world.submit_all([job(debounce=Debounce(key=key, wait_s=600)) for key in keys])
    nexts = await world.submit_all([job(debounce=Debounce(key=f"far {key}", wait_s=600)) for key in keys])
    for old, new in zip([*firsts, *fars], [*seconds, *nexts], strict=True):
        [row] = await world.executions(old.id)
        assert row.state is State.SKIPPED
        assert str(row.reason).startswith(f"debounce: the job {new.id} replaced it")
    assert sorted(await runs(world)) == sorted(entry.id for entry in [*seconds, *nexts])


@proves("E16")
async def test_a_new_series_starts_after_a_debounced_job_has_started(world: World) -> None:
    debounce = Debounce(key="k", wait_s=10, max_wait_s=12)
    first = await world.submit(job(debounce=debounce))
    worker = await world.worker()
    await world.advance(10)
    [running] = await worker.lease()
    assert running.leased.job_id == first.id
    await world.advance(-5)  # so that its instant is in the future again, though it runs
    second = await world.submit(job(debounce=debounce))
    assert second.next_fire_at == world.after(10)
    assert await world.states(first.id) == [State.RUNNING]


@proves("E16")
async def test_a_clock_that_was_set_back_does_not_prolong_a_throttle_or_a_unique_key(world: World) -> None:
    throttle, unique = Throttle(key="k", per_s=60), Unique(key="k", within_s=60)
    await world.submit_all([job(throttle=throttle), job(unique=unique)])
    worker = await world.worker()
    await worker.complete_all(await worker.lease())
    await world.advance(-3600)
    assert (await world.submit(job(throttle=throttle))).state is JobState.ACTIVE
    assert (await world.submit(job(unique=unique))).state is JobState.ENDED
    await world.advance(60)
    assert (await world.submit(job(unique=unique))).state is JobState.ACTIVE


@proves("E16")
async def test_a_batch_of_keys_takes_as_many_statements_as_one(world: World) -> None:
    async def statements(count: int) -> list[str]:
        """The statements for a batch whose predecessors are all stored, some to be refused and some to be replaced."""
        specs = [job(unique=Unique(key=f"{count} {n}")) for n in range(count)]
        specs += [
            job(debounce=Debounce(key=f"{count} {n}", wait_s=wait_s)) for n, wait_s in enumerate([5, 600] * count)
        ]
        await world.submit_all(specs)
        seen: list[Any] = []
        async with begin(world.database, DEFAULT_TENANT) as work:
            jobs = [
                NewOnceJob(JobId(world.database.clock.new_id()), spec, DEFAULT_POOL, world.now, world.now, None)
                for spec in specs
            ]
            with work.connection.query_logger(seen.append):
                claimed = await claim_keys(work, jobs, world.now)
        assert [entry.refusal is None for entry in claimed] == [False] * count + [True] * (2 * count)
        # asyncpg reads the types that it does not know yet in between.
        return [line for entry in seen if (line := entry.query.partition("\n")[0]).startswith("-- name")]

    assert await statements(20) == await statements(1)
