"""The connection to PostgreSQL, the truth.

Owns the pools of connections, the clock estimate and the translation of "the database is away" into one error
(`Unavailable`), so that nobody above knows asyncpg's exceptions. Promises that every statement has a deadline, that a
connection found dead costs that deadline once and not once for each of the pool, and that nothing here needs a session:
PgBouncer in transaction mode works for everything but LISTEN.

Schedulers and workers are in a hurry (L2, L4): a statement of theirs that has no answer before the lease is over is
worth nothing. What may take its time there (housekeeping, the transactions of handlers) has connections of its own,
`Database.patient`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import asyncpg

from ondot.model.errors import Misconfigured, Unavailable
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
from ondot.store.specs import Specs

OLDEST, NEWEST = 15, 18
ACQUIRE_TIMEOUT_S = 5.0
"""For a connection of the pool, be it a new one: who waits for longer is told that the database is away."""
OF_THE_LEASE: Final = 0.7
OF_THE_HORIZON: Final = 0.75
LEAST_DEADLINE_S: Final = 2.0
ANSWER_S: Final = 0.5
"""PostgreSQL itself ends what takes too long; if its word has not come after this long, nobody is there."""
PATIENT_SHARE: Final = 2
CLOCK_READINGS: Final = 3
WELL_KNOWN_S: Final = 0.005
CLOCK_TRIES: Final = 4
SLOWER: Final = 4
"""Times as long a statement may be on its way at each further try: it may be the line and not the clock."""

Done = TypeVar("Done")


LOGIN_REFUSED = (
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
    patient_pool: Pool | None = None

    @property
    def patient(self) -> "Database":
        """The same database, for what may take as long as any statement of ondot."""
        return self if self.patient_pool is None else replace(self, pool=self.patient_pool, patient_pool=None)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for single statements; each commits by itself."""
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
        """Opened by the flow, never by the store; no network call inside one."""
        async with self.connection() as connection, connection.transaction():
            with drop_if_dead(connection):
                yield connection

    async def _drop_idle(self) -> None:
        """Where one connection is dead the others are: let nobody find that out again, a deadline for each."""
        for pool in filter(None, (self.pool, self.patient_pool)):
            for _ in range(pool.get_idle_size()):
                # Of a pool that has idle ones this gives one of them, and asks nobody.
                (await pool.acquire(timeout=ACQUIRE_TIMEOUT_S)).terminate()

    async def read_clock(self) -> int:
        """One pass: ask the database for its time, and again if the answer took so long that it tells little."""
        async with self.connection() as connection:
            for _ in range(CLOCK_READINGS):
                sent_s = time.monotonic()
                self.clock.see(await connection.fetchval("SELECT ondot.clock()"), sent_s)
                if self.clock.uncertain_s < WELL_KNOWN_S:
                    break
        return 0

    async def by_clock(self, act: Callable[[Moment], Awaitable[Done]]) -> Done:
        """Compute instants from a moment and store them; again if the statement that stores them contradicts it.

        `act` raises `ClockStepped`, out of its transaction, when it has stored nothing for that reason.
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
    """The deadline of what is worth nothing when the lease is over."""
    return min(settings.statement_timeout_s, max(settings.lease_s * OF_THE_LEASE, LEAST_DEADLINE_S))


def connect_options(
    settings: Settings, *, by_key: bool = False, hurried: bool = False, brief: bool = False
) -> dict[str, Any]:
    """What every connection of ondot is opened with; see `open_database`."""
    deadline_s = hurried_timeout_s(settings) if hurried else settings.statement_timeout_s
    # A lock that is held for less than what is planned ahead makes nothing late.
    idle_s = min(deadline_s, settings.horizon_s * OF_THE_HORIZON) if brief else deadline_s
    session = _session(deadline_s, idle_s, by_key=by_key)
    options: dict[str, Any] = {"dsn": settings.needs_database_url, "command_timeout": deadline_s + ANSWER_S}
    if settings.pgbouncer:
        # Prepared statements by name and start-up parameters do not survive transaction pooling.
        options["statement_cache_size"] = 0
        options["connection_class"] = connection_with(session)
        options["server_settings"] = {"application_name": "ondot"}
    else:
        # Who holds a connection and has vanished is found out by the server too: it has no endless number of them.
        vanished = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
        options["server_settings"] = {"application_name": "ondot", **session, **vanished}
    return options


def _session(deadline_s: float, idle_s: float, *, by_key: bool) -> dict[str, str]:
    return {
        "timezone": "UTC",
        "jit": "off",
        # What asks by keys has one good plan whatever the keys are, and is planned once: for a single job planning was
        # half of the server's work. For the rest a plan made while a table was empty would be a bad one after a burst,
        # until the next ANALYZE.
        "plan_cache_mode": "force_generic_plan" if by_key else "force_custom_plan",
        # Ranges of an index are read in its order and left early (due_timers). The planner, which believes that few
        # rows are due, would rather fetch and sort all that are, for every batch of a backlog.
        "enable_bitmapscan": "off",
        # A queue's tables are empty again and again, and are seen so: a scan of them looks cheap, and then is not.
        "enable_seqscan": "off",
        "statement_timeout": str(int(deadline_s * 1000)),
        # Who froze in the middle of a transaction must not keep its locks past the lease.
        "idle_in_transaction_session_timeout": str(int(idle_s * 1000)),
    }


async def connect(settings: Settings, *, by_key: bool = False, hurried: bool = True) -> OwnConnection:
    """One connection of its own, for a thread that beats or a task that listens."""
    return await connect_to_primary(**connect_options(settings, by_key=by_key, hurried=hurried))


def new_witness(settings: Settings) -> Witness:
    return Witness(go_on=not settings.holds)


async def _nothing_to_reset(_connection: object) -> None:
    """No session state is ever made, so none is cleared: asyncpg's own reset costs a round trip for every use."""


async def open_database(
    settings: Settings,
    connections: int | None = None,
    *,
    by_key: bool = False,
    hurried: bool = False,
    brief: bool = False,
) -> Database:
    """Open the pool. It does not need the database to be there yet: `Unavailable` comes with the first statement.

    `by_key`: every statement that comes asks by keys. `hurried`: none is worth anything after the lease; who needs
    more asks for the `patient` ones, of which there may be half as many more; and none is begun on a database that may
    have forgotten something. `brief`: statements may take their time, but nobody thinks in the middle of a transaction:
    who does is frozen.
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
    """Refuse a server that ondot's promises cannot stand on (P1)."""
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
            " a crash. Set it to on, or say ONDOT_ALLOW_UNSAFE_DATABASE=1 where losing jobs does not matter."
        )
