"""All roles behind PgBouncer in transaction mode, few server connections for many clients: the same work, by polling,
also when PgBouncer or the PostgreSQL behind it restarts (C5, L4, P7)."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
from started import free_port, place

from ondot.embedded.binaries import choose_account
from ondot.model.errors import Unavailable
from ondot.store.connection import AWAY
from ondot.store.database import open_database
from tests.faults.postgres import Postgres, a_postgres
from tests.proves import proves
from tests.servers import settings_for
from tests.stories.outage import BACK_WITHIN_S, an_office, until

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
PGBOUNCER = shutil.which("pgbouncer", path=PATH)
SERVER_CONNECTIONS = 4
OF_EACH = 40

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(PGBOUNCER is None, reason="no pgbouncer on this machine: apt-get install pgbouncer"),
]

FILE = """
[databases]
ondot = host=127.0.0.1 port={behind} dbname=ondot user=ondot
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {most}
max_client_conn = 500
server_login_retry = 1
"""


@dataclass(slots=True)
class PgBouncer:
    directory: Path
    port: int
    process: psutil.Popen | None = None

    @property
    def url(self) -> str:
        return f"postgresql://ondot@127.0.0.1:{self.port}/ondot?sslmode=disable"

    async def start(self) -> None:
        assert PGBOUNCER is not None
        # Like PostgreSQL it does not run as root.
        account = choose_account(self.directory)
        self.process = psutil.Popen(
            [PGBOUNCER, "--quiet", str(self.directory / "pgbouncer.ini")],
            stderr=subprocess.DEVNULL,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
        await until(self._answers, what="PgBouncer answers", within_s=10)

    async def _answers(self) -> bool | None:
        try:
            connection = await asyncpg.connect(self.url, statement_cache_size=0, timeout=5)
        except AWAY:
            return None
        await connection.close()
        return True

    def kill(self) -> None:
        """Connected clients are cut off."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None


@asynccontextmanager
async def a_pgbouncer(postgres: Postgres) -> AsyncIterator[PgBouncer]:
    with place() as directory:
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
        bouncer = PgBouncer(directory, free_port())
        text = FILE.format(behind=postgres.port, port=bouncer.port, most=SERVER_CONNECTIONS)
        (directory / "pgbouncer.ini").write_text(text)
        try:
            await bouncer.start()
            yield bouncer
        finally:
            bouncer.kill()


def _jobs() -> list[dict[str, Any]]:
    """Plain jobs, jobs that fail and are retried, jobs with a limit, jobs with their effect in a transaction."""
    retry = {"max_retries": 10, "initial": "0.1s", "max": "1s"}
    return [
        job
        for _ in range(OF_EACH)
        for job in (
            {"target": {"function": "works_together"}, "payload": {"seconds": 0.02}},
            {"target": {"function": "fails_at_random"}, "payload": {"percent": 20}, "retry": retry},
            {"target": {"function": "naps"}, "payload": {"seconds": 0.01}, "concurrency_key": "one by one"},
            {"target": {"function": "transacts"}, "payload": {"inside_s": 0.02}, "retry": retry},
        )
    ]


@proves("C5", "L4", "P7", "E11")
async def test_behind_pgbouncer_everything_is_done_once_though_both_restart(tmp_path: Path) -> None:
    async with a_postgres() as postgres, a_pgbouncer(postgres) as bouncer:
        behind = {"database_url": bouncer.url, "pgbouncer": "1"}
        async with an_office(postgres.url, tmp_path, **behind) as office:
            office.open()
            await office.works("behind PgBouncer")
            await office.fleet.submit(*_jobs())
            await office.fleet.noted("started", count=OF_EACH // 4, within_s=20)
            bouncer.kill()
            await bouncer.start()
            assert await office.works("PgBouncer restarted") < BACK_WITHIN_S
            await office.fleet.submit(*_jobs())
            await office.fleet.noted("started", count=OF_EACH + OF_EACH // 4, within_s=20)
            await postgres.restart("immediate")
            assert await office.works("PostgreSQL restarted") < BACK_WITHIN_S

            assert await office.settled() == {"SUCCEEDED": 2 * 4 * OF_EACH + 3}
            effects = await office.value(
                "SELECT array_agg(n) FROM (SELECT count(*) n FROM effect GROUP BY execution_id) t"
            )
            assert effects == [1] * 2 * OF_EACH
            calls = office.calls()
            assert len(calls) == 2 * OF_EACH
            assert set(calls.values()) == {1}


@proves("C5")
async def test_plans_and_deadlines_behind_pgbouncer_are_those_of_a_connection_of_its_own() -> None:
    async with a_postgres() as postgres, a_pgbouncer(postgres) as bouncer:
        through = await open_database(settings_for(bouncer.url, pgbouncer=True), connections=20, hurried=True)
        direct = await open_database(settings_for(postgres.url), hurried=True)
        try:
            names = ["enable_seqscan", "enable_bitmapscan", "plan_cache_mode", "jit", "timezone", "statement_timeout"]
            names.append("idle_in_transaction_session_timeout")
            asked = "SELECT array_agg(current_setting(name) ORDER BY name) FROM unnest($1::text[]) AS name"
            async with direct.connection() as connection:
                expected = await connection.fetchval(asked, names)
            async with through.connection() as connection:
                assert await connection.fetchval(asked, names) == expected
                with pytest.raises(asyncpg.DivisionByZeroError):
                    await connection.fetchval("SELECT 1 / $1::integer", 0)
                assert not connection.is_in_transaction()
            async with through.transaction() as connection:
                assert await connection.fetchval(asked, names) == expected
            with pytest.raises(Unavailable, match="in time"):
                async with through.connection() as connection:
                    await connection.fetchval("SELECT pg_sleep(5)", timeout=0.1)
            async with through.patient.connection() as connection:
                assert await connection.fetchval("SHOW statement_timeout") == "30s"

            async def ask(number: int) -> list[int]:
                async with through.connection() as connection:
                    return [await connection.fetchval("SELECT $1::integer", number + each) for each in range(20)]

            answers = await asyncio.gather(*map(ask, range(100)))
            assert answers == [[number + each for each in range(20)] for number in range(100)]
        finally:
            await through.close()
            await direct.close()
