"""A night change followed by five deploys, with real workers: what the operator set stays, what the code says comes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from ondot.document.parse import patched_spec
from ondot.flow.change.change import update
from ondot.flow.dispatch import Dispatcher
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.job import JobSpec
from ondot.store.audit import By
from ondot.store.database import Database, open_database
from ondot.store.jobs import JobRow, get_job
from ondot.transports.polling import PollingTransport
from tests.proves import proves
from tests.servers import settings_for
from tests.stories.outage import until

APP = """
import os
from ondot import Ondot

app = Ondot()
MINUTES = int(os.environ["ONDOT_RELEASE"][1:])


@app.job(cron="0 2 * * *", retries=2, timeout=f"{MINUTES}m")
def nightly() -> None: ...
"""
KEY = "function:nightly"


@asynccontextmanager
async def worker(url: str, directory: Path, release: str) -> AsyncIterator[asyncio.subprocess.Process]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
    with (directory / f"{release}.log").open("a") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ondot", "worker", "billing:app"),
            cwd=directory,
            env=ours | {"ONDOT_DATABASE_URL": url, "ONDOT_ALLOW_UNSAFE_DATABASE": "1", "ONDOT_RELEASE": release},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def in_force(database: Database) -> str | None:
    async with database.connection() as connection:
        release: str | None = await connection.fetchval("SELECT release FROM ondot.app WHERE name = 'billing'")
    return release


async def the_job(database: Database) -> JobRow:
    async with database.connection() as connection:
        id_ = await connection.fetchval("SELECT id FROM ondot.job WHERE key = $1", KEY)
        row = await get_job(connection, DEFAULT_TENANT, JobId(id_))
    assert row is not None
    return row


async def raise_retries(database: Database) -> None:
    async def compute(row: JobRow, now: datetime) -> JobSpec:
        return patched_spec(row.spec, {"retry": {"max_retries": 9}}, now)

    job = await the_job(database)
    by = By("night shift", "the bank is slow")
    await update(database, Dispatcher(PollingTransport()), DEFAULT_TENANT, job.id, compute, by=by)


@proves("D4")
async def test_a_night_change_survives_five_deploys_and_a_pod_that_restarts(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "billing.py").write_text(APP)
    database = await open_database(settings_for(database_url))
    await database.read_clock()

    async def declared(release: str) -> None:
        async def look() -> bool | None:
            return True if await in_force(database) == release else None

        await until(look, what=f"{release} is declared")

    try:
        async with worker(database_url, tmp_path, "v1"):
            await declared("v1")
            await raise_retries(database)
            for release in ("v2", "v3", "v4", "v5"):
                async with worker(database_url, tmp_path, release):
                    await declared(release)
            async with worker(database_url, tmp_path, "v6"):
                await declared("v6")
                async with worker(database_url, tmp_path, "v5") as restarted:
                    log = tmp_path / "v5.log"

                    async def waits() -> bool | None:
                        assert restarted.returncode is None, log.read_text()
                        return True if "declaration.waits" in log.read_text() else None

                    await until(waits, what="the pod that restarted waits for its turn")
                job = await the_job(database)
                assert (job.spec.retry.max_retries, job.spec.timeout_s) == (9, 360)
                assert job.version == 7
    finally:
        await database.close()
