"""The PostgreSQL of a test session: started once, shared by all xdist workers, a clone of one template for each test.

Owns the server's life, the template (migrated, its days made, under the guard of `tests.store.guard`) and the clones.
The controller of a session starts the server and passes its URL to the workers; without xdist the first test that needs
it starts it. `ONDOT_TEST_POSTGRES=system` uses the PostgreSQL of the system instead of the wheel's, so that the same
tests run on the oldest supported version.
Cloning by FILE_COPY took 46 ms, by WAL_LOG 280 ms: with fsync off its checkpoints cost little.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
from structlog.testing import capture_logs

from ondot.embedded.binaries import OLDEST_MAJOR, find_binaries
from ondot.embedded.server import DATABASE, EmbeddedPostgres
from ondot.flow.days import make_days
from ondot.settings import Settings
from ondot.store.connection import Connection
from ondot.store.database import connect_options, open_database
from ondot.store.days import read_day_tables, remove_days
from ondot.store.migrate import migrate_up
from ondot.testing.server import FAST, fastest_directory
from tests.store.guard import GUARD

TEMPLATE = "ondot_template"
DAYS_AHEAD = timedelta(days=2)
"""Each day has 40 tables and indexes, and a clone copies the file of each. A test that needs more calls `make_days`."""
SETTINGS = FAST | {"max_connections": "300", "shared_buffers": "128MB"}


@dataclass(frozen=True, slots=True)
class Server:
    """What an xdist worker needs to know of the server: plain text, because it goes through xdist's channel."""

    url: str
    name: str
    brokers: str = ""
    """The folder in which `tests.brokers` notes the servers that the session shares."""

    def database(self, name: str) -> str:
        return self.url.replace(f"/{DATABASE}?", f"/{name}?")


class Running:
    """The server and its directory, in the process that started it."""

    def __init__(self) -> None:
        # Not pytest's directories: other accounts cannot read them, and as root the server uses another account.
        self._directory = Path(tempfile.mkdtemp(prefix="ondot-tests-", dir=fastest_directory()))
        self._directory.chmod(0o755)
        system = os.environ.get("ONDOT_TEST_POSTGRES") == "system"
        binaries = find_binaries(OLDEST_MAJOR) if system else None
        self._postgres = EmbeddedPostgres(self._directory / "home", binaries=binaries, settings=SETTINGS)
        try:
            with capture_logs():
                url = self._postgres.start()
            version = asyncio.run(_make_template(Server(url, "")))
        except BaseException:
            self.stop()
            raise
        self.server = Server(url, f"PostgreSQL {version} ({'system' if system else 'embedded'})", str(self._directory))

    def stop(self) -> None:
        from tests.brokers import (
            end_shared,
        )  # not above: programs that tests start import this module without `brokers`

        end_shared(self._directory)
        self._postgres.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


async def _make_template(server: Server) -> str:
    admin = await asyncpg.connect(server.url)
    await admin.execute(f"CREATE DATABASE {TEMPLATE}")
    version: str = await admin.fetchval("SELECT current_setting('server_version')")
    await admin.close()
    database = await open_database(settings_for(server.database(TEMPLATE)))
    await migrate_up(database)
    await make_days(database)
    async with database.transaction() as connection:
        for table in await read_day_tables(connection):
            await remove_days(connection, table.parent, table.today + DAYS_AHEAD, 0, wait_ms=1_000)
        await connection.execute(GUARD)
    await database.close()
    return version.split(maxsplit=1)[0]


def settings_for(url: str, **changes: object) -> Settings:
    return Settings(**{"database_url": url, "allow_unsafe_database": True} | changes)  # type: ignore[arg-type]


@asynccontextmanager
async def new_database(server: Server, *, template: str = TEMPLATE) -> AsyncIterator[str]:
    """The URL of a separate database, a clone of the template, dropped at the end."""
    name = f"test_{uuid4().hex}"
    admin = await asyncpg.connect(server.url)
    try:
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield server.database(name)
        finally:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await admin.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """Another connection with ondot's settings, to read and to hold locks."""
    connection = await asyncpg.connect(**connect_options(settings_for(url)))
    try:
        yield connection
    finally:
        await connection.close()
