"""① Accept: jobs are stored all or none, once for each key, and planned at once if they are near."""

import asyncio
import threading
from datetime import timedelta

import msgspec
import pytest

from ondot.flow.idempotency import Idempotency
from ondot.flow.new_jobs import Accepted
from ondot.flow.submit import FEW, submit
from ondot.model.errors import Conflict, KeyReused, NotFound
from ondot.model.execution import State
from ondot.model.ids import DEFAULT_TENANT, JobId, partition_of
from ondot.model.job import JobState
from ondot.ports.transport import Wake
from tests.proves import proves
from tests.world import DEFAULT_POOL, World, every, job, once


@proves("S1")
async def test_a_job_without_a_schedule_is_ready_at_once(world: World) -> None:
    accepted = await world.submit(job(payload=b'{"n":1}'))
    [execution] = await world.executions(accepted.id)
    assert (execution.fire_at, execution.ready_at, execution.state) == (world.now, world.now, State.PENDING)
    [assignment] = await (await world.worker()).lease()
    assert assignment.payload == b'{"n":1}'


@proves("S1", "L1")
async def test_a_delayed_job_inside_the_horizon_is_planned_as_it_is_submitted(world: World) -> None:
    accepted = await world.submit(job(schedule=once(world.after(3))))
    assert await world.fires(accepted.id) == [3]
    assert await world.timer(accepted.id) is None
    assert accepted.next_fire_at == world.after(3)


@proves("S1")
async def test_a_job_due_after_the_horizon_gets_a_timer_which_is_removed_when_it_is_planned(world: World) -> None:
    accepted = await world.submit(job(schedule=once(world.after(21))))
    timer = await world.timer(accepted.id)
    assert timer is not None
    assert (timer["next_fire_at"], timer["partition_no"]) == (world.after(21), partition_of(accepted.id))
    assert await world.plan() == 0
    await world.advance(1)
    assert await world.plan() == 1
    assert await world.fires(accepted.id) == [20]
    assert await world.timer(accepted.id) is None


@proves("S1", "N3")
async def test_a_batch_of_ten_thousand_is_stored_in_its_order(world: World) -> None:
    specs = [job(f"job {n}", schedule=once(world.after(n % 40))) for n in range(10_000)]
    accepted = await world.submit_all(specs)
    assert [entry.spec.name for entry in accepted] == [spec.name for spec in specs]
    assert await world.count("job_once") == 10_000
    assert await world.count("execution") == await world.count("ready") == 5_250
    assert await world.count("timer") == 4_750


@proves("S1")
async def test_a_batch_is_stored_as_a_whole_or_not_at_all(world: World) -> None:
    specs = [
        job("fine", pool="new"),
        job("recurring", schedule=every(5, world.now), pool="new"),
        job("text that PostgreSQL refuses: \0"),
    ]
    with pytest.raises(Exception, match="0x00"):
        await world.submit_all(specs)
    for table in ("job", "job_version", "job_once", "timer", "execution", "ready"):
        assert await world.count(table) == 0
    await world.submit_all(specs[:2])
    names = await world.fetch("SELECT DISTINCT p.name FROM ondot.execution e JOIN ondot.pool p USING (pool_no)")
    assert [row["name"] for row in names] == ["new"]


@proves("S3")
async def test_a_recurring_job_has_its_near_fires_planned_at_once(world: World) -> None:
    accepted = await world.submit(job(schedule=every(8, world.now)))
    assert await world.fires(accepted.id) == [8, 16]
    timer = await world.timer(accepted.id)
    assert timer is not None
    assert (timer["next_fire_at"], timer["fired_through"]) == (world.after(24), world.after(16))


@proves("S12")
async def test_a_key_that_is_taken_updates_its_job_and_the_same_spec_changes_nothing(world: World) -> None:
    first = await world.submit(job(key="nightly", schedule=every(3600, world.now)))
    again = await world.submit(job(key="nightly", schedule=every(3600, world.after(5))))
    assert (again.id, again.version) == (first.id, 1)
    changed = await world.submit(job("renamed", key="nightly", schedule=every(60, world.now)))
    assert (changed.id, changed.version, changed.next_fire_at) == (first.id, 2, world.after(60))
    assert await world.count("job") == 1


@proves("S12")
async def test_a_keyed_one_time_job_can_be_moved_until_it_runs(world: World) -> None:
    first = await world.submit(job(key="launch", schedule=once(world.after(10))))
    moved = await world.submit(job(key="launch", schedule=once(world.after(15))))
    assert moved.id == first.id
    assert await world.fires(first.id) == [15]
    await world.advance(15)
    worker = await world.worker()
    await worker.run_one()
    with pytest.raises(Conflict):
        await world.submit(job(key="launch", schedule=once(world.after(15))))


@proves("S12")
async def test_a_key_can_be_used_once_in_a_batch(world: World) -> None:
    with pytest.raises(Conflict, match="twice"):
        await world.submit_all([job(key="a"), job(key="a")])


@proves("S12")
async def test_two_requests_that_create_the_same_keys_in_opposite_orders_make_each_job_once(world: World) -> None:
    specs = [job(key=f"key {n}", schedule=every(3600, world.now)) for n in range(50)]
    results = await asyncio.gather(world.submit_all(specs), world.submit_all(specs[::-1]))
    assert [entry.id for entry in results[0]] == [entry.id for entry in results[1][::-1]]
    assert await world.count("job") == 50


