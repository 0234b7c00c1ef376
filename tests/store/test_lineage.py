"""A role checks whether PostgreSQL is the known one before it starts work, on a real server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from ondot.model.errors import DatabaseHeld
from ondot.model.ids import DEFAULT_TENANT
from ondot.settings import Settings
from ondot.store import lineage
from ondot.store.audit import list_audit
from ondot.store.connection import Connection
from ondot.store.database import Database, open_database
from ondot.store.lineage import Lineage, Witness, accept, read_lineage
from tests.proves import proves
from tests.servers import connected


@asynccontextmanager
async def a_role(url: str, **settings: bool) -> AsyncIterator[Database]:
    """The database as a scheduler or worker opens it."""
    database = await open_database(Settings(database_url=url, **settings), connections=2, hurried=True)  # type: ignore[arg-type]
    try:
        yield database
    finally:
        await database.close()


async def works(url: str, **settings: bool) -> None:
    async with a_role(url, **settings) as database:
        for each in (database, database.patient):
            async with each.connection() as connection:
                await connection.fetchval("SELECT 1")


async def known(connection: Connection) -> tuple[str, int, bool]:
    row = await connection.fetchrow("SELECT system_id, timeline, is_synchronous FROM ondot.lineage")
    assert row is not None
    return tuple(row)


@proves("P1")
async def test_the_first_check_records_the_server_and_the_next_passes(database_url: str) -> None:
    await works(database_url)
    async with connected(database_url) as connection:
        identifier = await connection.fetchval("SELECT system_identifier::text FROM pg_control_system()")
        timeline = await connection.fetchval("SELECT timeline_id FROM pg_control_checkpoint()")
        first = await known(connection)
        assert first == (identifier, timeline, False)
        await works(database_url)
        assert await known(connection) == first


@proves("P1", "P3")
@pytest.mark.parametrize("change", ["system_id = 'another'", "timeline = timeline - 1", "table_id = table_id + 1"])
async def test_on_another_server_timeline_or_table_nothing_starts_until_a_person_accepts_it(
    database_url: str, change: str
) -> None:
    await works(database_url)
    async with connected(database_url) as connection:
        await connection.execute(f"UPDATE ondot.lineage SET {change}")
        for _ in range(2):
            with pytest.raises(DatabaseHeld, match="--accept-database"):
                await works(database_url)
        held = await read_lineage(connection)
        assert held is not None
        assert held.held_at is not None
        async with connection.transaction():
            assert await accept(connection, actor="ops", reason="we looked") == held.held_why
        await works(database_url)
        assert await accept(connection, actor="ops", reason=None) is None
        [entry] = await list_audit(connection, DEFAULT_TENANT, limit=5)
        assert (entry.actor, entry.action, entry.detail["reason"]) == ("ops", "database.accept", "we looked")


@proves("P1", "L4")
async def test_a_standby_that_was_synchronous_is_followed(database_url: str) -> None:
    await works(database_url)
    async with connected(database_url) as connection:
        _, timeline, _ = await known(connection)
        await connection.execute("UPDATE ondot.lineage SET timeline = timeline - 1, is_synchronous = true")
        await works(database_url)
        assert (await known(connection))[1:] == (timeline, False)


def set_back(witness: Witness) -> None:
    """As if the server had been further at the last check: it cannot be set back here."""
    assert witness._last is not None
    witness._last = replace(witness._last, flushed=witness._last.written + 2**40)


@proves("P1")
async def test_a_process_that_saw_a_longer_log_holds_all_and_is_accepted_with_all(database_url: str) -> None:
    async with connected(database_url) as connection:
        witness, frozen = Witness(go_on=False), Witness(go_on=False)
        for each in (witness, frozen):
            await each.check(connection)
            await each.check(connection)
            set_back(each)
        with pytest.raises(DatabaseHeld, match="log ends"):
            await witness.check(connection)
        with pytest.raises(DatabaseHeld):
            await works(database_url)
        await accept(connection, actor="ops", reason=None)
        await witness.check(connection)
        # It did not check while everything was held.
        await frozen.check(connection)
        await works(database_url)
        # An older copy has no acceptance, or an earlier one.
        for copy in ("accepted_at - interval '1 day'", "NULL"):
            await frozen.check(connection)
            set_back(frozen)
            await connection.execute(f"UPDATE ondot.lineage SET accepted_at = {copy}")
            with pytest.raises(DatabaseHeld, match="log ends"):
                await frozen.check(connection)
            await accept(connection, actor="ops", reason=None)


@proves("P1")
async def test_a_standby_that_is_behind_what_was_confirmed_is_not_followed(database_url: str) -> None:
    async with connected(database_url) as connection:
        witness = Witness(go_on=False)
        await witness.check(connection)
        assert witness._last is not None
        server = replace(witness._last.server, is_synchronous=True, timeline=witness._last.server.timeline - 1)
        witness._last = replace(witness._last, server=server)
        await connection.execute("UPDATE ondot.lineage SET timeline = timeline - 1, is_synchronous = true")
        witness.confirm()
        await witness.check(connection)
        await connection.execute("UPDATE ondot.lineage SET timeline = timeline - 1, is_synchronous = true")
        witness._last = replace(witness._last, server=server, flushed=witness._last.written + 2**40)
        witness.confirm()
        with pytest.raises(DatabaseHeld, match="log ends"):
            await witness.check(connection)


@proves("P1")
async def test_answers_that_arrive_out_of_order_hold_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(database_url) as early, connected(database_url) as late:
        witness = Witness(go_on=False)
        await witness.check(early)
        read, answered = asyncio.Event(), asyncio.Event()

        async def answered_late(connection: Connection) -> Lineage | None:
            found = await read_lineage(connection)
            if connection is late:
                read.set()
                await answered.wait()
            return found

        monkeypatch.setattr(lineage, "read_lineage", answered_late)
        waiting = asyncio.create_task(witness.check(late))
        await read.wait()
        await early.execute("CREATE TABLE public.written AS SELECT generate_series(1, 1000) AS n")
        await early.execute("CHECKPOINT")
        await witness.check(early)
        answered.set()
        await waiting


@proves("P1")
@pytest.mark.parametrize("setting", [{"allow_unsafe_database": True}, {"hold_on_restore": False}])
async def test_a_process_configured_to_go_on_does_so_but_releases_no_other(
    database_url: str, setting: dict[str, bool]
) -> None:
    await works(database_url)
    async with connected(database_url) as connection:
        await connection.execute("UPDATE ondot.lineage SET system_id = 'another'")
        with pytest.raises(DatabaseHeld):
            await works(database_url)
        await works(database_url, **setting)
        with pytest.raises(DatabaseHeld):
            await works(database_url)
        await connection.execute("UPDATE ondot.lineage SET held_at = NULL, held_why = NULL")
        await works(database_url, **setting)
        await works(database_url)


async def test_a_server_that_does_not_answer_and_an_older_schema_pass(database_url: str) -> None:
    async with connected(database_url) as connection:
        await connection.execute("CREATE ROLE shy; GRANT USAGE ON SCHEMA ondot TO shy; SET ROLE shy")
        try:
            assert await read_lineage(connection) is None
            await Witness(go_on=False).check(connection)
        finally:
            await connection.execute("RESET ROLE; REVOKE USAGE ON SCHEMA ondot FROM shy; DROP ROLE shy")
        await connection.execute("DROP TABLE ondot.lineage")
        await Witness(go_on=False).check(connection)
