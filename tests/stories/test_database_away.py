"""PostgreSQL goes away, for a moment or for longer than every timeout: no role exits, nothing is lost or doubled, and
all roles work again by themselves soon after it is back (L4, P1, P7)."""

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from ondot.model.errors import Unavailable
from ondot.roles.loop import LONGEST_PAUSE_S, pause_after
from ondot.store.database import ACQUIRE_TIMEOUT_S, Database, hurried_timeout_s, open_database
from tests.faults.postgres import a_postgres
from tests.faults.proxy import a_proxy
from tests.proves import proves
from tests.servers import settings_for
from tests.stories.outage import BACK_WITHIN_S, an_office

pytestmark = pytest.mark.timeout(300)

HEARTBEAT_S = 2.0
"""What the harness sets: a worker that sends no heartbeat for this long is lost."""
UNDER_WAY, AT_THE_RESTART = 12, 30
CALL_S = 2.0
AWAY_S = 2 * HEARTBEAT_S


@proves("L4", "P1", "P7", "C11")
async def test_postgresql_away_for_longer_than_every_timeout_costs_only_the_time(tmp_path: Path) -> None:
    async with a_postgres() as postgres, an_office(postgres.url, tmp_path, allow_unsafe_database="0") as office:
        fleet = office.fleet
        await postgres.stop("immediate")
        office.open()
        for member in fleet.members:
            await fleet.logged(member, "database.awaited", within_s=20)
        await postgres.start()
        assert await office.works("started while it was away") < BACK_WITHIN_S

        job = {"target": {"function": "works_together"}, "payload": {"seconds": CALL_S}, "timeout": "60s"}
        await fleet.submit(*[job] * UNDER_WAY)
        await fleet.noted("started", count=UNDER_WAY, within_s=20)
        await postgres.stop("immediate")
        gone_s = time.monotonic()
        refusal = await office.ask("/v1/jobs", {"name": "refused", "function": "naps"})
        assert (refusal.status, int(refusal.headers["retry-after"]) > 0) == (503, True)
        assert refusal.took_s < ACQUIRE_TIMEOUT_S
        # There is no event to wait for: the calls end meanwhile, and more than a heartbeat timeout passes.
        await asyncio.sleep(AWAY_S - (time.monotonic() - gone_s))
        await postgres.start()
        assert await office.works("away past the heartbeat's timeout") < BACK_WITHIN_S

        await fleet.submit(*[job | {"payload": {"seconds": 0.2}}] * AT_THE_RESTART)
        await postgres.restart("immediate")
        assert await office.works("restarted") < BACK_WITHIN_S
        assert await office.settled() == {"SUCCEEDED": UNDER_WAY + AT_THE_RESTART + 3}
        calls = office.calls()
        assert len(calls) == UNDER_WAY + AT_THE_RESTART
        assert set(calls.values()) == {1}
        assert await office.value("SELECT count(*) FROM ondot.worker WHERE state <> 'ALIVE'") == 0


@proves("L4", "C5")
async def test_roles_whose_connections_are_half_open_find_out_and_work_again(database_url: str, tmp_path: Path) -> None:
    async with a_proxy(database_url) as proxy, an_office(database_url, tmp_path, database_url=proxy.url) as office:
        office.open()
        await office.works("healthy")
        proxy.half_open()
        for member in office.fleet.members[1:]:
            await office.fleet.logged(member, "database.away", within_s=10)
        proxy.repair()
        assert await office.works("half-open") < BACK_WITHIN_S


@proves("L4")
async def test_a_dead_connection_costs_its_deadline_once_and_not_once_for_each_of_the_pool(database_url: str) -> None:
    async with a_proxy(database_url) as proxy:
        settings = settings_for(proxy.url, lease_s=1.0)
        database = await open_database(settings, connections=4, hurried=True)
        try:
            await _use_all(database.pool.get_max_size(), database)
            assert database.pool.get_idle_size() == 4
            proxy.half_open()
            begun_s = time.monotonic()
            with pytest.raises(Unavailable, match="in time"):
                async with database.transaction() as connection:
                    await connection.fetchval("SELECT 1")
            took_s = time.monotonic() - begun_s
            print(f"noticed after {took_s:.2f} s")  # noqa: T201
            assert took_s < hurried_timeout_s(settings) + 2.0
            assert database.pool.get_idle_size() == 0
            proxy.repair()
            assert await database.read_clock() == 0
        finally:
            await database.close()


async def _use_all(count: int, database: Database) -> None:
    """Wait until the pool has this many connections."""
    together = asyncio.Barrier(count)

    async def use() -> None:
        async with database.connection() as connection:
            await together.wait()
            transport: Any = connection._transport  # type: ignore[union-attr]
            link = transport.get_extra_info("socket")
            assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) > 0

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(use())


@proves("L4", "C11")
async def test_hurried_statements_have_a_deadline_below_the_lease_and_patient_ones_do_not(
    database_url: str,
) -> None:
    settings = settings_for(database_url)
    database = await open_database(settings, hurried=True)
    try:
        asked = "SELECT extract(epoch FROM current_setting($1)::interval)::float8"
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            async with database.connection() as hot, database.patient.connection() as patient:
                assert await hot.fetchval(asked, name) == hurried_timeout_s(settings) < settings.lease_s
                assert await patient.fetchval(asked, name) == settings.statement_timeout_s
    finally:
        await database.close()


@proves("L4")
def test_pauses_stay_short_however_long_it_is_away_and_differ_so_that_a_fleet_does_not_return_at_once() -> None:
    pauses = [pause_after(failures, tick_s=60.0) for failures in range(1, 100)]
    assert max(pauses) <= LONGEST_PAUSE_S < 2.0
    assert len(set(pauses)) > 90
    assert pause_after(1, tick_s=0.01) <= 0.01
