"""Rows that have ended do not stay: each kind is removed by its age, in batches; live rows are not touched."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
from msgspec import structs

from ondot.flow import retain
from ondot.flow.backfill import Backfill, start_backfill
from ondot.flow.cancel import cancel
from ondot.flow.change.change import delete, pause, resume
from ondot.flow.gate import expire_pass
from ondot.model.errors import NotFound
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.job import Debounce, Unique
from ondot.store.audit import By
from ondot.store.connection import Connection
from ondot.store.jobs import get_job
from ondot.store.migrate import migrations
from tests.proves import proves
from tests.world import World, every, failed, job, once

OPERATIONS: Final = Path(__file__).parent.parent.parent / "docs" / "reference" / "operations.md"
KEPT_S: Final = 30 * 86_400
GROWING: Final = ("job", "job_version", "timer", "streak", "claim", "skipped", "backfill", "dead_letter", "bulk")
TABLES: Final = ("job", "dead_letter")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a few rows more than a batch."""
    monkeypatch.setattr(retain, "ROWS_A_PASS", 2)
    monkeypatch.setattr(retain, "JOBS_A_PASS", 2)


async def exists(world: World, job_id: JobId) -> bool:
    async with world.database.connection() as connection:
        return await get_job(connection, DEFAULT_TENANT, job_id) is not None


@proves("O1", "S8")
async def test_a_one_time_job_with_a_key_is_removed_when_it_ended_long_ago_and_its_key_is_free_again(
    world: World,
) -> None:
    first = await world.submit_all([job(f"n{n}", key=f"k{n}") for n in range(5)])
    worker = await world.worker()
    await worker.complete_all(await worker.lease())
    await world.advance(KEPT_S - 60)
    await world.retain()
    assert [await exists(world, accepted.id) for accepted in first] == [True] * 5
    await world.advance(120)
    await world.retain()
    assert [await exists(world, accepted.id) for accepted in first] == [False] * 5
    assert [await world.count(table) for table in ("job", "job_version", "timer")] == [0, 0, 0]
    again = await world.submit(job("n0", key="k0"))
    assert again.id != first[0].id
    assert (await worker.run_one()).leased.job_id == again.id


@proves("O1", "S8", "P10")
async def test_a_deleted_job_is_removed_with_all_its_versions_and_stays_gone(world: World) -> None:
    recurring = await world.submit(job(schedule=every(3600, world.now)))
    await world.update(recurring.id, job("new", schedule=every(60, world.now)))
    one_time = await world.submit(job(schedule=once(world.after(100 * 86_400))))
    for accepted in (recurring, one_time):
        await delete(world.database, DEFAULT_TENANT, accepted.id)
    await world.advance(KEPT_S + 60)
    await world.retain()
    for accepted in (recurring, one_time):
        assert not await exists(world, accepted.id)
        with pytest.raises(NotFound):
            await pause(world.database, DEFAULT_TENANT, accepted.id)
    await world.advance(80 * 86_400)
    await world.plan()
    assert await world.count("execution") == 0
    assert {table: await world.count(table) for table in GROWING} == dict.fromkeys(GROWING, 0)


@proves("O1", "P1")
async def test_live_jobs_are_not_removed_however_old_they_are(world: World) -> None:
    paused = await world.submit(job("paused", schedule=every(60, world.now)))
    await pause(world.database, DEFAULT_TENANT, paused.id)
    later = await world.submit(job("later", key="later", schedule=once(world.after(300 * 86_400))))
    rare = await world.submit(job("rare", schedule=every(200 * 86_400, world.now)))
    running = await world.submit(job("running", key="running"))
    worker = await world.worker()
    [assignment] = await worker.lease()
    letter = await world.submit(job("letter", key="letter"))
    [failing] = await worker.lease()
    await worker.complete(failing, failed(retryable=False))
    ended = await world.submit(job("ended", key="ended"))
    await worker.run_one()
    await world.advance(4 * KEPT_S)
    await world.retain()
    left = {
        accepted.spec.name
        for accepted in (paused, later, rare, running, letter, ended)
        if await exists(world, accepted.id)
    }
    assert left == {"paused", "later", "rare", "running", "letter"}
    await worker.complete(assignment)
    async with world.database.transaction() as connection:
        await resolve(connection, failing.leased.id)
    await world.advance(KEPT_S + 60)
    await world.retain()
    assert not await exists(world, running.id)
    assert not await exists(world, letter.id)
    assert await world.count("dead_letter") == 0
    assert await exists(world, paused.id)


