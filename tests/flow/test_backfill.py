"""②b Backfill: a past range runs in turns, in either order, N at a time; no fire gets a second execution."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from ondot.flow.backfill import Backfill, cancel_backfill, count_backfill, owed_pass, start_backfill
from ondot.flow.change.change import delete, pause, resume
from ondot.flow.idempotency import Idempotency
from ondot.model.errors import Conflict, InvalidBody, NotFound
from ondot.model.execution import PriorityClass, State
from ondot.model.ids import DEFAULT_TENANT, PARTITIONS, JobId
from ondot.model.misfire import Misfire
from ondot.model.schedule import Blackout, Calendar
from ondot.store.owed import BackfillRow, list_backfills
from tests.proves import proves
from tests.world import Worker, World, cron, every, failed, job, once

HOUR = 3600.0


async def start(world: World, job_id: JobId, from_s: float, to_s: float, **fields: object) -> UUID:
    backfill = Backfill(world.after(from_s), world.after(to_s), **fields)  # type: ignore[arg-type]
    text = await start_backfill(world.database, DEFAULT_TENANT, job_id, backfill, render=lambda row: str(row.id))
    return UUID(text)


async def read_backfill(world: World, job_id: JobId) -> BackfillRow:
    async with world.database.connection() as connection:
        [row] = await list_backfills(connection, DEFAULT_TENANT, job_id)
    return row


async def progress(world: World, job_id: JobId) -> tuple[str, int, int, int, int]:
    row = await read_backfill(world, job_id)
    return row.state, row.total, row.made, row.existing, row.live


async def turn(world: World) -> None:
    await world.work_off()
    await world.advance(1)


async def backfilled(world: World, job_id: JobId) -> list[float]:
    """The fires of a job's backfill so far, in the order in which they were made, in hours from now."""
    rows = await world.fetch(
        "SELECT fire_at FROM (SELECT id, job_id, fire_at, origin FROM ondot.execution"
        " UNION ALL SELECT id, job_id, fire_at, origin FROM ondot.history) e"
        " WHERE job_id = $1 AND origin = 'backfill' ORDER BY id",
        job_id,
    )
    return [round((row["fire_at"] - world.now).total_seconds() / HOUR) for row in rows]


async def run_all(world: World, worker: Worker, job_id: JobId) -> int:
    """Work off and lease until the backfill is over; returns the most that were leased at once."""
    most = 0
    while (await read_backfill(world, job_id)).state == "RUNNING":
        await turn(world)
        assignments = await worker.lease()
        most = max(most, len(assignments))
        await worker.complete_all(assignments)
    return most


@pytest.fixture
def hours(world: World) -> datetime:
    """The anchor of an hourly job whose fires of the past two days are wanted."""
    return world.after(-48 * HOUR)


@proves("S7")
@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_past_range_runs_in_the_requested_order_and_concurrency(
    world: World, hours: datetime, newest_first: bool
) -> None:
    accepted = await world.submit(job(schedule=every(HOUR, hours)))
    await start(world, accepted.id, -10 * HOUR, -1, newest_first=newest_first, concurrency=3)
    assert await progress(world, accepted.id) == ("RUNNING", 10, 0, 0, 0)
    await turn(world)
    await turn(world)
    assert await progress(world, accepted.id) == ("RUNNING", 10, 3, 0, 3)
    first = [-3, -2, -1] if newest_first else [-10, -9, -8]
    assert sorted(await backfilled(world, accepted.id)) == first
    worker = await world.worker()
    assert await run_all(world, worker, accepted.id) == 3
    row = await read_backfill(world, accepted.id)
    assert (row.state, row.total, row.made, row.succeeded, row.live) == ("DONE", 10, 10, 10, 0)
    assert row.ended_at is not None
    assert sorted(await backfilled(world, accepted.id)) == list(range(-10, 0))
    assert await world.count("owed") == 0


@proves("S7")
async def test_a_dry_run_counts_all_fires_and_those_that_have_run(world: World, hours: datetime) -> None:
    accepted = await world.submit(job(schedule=every(HOUR, hours)))
    await start(world, accepted.id, -10 * HOUR, -6 * HOUR, concurrency=100)
    await run_all(world, await world.worker(), accepted.id)
    backfill = Backfill(world.after(-20 * HOUR), world.after(-1))
    count = await count_backfill(world.database, DEFAULT_TENANT, accepted.id, backfill)
    assert (count.total, count.existing) == (20, 5)
    assert await world.count("backfill") == 1


