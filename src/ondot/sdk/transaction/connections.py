"""The connections that jobs can be enqueued through (E11, D3), each behind the same small interface.

A statement has PostgreSQL's numbered parameters, `$1`. Parameters and results are text, numbers, NULL and lists of them
only, which every driver passes alike, whatever types the caller has registered.
Kinds are recognised by their shape or by the names of their classes: nothing is imported that the caller did not.
"""

import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, Protocol

Parameter = str | float | None | Sequence[str | float | None]
Row = Sequence[Any]

_IDLE: Final = 0
_CLOSED: Final = 4
"""States of libpq's transactions, as psycopg numbers them."""


class Connection(Protocol):
    """One kind of connection, in the caller's transaction."""

    @property
    def is_blocking(self) -> bool:
        """Its `fetch` never suspends: `with`, not `async with`."""

    @property
    def advice(self) -> str:
        """What to write, so that it is in a transaction."""

    def is_in_transaction(self) -> bool:
        """Whether the next statement is part of a transaction that the caller ends. Sends no statement."""

    async def fetch(self, statement: str, *parameters: Parameter) -> Sequence[Row]: ...


class Asyncpg:
    """A connection of asyncpg, or the proxy for one that its pool hands out."""

    is_blocking = False
    advice = "Write `async with connection.transaction(), app.transaction(connection):`."

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def is_in_transaction(self) -> bool:
        return bool(self._connection.is_in_transaction())

    async def fetch(self, statement: str, *parameters: Parameter) -> Sequence[Row]:
        rows: Sequence[Row] = await self._connection.fetch(statement, *parameters)
        return rows


class Psycopg:
    """A connection of psycopg or psycopg2. Its first statement begins a transaction, unless it is in autocommit.

    The cursor is a plain one: the caller's own may return dicts, or take other placeholders.
    """

    is_blocking = True
    advice = (
        "It is in autocommit, so each statement would be its own transaction. Write `with connection.transaction(), "
        "app.transaction(connection):`, or connect without autocommit."
    )

    def __init__(self, connection: Any, cursor: Callable[[Any], Any]) -> None:
        self._connection = connection
        self._cursor = cursor

    def is_in_transaction(self) -> bool:
        state = int(self._connection.info.transaction_status)
        return state != _CLOSED and (state != _IDLE or not self._connection.autocommit)

    async def fetch(self, statement: str, *parameters: Parameter) -> Sequence[Row]:
        with self._cursor(self._connection) as cursor:
            cursor.execute(_with_percent_s(statement), parameters)
            rows: Sequence[Row] = cursor.fetchall()
            return rows


class PsycopgAsync(Psycopg):
    is_blocking = False
    advice = Psycopg.advice.replace("`with", "`async with")

    async def fetch(self, statement: str, *parameters: Parameter) -> Sequence[Row]:
        async with self._cursor(self._connection) as cursor:
            await cursor.execute(_with_percent_s(statement), parameters)
            rows: Sequence[Row] = await cursor.fetchall()
            return rows


class SqlAlchemy:
    """A Connection of SQLAlchemy. Its first statement begins a transaction, unless it is in autocommit."""

    is_blocking = True
    advice = (
        "It is in autocommit, so each statement would be its own transaction. Use an engine without "
        'isolation_level="AUTOCOMMIT", and write `with engine.begin() as connection, app.transaction(connection):`.'
    )

    def __init__(self, connection: Any) -> None:
        self._of = connection
        dialect = self._bind().dialect
        if dialect.name != "postgresql":
            raise _not_postgresql(dialect.name)
        self._write = str if dialect.paramstyle == "numeric_dollar" else _with_percent_s

    def is_in_transaction(self) -> bool:
        return _is_transactional(self._of)

    async def fetch(self, statement: str, *parameters: Parameter) -> Sequence[Row]:
        return self.fetch_blocking(statement, *parameters)

    def fetch_blocking(self, statement: str, *parameters: Parameter) -> Sequence[Row]:
        connection = self._connection()
        if not _is_transactional(connection):
            raise ValueError(self.advice)
        rows: Sequence[Row] = connection.exec_driver_sql(self._write(statement), parameters).all()
        return rows

    def _bind(self) -> Any:
        return self._of

    def _connection(self) -> Any:
        return self._of


class SqlAlchemySession(SqlAlchemy):
    """A Session. It has no connection before its first statement, which begins a transaction.

    To look earlier would make `session.begin()` in the block fail. So the first enqueue refuses autocommit, not the
    start of the block.
    """

    advice = SqlAlchemy.advice.replace("engine.begin() as connection", "Session.begin() as session").replace(
        "transaction(connection)", "transaction(session)"
    )

    def is_in_transaction(self) -> bool:
        return True

    def _bind(self) -> Any:
        return self._of.get_bind()

    def _connection(self) -> Any:
        return self._of.connection()


