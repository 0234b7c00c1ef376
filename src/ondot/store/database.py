"""The connection to PostgreSQL, the truth.

Owns the pools of connections, the estimate of the clock, and the translation of "the database is away" into one error
(`Unavailable`), so that no module above the store knows asyncpg's exceptions. Promises that every statement has a
deadline, that a dead database costs that deadline once and not once for each connection of the pool, and that nothing
here needs a session: PgBouncer in transaction mode works for everything but LISTEN.

Schedulers and workers are in a hurry (L2, L4): their statements are worth nothing without an answer before the lease is
over. Statements that may take longer (housekeeping, the transactions of handlers) have connections of their own,
`Database.patient`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar, cast

import asyncpg

from ondot.model.errors import Misconfigured, Unavailable
from ondot.model.ids import TenantNo
from ondot.settings import Settings
from ondot.store.clock import LAG_S, ClockStepped, DatabaseClock, Moment
from ondot.store.connect import connect_to_primary
from ondot.store.connection import (
    AWAY,
    DEAD,
    Connection,
    OwnConnection,
    Pool,
    away_as_unavailable,
    drop_if_dead,
)
from ondot.store.lineage import Witness
from ondot.store.pgbouncer import connection_with
from ondot.store.pools import Pools
from ondot.store.row_security import start_reading
from ondot.store.specs import Specs
from ondot.store.tenants import Tenants

OLDEST, NEWEST = 15, 18
ACQUIRE_TIMEOUT_S = 5.0
"""For a connection of the pool, an open or a new one: after this the database counts as away."""
OF_THE_LEASE: Final = 0.7
OF_THE_HORIZON: Final = 0.75
LEAST_DEADLINE_S: Final = 2.0
ANSWER_S: Final = 0.5
"""PostgreSQL itself ends a statement that takes too long. Without its answer after this, it is away."""
PATIENT_SHARE: Final = 2
CLOCK_READINGS: Final = 3
WELL_KNOWN_S: Final = 0.005
CLOCK_TRIES: Final = 4
SLOWER: Final = 4
"""Each further try allows the statement this many times longer: the line may be slow, and not the clock wrong."""

Done = TypeVar("Done")


LOGIN_REFUSED = (
    asyncpg.InvalidPasswordError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)


@dataclass(frozen=True, slots=True)
class _OneConnection:
    """A pool that always returns the same connection."""

    connection: Connection

    @asynccontextmanager
    async def acquire(self, timeout: float) -> AsyncIterator[Connection]:  # noqa: ASYNC109 - as asyncpg's
        yield self.connection

    def get_idle_size(self) -> int:
        return 0


@dataclass(slots=True)
class Database:
    pool: Pool
    clock: DatabaseClock
    settings: Settings
    specs: Specs = field(default_factory=Specs)
    tenants: Tenants = field(default_factory=Tenants)
    pools: Pools = field(default_factory=Pools)
    patient_pool: Pool | None = None

    def __post_init__(self) -> None:
        self.tenants.bind(self.connection)
        self.pools.bind(self.tenants)

    @property
    def patient(self) -> "Database":
        """The same database, for statements that may take as long as `statement_timeout_s`."""
        return self if self.patient_pool is None else replace(self, pool=self.patient_pool, patient_pool=None)

    def inside(self, connection: Connection) -> "Database":
        """The same database, for functions that open transactions of their own: each becomes a savepoint of the
        transaction that is open on this connection, so that it counts only together with the rest of that."""
        nested = copy(self)  # not `replace`, which would bind the caches to this connection
        nested.pool, nested.patient_pool = cast("Pool", _OneConnection(connection)), None
        return nested

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for single statements, each of which commits by itself."""
        with away_as_unavailable():
            async with self.pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
                try:
                    with drop_if_dead(connection):
                        yield connection
                except DEAD:
                    await self._drop_idle()
                    raise

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """The flow opens it, never the store; no network call inside one."""
        async with self.connection() as connection, connection.transaction():
            with drop_if_dead(connection):
                yield connection

    @asynccontextmanager
    async def reading(self, tenant_no: TenantNo) -> AsyncIterator[Connection]:
        """A connection for statements that read the rows of one tenant. With `row_security`, PostgreSQL itself shows
        no others."""
        async with self.connection() as connection:
            if not self.settings.row_security:
                yield connection
                return
            with drop_if_dead(connection):
                await connection.execute(start_reading(tenant_no))
                try:
                    yield connection
                except BaseException:
                    if not connection.is_closed():
                        await connection.execute("ROLLBACK")
                    raise
                await connection.execute("COMMIT")

    async def _drop_idle(self) -> None:
        """If one connection is dead, the others are too: finding out would cost a deadline for each."""
        for pool in filter(None, (self.pool, self.patient_pool)):
            for _ in range(pool.get_idle_size()):
                # A pool with idle connections returns one of them without a round trip.
                (await pool.acquire(timeout=ACQUIRE_TIMEOUT_S)).terminate()

    async def read_clock(self) -> int:
        """One pass: read the database's time, again if the answer took too long to be exact; and the transports of
        pools, which may change."""
        async with self.connection() as connection:
            await self.pools.read_routes(connection)
            for _ in range(CLOCK_READINGS):
                sent_s = time.monotonic()
                self.clock.see(await connection.fetchval("SELECT ondot.clock()"), sent_s)
                if self.clock.uncertain_s < WELL_KNOWN_S:
                    break
        return 0

    async def by_clock(self, act: Callable[[Moment], Awaitable[Done]]) -> Done:
        """Compute instants from a moment and store them; again if the statement that stores them contradicts it.

        `act` then raises `ClockStepped` out of its transaction, and has stored nothing.
        """
        for tried in range(CLOCK_TRIES):
            try:
                return await act(self.clock.moment(LAG_S * SLOWER**tried))
            except ClockStepped:
                await self.read_clock()
        raise Unavailable("The clock of the database is being set: try again.")

    async def close(self) -> None:
        for pool in filter(None, (self.pool, self.patient_pool)):
            try:
                async with asyncio.timeout(5):
                    await pool.close()
            except (TimeoutError, *AWAY):
                pool.terminate()


