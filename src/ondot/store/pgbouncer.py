"""A connection behind PgBouncer in transaction mode: whatever it does is a transaction, which brings its own settings.

PgBouncer hands each transaction to the server connection that is free, and takes no settings for a session. So the
settings that ondot's plans and deadlines rest on are made with `SET LOCAL`, in the round trip that begins a
transaction, and a statement outside of one gets a transaction of its own: two round trips more.
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
    """What `connection_with` makes classes of."""

    __slots__ = ()
    settings = ""

    async def execute(self, query: str, *args: Any, **how: Any) -> str:
        if self._needs_none():
            return await super().execute(query, *args, **how)
        if not args:
            # Statements in one message are one transaction. BEGIN is asyncpg's own, and the settings come after it.
            text = f"{query} {self.settings}" if query.startswith("BEGIN") else f"{self.settings} {query}"
            return await super().execute(text, **how)
        async with self._of_its_own():
            return await super().execute(query, *args, **how)

    async def executemany(self, command: str, args: Any, **how: Any) -> None:
        async with self._of_its_own():
            await super().executemany(command, args, **how)

    async def fetch(self, query: str, *args: Any, **how: Any) -> Any:
        async with self._of_its_own():
            return await super().fetch(query, *args, **how)

    async def fetchrow(self, query: str, *args: Any, **how: Any) -> Any:
        async with self._of_its_own():
            return await super().fetchrow(query, *args, **how)

    async def fetchval(self, query: str, *args: Any, **how: Any) -> Any:
        async with self._of_its_own():
            return await super().fetchval(query, *args, **how)

    def _needs_none(self) -> bool:
        """One that is closed cannot be asked whether it is in a transaction, and says so when it is used."""
        return self.is_closed() or self.is_in_transaction()

    @asynccontextmanager
    async def _of_its_own(self) -> AsyncIterator[None]:
        """A transaction around one statement, unless it is in one."""
        if self._needs_none():
            yield
            return
        transaction = self.transaction()
        await transaction.start()
        try:
            yield
        except (TimeoutError, CancelledError):
            # To roll back would be to wait for it: as long again if nobody is there.
            self.terminate()
            raise
        except BaseException:
            await transaction.rollback()
            raise
        await transaction.commit()


def connection_with(settings: Mapping[str, str]) -> type[TransactionConnection]:
    """The class of connections whose transactions begin with these settings."""
    text = " ".join(f"SET LOCAL {name} = '{value}';" for name, value in settings.items())
    return type("PgBouncerConnection", (TransactionConnection,), {"__slots__": (), "settings": text})