class SqlAlchemyAsync:
    """An AsyncConnection or AsyncSession, by the blocking one inside it."""

    is_blocking = False

    def __init__(self, of: Any, inner: SqlAlchemy) -> None:
        self._of = of
        self._inner = inner
        self.advice = inner.advice = inner.advice.replace("`with", "`async with")

    def is_in_transaction(self) -> bool:
        return self._inner.is_in_transaction()

    async def fetch(self, statement: str, *parameters: Parameter) -> Sequence[Row]:
        rows: Sequence[Row] = await self._of.run_sync(lambda _inner: self._inner.fetch_blocking(statement, *parameters))
        return rows


class Django:
    """`django.db.connection`, or one of `django.db.connections`."""

    is_blocking = True
    advice = (
        "It is in autocommit, so each statement would be its own transaction. Write `with transaction.atomic(), "
        "app.transaction(connection):`, or set ATOMIC_REQUESTS."
    )

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        if connection.vendor != "postgresql":
            raise _not_postgresql(connection.vendor)

    def is_in_transaction(self) -> bool:
        return bool(self._connection.in_atomic_block or not self._connection.get_autocommit())

    async def fetch(self, statement: str, *parameters: Parameter) -> Sequence[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(_with_percent_s(statement), parameters)
            rows: Sequence[Row] = cursor.fetchall()
            return rows


def adapt(connection: Any) -> Connection:
    """The adapter for a connection of the caller; text is the alias of one of Django's. Raises TypeError for others."""
    if isinstance(connection, str) and (django := sys.modules.get("django.db")) is not None:
        connection = django.connections[connection]
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__}
    if names & {"sqlalchemy.scoped_session", "sqlalchemy.async_scoped_session"}:
        return adapt(connection.registry())  # the session of this thread or task
    for name, make in _KINDS.items():
        if name in names:
            return make(connection)
    if all(callable(getattr(connection, name, None)) for name in ("fetch", "fetchrow", "is_in_transaction")):
        return Asyncpg(connection)
    raise TypeError(
        f"app.transaction takes a connection or session of asyncpg, psycopg, SQLAlchemy or Django, got "
        f"{type(connection).__module__}.{type(connection).__name__}. {_advice(names)}"
    )


_KINDS: Final[dict[str, Callable[[Any], Connection]]] = {
    "sqlalchemy.Session": SqlAlchemySession,
    "sqlalchemy.Connection": SqlAlchemy,
    "sqlalchemy.AsyncSession": lambda session: SqlAlchemyAsync(session, SqlAlchemySession(session.sync_session)),
    "sqlalchemy.AsyncConnection": lambda connection: SqlAlchemyAsync(connection, SqlAlchemy(_started(connection))),
    "psycopg.Connection": lambda connection: Psycopg(connection, _psycopg_cursor("Cursor")),
    "psycopg.AsyncConnection": lambda connection: PsycopgAsync(connection, _psycopg_cursor("AsyncCursor")),
    "psycopg2.connection": lambda connection: Psycopg(connection, _psycopg2_cursor),
    "django.BaseDatabaseWrapper": Django,
    "django.ConnectionProxy": Django,
}


def _advice(names: set[str]) -> str:
    if any(name.endswith(("Engine", "Pool", "sessionmaker", "ConnectionPool")) for name in names):
        return "Take a connection or a session from it, and pass that one."
    return "With another driver, run SELECT ondot.enqueue('function_name', '{\"argument\": 1}') in your transaction."


def _started(connection: Any) -> Any:
    """The connection inside an AsyncConnection, which has one once it is entered."""
    if (inner := connection.sync_connection) is None:
        raise TypeError(
            "This AsyncConnection is not connected. Write `async with engine.begin() as connection, "
            "app.transaction(connection):`."
        )
    return inner


def _psycopg_cursor(kind: str) -> Callable[[Any], Any]:
    psycopg = sys.modules["psycopg"]
    make: Callable[..., Any] = getattr(psycopg, kind)
    return lambda connection: make(connection, row_factory=psycopg.rows.tuple_row)


def _psycopg2_cursor(connection: Any) -> Any:
    return connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor)


def _is_transactional(connection: Any) -> bool:
    """Of SQLAlchemy: every other connection begins a transaction by itself."""
    return not connection.connection.dbapi_connection.autocommit


@cache
def _with_percent_s(statement: str) -> str:
    """For drivers with `%s`. Statements name each parameter once, in order."""
    return re.sub(r"\$\d+", "%s", statement)


def _not_postgresql(vendor: str) -> TypeError:
    return TypeError(
        f"app.transaction takes a connection to PostgreSQL, where ondot's jobs are, got one to {vendor}. Enqueue after "
        "the commit instead, outside the block."
    )