async def run_due(world: World) -> None:
    worker = await world.worker()
    await worker.complete_all(await worker.lease())


async def resolve(connection: Connection, id_: UUID) -> None:
    await connection.execute(
        "UPDATE ondot.dead_letter SET resolved_at = ondot.clock(), resolution = 'discarded' WHERE execution_id = $1",
        id_,
    )


@proves("O1", "S8")
async def test_old_versions_are_removed_except_those_still_in_use(world: World) -> None:
    accepted = await world.submit(job(schedule=every(60, world.now)))
    await world.advance(60)
    await world.plan()
    worker = await world.worker()
    [assignment] = await worker.lease()
    for name in ("b", "c", "d"):
        await world.update(accepted.id, job(name, schedule=every(60, world.now)))

    async def versions() -> list[int]:
        rows = await world.fetch("SELECT version FROM ondot.job_version ORDER BY version")
        return [row["version"] for row in rows]

    await world.advance(KEPT_S - 60)
    await world.retain()
    assert await versions() == [1, 2, 3, 4]
    await world.advance(120)
    await world.retain()
    assert await versions() == [1, 4], "the first one runs"
    await worker.complete(assignment)
    await world.advance(KEPT_S + 60)
    await world.retain()
    assert await versions() == [4]


@proves("P2", "O1")
async def test_idempotency_keys_are_removed_after_seven_days_and_not_before(world: World) -> None:
    for number in range(5):
        await world.submit_with_key(f"old {number}", job())
    await world.advance(7 * 86_400)
    await world.retain()
    assert await world.count("idempotency") == 5
    await world.submit_with_key("young", job())
    await world.advance(1)
    await world.retain()
    assert [row["key"] for row in await world.fetch("SELECT key FROM ondot.idempotency")] == ["young"]


@proves("O1", "N6")
async def test_live_keys_are_checked_once_and_do_not_stop_the_removal_of_others(world: World) -> None:
    worker = await world.worker()
    await world.submit_all([job(unique=Unique(key=f"over {n}")) for n in range(5)])
    await worker.complete_all(await worker.lease())
    await world.submit_all([job(unique=Unique(key=f"live {n}"), schedule=once(world.after(KEPT_S))) for n in range(5)])
    await world.advance(120)
    assert await world.retain() == 5, "ten keys, two in a batch"
    assert await world.value("SELECT count(*) FROM ondot.claim WHERE key LIKE 'live%'") == 5
    assert await world.count("claim") == 5
    assert await world.retain() == 0, "none is due for a while"
    await world.advance(KEPT_S + 7200)
    await world.plan()
    await worker.complete_all(await worker.lease())
    await world.retain()
    await world.advance(7200)
    await world.retain()
    assert await world.count("claim") == 0


@proves("O1", "E10")
async def test_checkpoints_of_ended_executions_are_removed_and_those_of_live_ones_stay(world: World) -> None:
    await world.submit_all([job() for _ in range(7)])
    worker = await world.worker()
    assignments = await worker.lease()
    await world.fetch(
        "INSERT INTO ondot.checkpoint (execution_id, tenant_no, at)"
        " SELECT id, tenant_no, ondot.clock() FROM ondot.execution"
    )
    await worker.complete_all(assignments[::2])
    await world.retain()
    left = {row["execution_id"] for row in await world.fetch("SELECT execution_id FROM ondot.checkpoint")}
    assert left == {assignment.leased.id for assignment in assignments[1::2]}


