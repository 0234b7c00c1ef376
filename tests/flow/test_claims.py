"""Keys of jobs that run once: unique, throttled, debounced, each with what became of it on record."""

import asyncio

from ondot.flow.change import update
from ondot.flow.retain import retain_pass
from ondot.model.execution import State
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.job import Debounce, JobState, Throttle, Unique
from tests.proves import proves
from tests.world import World, job, once


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
async def test_a_job_due_later_holds_its_unique_key_until_it_has_ended(world: World) -> None:
    await world.submit(job(unique=Unique(key="k"), schedule=once(world.after(3600))))
    assert (await world.submit(job(unique=Unique(key="k")))).state is JobState.ENDED
    assert (await world.submit(job(unique=Unique(key="other")))).state is JobState.ACTIVE


@proves("E16")
async def test_a_unique_key_may_be_kept_for_a_while_after_it_was_made(world: World) -> None:
    await world.submit(job(unique=Unique(key="k", within_s=60)))
    worker = await world.worker()
    await worker.run_one()
    await world.advance(59)
    assert (await world.submit(job(unique=Unique(key="k", within_s=60)))).state is JobState.ENDED
    await world.advance(1)
    assert (await world.submit(job(unique=Unique(key="k", within_s=60)))).state is JobState.ACTIVE


@proves("E16")
async def test_of_two_who_submit_one_unique_key_at_once_one_runs(world: World) -> None:
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
    assert str(reasons[0]).startswith("throttle: 2 with the key 'k'")


@proves("E16")
async def test_the_last_of_debounced_jobs_runs_a_while_after_it_came(world: World) -> None:
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
        f"debounce: the job {second.id} came after it with the key 'k'"
    ]


@proves("E16")
async def test_a_debounced_job_that_is_due_beyond_the_horizon_is_put_aside_as_well(world: World) -> None:
    debounce = Debounce(key="k", wait_s=600)
    first, second = await world.submit(job(debounce=debounce)), await world.submit(job(debounce=debounce))
    assert await world.timer(first.id) is None
    assert await world.states(first.id) == [State.SKIPPED]
    assert await world.timer(second.id) is not None


@proves("E16")
async def test_a_debounce_is_put_off_no_longer_than_its_bound(world: World) -> None:
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
async def test_keys_that_say_nothing_any_more_are_forgotten(world: World) -> None:
    await world.submit(job(unique=Unique(key="k")))
    await (await world.worker()).run_one()
    await world.submit(job(unique=Unique(key="live"), schedule=once(world.after(86_400))))
    await world.advance(120)
    await retain_pass(world.database)
    assert await world.value("SELECT array_agg(key) FROM ondot.claim") == ["live"]


@proves("E16")
async def test_a_job_that_is_changed_to_have_no_key_gives_it_back(world: World) -> None:
    first = await world.submit(job(unique=Unique(key="k"), schedule=once(world.after(60))))
    spec = job(schedule=once(world.after(60)))
    await update(world.database, world.dispatcher, DEFAULT_TENANT, first.id, spec)
    assert (await world.submit(job(unique=Unique(key="k")))).state is JobState.ACTIVE
