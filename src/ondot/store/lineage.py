"""Keeps schedulers and workers off a database that may have lost acknowledged rows (P1–P3): a restored backup, an
asynchronous standby that was promoted. `model.lineage` decides how that shows.

Each of their new connections is checked before it is used, and the server again with each beat: a role that is held
sends no beats and starts nothing. The finding is recorded, so that every process is held, those started later too,
until a person accepts the database (`accept`). The API continues: people need it to look.
"""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from ondot.model.ids import DEFAULT_TENANT
from ondot.model.lineage import Server, held_error, why_broken, why_set_back
from ondot.store.audit import record
from ondot.store.connection import Connection
from ondot.store.queries import load_queries
from ondot.telemetry.log import get_logger

_SQL = load_queries("lineage")

_UNKNOWABLE = (
    # Not migrated yet: others report that better.
    asyncpg.UndefinedTableError,
    asyncpg.InvalidSchemaNameError,
    # A standby, which others refuse.
    asyncpg.ObjectNotInPrerequisiteStateError,
    # A hosted PostgreSQL that does not allow the query.
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
    accepted_at: datetime | None
    held_at: datetime | None
    held_why: str | None

    @property
    def why_not(self) -> str | None:
        """Why nothing may start, whether it is held already or not."""
        if self.held_why is not None:
            return self.held_why
        return why_broken(self.known, self.server) if self.known is not None else None


class Witness:
    """Checks a server, and remembers how far its log was safe. `go_on`: it holds nothing, whatever it finds."""

    def __init__(self, *, go_on: bool) -> None:
        self._go_on = go_on
        self._last: Lineage | None = None
        self._confirmed = 0
        """How far a synchronous standby is as well: a commit after this position was confirmed."""

    async def check(self, connection: Connection) -> None:
        """Raises DatabaseHeld if nothing may start on this database."""
        # As of before the query: another one that runs at the same time may be answered first.
        last, confirmed = self._last, self._confirmed
        found = await read_lineage(connection)
        if found is None:
            return
        why = found.why_not or _why_set_back(last, confirmed, found)
        if why is not None:
            self._last, self._confirmed = None, 0
            if not self._go_on:
                if found.held_why is None and await connection.fetchval(_SQL["hold_lineage"].text, why):
                    log.error("database.held", why=why, then="check it, then run `ondot doctor --accept-database`")
                raise held_error(why)
            if found.held_why is None:
                log.warning("database.replaced", why=why, then="continues, as configured")
        if found.known != found.server:
            # Changes nothing if it is held meanwhile: then a person decides.
            await connection.execute(_SQL["learn_lineage"].text, *_values(found.server))
        self._remember(found)

    def confirm(self) -> None:
        """Note that a commit that was sent after the last check was confirmed."""
        if self._last is not None and self._last.server.is_synchronous:
            self._confirmed = self._last.flushed

    def _remember(self, found: Lineage) -> None:
        """Keep a finding, unless a later one is known already: answers may arrive out of order."""
        last = self._last
        is_older = last is not None and last.server.history == found.server.history and last.flushed > found.flushed
        if last is None or not is_older or _is_accepted_since(last, found):
            self._last = found


def _why_set_back(last: Lineage | None, confirmed: int, found: Lineage) -> str | None:
    if last is None or _is_accepted_since(last, found):
        return None
    is_same = last.server.history == found.server.history
    return why_set_back(last.flushed if is_same else confirmed, found.written)


def _is_accepted_since(last: Lineage, found: Lineage) -> bool:
    """A person who accepted it accepted that it was set back. An older copy has no later acceptance."""
    return found.accepted_at is not None and (last.accepted_at is None or found.accepted_at > last.accepted_at)


async def read_lineage(connection: Connection) -> Lineage | None:
    """None if it cannot be known."""
    try:
        row = await connection.fetchrow(_SQL["read_lineage"].text)
    except _UNKNOWABLE as error:
        log.debug("lineage.unknown", error=str(error))
        return None
    assert row is not None
    known = None
    if row["known_system_id"] is not None:
        known = Server(
            row["known_system_id"], row["known_timeline"], row["known_table_id"], row["known_is_synchronous"]
        )
    server = Server(row["system_id"], row["timeline"], row["table_id"], row["is_synchronous"])
    return Lineage(server, row["flushed"], row["written"], known, row["accepted_at"], row["held_at"], row["held_why"])


async def accept(connection: Connection, *, actor: str, reason: str | None) -> str | None:
    """Record that a person accepts this database, in a transaction. Returns why it was held; None if it was not."""
    found = await read_lineage(connection)
    if found is None or (why := found.why_not) is None:
        return None
    await connection.execute(_SQL["accept_lineage"].text, *_values(found.server))
    await record(connection, DEFAULT_TENANT, actor, "database.accept", None, {"why_held": why, "reason": reason})
    return why


def _values(server: Server) -> tuple[str, int, int, bool]:
    return server.system_id, server.timeline, server.table_id, server.is_synchronous
