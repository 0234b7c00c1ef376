"""Keeps schedulers and workers off a database that may have forgotten what it acknowledged (P1–P3): a restored backup,
an asynchronous standby that was promoted. `model.lineage` says how that shows.

Every new connection of theirs is looked at before it is used; when a server is replaced, no old one survives. What is
found is written down, so that every process stands still, also those started later, until a person says that it is the
right one (`accept`). The API goes on: it is what people look with.
"""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from ondot.model.ids import DEFAULT_TENANT
from ondot.model.lineage import Server, held, why_broken, why_set_back
from ondot.store.audit import record
from ondot.store.connection import Connection
from ondot.store.queries import load_queries
from ondot.telemetry.log import get_logger

_SQL = load_queries("lineage")

_CANNOT_TELL = (
    # Not migrated yet, which others say better.
    asyncpg.UndefinedTableError,
    asyncpg.InvalidSchemaNameError,
    # A standby, which others refuse as well.
    asyncpg.ObjectNotInPrerequisiteStateError,
    # A service that does not let its users ask.
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedFunctionError,
    asyncpg.FeatureNotSupportedError,
)

log = get_logger()


@dataclass(frozen=True, slots=True)
class Lineage:
    """The server as it is and as it is known, and since when and why everything is held."""

    server: Server
    flushed: int
    written: int
    known: Server | None
    held_at: datetime | None
    held_why: str | None

    @property
    def why_not(self) -> str | None:
        """Why nothing may be begun, be it held yet or not."""
        if self.held_why is not None:
            return self.held_why
        return why_broken(self.known, self.server) if self.known is not None else None


class Witness:
    """Looks at connections, and remembers how far it has seen the server's log safe."""

    def __init__(self, *, allow_unsafe: bool) -> None:
        self._allow_unsafe = allow_unsafe
        self._last: Lineage | None = None

    async def check(self, connection: Connection) -> None:
        """Raises Held if nothing may be begun on this database."""
        found = await read_lineage(connection)
        if found is None:
            return
        why = found.why_not or self._why_set_back(found)
        if why is None:
            if found.known != found.server:
                await _learn(connection, found)
        elif self._allow_unsafe:
            log.warning("database.replaced", why=why, then="goes on: ONDOT_ALLOW_UNSAFE_DATABASE is set")
            await _learn(connection, found)
        else:
            if found.held_why is None and await connection.fetchval(_SQL["hold_lineage"].text, why):
                log.error("database.held", why=why, then="look, then say `ondot doctor --accept-database`")
            # Whoever accepts it accepts that it was set back.
            self._last = None
            raise held(why)
        self._last = found

    def _why_set_back(self, found: Lineage) -> str | None:
        if self._last is None or self._last.server.history != found.server.history:
            return None
        return why_set_back(self._last.flushed, found.written)


async def read_lineage(connection: Connection) -> Lineage | None:
    """None where that cannot be told."""
    try:
        row = await connection.fetchrow(_SQL["read_lineage"].text)
    except _CANNOT_TELL as error:
        log.debug("lineage.unknown", error=str(error))
        return None
    assert row is not None
    known = None
    if row["known_system_id"] is not None:
        known = Server(row["known_system_id"], row["known_timeline"], row["known_is_synchronous"])
    server = Server(row["system_id"], row["timeline"], row["is_synchronous"])
    return Lineage(server, row["flushed"], row["written"], known, row["held_at"], row["held_why"])


async def accept(connection: Connection, *, actor: str, reason: str | None) -> str | None:
    """A person says that this is the right database; in a transaction. Gives why it was held, None if it was not."""
    found = await read_lineage(connection)
    if found is None or (why := found.why_not) is None:
        return None
    await _learn(connection, found)
    await record(connection, DEFAULT_TENANT, actor, "database.accept", None, {"why_held": why, "reason": reason})
    return why


async def _learn(connection: Connection, found: Lineage) -> None:
    """Know it from now on; if it is held, it is no longer. Nothing, if that was changed meanwhile."""
    server = found.server
    values = (server.system_id, server.timeline, server.is_synchronous)
    await connection.execute(_SQL["learn_lineage"].text, *values, found.held_at is not None)
