"""Row-level security as an option: a read that forgets its filter returns the caller's rows only (P12, T1)."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import httpx2
import pytest

from ondot.flow.workflows.begin import begin
from ondot.model.errors import Misconfigured
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.store.database import Database, open_database
from ondot.store.migrate import migrate_up
from ondot.store.row_security import check_row_security, is_row_security_on
from tests.api.conftest import caller_of
from tests.api.test_audit import key_of
from tests.flow.workflows import run_steps, step, workflow
from tests.proves import proves
from tests.servers import settings_for
from tests.world import World, every, failed, job

OTHER = TenantNo(2)
BROKEN = "SELECT DISTINCT tenant_no FROM ondot.{} ORDER BY tenant_no"


@pytest.fixture
async def secured(world: World) -> World:
    """Two tenants with jobs, executions, dead letters and history, on a database with policies."""
    await migrate_up(world.database, row_security=True)
    await world.fetch("GRANT SELECT ON ondot.hand_clock TO ondot_reader")
    await world.fetch("INSERT INTO ondot.tenant (name, pools) VALUES ('other', '{*}')")
    worker = await world.worker()
    for tenant_no in (DEFAULT_TENANT, OTHER):
        await world.submit(job("flow", target=workflow({"a": step()})), tenant_no)
        [run] = await worker.lease()
        assert await begin(world.database, world.dispatcher, worker.id, run.leased)
        worker.completer.release(run.lease_id)
        await run_steps(world, worker, run.leased.id, {"a": failed(retryable=False)})
    for tenant_no in (DEFAULT_TENANT, OTHER):
        await world.submit_all([job("failing"), job("fine"), job("fine")], tenant_no)
        await world.submit(job("recurring", schedule=every(10, world.now)), tenant_no)
    for assignment in await worker.lease():
        await worker.complete(assignment, failed(retryable=False) if assignment.spec.name == "failing" else None)  # type: ignore[union-attr]
    await world.advance(15)
    await world.plan()
    for tenant_no in (DEFAULT_TENANT, OTHER):
        await world.submit_all([job("waiting")], tenant_no)
    return world


@pytest.fixture(params=["direct", "as behind PgBouncer"])
async def reader(request: pytest.FixtureRequest, secured: World) -> AsyncIterator[Database]:
    settings = settings_for(secured.url).model_copy(
        update={"row_security": True, "pgbouncer": request.param != "direct", "database_connections": 2}
    )
    database = await open_database(settings)
    yield database
    await database.close()


@proves("P12", "T1")
async def test_a_query_without_a_filter_returns_the_rows_of_the_caller_only(reader: Database) -> None:
    tables = ("job", "job_once", "execution", "history", "dead_letter", "timer")
    for table in tables:
        async with reader.connection() as connection:
            assert [row[0] for row in await connection.fetch(BROKEN.format(table))] == [1, 2], table

    async def read(tenant_no: TenantNo) -> None:
        for table in tables:
            async with reader.reading(tenant_no) as connection:
                assert [row[0] for row in await connection.fetch(BROKEN.format(table))] == [tenant_no], table

    await asyncio.gather(*(read(tenant_no) for tenant_no in (DEFAULT_TENANT, OTHER) * 5))
    async with reader.reading(TenantNo(99)) as connection:
        assert await connection.fetch(BROKEN.format("job")) == []


@proves("P12", "T1")
async def test_a_reader_writes_nothing_and_reads_no_keys(reader: Database) -> None:
    for sql in (
        "DELETE FROM ondot.job",
        "SELECT * FROM ondot.key",
        "SELECT * FROM ondot.secret",
        "SELECT * FROM ondot.idempotency",
        "SELECT * FROM ondot.job_once_past",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with reader.reading(DEFAULT_TENANT) as connection:
                await connection.fetch(sql)
        async with reader.connection() as connection:
            assert await connection.fetchval("SELECT current_user") == "ondot", "the role ended with the transaction"
            assert await connection.fetchval("SELECT current_setting('ondot.tenant_no', true)") in {None, ""}


@proves("P12", "T1")
async def test_without_a_tenant_the_reader_sees_nothing(secured: World) -> None:
    async with secured.second_connection() as connection:
        await connection.execute("SET ROLE ondot_reader")
        for table in ("job", "execution", "audit"):
            assert await connection.fetchval(f"SELECT count(*) FROM ondot.{table}") == 0


@proves("P12", "T1")
async def test_the_api_and_its_pages_answer_the_same_with_and_without(secured: World) -> None:
    from fastapi.routing import APIRoute

    from ondot.api.server import PARTS

    plain = caller_of(secured, auth="on")
    keys = {tenant_no: await key_of(plain, "ann", tenant_no) for tenant_no in (DEFAULT_TENANT, OTHER)}
    ids = {
        tenant_no: {
            "job": str(await secured.value("SELECT min(id::text) FROM ondot.job WHERE tenant_no = $1", tenant_no)),
            "run": str(await secured.value("SELECT min(id::text) FROM ondot.run WHERE tenant_no = $1", tenant_no)),
            "letter": str(
                await secured.value(
                    "SELECT min(execution_id::text) FROM ondot.dead_letter WHERE tenant_no = $1", tenant_no
                )
            ),
        }
        for tenant_no in (DEFAULT_TENANT, OTHER)
    }
    paths = [
        route.path
        for part in PARTS
        for route in part.router.routes
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()) and not route.path.endswith("/live")
    ]

    async def answers(http: httpx2.AsyncClient) -> dict[tuple[TenantNo, str], tuple[int, str]]:
        found: dict[tuple[TenantNo, str], tuple[int, str]] = {}
        for tenant_no, headers in keys.items():
            for path in paths:
                is_letter = path.startswith(("/executions", "/dead-letters"))
                id_ = ids[tenant_no]["letter" if is_letter else "run" if path.startswith("/runs") else "job"]
                sent = "/v1" + path.replace("{id}", id_).replace("{execution_id}", id_).replace(
                    "/steps/{name}", "/steps/a"
                )
                answer = await http.get(sent, headers=headers)
                assert answer.status_code < 500, (sent, answer.text)
                found[tenant_no, path] = (answer.status_code, _steady(answer.text))
        return found

    async with plain.http:
        without = await answers(plain.http)
    hardened = caller_of(secured, auth="on", row_security=True)
    async with hardened.http:
        with_it = await answers(hardened.http)
    assert {key: value for key, value in with_it.items() if value != without[key]} == {}
    assert sum(status == 200 for status, _ in without.values()) > len(paths)


def _steady(text: str) -> str:
    """Without values that change from one request to the next."""
    import re

    return re.sub(r'"(last_used_at|silent_s|beat_at|oldest_waiting_s|instance)":("[^"]*"|[\d.e-]+|null)', "", text)


@proves("P12")
async def test_row_security_is_set_up_again_for_new_tables_and_can_be_removed(secured: World) -> None:
    database = secured.database
    await secured.fetch("DROP POLICY own_tenant ON ondot.claim")
    await secured.fetch("DROP POLICY everyone ON ondot.claim")
    await migrate_up(database)
    assert await secured.value("SELECT count(*) FROM pg_policy WHERE polrelid = 'ondot.claim'::regclass") == 2
    await migrate_up(database, row_security=False)
    assert await secured.value("SELECT count(*) FROM pg_policy") == 0
    assert not await secured.value("SELECT bool_or(relrowsecurity) FROM pg_class")
    async with database.connection() as connection:
        assert not await is_row_security_on(connection)
        with pytest.raises(Misconfigured, match="--row-security"):
            await check_row_security(connection)


@proves("P12")
async def test_other_accounts_than_the_owner_work_as_before(secured: World) -> None:
    """Roles that do not own the tables, as some installations give them to workers, are not filtered."""
    async with secured.second_connection() as connection:
        name = f"works_{secured.url.rpartition('test_')[2][:12]}"
        await connection.execute(
            f"CREATE ROLE {name}; GRANT USAGE ON SCHEMA ondot TO {name};"
            f" GRANT ALL ON ALL TABLES IN SCHEMA ondot TO {name}; SET ROLE {name}"
        )
        assert [row[0] for row in await connection.fetch(BROKEN.format("job"))] == [1, 2]
        await connection.execute("UPDATE ondot.job SET name = name WHERE tenant_no = 2")
        await connection.execute(f"RESET ROLE; DROP OWNED BY {name}; DROP ROLE {name}")