@proves("S7", "P3")
async def test_a_fire_that_has_an_execution_live_or_ended_gets_no_second_one(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    worker = await world.worker()
    await world.advance(10)
    await worker.run_one()
    await world.advance(10)
    await world.plan()
    [running] = await worker.lease()
    await start(world, accepted.id, -100, 0, concurrency=10)
    await run_all(world, worker, accepted.id)
    assert (await read_backfill(world, accepted.id)).existing == 2
    await worker.complete(running)
    assert await world.value("SELECT count(DISTINCT fire_at) = count(*) FROM ondot.history")


@proves("S7", "P3")
async def test_a_backfill_never_meets_a_fire_that_the_schedulers_had_not_planned(world: World) -> None:
    accepted = await world.submit(job(schedule=every(100, world.now, misfire=Misfire(policy="all"))))
    await world.advance(550)
    await start(world, accepted.id, -600, 0, concurrency=100)
    await world.plan()
    worker = await world.worker()
    await run_all(world, worker, accepted.id)
    await turn(world)
    for assignments in [await worker.lease()]:
        await worker.complete_all(assignments)
    await world.plan()
    fires = await world.fires(accepted.id)
    assert len(fires) == len(set(fires)) == 6  # with the fire of its anchor, which was too late to be planned


@proves("S7", "P4")
async def test_a_backfilled_fire_is_removed_from_its_skipped_range(world: World) -> None:
    accepted = await world.submit(job(schedule=every(100, world.now)))
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    await world.advance(1050)
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id)
    assert await world.skipped(accepted.id) == [(-950, -50, "paused", 10)]
    await start(world, accepted.id, -760, -440, concurrency=2)
    await run_all(world, await world.worker(), accepted.id)
    assert [(reason, count) for *_, reason, count in await world.skipped(accepted.id)] == [("paused", 2), ("paused", 4)]
    filled = await world.executions(accepted.id)
    assert [execution.origin for execution in filled].count("backfill") == 4


@proves("S7", "P10")
async def test_a_backfill_waits_while_its_job_is_paused_and_then_continues(world: World, hours: datetime) -> None:
    accepted = await world.submit(job(schedule=every(HOUR, hours)))
    await start(world, accepted.id, -10 * HOUR, -1, concurrency=2)
    await turn(world)
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    await world.advance(10)
    await turn(world)
    row = await read_backfill(world, accepted.id)
    assert (row.state, row.job_state, row.made, row.live, row.stopped) == ("RUNNING", "PAUSED", 2, 0, 2)
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id)
    await world.advance(10)
    await run_all(world, await world.worker(), accepted.id)
    row = await read_backfill(world, accepted.id)
    assert (row.state, row.made, row.succeeded, row.stopped) == ("DONE", 10, 8, 2)


@proves("S7")
async def test_a_cancelled_backfill_makes_no_more_executions_and_running_ones_end(
    world: World, hours: datetime
) -> None:
    accepted = await world.submit(job(schedule=every(HOUR, hours)))
    id_ = await start(world, accepted.id, -10 * HOUR, -1, concurrency=4)
    await turn(world)
    worker = await world.worker()
    [running] = await worker.lease(1)
    row = await cancel_backfill(world.database, DEFAULT_TENANT, accepted.id, id_)
    assert (row.state, row.live, row.stopped) == ("CANCELLED", 1, 3)
    await worker.complete(running)
    await turn(world)
    row = await cancel_backfill(world.database, DEFAULT_TENANT, accepted.id, id_)
    assert (row.state, row.made, row.succeeded, row.stopped) == ("CANCELLED", 4, 1, 3)
    ended = [execution for execution in await world.executions(accepted.id) if execution.state is State.CANCELLED]
    assert {execution.reason for execution in ended} == {"backfill cancelled"}
    with pytest.raises(NotFound):
        await cancel_backfill(world.database, DEFAULT_TENANT, accepted.id, UUID(int=7))


