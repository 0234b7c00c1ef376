"""Migrations: safe when several start at once, and a role refuses a schema that it does not fit."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
from docs.schema import TARGET, dump

from ondot import __version__
from ondot.flow.cancel import cancel
from ondot.model.errors import Misconfigured, Unavailable
from ondot.model.gates import Limits
from ondot.store import migrate, sql_functions
from ondot.store.audit import By
from ondot.store.connection import Connection
from ondot.store.database import check_server, open_database
from ondot.store.migrate import Status, apply, check_schema, fits, migrate_up, migrations, read_status, release_key
from ondot.store.sql_functions import CONSTANTS, Function, functions
from tests.proves import proves
from tests.servers import Server, connected, new_database, settings_for
from tests.world import DEFAULT_POOL, World, every, job

SCHEMA_12 = Path(__file__).with_name("schema_12.zip")
"""The migrations of the last schema whose functions were in migrations."""


@pytest.fixture
async def empty_url(server: Server) -> AsyncIterator[str]:
    async with new_database(server, template="template0") as url:
        yield url


@proves("O6", "O9")
async def test_four_processes_that_migrate_an_empty_database_at_once_apply_each_migration_once(empty_url: str) -> None:
    databases = [await open_database(settings_for(empty_url)) for _ in range(4)]
    applied = await asyncio.gather(*(migrate_up(database) for database in databases))
    for database in databases:
        await database.close()
    assert sorted(migration.number for each in applied for migration in each.migrations) == [
        m.number for m in migrations()
    ]
    async with connected(empty_url) as connection:
        status = await read_status(connection)
        await check_schema(connection)
    assert sorted(name for each in applied for name in each.functions) == [each.name for each in functions()]
    assert status == Status(tuple(m.number for m in migrations()), (), (), "0.1.0")


@proves("O9")
async def test_an_upgraded_database_has_the_same_schema_as_a_new_one(server: Server, empty_url: str) -> None:
    async with new_database(server, template="template0") as new_url, connected(new_url) as new:
        database = await open_database(settings_for(new_url))
        await migrate_up(database)
        await database.close()
        async with connected(empty_url) as old:
            await make_schema_12(old)
            assert (await read_status(old)).changed == ()
            with pytest.raises(Misconfigured, match="schema 12"):
                await check_schema(old)
            database = await open_database(settings_for(empty_url))
            assert (await migrate_up(database)).functions == tuple(function.name for function in functions())
            await database.close()
            await check_schema(old)
            assert await dump(old) == await dump(new) == TARGET.read_text()
            assert await definitions(old) == await definitions(new)


async def make_schema_12(connection: Connection) -> None:
    await connection.execute(migrate._BOOKKEEPING)
    with ZipFile(SCHEMA_12) as archive:
        for entry in sorted(archive.namelist()):
            number, _, name = entry.removesuffix(".sql").partition("_")
            old = migrate.Migration(int(number), name, archive.read(entry).decode())
            await connection.execute(old.sql)
            await connection.execute(migrate._RECORD, old.number, old.name, old.checksum, __version__)


async def definitions(connection: Connection) -> list[str]:
    every = "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'ondot'::regnamespace ORDER BY proname"
    return [row[0] for row in await connection.fetch(every)]


@proves("O9")
async def test_a_file_has_one_function_of_its_name_and_each_is_valid(empty_url: str) -> None:
    database = await open_database(settings_for(empty_url))
    await migrate_up(database)
    await database.close()
    async with connected(empty_url) as connection:
        names = await connection.fetch(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'ondot'::regnamespace ORDER BY 1"
        )
        assert [row[0] for row in names] == [function.name for function in functions()]
        await connection.execute("SET check_function_bodies = on")
        for function in functions():
            await connection.execute(function.sql)
            assert function.sql.startswith(f"-- ondot.{function.name}(")
            assert "trigger." in function.sql or "-- Callers: " in function.sql


@proves("O9")
async def test_every_constant_of_a_function_is_one_of_python(database_url: str) -> None:
    sources = [path.read_text() for path in Path(sql_functions.__file__).with_name("functions").iterdir()]
    assert all("{{" not in function.sql for function in functions())
    assert {"partitions", "horizon_s", "class_suspect"} <= {
        name for name in CONSTANTS if f"{{{{{name}}}}}" in str(sources)
    }
    async with connected(database_url) as connection:
        assert await connection.fetchval("SELECT partitions FROM ondot.installation") == CONSTANTS["partitions"]


@proves("O9")
async def test_a_function_whose_text_has_changed_is_applied_once_and_the_others_are_not(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = [
        replace(each, sql=f"{each.sql}-- changed") if each.name == "gated_changed" else each for each in functions()
    ]
    monkeypatch.setattr(migrate, "functions", lambda: changed)
    databases = [await open_database(settings_for(database_url)) for _ in range(4)]
    async with connected(database_url) as connection:
        assert (await read_status(connection)).functions == ("gated_changed",)
        with pytest.raises(Misconfigured, match=r"functions of an older release \(gated_changed\).*migrate up"):
            await check_schema(connection)
        applied = await asyncio.gather(*(migrate_up(database) for database in databases))
        assert sorted(each.functions for each in applied) == [(), (), (), ("gated_changed",)]
        await check_schema(connection)
    for database in databases:
        await database.close()


@proves("C11", "O9")
async def test_a_release_leaves_the_functions_of_a_newer_one_alone(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "functions", lambda: [Function("clock", "SELECT 'older'")])
    database = await open_database(settings_for(database_url))
    async with connected(database_url) as connection:
        await connection.execute("UPDATE ondot.function SET release = '99.0.0' WHERE name = 'clock'")
        await check_schema(connection)
        assert (await migrate_up(database)).functions == ()
        await connection.execute("UPDATE ondot.function SET release = '0.0.1'")
        assert (await read_status(connection)).functions == ("clock",)
        await connection.execute(
            "INSERT INTO ondot.migration (number, name, checksum, release) VALUES (999, '', '', '')"
        )
        await check_schema(connection)
        assert (await migrate_up(database)).functions == ()
    await database.close()


@proves("C11", "O9")
async def test_a_migration_that_waits_for_a_table_lets_others_pass_and_is_applied_in_the_end(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_S", 0.05)
    changes = migrate.Migration(9_999, "a_column_more", "ALTER TABLE ondot.execution ADD COLUMN more text")
    database = await open_database(settings_for(database_url))
    async with connected(database_url) as reader, connected(database_url) as other:
        async with reader.transaction():
            await reader.execute("SELECT FROM ondot.execution")
            migrating = asyncio.create_task(migrate.apply(database, changes))
            for _ in range(20):
                # Behind a statement that waits for the whole table, this would wait as long as the reader reads.
                await other.fetch("SELECT FROM ondot.execution", timeout=10)
            assert not migrating.done()
        assert await migrating
        assert not await migrate.apply(database, changes)
        assert (await read_status(other)).applied[-1] == 9_999
    await database.close()


MEETS = """
    LOCK TABLE ondot.ready IN ACCESS EXCLUSIVE MODE;
    DO $$ BEGIN
        FOR _ IN 1..1000 LOOP
            EXIT WHEN EXISTS (SELECT FROM pg_locks WHERE relation = 'ondot.ready'::regclass AND NOT granted)
                   OR NOT EXISTS (SELECT FROM pg_locks WHERE relation = 'ondot.execution'::regclass AND granted);
            PERFORM pg_sleep(0.01);
        END LOOP;
    END $$;
    LOCK TABLE ondot.execution IN ACCESS EXCLUSIVE MODE;
