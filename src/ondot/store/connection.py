"""The type of a connection for the rest of the store, and the errors that mean that the database is away."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from ondot.model.errors import Unavailable

if TYPE_CHECKING:
    OwnConnection = asyncpg.Connection[asyncpg.Record]
    Connection = OwnConnection | PoolConnectionProxy[asyncpg.Record]
    Pool = asyncpg.Pool[asyncpg.Record]
else:
    # The stubs know these classes as generic, asyncpg itself does not.
    OwnConnection = asyncpg.Connection
    Connection = OwnConnection | PoolConnectionProxy
    Pool = asyncpg.Pool
Record = asyncpg.Record

AWAY = (
    OSError,
    EOFError,
    TimeoutError,
    asyncpg.InterfaceError,
    # asyncpg lost track of the protocol when a backend was terminated during a statement; and "none of the hosts is
    # the primary", while a standby is being promoted.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    # Shut down, crashed, starting up; a statement that took too long.
    asyncpg.OperatorInterventionError,
    # The disk is full, too many connections, no memory.
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    # The primary has become a standby.
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    # A deadlock: PostgreSQL ends one of the two, which succeeds when it tries again.
    asyncpg.TransactionRollbackError,
)
"""asyncpg's errors for a database that cannot be reached or cannot answer now: a retry may succeed."""

DEAD = (TimeoutError, asyncpg.ReadOnlySQLTransactionError)
"""The connection had no answer for the whole deadline, or leads to a standby: it is of no more use."""

DATABASE_ERROR = asyncpg.PostgresError
"""Any error that PostgreSQL answers with."""

TAKEN = asyncpg.UniqueViolationError
"""Another row has that key."""

TOO_LATE = (TimeoutError, asyncpg.QueryCanceledError)
"""A statement did not end within the deadline that was given for it alone, and was cancelled."""

LOCKED = asyncpg.LockNotAvailableError
"""Another transaction did not release a lock in time."""

_ABOUT_CONTENT = ("22", "23", "54")
"""SQLSTATE classes for the content of a statement: data, integrity, limits."""


def is_about_content(error: Exception) -> bool:
    """Whether an error is about the content of a statement, so that a retry fails too; others may pass."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate)[:2] in _ABOUT_CONTENT
    return isinstance(error, ValueError)


class away_as_unavailable:  # noqa: N801 - reads as a statement where it is used
    """Turns all errors of `AWAY` into `Unavailable`, so that no module above the store knows asyncpg's exceptions."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A value that asyncpg cannot encode is the caller's bug: a retry would fail too.
        if isinstance(error, AWAY) and not isinstance(error, ValueError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # A cancelled statement on a server that hangs ends in asyncpg's own timeout: still a cancellation.
                raise asyncio.CancelledError from error
            cause = _first(error)
            raise Unavailable(f"PostgreSQL does not answer: {_words(cause)}.") from cause


@contextmanager
def drop_if_dead(connection: Connection) -> Iterator[None]:
    """Terminates a dead connection at once: asyncpg would wait as long again to cancel and to roll back."""
    try:
        yield
    except DEAD:
        drop(connection)
        raise


def drop(connection: Connection) -> None:
    """Terminate it in any state. A lost connection has left its pool already and raises InterfaceError."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def is_lost(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True


def _first(error: BaseException) -> BaseException:
    """The first error: those that follow only say that a lost connection cannot be rolled back or released."""
    while isinstance(error.__context__, AWAY):
        error = error.__context__
    return error


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, asyncpg.InternalClientError) and "another operation" in str(error):
        return "the connection was lost during a statement"
    return (str(error) or type(error).__name__).rstrip(".")