def hurried_timeout_s(settings: Settings) -> float:
    """The deadline of statements that are worth nothing when the lease is over."""
    return min(settings.statement_timeout_s, max(settings.lease_s * OF_THE_LEASE, LEAST_DEADLINE_S))


def connect_options(
    settings: Settings, *, by_key: bool = False, hurried: bool = False, brief: bool = False
) -> dict[str, Any]:
    """The options of every connection of ondot; see `open_database`."""
    deadline_s = hurried_timeout_s(settings) if hurried else settings.statement_timeout_s
    # A lock that is held for less than the horizon makes nothing late: fires are planned that far ahead.
    idle_s = min(deadline_s, settings.horizon_s * OF_THE_HORIZON) if brief else deadline_s
    session = _session(deadline_s, idle_s, by_key=by_key)
    options: dict[str, Any] = {"dsn": settings.needs_database_url, "command_timeout": deadline_s + ANSWER_S}
    if settings.pgbouncer:
        # Named prepared statements and start-up parameters do not survive transaction pooling.
        options["statement_cache_size"] = 0
        options["connection_class"] = connection_with(session)
        options["server_settings"] = {"application_name": "ondot"}
    else:
        # The server too must notice a client that vanished: its number of connections is limited.
        vanished = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
        options["server_settings"] = {"application_name": "ondot", **session, **vanished}
    return options


def _session(deadline_s: float, idle_s: float, *, by_key: bool) -> dict[str, str]:
    return {
        "timezone": "UTC",
        "jit": "off",
        # Statements that read by keys have one good plan for all keys, and are planned once: for a single job planning
        # was half of the server's work. For others, a plan made while a table was empty would be bad after a burst,
        # until the next ANALYZE.
        "plan_cache_mode": "force_generic_plan" if by_key else "force_custom_plan",
        # Ranges of an index are read in its order, up to a limit (find_due_timers). The planner believes that few rows
        # are due, and would read and sort all of them for every batch of a backlog.
        "enable_bitmapscan": "off",
        # The tables of a queue are often empty when they are analysed: a scan looks cheap, and then is not.
        "enable_seqscan": "off",
        "statement_timeout": str(int(deadline_s * 1000)),
        # A process that froze during a transaction must not keep its locks past the lease.
        "idle_in_transaction_session_timeout": str(int(idle_s * 1000)),
    }


async def connect(settings: Settings, *, by_key: bool = False, hurried: bool = True) -> OwnConnection:
    """Open one connection, for a thread that beats or a task that listens."""
    return await connect_to_primary(**connect_options(settings, by_key=by_key, hurried=hurried))


def new_witness(settings: Settings) -> Witness:
    return Witness(go_on=not settings.holds)


async def _nothing_to_reset(_connection: object) -> None:
    """There is no session state to clear, and asyncpg's own reset costs a round trip for every use."""


async def open_database(
    settings: Settings,
    connections: int | None = None,
    *,
    by_key: bool = False,
    hurried: bool = False,
    brief: bool = False,
) -> Database:
    """Open the pool. The database may still be away: then the first statement raises `Unavailable`.

    `by_key`: every statement reads by keys. `hurried`: no statement is worth anything after the lease; others use the
    `patient` connections, half as many; and none starts on a database that may have lost acknowledged rows. `brief`:
    statements may take long, but a transaction is never idle for long: a process that lets it idle is frozen.
    """
    most = connections or settings.database_connections
    witness = new_witness(settings) if hurried else None
    pool = await _open_pool(settings, most, witness, by_key=by_key, hurried=hurried, brief=brief)
    patient_pool = (
        await _open_pool(settings, max(most // PATIENT_SHARE, 1), witness, by_key=by_key) if hurried else None
    )
    return Database(pool, DatabaseClock(), settings, patient_pool=patient_pool)


async def _open_pool(settings: Settings, most: int, witness: Witness | None, **how: bool) -> Pool:
    options = connect_options(settings, **how)
    options |= {"min_size": 0, "max_size": most, "connect": connect_to_primary, "reset": _nothing_to_reset}
    if witness is not None:
        options["init"] = witness.check
    pool: Pool = asyncpg.create_pool(**options)
    await pool
    return pool


async def check_server(database: Database) -> None:
    """Refuse a server on which ondot cannot keep its promises (P1)."""
    try:
        async with database.connection() as connection:
            await _check(connection, database.settings)
    except LOGIN_REFUSED as error:
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
            " a crash. Set it to on, or set ONDOT_ALLOW_UNSAFE_DATABASE=1 where losing jobs does not matter."
        )
