"""Every kind of connection that `app.transaction` takes, each by its real library, behind the same few calls.

`begin(url)` connects and opens the caller's transaction, as its guide does: committed at the end, rolled back by an
error. Blocking kinds block the test's event loop, as they would that of an application.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import asyncpg
import django
import psycopg
import psycopg2
import psycopg2.extras
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from ondot import Ondot

settings.configure(DATABASES={}, USE_TZ=True)
django.setup()

Opening = Callable[[str], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Library:
    name: str
    is_blocking: bool
    begin: Opening
    savepoint: Callable[[Any], AbstractAsyncContextManager[Any]]
    execute: Callable[[Any, str], Any]

    @asynccontextmanager
    async def enqueuing(self, app: Ondot, url: str, **options: Any) -> AsyncIterator[Any]:
        """The caller's transaction, and the app's block in it."""
        async with self.begin(url) as connection, self.block(app, connection, **options):
            yield connection

    @asynccontextmanager
    async def block(self, app: Ondot, connection: Any, **options: Any) -> AsyncIterator[None]:
        if self.is_blocking:
            with app.transaction(connection, **options):
                yield
        else:
            async with app.transaction(connection, **options):
                yield

    async def run(self, connection: Any, sql: str) -> None:
        done = self.execute(connection, sql)
        if not self.is_blocking:
            await done


def of_sqlalchemy(url: str, driver: str) -> str:
    """SQLAlchemy's form of a URL: with the driver."""
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


def of_django(url: str, **fields: Any) -> dict[str, Any]:
    """Django's form of a URL."""
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username or query.get("user", ""),
        "HOST": parts.hostname or query.get("host", ""),
        "PORT": str(parts.port or query.get("port", "")),
        **fields,
    }


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_pool(url: str) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Any]:
    """Rows as dicts, as many applications have them."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield connection


@asynccontextmanager
async def _psycopg_autocommit(url: str) -> AsyncIterator[Any]:
    """In autocommit, with a transaction of its own and the placeholders of PostgreSQL."""
    with (
        psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection,
        connection.transaction(),
    ):
        yield connection


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, prepare_threshold=0) as connection:
        yield connection


@asynccontextmanager
async def _psycopg2(url: str) -> AsyncIterator[Any]:
    connection = psycopg2.connect(url, cursor_factory=psycopg2.extras.RealDictCursor)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


def _session(driver: str, *, is_scoped: bool = False) -> Opening:
    @asynccontextmanager
    async def begin(url: str) -> AsyncIterator[Any]:
        make = sessionmaker(create_engine(of_sqlalchemy(url, driver), poolclass=NullPool))
        session = scoped_session(make) if is_scoped else make()
        try:
            with session.begin():
                yield session
        finally:
            session.close()

    return begin


def _async_session(driver: str, *, is_scoped: bool = False) -> Opening:
    @asynccontextmanager
    async def begin(url: str) -> AsyncIterator[Any]:
        make = async_sessionmaker(create_async_engine(of_sqlalchemy(url, driver), poolclass=NullPool))
        session = async_scoped_session(make, scopefunc=lambda: 1) if is_scoped else make()
        try:
            async with session.begin():
                yield session
        finally:
            await session.close()

    return begin


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[Any]:
    with create_engine(of_sqlalchemy(url, "psycopg"), poolclass=NullPool).begin() as connection:
        yield connection


@asynccontextmanager
async def _async_connection(url: str) -> AsyncIterator[Any]:
    async with create_async_engine(of_sqlalchemy(url, "asyncpg"), poolclass=NullPool).begin() as connection:
        yield connection


@asynccontextmanager
async def _django(url: str) -> AsyncIterator[Any]:
    alias = uuid4().hex
    connections.settings[alias] = ConnectionHandler({"default": of_django(url)}).settings["default"]
    connection = connections[alias]
    try:
        with transaction.atomic(using=alias):
            yield connection
    finally:
        connection.close()
        del connections[alias]
        del connections.settings[alias]


@asynccontextmanager
async def _blocking_savepoint(session: Session) -> AsyncIterator[Any]:
    with session.begin_nested():
        yield


@asynccontextmanager
async def _django_savepoint(connection: Any) -> AsyncIterator[Any]:
    with transaction.atomic(using=connection.alias):
        yield


@asynccontextmanager
async def _psycopg_savepoint(connection: Any) -> AsyncIterator[Any]:
    with connection.transaction():
        yield


@asynccontextmanager
async def _psycopg2_savepoint(connection: Any) -> AsyncIterator[Any]:
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT mine")
        try:
            yield
        except BaseException:
            cursor.execute("ROLLBACK TO SAVEPOINT mine")
            raise


def _by_cursor(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _by_text(of: Session | AsyncSession, sql: str) -> Any:
    return of.execute(text(sql))


def _by_execute(connection: Any, sql: str) -> Any:
    return connection.execute(sql)


LIBRARIES = [
    Library("asyncpg", False, _asyncpg, lambda c: c.transaction(), _by_execute),
    Library("asyncpg-pool", False, _asyncpg_pool, lambda c: c.transaction(), _by_execute),
    Library("psycopg", True, _psycopg, _psycopg_savepoint, _by_execute),
    Library("psycopg-autocommit", True, _psycopg_autocommit, _psycopg_savepoint, _by_execute),
    Library("psycopg-async", False, _psycopg_async, lambda c: c.transaction(), _by_execute),
    Library("psycopg2", True, _psycopg2, _psycopg2_savepoint, _by_cursor),
    Library("session", True, _session("psycopg"), _blocking_savepoint, _by_text),
    Library("session-psycopg2", True, _session("psycopg2"), _blocking_savepoint, _by_text),
    Library("scoped-session", True, _session("psycopg", is_scoped=True), _blocking_savepoint, _by_text),
    Library("async-session", False, _async_session("asyncpg"), lambda s: s.begin_nested(), _by_text),
    Library("async-session-psycopg", False, _async_session("psycopg"), lambda s: s.begin_nested(), _by_text),
    Library(
        "async-scoped-session", False, _async_session("asyncpg", is_scoped=True), lambda s: s.begin_nested(), _by_text
    ),
    Library("connection", True, _connection, _blocking_savepoint, _by_text),
    Library("async-connection", False, _async_connection, lambda c: c.begin_nested(), _by_text),
    Library("django", True, _django, _django_savepoint, _by_cursor),
]
