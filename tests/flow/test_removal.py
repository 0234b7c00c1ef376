"""A deleted tenant: its work ends, outcomes are refused, and no table keeps a row of it."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from ondot.flow.backfill import Backfill, start_backfill
from ondot.flow.complete import Done
from ondot.flow.output import Outputs, open_result
from ondot.flow.removal import STOPPED_AFTER_S, Removal, _Round
from ondot.flow.tenants import delete_tenant
from ondot.model.completion import decide
from ondot.model.errors import Unavailable
from ondot.model.gates import Limits, Rate
from ondot.model.ids import DEFAULT_TENANT, INSTALLATION, ExecutionId, TenantNo
from ondot.model.job import Unique
from ondot.model.keys import new_key
from ondot.model.outcome import Succeeded
from ondot.objects import open_objects
from ondot.ports.objects import Objects
from ondot.store.audit import By, list_audit
from ondot.store.keys import add_key
from ondot.store.removal import DeletedTenant
from ondot.store.tenants import find_tenant
from tests.proves import proves
from tests.world import World, every, failed, job, once

TABLES = """
SELECT c.relname AS name FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_no' AND NOT a.attisdropped
WHERE c.relnamespace = 'ondot'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND c.relname <> 'tenant'
ORDER BY 1
"""


async def rows_of(world: World, tenant_no: int) -> dict[str, int]:
    """How many rows of a tenant each table has, without those that have none. The catalog lists the tables."""
    counts = {}
    for table in await world.fetch(TABLES):
        name = table["name"]
        counts[name] = await world.value(f"SELECT count(*) FROM ondot.{name} WHERE tenant_no = $1", tenant_no)
    return {name: count for name, count in counts.items() if count}


async def remove(world: World, objects: Objects | None = None) -> None:
    removal = Removal(world.database, objects)
    for _ in range(100):
        if not await removal.one_pass():
            break
    else:
        raise AssertionError("the removal does not end")


async def fill(world: World, tenant_no: TenantNo) -> None:
    """Rows of a tenant in as many tables as its work writes."""
    limits = Limits(concurrency=1, rate=Rate(limit=1, per_s=60), key="k", key_concurrency=1)
    jobs = await world.submit_all(
        [
            job("plain"),
            job("later", schedule=once(world.after(1000))),
            job("nightly", schedule=every(60, world.now), key="nightly"),
            job("limited", limits=limits),
            job("unique", unique=Unique(key="one")),
        ],
        tenant_no,
    )
    worker = await world.worker()
    await world.advance(120)
    await world.plan()
    leased = await worker.lease()
    assert leased
    await worker.complete_all(leased[:1], failed())
    backfill = Backfill(world.now - timedelta(minutes=1), world.now - timedelta(seconds=30))
    await start_backfill(world.database, tenant_no, jobs[2].id, backfill, render=lambda _: "{}")
    async with world.database.connection() as connection:
        id_ = world.database.clock.new_id()
        await add_key(connection, id_, tenant_no, "ci", new_key(id_))


@proves("T2", "P12")
async def test_no_table_keeps_a_row_of_a_deleted_tenant_and_others_keep_theirs(world: World) -> None:
    acme = await world.add_tenant("acme")
    other = await world.add_tenant("other")
    await fill(world, acme)
    await fill(world, other)
    assert {"job", "job_once", "job_version", "timer", "execution", "key", "backfill", "gated"} <= (
        await rows_of(world, acme)
    ).keys()
    theirs, ours = await rows_of(world, other), await rows_of(world, DEFAULT_TENANT)
    await delete_tenant(world.database, "acme", home_no=DEFAULT_TENANT, by=By("boss"))
    await remove(world)
    await world.advance(STOPPED_AFTER_S + 1)
    await remove(world)
    assert await rows_of(world, acme) == {}
    assert await rows_of(world, other) == theirs
    assert (await rows_of(world, DEFAULT_TENANT)).items() >= (ours.items() - {("audit", ours.get("audit"))})
    async with world.database.connection() as connection:
        row = await find_tenant(connection, "acme")
        [entry] = await list_audit(connection, INSTALLATION, limit=99)
    assert row is not None
    assert row.purged_at is not None
    assert (row.removed > 0, row.removed_share) == (True, 1)
    assert (entry.action, entry.actor, entry.detail["tenant"]) == ("tenant.delete", "boss", "acme")


@proves("T2", "P6")
async def test_running_work_of_a_deleted_tenant_is_cancelled_and_its_outcome_refused(world: World) -> None:
    acme = await world.add_tenant("acme")
    worker = await world.worker()
    await world.submit_all([job("one"), job("waits")], acme)
    [running] = await worker.lease(1)
    await delete_tenant(world.database, "acme", home_no=DEFAULT_TENANT)
    await remove(world)
    [row] = await world.fetch("SELECT state, cancel_at, cancel_reason FROM ondot.execution")
    assert (row["state"], row["cancel_reason"]) == ("RUNNING", "its tenant was deleted")
    assert row["cancel_at"] is not None
    await world.advance(STOPPED_AFTER_S)
    await remove(world)
    assert await world.count("execution") == 0
    written = await worker.complete(running)
    assert written == [] or all(entry.state is None for entry in written)
    assert await rows_of(world, acme) == {}


class Away:
    """Storage that does not delete."""

    def __init__(self, objects: Objects) -> None:
        self.place, self.put, self.get = objects.place, objects.put, objects.get

    async def delete(self, keys: Sequence[str]) -> None:
        raise Unavailable("The storage does not answer.")


@proves("T2", "E14")
async def test_objects_of_a_deleted_tenant_go_before_the_rows_that_name_them(world: World, tmp_path: Path) -> None:
    settings = world.database.settings
    world.database.settings = settings.model_copy(update={"home": tmp_path, "inline_bytes": 2048})
    objects = open_objects(world.database.settings)
    acme, other = await world.add_tenant("acme"), await world.add_tenant("other")
    worker, large = await world.worker(), f'"{"x" * 5000}"'
    kept: dict[TenantNo, ExecutionId] = {}
    for tenant_no in (acme, other):
        await world.submit(job(), tenant_no)
        [assignment] = await worker.lease()
        assert assignment.spec is not None
        completion = decide(assignment.leased, assignment.spec, Succeeded(large), lambda: 0.0)
        completion = await Outputs(objects, world.database).keep(assignment.leased, completion)
        await worker.completer.write([Done(completion, assignment.lease_id)])
        kept[tenant_no] = assignment.leased.id
    [key] = [row["key"] for row in await world.fetch("SELECT key FROM ondot.object WHERE tenant_no = $1", acme)]
    assert await objects.get(key) is not None

    await delete_tenant(world.database, "acme", home_no=DEFAULT_TENANT)
    with pytest.raises(Unavailable):
        await remove(world, Away(objects))
    assert await world.value("SELECT count(*) FROM ondot.object WHERE tenant_no = $1", acme) == 1
    await remove(world, objects)
    assert await objects.get(key) is None
    assert await rows_of(world, acme) == {}
    stored = await open_result(world.database, objects, other, kept[other])
    assert b"".join([chunk async for chunk in stored.chunks]).decode() == large


@proves("T2")
async def test_a_row_that_a_late_transaction_adds_is_found_in_the_next_round(world: World) -> None:
    acme = await world.add_tenant("acme")
    await world.submit(job("early", schedule=every(3600, world.now)), acme)
    await delete_tenant(world.database, "acme", home_no=DEFAULT_TENANT)
    removal = Removal(world.database)
    assert await removal.one_pass() == 1
    await world.fetch(
        "INSERT INTO ondot.idempotency (tenant_no, key, request_hash, created_at)"
        " VALUES ($1, 'late', '', ondot.clock())",
        acme,
    )
    while await removal.one_pass():
        pass
    assert await rows_of(world, acme) == {}


@proves("T2")
async def test_the_record_of_work_that_ends_in_the_middle_of_a_round_is_removed_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was added by a transaction that committed late, and its end is written behind the walk."""
    acme = await world.add_tenant("acme")
    await delete_tenant(world.database, "acme", home_no=DEFAULT_TENANT)
    removal = Removal(world.database)
    monkeypatch.setattr("ondot.flow.removal.PASS_S", 0.0)
    await removal.one_pass()
    monkeypatch.undo()
    assert removal._round is not None
    removal._round.table = len(removal._round.tables)  # it has passed all of them, and found nothing
    await world.submit(job("late"), acme)
    while await removal.one_pass():
        pass
    assert await rows_of(world, acme) == {}


