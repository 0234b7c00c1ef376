"""What a connection to PostgreSQL is to the rest of the store, and what it looks like when the database is away."""

from types import TracebackType
from typing import TYPE_CHECKING

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from ondot.model.errors import Unavailable

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]
    Pool = asyncpg.Pool[asyncpg.Record]
else:
    # The stubs know these classes as generic, asyncpg itself does not.
    Connection = asyncpg.Connection | PoolConnectionProxy
    Pool = asyncpg.Pool
Record = asyncpg.Record

AWAY = (
    OSError,
    EOFError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.QueryCanceledError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.DiskFullError,
)
"""What asyncpg raises when the database cannot be reached or cannot answer now."""


class away_as_unavailable:  # noqa: N801 - reads as a statement where it is used
    """Turns the many ways of being away into `Unavailable`, so that nobody above knows asyncpg's exceptions."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What asyncpg itself cannot encode is the caller's fault and no better when it is tried again.
        if isinstance(error, AWAY) and not isinstance(error, ValueError):
            raise Unavailable(f"PostgreSQL does not answer: {str(error) or type(error).__name__}.") from error
