"""Keeps schedulers and workers off a database that may have forgotten what it acknowledged (P1–P3): a restored backup,
an asynchronous standby that was promoted. `model.lineage` says how that shows.

Every new connection of theirs is looked at before it is used, and the server again with each beat: a role that is held
beats no more, and begins nothing. What is found is written down, so that every process stands still, also those started
later, until a person says that it is the right one (`accept`). The API goes on: it is what people look with.
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
    accepted_at: datetime | None
    held_at: datetime | None
    held_why: str | None

    @property
    def why_not(self) -> str | None:
        """Why nothing may be begun, be it held yet or not."""
        if self.held_why is not None:
            return self.held_why
        return why_broken(self.known, self.server) if self.known is not None else None


class Witness:
    """Looks at a server, and remembers how far its log was safe. `go_on`: whatever it finds, it holds nothing."""

    def __init__(self, *, go_on: bool) -> None:
        self._go_on = go_on
        self._last: Lineage | None = None
        self._confirmed = 0
        """How far a synchronous standby is, too: a commit after this was confirmed."""

    async def check(self, connection: Connection) -> None:
        """Raises DatabaseHeld if nothing may be begun on this database."""
        # As of before the question: others, who ask at the same time, may be answered first.
        last, confirmed = self._last, self._confirmed
        found = await read_lineage(connection)
        if found is None:
            return
        why = found.why_not or _why_set_back(last, confirmed, found)
        if why is not None:
            self._last, self._confirmed = None, 0
            if not self._go_on:
                if found.held_why is None and await connection.fetchval(_SQL["hold_lineage"].text, why):
                    log.error("database.held", why=why, then="look, then say `ondot doctor --accept-database`")
                raise held_error(why)
            if found.held_why is None:
                log.warning("database.replaced", why=why, then="goes on, as the settings say")
        if found.known != found.server:
            # Nothing, if others hold it: then a person decides.
            await connection.execute(_SQL["learn_lineage"].text, *_values(found.server))
        self._remember(found)

    def confirm(self) -> None:
        """A commit that was sent after the last look was confirmed."""
        if self._last is not None and self._last.server.is_synchronous:
            self._confirmed = self._last.flushed

    def _remember(self, found: Lineage) -> None:
        """Not what was asked for earlier than what is known already, and answered later."""
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
    """Whoever accepted it accepted that it was set back. An older copy knows of no later acceptance."""
    return found.accepted_at is not None and (last.accepted_at is None or found.accepted_at > last.accepted_at)


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