@proves("T2", "P5")
async def test_work_of_a_late_transaction_ends_though_the_walk_has_removed_its_place_in_the_queue(world: World) -> None:
    acme = await world.add_tenant("acme")
    await delete_tenant(world.database, "acme", home_no=DEFAULT_TENANT)
    await world.submit_all([job("late"), job("limited", limits=Limits(concurrency=1))], acme)
    removal = Removal(world.database)
    for table in await removal._list_tables([DeletedTenant(acme, world.now, world.now)]):
        walk = _Round((acme,), [table], has_executions=True)
        await removal._remove_some(walk)
    assert await rows_of(world, acme) == {"execution": 2}
    await remove(world)
    assert await rows_of(world, acme) == {}


@proves("T2")
async def test_the_end_of_work_that_ran_when_the_last_round_started_is_removed_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = await world.add_tenant("acme")
    worker = await world.worker()
    await world.submit(job("one"), acme)
    [running] = await worker.lease()
    await delete_tenant(world.database, "acme", home_no=DEFAULT_TENANT)
    removal = Removal(world.database)
    while await removal.one_pass():
        pass
    assert [await world.count(name) for name in ("job_once", "execution")] == [0, 1]
    monkeypatch.setattr("ondot.flow.removal.PASS_S", 0.0)
    await removal.one_pass()
    monkeypatch.undo()
    assert removal._round is not None
    removal._round.table = len(removal._round.tables)  # it has passed all of them, and found nothing
    await worker.complete(running, failed())
    assert await world.count("history") == 1
    for _ in range(2):
        while await removal.one_pass():
            pass
    assert await rows_of(world, acme) == {}


@proves("T2")
async def test_what_is_left_of_a_deleted_tenant_goes_after_the_retention_and_its_number_never_comes_back(
    world: World,
) -> None:
    acme = await world.add_tenant("acme")
    await delete_tenant(world.database, "acme", home_no=DEFAULT_TENANT)
    await remove(world)
    await world.retain()
    assert await world.value("SELECT count(*) FROM ondot.tenant WHERE tenant_no = $1", acme) == 1
    await world.advance((world.database.settings.retention_days + 1) * 86_400)
    await world.retain()
    assert await world.value("SELECT count(*) FROM ondot.tenant WHERE tenant_no = $1", acme) == 0
    assert await world.add_tenant("acme") > acme