"""
"""Locks one table, and wants another as soon as a transaction that holds that one waits for the first."""


@proves("C11", "O9")
async def test_a_migration_in_a_deadlock_with_a_transaction_gives_way(database_url: str) -> None:
    database = await open_database(settings_for(database_url))
    async with connected(database_url) as live, connected(database_url) as other, asyncio.timeout(30):
        async with live.transaction():
            await live.execute("LOCK TABLE ondot.execution IN ROW EXCLUSIVE MODE")
            migrating = asyncio.create_task(migrate.apply(database, migrate.Migration(9_999, "head_on", MEETS)))
            held = "SELECT FROM pg_locks WHERE relation = 'ondot.ready'::regclass AND mode = 'AccessExclusiveLock'"
            while not await other.fetch(held):
                assert not migrating.done()
            await live.execute("LOCK TABLE ondot.ready IN ROW EXCLUSIVE MODE")
        assert await migrating
    await database.close()


@proves("C11", "O9")
async def test_a_migration_that_never_gets_its_lock_reports_what_to_look_for(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LOCK_S", 0.01), ("LET_PASS_S", 0.0), ("TRIES", 3)):
        monkeypatch.setattr(migrate, name, value)
    changes = migrate.Migration(9_999, "a_column_more", "ALTER TABLE ondot.execution ADD COLUMN more text")
    database = await open_database(settings_for(database_url))
    async with connected(database_url) as reader, reader.transaction():
        await reader.execute("SELECT FROM ondot.execution")
        with pytest.raises(Unavailable, match=r"9999 got no lock.*pg_stat_activity"):
            await migrate.apply(database, changes)
    await database.close()


@proves("O9")
async def test_a_database_without_a_schema_is_refused_with_what_to_do(empty_url: str) -> None:
    async with connected(empty_url) as connection:
        status = await read_status(connection)
        assert (status.applied, len(status.waiting)) == ((), len(migrations()))
        with pytest.raises(Misconfigured, match="ondot migrate up"):
            await check_schema(connection)


@proves("O9")
async def test_a_migration_that_was_edited_after_it_was_applied_is_reported(database_url: str) -> None:
    async with connected(database_url) as connection:
        assert (await read_status(connection)).changed == ()
        await connection.execute("UPDATE ondot.migration SET checksum = 'other'")
        assert (await read_status(connection)).changed == tuple(m.number for m in migrations())


@proves("O9")
def test_a_release_runs_on_a_newer_schema_unless_it_requires_a_newer_release() -> None:
    status = Status(applied=(1, 2, 3), waiting=(), changed=(), oldest_release="0.2.0")
    fits(status, release="0.2.0", needs=3)
    fits(status, release="0.10.0", needs=1)
    with pytest.raises(Misconfigured, match="upgrade ondot"):
        fits(status, release="0.1.9", needs=1)
    with pytest.raises(Misconfigured, match="schema 3, this release needs 4"):
        fits(status, release="0.3.0", needs=4)


@proves("O9")
def test_releases_are_compared_by_their_numbers() -> None:
    assert release_key("0.10.0") > release_key("0.9.12")
    assert release_key("1.2.3.dev4+g1") == (1, 2, 3)
    assert release_key(__version__)


@proves("O9")
def test_migrations_are_numbered_without_a_gap() -> None:
    assert [migration.number for migration in migrations()] == list(range(1, len(migrations()) + 1))


@proves("P1")
async def test_a_server_that_may_lose_acknowledged_rows_is_refused_unless_allowed(database_url: str) -> None:
    for allowed in (True, False):
        database = await open_database(settings_for(database_url).model_copy(update={"allow_unsafe_database": allowed}))
        if allowed:
            await check_server(database)
        else:
            with pytest.raises(Misconfigured, match="fsync=off and synchronous_commit=off"):
                await check_server(database)
        await database.close()


OLD = ["default", "new", "old"]


@proves("O9", "T1")
async def test_a_role_of_the_release_before_finds_the_pools_of_this_one_and_adds_its_own(world: World) -> None:
    await world.submit(job(pool="new"))
    await world.fetch(
        "INSERT INTO ondot.pool (tenant_no, name) SELECT 1, unnest($1::text[]) ON CONFLICT DO NOTHING", OLD
    )
    found = await world.fetch("SELECT name FROM ondot.pool WHERE tenant_no = 1 AND name = ANY ($1::text[])", OLD)
    assert sorted(row["name"] for row in found) == OLD
    await world.submit_all([job(pool=name) for name in OLD])
    assert await world.count("pool") == len(OLD)


BEFORE_0014 = """
ALTER TABLE ondot.pool
    ALTER COLUMN tenant_no DROP DEFAULT,
    DROP CONSTRAINT pool_name_key,
    ADD CONSTRAINT pool_tenant_no_name_key UNIQUE (tenant_no, name);
