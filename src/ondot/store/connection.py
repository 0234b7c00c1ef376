"""What a connection to PostgreSQL is to the rest of the store, and what it looks like when the database is away."""

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
    # Its protocol lost its place when a backend was terminated in the middle of a statement; and "none of the hosts
    # is the primary", while a standby is being promoted.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    # Shut down, crashed, starting up; a statement that took too long.
    asyncpg.OperatorInterventionError,
    # The disk is full, too many connections, no memory.
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    # What was the primary is a standby now.
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    # Of two that wait for each other one is sent away, and finds its way free when it tries again.
    asyncpg.TransactionRollbackError,
)
"""What asyncpg raises when the database cannot be reached or cannot answer now: the same may succeed later."""

DEAD = (TimeoutError, asyncpg.ReadOnlySQLTransactionError)
"""A connection on which nothing came for the whole deadline, or that leads to a standby: of no more use."""

DATABASE_ERROR = asyncpg.PostgresError
"""Whatever else PostgreSQL answers instead of doing what it was asked."""

TAKEN = asyncpg.UniqueViolationError
"""Somebody else has that key."""

LOCKED = asyncpg.LockNotAvailableError
"""Somebody else holds what was to be locked, and did not let go of it in time."""

_ABOUT_CONTENT = ("22", "23", "54")
"""SQLSTATE classes of what a statement carries: data, integrity, limits."""


def is_about_content(error: Exception) -> bool:
    """Whether a refusal is for what was sent, and would come again; everything else may pass."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate)[:2] in _ABOUT_CONTENT
    return isinstance(error, ValueError)


class away_as_unavailable:  # noqa: N801 - reads as a statement where it is used
    """Turns the many ways of being away into `Unavailable`, so that nobody above knows asyncpg's exceptions."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What asyncpg itself cannot encode is the caller's fault and no better when it is tried again.
        if isinstance(error, AWAY) and not isinstance(error, ValueError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # A cancelled statement on a server that hangs ends in asyncpg's own time-out: still a cancellation.
                raise asyncio.CancelledError from error
            cause = _first(error)
            raise Unavailable(f"PostgreSQL does not answer: {_words(cause)}.") from cause


@contextmanager
def drop_if_dead(connection: Connection) -> Iterator[None]:
    """Terminates a dead connection at once: asyncpg would wait for it as long again, to cancel and to roll back."""
    try:
        yield
    except DEAD:
        drop(connection)
        raise


def drop(connection: Connection) -> None:
    """Terminate it, in whatever state: one that was lost has left its pool already, and says so."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def is_lost(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True


def _first(error: BaseException) -> BaseException:
    """Why it began: what follows is only that a lost connection cannot be rolled back or given back either."""
    while isinstance(error.__context__, AWAY):
        error = error.__context__
    return error


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "nothing came from it in time"
    if isinstance(error, asyncpg.InternalClientError) and "another operation" in str(error):
        return "the connection was lost in the middle of a statement"
    return (str(error) or type(error).__name__).rstrip(".")