@proves("O1")
async def test_the_operations_page_states_for_every_table_what_bounds_it(world: World) -> None:
    section = OPERATIONS.read_text().partition("## What grows")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    tables = await world.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'ondot'::regnamespace AND relkind IN ('r', 'p')"
        " AND NOT relispartition AND relname <> 'hand_clock' AND relname NOT LIKE 'guard%'"
    )
    assert named == {row["relname"] for row in tables}


@proves("O1")
async def test_skipped_ranges_and_backfills_are_removed_when_they_are_old(world: World) -> None:
    accepted = await world.submit(job(schedule=every(60, world.now)))
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    await world.fetch(
        "INSERT INTO ondot.skipped (job_id, from_at, to_at, tenant_no, reason, count, at)"
        " SELECT gen_random_uuid(), ondot.clock(), ondot.clock(), 1, 'misfire', 1, ondot.clock()"
        " FROM generate_series(1, 5)"
    )
    backfill = Backfill(world.now - timedelta(days=2), world.now - timedelta(days=2))
    await start_backfill(world.database, DEFAULT_TENANT, accepted.id, backfill, render=lambda _: "")
    assert await world.count("skipped") >= 5
    await world.fetch("UPDATE ondot.backfill SET state = 'DONE', ended_at = ondot.clock()")
    await world.fetch("DELETE FROM ondot.owed")
    await world.retain()
    assert (await world.count("skipped") >= 5, await world.count("backfill")) == (True, 1)
    await world.advance(KEPT_S + 60)
    await world.retain()
    assert (await world.count("skipped"), await world.count("backfill")) == (0, 0)


@proves("O1", "L6")
async def test_locked_rows_are_skipped_without_waiting(world: World) -> None:
    locked, free = await world.submit_all([job("locked", key="locked"), job("free", key="free")])
    worker = await world.worker()
    await worker.complete_all(await worker.lease())
    await world.advance(KEPT_S + 60)
    async with world.second_connection() as connection:
        await connection.execute("BEGIN")
        await connection.execute("SELECT FROM ondot.job WHERE id = $1 FOR UPDATE", locked.id)
        async with asyncio.timeout(20):
            await world.retain()
        assert (await exists(world, locked.id), await exists(world, free.id)) == (True, False)
        await connection.execute("ROLLBACK")
    await world.retain()
    assert not await exists(world, locked.id)


@proves("O1", "P13")
async def test_a_kind_that_fails_does_not_stop_the_others(world: World) -> None:
    await world.submit_with_key("old", job())
    ended = await world.submit(job(key="ended"))
    worker = await world.worker()
    await worker.complete_all(await worker.lease())
    await world.advance(KEPT_S + 60)
    await world.fetch("ALTER TABLE ondot.claim RENAME TO taken_away")
    await world.fetch("ALTER TABLE ondot.checkpoint RENAME TO taken_away_too")
    await world.retain()
    assert await world.count("idempotency") == 0
    assert not await exists(world, ended.id)


@proves("O1", "E16")
@pytest.mark.parametrize("wait_s", [5, 600], ids=["planned", "with a timer"])
@pytest.mark.parametrize("is_paused", [False, True], ids=["active", "paused"])
async def test_a_changed_job_that_a_debounce_replaced_is_removed(world: World, wait_s: float, is_paused: bool) -> None:
    debounce = Debounce(key="k", wait_s=wait_s)
    first = await world.submit(job(debounce=debounce))
    await rename(world, first.id)
    if is_paused:
        await pause(world.database, DEFAULT_TENANT, first.id)
    await world.submit(job(debounce=debounce))
    await world.advance(wait_s)
    await world.plan()
    await run_due(world)
    await world.advance(KEPT_S + 1200)
    await world.retain()
    assert not await exists(world, first.id)
    assert {table: await world.count(table) for table in GROWING} == dict.fromkeys(GROWING, 0)


async def nothing(world: World, job_id: JobId) -> None:
    """Lock the job for a change, and change nothing."""
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, job_id)


async def rename(world: World, job_id: JobId) -> None:
    spec = structs.replace((await world.job(job_id)).spec, name="new")
    await world.update(job_id, spec)


