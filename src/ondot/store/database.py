"""The connection to PostgreSQL, the truth.

Owns the pool of connections, the clock estimate and the translation of "the database is away" into one error
(`Unavailable`), so that nobody above knows asyncpg's exceptions. Promises that every statement has a deadline and that
nothing here needs a session: PgBouncer in transaction mode works for everything but LISTEN.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from ondot.model.errors import Misconfigured
from ondot.settings import Settings
from ondot.store.clock import DatabaseClock
from ondot.store.connection import AWAY, Connection, OwnConnection, Pool, away_as_unavailable
from ondot.store.pools import Pools
from ondot.store.specs import Specs

OLDEST, NEWEST = 15, 18
CONNECT_TIMEOUT_S = 10.0


REFUSED = (
    asyncpg.InvalidPasswordError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)


@dataclass(slots=True)
class Database:
    pool: Pool
    clock: DatabaseClock
    settings: Settings
    specs: Specs = field(default_factory=Specs)
    pools: Pools = field(default_factory=Pools)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for single statements; each commits by itself."""
        with away_as_unavailable():
            async with self.pool.acquire(timeout=CONNECT_TIMEOUT_S) as connection:
                yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Opened by the flow, never by the store; no network call inside one."""
        with away_as_unavailable():
            async with self.pool.acquire(timeout=CONNECT_TIMEOUT_S) as connection, connection.transaction():
                yield connection

    async def read_clock(self) -> int:
        """One pass: ask the database for its time."""
        async with self.connection() as connection:
            sent_s = time.monotonic()
            self.clock.see(await connection.fetchval("SELECT ondot.clock()"), sent_s)
        return 0

    async def close(self) -> None:
        try:
            async with asyncio.timeout(5):
                await self.pool.close()
        except (TimeoutError, *AWAY):
            self.pool.terminate()


def connect_options(settings: Settings, *, by_key: bool = False) -> dict[str, Any]:
    """What every connection of ondot is opened with. `by_key`: every statement that comes asks by keys."""
    options: dict[str, Any] = {"dsn": settings.needs_database_url, "timeout": CONNECT_TIMEOUT_S}
    options["command_timeout"] = settings.statement_timeout_s
    if settings.pgbouncer:
        # Prepared statements by name and start-up parameters do not survive transaction pooling.
        options["statement_cache_size"] = 0
    else:
        options["server_settings"] = {
            "application_name": "ondot",
            "timezone": "UTC",
            "jit": "off",
            # What asks by keys has one good plan whatever the keys are, and is planned once: for a single job planning
            # was half of the server's work. For the rest a plan made while a table was empty would be a bad one after
            # a burst, until the next ANALYZE.
            "plan_cache_mode": "force_generic_plan" if by_key else "force_custom_plan",
            # Ranges of an index are read in its order and left early (due_timers). The planner, which believes that few
            # rows are due, would rather fetch and sort all that are, for every batch of a backlog.
            "enable_bitmapscan": "off",
            # A queue's tables are empty again and again, and are seen so: a scan of them looks cheap, and then is not.
            "enable_seqscan": "off",
            "statement_timeout": str(int(settings.statement_timeout_s * 1000)),
            "idle_in_transaction_session_timeout": str(int(settings.statement_timeout_s * 1000)),
        }
    return options


async def connect(settings: Settings, *, by_key: bool = False) -> OwnConnection:
    """One connection of its own, for a thread that beats or a task that listens."""
    return await asyncpg.connect(**connect_options(settings, by_key=by_key))


async def _nothing_to_reset(_connection: object) -> None:
    """No session state is ever made, so none is cleared: asyncpg's own reset costs a round trip for every use."""


async def open_database(settings: Settings, *, connections: int | None = None, by_key: bool = False) -> Database:
    """Open the pool. It does not need the database to be there yet: `Unavailable` comes with the first statement.

    `by_key`: every statement that comes asks by keys.
    """
    pool = asyncpg.create_pool(
        min_size=0,
        max_size=connections or settings.database_connections,
        reset=_nothing_to_reset,
        **connect_options(settings, by_key=by_key),
    )
    await pool
    return Database(pool, DatabaseClock(), settings)


async def check_server(database: Database) -> None:
    """Refuse a server that ondot's promises cannot stand on (P1)."""
    try:
        async with database.connection() as connection:
            await _check(connection, database.settings)
    except REFUSED as error:
        message = f"PostgreSQL refuses ONDOT_DATABASE_URL: {error}. Correct it, or create what it names."
        raise Misconfigured(message) from error


async def _check(connection: Connection, settings: Settings) -> None:
    version = int(await connection.fetchval("SELECT current_setting('server_version_num')::int / 10000"))
    if version < OLDEST:
        raise Misconfigured(f"PostgreSQL {version} is too old: ondot needs {OLDEST} to {NEWEST}.")
    unsafe = [
        name
        for name in ("fsync", "synchronous_commit")
        if await connection.fetchval("SELECT current_setting($1)", name) == "off"
    ]
    if unsafe and not settings.allow_unsafe_database:
        raise Misconfigured(
            f"PostgreSQL runs with {' and '.join(f'{name}=off' for name in unsafe)}: acknowledged jobs would be lost in"
            " a crash. Set it to on, or say ONDOT_ALLOW_UNSAFE_DATABASE=1 where losing jobs does not matter."
        )