@proves("S1")
async def test_the_response_to_a_large_batch_is_rendered_off_the_loop_and_before_its_transaction(world: World) -> None:
    loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def render(_: list[Accepted]) -> str:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(10), "the loop was not free while the response was rendered"
        return "[]"

    specs = [job(f"job {n}", schedule=every(3600 + n, world.now)) for n in range(FEW + 1)]
    submitting = asyncio.create_task(submit(world.database, world.dispatcher, DEFAULT_TENANT, specs, render=render))
    await asyncio.wait_for(begun.wait(), 20)
    idle = await world.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state ~ '^idle in transaction'"
    )
    go_on.set()
    await submitting
    assert not idle
    assert await world.count("job") == FEW + 1


@proves("S12", "P2")
async def test_the_response_to_a_large_batch_shows_existing_jobs_as_they_are(world: World) -> None:
    specs = [job(f"job {n}", key=f"key {n}", schedule=every(3600, world.now)) for n in range(FEW + 1)]
    known = await world.submit_all(specs[5:9])
    new: list[str] = []

    async def upsert() -> list[str]:
        text = await submit(
            world.database,
            world.dispatcher,
            DEFAULT_TENANT,
            specs,
            render=lambda accepted: msgspec.json.encode([str(entry.id) for entry in accepted]).decode(),
            idempotency=Idempotency("abc", b"the same"),
            on_created=lambda jobs: new.extend(str(entry.id) for entry in jobs),
        )
        return msgspec.json.decode(text, type=list[str])

    ids = await upsert()
    assert ids[5:9] == [str(entry.id) for entry in known]
    assert set(new) == set(ids) - set(ids[5:9])
    assert await upsert() == ids
    assert len(new) == len(specs) - len(known), "a repetition creates nothing"
    assert await world.count("job") == len(specs)


@proves("P2", "E11")
async def test_an_idempotency_key_returns_the_stored_response_and_creates_nothing(world: World) -> None:
    first = await world.submit_with_key("abc", job())
    assert await world.submit_with_key("abc", job()) == first
    assert await world.count("job_once") == 1


@proves("P2")
async def test_an_idempotency_key_with_another_body_is_refused(world: World) -> None:
    await world.submit_with_key("abc", job("one"))
    with pytest.raises(KeyReused):
        await world.submit_with_key("abc", job("another"))
    assert await world.count("job_once") == 1


@proves("P2")
async def test_the_key_of_a_failed_request_can_be_used_again(world: World) -> None:
    with pytest.raises(Exception, match="0x00"):
        await world.submit_with_key("abc", job("\0"))
    await world.submit_with_key("abc", job())
    assert await world.count("job_once") == 1


@proves("S8")
async def test_run_now_is_no_fire_and_carries_its_own_payload(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now), payload=b"1"))
    id_ = await world.run_now(accepted.id, b"2")
    execution = await world.execution(id_)
    assert (execution.origin, execution.payload) == ("run", 2)
    [assignment] = await (await world.worker()).lease()
    assert assignment.payload == b"2"
    with pytest.raises(NotFound):
        await world.run_now(JobId(id_))


@proves("P2")
async def test_run_now_with_an_idempotency_key_starts_one_execution(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now)))
    first = await world.run_now(accepted.id, key="abc")
    assert await world.run_now(accepted.id, key="abc") == first
    assert len(await world.executions(accepted.id)) == 1


@proves("S1", "S8")
async def test_a_one_time_job_is_active_until_it_has_run_and_then_ended(world: World) -> None:
    accepted = await world.submit(job())
    assert (await world.job(accepted.id)).state is JobState.ACTIVE
    worker = await world.worker()
    await worker.run_one()
    assert (await world.job(accepted.id)).state is JobState.ENDED


@proves("C4", "L5")
async def test_the_pool_of_a_near_job_is_woken_with_the_instant_it_may_start(world: World) -> None:
    await world.submit_all([job(schedule=once(world.after(n))) for n in (9, 4)])
    sending = asyncio.create_task(world.dispatcher.run())
    async with asyncio.timeout(60):
        await world.transport.published.wait()
    sending.cancel()
    assert world.transport.sent == [Wake(DEFAULT_POOL, world.now + timedelta(seconds=4))]


@proves("P1")
async def test_batches_that_create_the_same_pools_in_another_order_do_not_deadlock(
    world: World,
) -> None:
    for n in range(5):
        await asyncio.gather(
            *(
                world.submit_all([job(pool=first), job(pool=second, schedule=every(100, world.now))])
                for first, second in ((f"x{n}", f"y{n}"), (f"y{n}", f"x{n}"))
            )
        )
    assert await world.count("pool") == 11


@proves("S12")
async def test_a_large_upsert_that_changes_nothing_reads_once_and_writes_nothing(world: World) -> None:
    specs = [job(f"job {n}", key=f"key {n}", schedule=every(3600, world.now)) for n in range(500)]
    first = await world.submit_all(specs)
    again = await world.submit_all(specs)
    assert [entry.id for entry in again] == [entry.id for entry in first]
    assert {entry.version for entry in again} == {1}