async def remove(world: World, job_id: JobId) -> None:
    await delete(world.database, DEFAULT_TENANT, job_id)


async def cancel_fire(world: World, job_id: JobId) -> None:
    await rename(world, job_id)
    await world.advance(600)
    await world.plan()
    [execution] = await world.executions(job_id)
    await cancel(world.database, world.dispatcher, DEFAULT_TENANT, execution.id, by=By("ops"))


async def expire(world: World, job_id: JobId) -> None:
    await rename(world, job_id)
    await world.advance(590)
    await world.plan()
    await world.advance(100)
    assert await expire_pass(world.database) == 1


@proves("O1", "S8")
@pytest.mark.parametrize("in_s", [5, 600], ids=["planned", "with a timer"])
@pytest.mark.parametrize("end", [nothing, rename, remove, cancel_fire, expire])
async def test_a_one_time_job_that_was_changed_is_removed_however_it_ended(
    world: World, in_s: float, end: Callable[[World, JobId], Awaitable[None]]
) -> None:
    accepted = await world.submit(job(schedule=once(world.after(in_s)), start_deadline_s=60))
    await end(world, accepted.id)
    await world.advance(in_s)
    await world.plan()
    await run_due(world)
    await world.advance(KEPT_S + 1200)
    await world.retain()
    assert not await exists(world, accepted.id)
    assert {table: await world.count(table) for table in GROWING} == dict.fromkeys(GROWING, 0)


@proves("O1", "S8")
async def test_a_job_whose_new_schedule_has_no_fire_left_is_removed(world: World) -> None:
    accepted = await world.submit(job(schedule=every(5, world.now, max_fires=1)))
    await world.advance(5)
    await run_due(world)
    later = once(world.after(3600), max_fires=1)
    await world.update(accepted.id, job("new", schedule=later))
    await world.advance(KEPT_S + 7200)
    await world.plan()
    await world.retain()
    assert not await exists(world, accepted.id)


@proves("O1")
async def test_jobs_that_an_older_release_left_without_a_timer_are_removed_too(world: World) -> None:
    accepted = await world.submit(job(schedule=once(world.after(600))))
    await rename(world, accepted.id)
    await world.value("DELETE FROM ondot.timer WHERE job_id = $1", accepted.id)
    [migration] = [each for each in migrations() if each.name == "every_job_has_a_timer"]
    async with world.second_connection() as connection:
        await connection.execute(migration.sql)
    await world.advance(KEPT_S + 60)
    await world.retain()
    assert not await exists(world, accepted.id)


@proves("O1", "T1")
async def test_a_tenant_with_its_own_retention_keeps_its_jobs_letters_and_skips_for_that_time(world: World) -> None:
    tenants = {"long": 60, "short": 3, "as the installation": None}
    numbers = {}
    for name, days in tenants.items():
        no = numbers[name] = await world.add_tenant(name.replace(" ", "-"))
        await world.fetch("UPDATE ondot.tenant SET retention_days = $2 WHERE tenant_no = $1", no, days)
        await world.submit(job("keyed", key="k"), no)
        await (await world.worker()).run_one()
        await world.fetch(
            """
            INSERT INTO ondot.dead_letter (execution_id, tenant_no, job_id, job_version, failed_at, reason, resolved_at)
            VALUES ($2, $1, $2, 1, ondot.clock(), 'it broke', ondot.clock())
            """,
            no,
            world.database.clock.new_id(),
        )

    async def kept() -> list[tuple[str, int, int]]:
        await world.retain()
        return [
            (name, *[await world.value(f"SELECT count(*) FROM ondot.{of} WHERE tenant_no = $1", no) for of in TABLES])
            for name, no in numbers.items()
        ]

    both, none = (1, 1), (0, 0)
    for days, expected in (2, (both, both, both)), (5, (both, none, both)), (28, (both, none, none)), (30, (none,) * 3):
        await world.advance(days * 86_400)
        assert await kept() == [(name, *counts) for name, counts in zip(tenants, expected, strict=True)], days
