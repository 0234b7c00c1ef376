"""The primary dies and its synchronous standby replaces it: the roles, whose URL names both, follow (L4, P1, P2)."""

import asyncio
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ondot.doctor.examine import examine_database
from ondot.model.errors import Unavailable
from ondot.model.urls import place_of
from ondot.store.connect import hosts_of
from ondot.store.database import open_database
from tests.faults.postgres import a_postgres
from tests.proves import proves
from tests.servers import settings_for
from tests.stories.outage import BACK_WITHIN_S, an_office

pytestmark = pytest.mark.timeout(300)

UNDER_WAY = 12
ACKED_BEFORE = 10


@proves("L4", "P1", "P2", "P7", "C11")
async def test_roles_follow_the_primary_and_every_acknowledged_job_is_there_once(tmp_path: Path) -> None:
    async with a_postgres() as postgres:
        await _is_no_place_to_write(await postgres.add_standby())
        async with an_office(postgres.failover_url, tmp_path, allow_unsafe_database="0") as office:
            office.open()
            await office.works("before the failover")
            job = {"target": {"function": "works_together"}, "payload": {"seconds": 2}}
            await office.fleet.submit(*[job] * UNDER_WAY)
            await office.fleet.noted("started", count=UNDER_WAY, within_s=20)
            acked: list[str] = []
            posting = asyncio.create_task(office.post_for_ever(acked))
            while len(acked) < ACKED_BEFORE:
                await asyncio.sleep(0)
            await postgres.fail_over()
            assert await office.works("failed over") < BACK_WITHIN_S
            posting.cancel()
            # The job that was being posted at the end may be stored, and run, a moment later.
            with suppress(TimeoutError):
                async with asyncio.timeout(BACK_WITHIN_S):
                    while sum((ended := await office.settled()).values()) != len(office.calls()) + 2:
                        await asyncio.sleep(0)
            kept = await office.value("SELECT count(*) FROM ondot.job_once WHERE id = ANY ($1::uuid[])", acked)
            calls = office.calls()
            assert kept == len(acked) == len(set(acked))
            assert ended == {"SUCCEEDED": len(calls) + 2}
            assert 0 <= len(calls) - len(acked) - UNDER_WAY <= 1
            assert set(calls.values()) == {1}
            findings = await examine_database(settings_for(postgres.failover_url))
            assert "problem" not in {finding.level for finding in findings}


async def _is_no_place_to_write(standby: str) -> None:
    """A client that reached it anyway closes the connection, so that the next one may lead to the primary."""
    database = await open_database(settings_for(standby))
    try:
        with pytest.raises(Unavailable, match="read-only"):
            async with database.connection() as connection:
                await connection.execute("CREATE TABLE public.written ()")
        assert database.pool.get_size() == 0
    finally:
        await database.close()
    among_others = standby.replace("@", "@127.0.0.1:1,")
    with pytest.raises(Unavailable):
        await _write(among_others)


async def _write(url: str) -> None:
    database = await open_database(settings_for(url))
    try:
        async with database.connection() as connection:
            await connection.execute("CREATE TABLE public.written ()")
    finally:
        await database.close()


@proves("L4")
async def test_a_host_that_does_not_answer_does_not_delay_the_next_for_long(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        directory = database_url.rpartition("host=")[2].partition("&")[0]
        head, _, _ = database_url.partition("?")
        port = silent.getsockname()[1]
        url = f"{head}?host=127.0.0.1,{directory}&port={port},5432&sslmode=disable"
        assert hosts_of(url) == [("127.0.0.1", port), (directory, 5432)]
        begun_s = time.monotonic()
        await _write(url)
        assert time.monotonic() - begun_s < 3.0


def test_the_hosts_of_a_url_are_separated_and_named_without_the_password() -> None:
    url = "postgresql://me:secret@one:5433,[::1]:5434,%2Frun%2Fpg,two/db?target_session_attrs=primary"
    assert hosts_of(url) == [("one", 5433), ("::1", 5434), ("/run/pg", 5432), ("two", 5432)]
    assert hosts_of("postgresql:///db") == []
    assert hosts_of("postgresql://u@/db?host=a,b&port=1,2") == [("a", 1), ("b", 2)]
    assert settings_for(url).database_url == url
    assert place_of(url) == "postgresql://me@one:5433,[::1]:5434,%2Frun%2Fpg,two/db"