INSERT INTO ondot.pool (tenant_no, name, concurrency, rate_limit, rate_per_s, rate_burst)
VALUES (2, 'default', 3, NULL, NULL, NULL), (2, 'mail', NULL, 100, 1, 1), (3, 'mail', 5, 10, 1, 1)
"""

WITH_POOL_NO = """
SELECT c.oid::regclass::text AS name FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = 'ondot'::regnamespace AND c.relkind IN ('r', 'p') AND a.attname = 'pool_no'
"""


@proves("O9", "P1", "T1")
async def test_pools_of_several_tenants_are_not_merged_under_a_fleet_that_runs(world: World) -> None:
    """An API of the release before would accept jobs into the pools that are gone: nobody would ever run them."""
    for statement in BEFORE_0014.split(";"):
        await world.fetch(statement)
    await world.fetch("DELETE FROM ondot.migration WHERE number = 14")
    [merging] = [migration for migration in migrations() if migration.number == 14]
    await world.fetch(
        "INSERT INTO ondot.node (id, host, pid, release, started_at, beat_at, expires_at)"
        " SELECT gen_random_uuid(), 'a', 1, '0.1.0', now, now, now + interval '5 seconds' FROM ondot.clock() AS now"
    )
    with pytest.raises(Misconfigured, match=r"0014 was not applied\. Several tenants .* stop every API"):
        await apply(world.database, merging)
    assert await world.value("SELECT count(*) FROM ondot.pool WHERE tenant_no <> 1") == 3
    await world.advance(5)
    assert await apply(world.database, merging)
    assert await world.value("SELECT count(*) FROM ondot.pool WHERE tenant_no <> 1") == 0


@proves("O9", "T1")
async def test_pools_of_one_name_become_one_with_everything_in_them(world: World) -> None:
    await world.fetch("UPDATE ondot.pool SET concurrency = 5")
    for statement in BEFORE_0014.split(";"):
        await world.fetch(statement)
    theirs = await world.add_tenant()
    numbers = await world.fetch("SELECT name, pool_no FROM ondot.pool WHERE tenant_no = 2")
    world.database.pools._numbers = {row["name"]: row["pool_no"] for row in numbers}  # as that release numbered them
    one_at_a_time = Limits(concurrency=1)
    await world.submit_all([job("plain"), job("recurring", schedule=every(60, world.now))], theirs)
    await world.submit_all([job("limited", limits=one_at_a_time), job("letter", pool="mail")], theirs)
    await (await world.worker(pool_nos=[numbers[0]["pool_no"]])).leaser.one_pass(0)  # admits the limited one
    assert {row["pool_no"] for row in await world.fetch("SELECT pool_no FROM ondot.ready")} == set(
        world.database.pools._numbers.values()
    )
    ended = await world.submit(job("cancelled"), theirs)
    execution_id = await world.value("SELECT id FROM ondot.execution WHERE job_id = $1", ended.id)
    await cancel(world.database, world.dispatcher, theirs, execution_id, by=By("ops"))
    # History never changes, but a number that it names may: its pool keeps its name.
    await world.fetch("DROP TRIGGER guard_history ON ondot.history")
    [changes] = [migration.sql for migration in migrations() if migration.number == 14]
    async with world.database.transaction() as connection:
        await connection.execute(changes)
    for table in await world.fetch(WITH_POOL_NO):
        gone = f"SELECT count(*) FROM {table['name']} WHERE pool_no NOT IN (SELECT pool_no FROM ondot.pool)"
        assert await world.value(gone) == 0, table["name"]
    world.database.pools._numbers = {}
    await world.submit(job("ours"))
    pools = await world.fetch("SELECT pool_no, name, concurrency, rate_limit, tenant_no FROM ondot.pool ORDER BY name")
    assert [tuple(row)[1:] for row in pools] == [("default", 3, None, 1), ("mail", 5, 10, 1)]
    worker = await world.worker(pool_nos=[row["pool_no"] for row in pools])
    names = [one.spec.name for _ in range(3) for one in await worker.lease() if one.spec]
    assert sorted(names) == ["letter", "limited", "ours", "plain"]
    await world.advance(60)
    await world.plan()
    assert {row["pool_no"] for row in await world.fetch("SELECT pool_no FROM ondot.ready")} == {DEFAULT_POOL}
