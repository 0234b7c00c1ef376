"""The PostgreSQL of fault runs: each fault has its effect, and none after its end."""

import asyncio
import os
import random
from collections.abc import AsyncIterator

import asyncpg
import pytest

from ondot.store.connection import AWAY
from tests.faults.postgres import Postgres, a_postgres
from tests.proves import proves

SOON_S = 0.3
CLOCK = "SELECT prosrc || provolatile::text || proparallel::text FROM pg_proc WHERE oid = 'ondot.clock'::regproc"


@pytest.fixture
async def postgres() -> AsyncIterator[Postgres]:
    async with a_postgres(max_connections="20") as postgres:
        yield postgres


@pytest.fixture
async def client(postgres: Postgres) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres.url)
    yield connection
    connection.terminate()


@proves("P1", "L4")
async def test_after_a_failover_the_standby_has_every_acknowledged_commit() -> None:
    async with a_postgres() as postgres:
        await postgres.add_standby()
        before = await asyncpg.connect(postgres.failover_url)
        await before.execute("CREATE TABLE thing AS SELECT generate_series(1, 100) AS number")

        await postgres.fail_over()

        after = await asyncpg.connect(postgres.failover_url)
        assert await after.fetchval("SELECT count(*) FROM thing") == 100
        await after.execute("INSERT INTO thing VALUES (101)")
        assert not postgres.has_standby
        before.terminate()
        await after.close()


async def test_a_restart_keeps_commits_and_drops_connections(postgres: Postgres, client: asyncpg.Connection) -> None:
    await client.execute("CREATE TABLE thing (number integer)")
    await postgres.restart("immediate")
    again = await postgres.connect()

    assert await again.fetchval("SELECT to_regclass('thing') IS NOT NULL")
    assert [await again.fetchval(f"SHOW {name}") for name in ("fsync", "synchronous_commit")] == ["on", "on"]
    with pytest.raises(AWAY):
        await client.fetchval("SELECT 1")
    await again.close()


async def test_backends_are_terminated_and_connections_taken(postgres: Postgres, client: asyncpg.Connection) -> None:
    crowding = asyncio.create_task(postgres.crowd(1.0, random.Random(1), share=0))
    with pytest.raises(asyncpg.TooManyConnectionsError):  # noqa: PT012 - the crowd may not have come yet
        while not crowding.done():
            await (await asyncpg.connect(postgres.url)).close()
    assert await crowding >= 10

    assert await postgres.terminate_backends(random.Random(1), share=1.0) >= 1
    with pytest.raises(AWAY):
        await client.fetchval("SELECT 1")


async def test_faults_that_last_are_undone(postgres: Postgres, client: asyncpg.Connection) -> None:
    clock = await client.fetchval(CLOCK)
    await postgres.step_clock(-30)
    assert await client.fetchval("SELECT extract(epoch FROM ondot.clock() - statement_timestamp())::integer") == -30
    await postgres.slow_commits(50)
    async with postgres.hold_snapshot():
        held = "SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"
        assert await client.fetchval(f"{held} AND state = 'idle in transaction'") == 1
    postgres.freeze()
    asking = asyncio.create_task(client.fetchval("SELECT 1"))
    done, _ = await asyncio.wait([asking], timeout=SOON_S)
    assert not done

    await postgres.repair()

    assert await asking == 1
    assert await client.fetchval(CLOCK) == clock
    fresh = await postgres.connect()
    assert await fresh.fetchval("SHOW commit_delay") == "0"
    await fresh.close()


async def test_a_disk_can_be_filled_and_freed() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk that may be filled")
    async with a_postgres(disk_mb=400) as postgres:
        client = await asyncpg.connect(postgres.url)
        await client.execute("CREATE TABLE thing (number integer)")
        await postgres.fill_disk()
        with pytest.raises(asyncpg.DiskFullError):
            await client.execute("INSERT INTO thing SELECT generate_series(1, 500000)")
        await postgres.free_disk()
        await client.execute("INSERT INTO thing VALUES (1)")
        await client.close()
