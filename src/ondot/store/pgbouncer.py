"""A connection behind PgBouncer in transaction mode: everything runs in a transaction that sets its own settings.

PgBouncer runs each transaction on any free server connection, and accepts no settings for a session. So the settings
that ondot's plans and deadlines need are made with `SET LOCAL`, in the round trip that starts a transaction, and a
statement outside of one gets a transaction of its own: two round trips more.
"""

from asyncio import CancelledError
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    Base = asyncpg.Connection[asyncpg.Record]
else:
    Base = asyncpg.Connection


class TransactionConnection(Base):
    """The base of the classes that `connection_with` makes."""

    __slots__ = ()
    settings = ""

    async def execute(self, query: str, *args: Any, **how: Any) -> str:
        if self._has_transaction():
            return await super().execute(query, *args, **how)
        if not args:
            # Statements in one message are one transaction. BEGIN is sent by asyncpg; the settings follow it.
            text = f"{query} {self.settings}" if query.startswith("BEGIN") else f"{self.settings} {query}"
            return await super().execute(text, **how)
        async with self._own_transaction():
            return await super().execute(query, *args, **how)

    async def executemany(self, command: str, args: Any, **how: Any) -> None:
        async with self._own_transaction():
            await super().executemany(command, args, **how)

    async def fetch(self, query: str, *args: Any, **how: Any) -> Any:
        async with self._own_transaction():
            return await super().fetch(query, *args, **how)

    async def fetchrow(self, query: str, *args: Any, **how: Any) -> Any:
        async with self._own_transaction():
            return await super().fetchrow(query, *args, **how)

    async def fetchval(self, query: str, *args: Any, **how: Any) -> Any:
        async with self._own_transaction():
            return await super().fetchval(query, *args, **how)

    def _has_transaction(self) -> bool:
        """A closed connection cannot say whether it is in a transaction; it raises when it is used."""
        return self.is_closed() or self.is_in_transaction()

    @asynccontextmanager
    async def _own_transaction(self) -> AsyncIterator[None]:
        """A transaction around one statement, unless there is one already."""
        if self._has_transaction():
            yield
            return
        transaction = self.transaction()
        await transaction.start()
        try:
            yield
        except (TimeoutError, CancelledError):
            # A rollback would wait as long again if the server is gone.
            self.terminate()
            raise
        except BaseException:
            await transaction.rollback()
            raise
        await transaction.commit()


def connection_with(settings: Mapping[str, str]) -> type[TransactionConnection]:
    """A class of connections whose transactions start with these settings."""
    text = " ".join(f"SET LOCAL {name} = '{value}';" for name, value in settings.items())
    return type("PgBouncerConnection", (TransactionConnection,), {"__slots__": (), "settings": text})