@proves("S7", "S8")
async def test_a_delete_cancels_the_backfill_of_its_job(world: World, hours: datetime) -> None:
    accepted = await world.submit(job(schedule=every(HOUR, hours)))
    await start(world, accepted.id, -10 * HOUR, -1)
    await turn(world)
    await delete(world.database, DEFAULT_TENANT, accepted.id)
    assert (await read_backfill(world, accepted.id)).state == "CANCELLED"
    assert await world.count("owed") == 0
    with pytest.raises(Conflict):
        await start(world, accepted.id, -10 * HOUR, -1)


@proves("S7", "S10")
async def test_a_backfill_leaves_out_the_fires_that_the_calendar_does(world: World, hours: datetime) -> None:
    calendar = Calendar(blackouts=(Blackout(from_at=world.after(-5.5 * HOUR), to_at=world.after(-2.5 * HOUR)),))
    accepted = await world.submit(job(schedule=every(HOUR, hours, calendar=calendar)))
    await start(world, accepted.id, -8 * HOUR, -1, concurrency=10)
    await run_all(world, await world.worker(), accepted.id)
    assert sorted(await backfilled(world, accepted.id)) == [-8, -7, -6, -2, -1]


@proves("S7")
async def test_a_backfill_runs_the_current_version_at_the_requested_instants(world: World, hours: datetime) -> None:
    accepted = await world.submit(job(schedule=every(HOUR, hours)))
    await start(world, accepted.id, -3 * HOUR, -1)
    await world.update(accepted.id, job("new", schedule=every(7 * HOUR, hours)))
    await run_all(world, await world.worker(), accepted.id)
    rows = [execution for execution in await world.executions(accepted.id) if execution.origin == "backfill"]
    assert [round((row.fire_at - world.now).total_seconds() / HOUR) for row in rows] == [-3, -2, -1]
    assert {row.job_version for row in rows} == {2}


@proves("S7", "E4")
async def test_a_failed_backfilled_fire_is_counted_and_its_retries_are_live(world: World, hours: datetime) -> None:
    accepted = await world.submit(job(schedule=every(HOUR, hours)))
    await start(world, accepted.id, -1.5 * HOUR, -1)
    await turn(world)
    worker = await world.worker()
    await worker.run_one(failed())
    await turn(world)
    assert (await read_backfill(world, accepted.id)).live == 1
    await world.advance(60)
    await worker.run_one(failed(retryable=False))
    await turn(world)
    row = await read_backfill(world, accepted.id)
    assert (row.state, row.failed, row.live) == ("DONE", 1, 0)


@proves("S7")
async def test_a_range_without_fires_is_done_at_once(world: World) -> None:
    accepted = await world.submit(job(schedule=cron("0 0 29 2 *")))
    await start(world, accepted.id, -HOUR, -1)
    assert await progress(world, accepted.id) == ("DONE", 0, 0, 0, 0)


@proves("S7")
async def test_one_backfill_at_a_time(world: World, hours: datetime) -> None:
    accepted = await world.submit(job(schedule=every(HOUR, hours)))
    id_ = await start(world, accepted.id, -10 * HOUR, -1)
    with pytest.raises(Conflict, match="under way"):
        await start(world, accepted.id, -20 * HOUR, -15 * HOUR)
    await cancel_backfill(world.database, DEFAULT_TENANT, accepted.id, id_)
    await start(world, accepted.id, -20 * HOUR, -15 * HOUR)


@proves("S7")
@pytest.mark.parametrize(
    ("from_s", "to_s", "pointer"),
    [(-10, 10, "/to_at"), (-10, -20, "/to_at"), (-10 * 366 * 86_400, -1, "/from_at")],
    ids=["future", "backwards", "too many"],
)
async def test_a_range_that_cannot_be_backfilled_is_rejected_with_advice(
    world: World, from_s: float, to_s: float, pointer: str
) -> None:
    accepted = await world.submit(job(schedule=cron("* * * * * *")))
    with pytest.raises(InvalidBody) as refusal:
        await start(world, accepted.id, from_s, to_s)
    assert [fault.pointer for fault in refusal.value.faults] == [pointer]


@proves("S7", "S1")
async def test_a_one_time_job_has_nothing_to_backfill(world: World) -> None:
    accepted = await world.submit(job(schedule=once(world.after(5))))
    with pytest.raises(Conflict, match="one-time"):
        await start(world, accepted.id, -10, -1)


@proves("S7", "P2")
async def test_the_same_request_again_is_the_same_backfill(world: World, hours: datetime) -> None:
    accepted = await world.submit(job(schedule=every(HOUR, hours)))
    backfill = Backfill(hours, world.now)
    texts = [
        await start_backfill(
            world.database,
            DEFAULT_TENANT,
            accepted.id,
            backfill,
            render=lambda row: f'"{row.id}"',
            idempotency=Idempotency("key", b"same"),
        )
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert await world.count("backfill") == 1


@proves("S7", "L2", "P3")
async def test_two_nodes_that_both_believe_they_own_a_partition_make_no_more_than_one(
    world: World, hours: datetime
) -> None:
    accepted = await world.submit(job(schedule=every(HOUR, hours)))
    await start(world, accepted.id, -10 * HOUR, -1, concurrency=2)
    async with world.second_connection() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT FROM ondot.timer WHERE job_id = $1 FOR UPDATE", accepted.id)
        assert await owed_pass(world.database, world.dispatcher, range(PARTITIONS)) == 0
        await transaction.rollback()
    await turn(world)
    await turn(world)
    assert (await read_backfill(world, accepted.id)).made == 2


@proves("S7")
async def test_backfilled_work_waits_behind_live_work_and_is_never_early(world: World, hours: datetime) -> None:
    accepted = await world.submit(job(schedule=every(HOUR, hours, jitter_s=30)))
    await start(world, accepted.id, -5 * HOUR, -1, concurrency=5)
    await world.work_off()
    rows = await world.executions(accepted.id)
    assert {row.priority_class for row in rows} == {PriorityClass.CATCH_UP}
    assert all(world.now <= row.ready_at <= world.now + timedelta(seconds=30) for row in rows)


@proves("S7", "P4")
async def test_fires_skipped_by_an_earlier_version_stay_recorded_where_a_backfill_runs_none(world: World) -> None:
    accepted = await world.submit(job(schedule=every(60, world.now)))
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    await world.advance(3 * HOUR)
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id)
    hourly = job(schedule=every(HOUR, world.after(-3 * HOUR)))
    await world.update(accepted.id, hourly)
    await start(world, accepted.id, -3 * HOUR + 1, 0, concurrency=10)
    await run_all(world, await world.worker(), accepted.id)
    assert [count for *_, count in await world.skipped(accepted.id)] == [59, 59, 59]


@proves("S7", "S6", "P4")
async def test_backfilled_fires_of_an_owed_range_are_not_skipped_when_the_job_is_paused(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now, misfire=Misfire(policy="all", grace_s=1))))
    await world.advance(1000)
    await world.plan()
    owed = await world.value("SELECT count FROM ondot.owed")
    await start(world, accepted.id, -500, -405, concurrency=100, newest_first=True)
    await world.fetch("UPDATE ondot.owed SET turn_at = 'infinity' WHERE origin = 'fire'")
    await run_all(world, await world.worker(), accepted.id)
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    run = [execution for execution in await world.executions(accepted.id) if execution.origin == "backfill"]
    assert len(run) == 10
    assert sum(count or 0 for *_, count in await world.skipped(accepted.id)) == owed - 10


@proves("S7", "L6")
async def test_ranges_that_do_not_fit_into_a_pass_are_first_in_the_next(world: World, hours: datetime) -> None:
    jobs = [await world.submit(job(str(n), schedule=every(60, hours))) for n in range(4)]
    for accepted in jobs:
        await start(world, accepted.id, -40 * HOUR, -1, concurrency=250)
    for _ in jobs:
        await turn(world)
    assert [(await read_backfill(world, accepted.id)).made for accepted in jobs] == [250] * 4


@proves("S7", "P4")
async def test_a_range_that_was_not_counted_is_cut_without_slivers(world: World, hours: datetime) -> None:
    schedule = every(1, world.now, calendar=Calendar(blackouts=(Blackout(from_at=hours, to_at=hours + timedelta(1)),)))
    accepted = await world.submit(job(schedule=schedule))
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    await world.advance(10_000)
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id)
    assert [count for *_, count in await world.skipped(accepted.id)] == [None]
    await start(world, accepted.id, -40, -1, newest_first=True, concurrency=3)
    await run_all(world, await world.worker(), accepted.id)
    assert len(await world.skipped(accepted.id)) == 2
