"""What `app.transaction` refuses, in words that say what to write instead; and blocks across threads and contexts."""

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import django.db
import psycopg
import pytest
from django.db.utils import ConnectionHandler
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from ondot import Ondot
from ondot.sdk.transaction import open_transaction
from tests.proves import proves
from tests.sdk.libraries import of_django, of_sqlalchemy
from tests.world import World

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
async def app() -> AsyncIterator[Ondot]:
    """Its server cannot be reached, so every request fails."""
    async with Ondot(NOWHERE, "key") as app:

        @app.job
        async def report(region: str = "eu") -> None: ...

        yield app


@proves("D3", "E11")
async def test_psycopg_in_autocommit_is_refused(app: Ondot, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        with (
            pytest.raises(ValueError, match=r"in autocommit.* Write `with connection\.transaction\(\), app"),
            app.transaction(connection),
        ):
            pytest.fail("the block ran")
        with connection.transaction():
            block = app.transaction(connection)
            block.__enter__()
        # The caller's transaction ended in the block: nothing may be written outside of one.
        with pytest.raises(RuntimeError, match="The transaction is over"):
            await app.handlers["report"].enqueue()
        block.__exit__(None, None, None)
    with pytest.raises(ValueError, match="in a transaction"), app.transaction(connection):
        pytest.fail("the block ran on a closed connection")
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as other:
        with pytest.raises(ValueError, match=r"Write `async with connection\.transaction"):
            async with app.transaction(other):
                pytest.fail("the block ran")


@proves("D3", "E11")
async def test_sqlalchemy_in_autocommit_is_refused(app: Ondot, world: World, database_url: str) -> None:
    report = app.handlers["report"]
    engine = create_engine(of_sqlalchemy(database_url, "psycopg"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with (
        engine.connect() as connection,
        pytest.raises(ValueError, match=r"in autocommit.*engine\.begin"),
        app.transaction(connection),
    ):
        pytest.fail("the block ran")
    with (
        Session(engine) as session,
        app.transaction(session),
        pytest.raises(ValueError, match=r"in autocommit.*Session\.begin\(\) as session, app"),
    ):
        await report.enqueue()
    for driver in ("asyncpg", "psycopg"):
        other = create_async_engine(
            of_sqlalchemy(database_url, driver), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )
        async with AsyncSession(other) as async_session, app.transaction(async_session):
            with pytest.raises(ValueError, match=r"write `async with Session"):
                await report.enqueue()
    assert await world.count("job_once") == 0


@proves("D3", "E11")
async def test_django_in_autocommit_is_refused(app: Ondot, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    connection = ConnectionHandler({"default": of_django(database_url)})["default"]
    with pytest.raises(ValueError, match=r"Write `with transaction\.atomic\(\), app"), app.transaction(connection):
        pytest.fail("the block ran")
    connection.close()


@proves("D3")
async def test_the_alias_of_a_connection_of_django_is_enough(app: Ondot, monkeypatch: pytest.MonkeyPatch) -> None:
    one = ConnectionHandler(
        {"default": of_django("postgresql://u@h/d"), "lite": {"ENGINE": "django.db.backends.sqlite3"}}
    )
    monkeypatch.setattr(django.db, "connections", one)
    app.transaction("default")
    with pytest.raises(TypeError, match="to PostgreSQL, where ondot's jobs are, got one to sqlite"):
        app.transaction("lite")


@proves("D3")
@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (object, r"SELECT ondot\.enqueue"),
        (lambda: create_engine("postgresql+psycopg://h/d"), "from it"),
        (lambda: create_async_engine("postgresql+psycopg://h/d"), "from it"),
        (lambda: sessionmaker(create_engine("postgresql+psycopg://h/d")), "from it"),
        (lambda: Session(create_engine("sqlite://")), "got one to sqlite"),
        (lambda: asyncpg.create_pool("postgresql://h/d"), "from it"),
        (lambda: create_async_engine("postgresql+psycopg://h/d").connect(), "not connected"),
        (lambda: None, "got builtins.NoneType"),
    ],
    ids=["object", "engine", "async-engine", "sessionmaker", "sqlite", "pool", "not-connected", "none"],
)
async def test_what_is_no_connection_is_refused(app: Ondot, make: Callable[[], Any], advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        app.transaction(make())


@proves("D3")
async def test_a_block_is_entered_once(app: Ondot, database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        block = app.transaction(connection)
        with block:
            assert open_transaction(app) is not None
            with pytest.raises(RuntimeError, match="entered before"), block:
                pytest.fail("the block ran")
        assert open_transaction(app) is None


@proves("D3", "E11")
async def test_a_blocking_connection_needs_no_event_loop_and_may_go_to_another_thread(
    app: Ondot, world: World, database_url: str
) -> None:
    report = app.handlers["report"]
    transaction = []

    def work() -> None:
        with psycopg.connect(database_url) as connection, app.transaction(connection):
            transaction.append(open_transaction(app))
            report.sync.enqueue(region="own")
            context = contextvars.copy_context()
            threads = [threading.Thread(target=context.copy().run, args=(report.sync.enqueue,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    await asyncio.to_thread(work)
    assert await world.count("job_once") == 5
    assert transaction[0] is not None
    assert transaction[0].is_blocking


@proves("D3", "E11")
async def test_an_async_connection_is_not_used_from_another_event_loop(
    app: Ondot, world: World, database_url: str
) -> None:
    connection = await asyncpg.connect(database_url)
    async with connection.transaction(), app.transaction(connection):
        with pytest.raises(RuntimeError, match="belongs to the event loop"):
            await asyncio.to_thread(asyncio.run, app.handlers["report"].enqueue())
        with pytest.raises(RuntimeError, match="belongs to the event loop"):
            await asyncio.to_thread(app.handlers["report"].sync.enqueue)
    await connection.close()
    assert await world.count("job_once") == 0


@proves("D3", "E11")
async def test_a_block_that_ends_in_another_context_is_an_error(app: Ondot, database_url: str) -> None:
    """As a dependency of FastAPI with `def` and `yield` would do: the endpoint would not see the block."""
    with psycopg.connect(database_url) as connection:
        block = app.transaction(connection)
        await asyncio.to_thread(block.__enter__)
        assert open_transaction(app) is None
        with pytest.raises(RuntimeError, match="another context"):
            await asyncio.to_thread(block.__exit__, None, None, None)


@proves("D3", "E11")
async def test_a_session_begins_as_it_always_does(app: Ondot, world: World, database_url: str) -> None:
    """The block checks nothing out, so `begin()` works inside; what is enqueued is part of what the session commits."""
    report = app.handlers["report"]
    engine = create_engine(of_sqlalchemy(database_url, "psycopg"), poolclass=NullPool)
    with Session(engine) as session, app.transaction(session):
        assert not session.in_transaction()
        with session.begin():
            await report.enqueue()
        await report.enqueue()
        session.rollback()
        await report.enqueue()
        session.commit()
        await report.enqueue()
    assert await world.count("job_once") == 2


@proves("D3", "E11")
async def test_a_hook_of_the_driver_may_enqueue_too(app: Ondot, world: World, database_url: str) -> None:
    report = app.handlers["report"]
    engine = create_engine(of_sqlalchemy(database_url, "psycopg"), poolclass=NullPool)
    seen: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def enqueue_once(*arguments: Any) -> None:
        seen.append(arguments[2])
        if len(seen) == 1:
            report.sync.enqueue(region="hook")

    with Session(engine) as session, app.transaction(session):
        report.sync.enqueue()
        session.commit()
    assert await world.count("job_once") == 2


@proves("D3", "E11")
@pytest.mark.parametrize("threshold", [None, 0, 2])
async def test_prepared_statements_are_the_callers_choice(
    app: Ondot, world: World, database_url: str, threshold: int | None
) -> None:
    """None is what PgBouncer without prepared statements needs: then there is none on the connection."""
    with psycopg.connect(database_url, prepare_threshold=threshold) as connection, app.transaction(connection):
        for _ in range(4):
            await app.handlers["report"].enqueue()
        row = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    assert row is not None
    assert (row[0] > 0) is (threshold is not None)
    assert await world.count("job_once") == 4


@proves("D3", "E11")
async def test_pgbouncer_in_transaction_mode_is_served(app: Ondot, world: World, database_url: str) -> None:
    """asyncpg and SQLAlchemy as their documentation sets them up for PgBouncer."""
    report = app.handlers["report"]
    connection = await asyncpg.connect(database_url, statement_cache_size=0)
    async with connection.transaction(), app.transaction(connection):
        await report.enqueue()
        await report.enqueue_many([report.args(), report.args()])
        assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''") == 0
    await connection.close()
    engine = create_async_engine(
        of_sqlalchemy(database_url, "asyncpg"),
        poolclass=NullPool,
        connect_args={"statement_cache_size": 0, "prepared_statement_cache_size": 0},
    )
    async with AsyncSession(engine) as session, session.begin(), app.transaction(session):
        await report.enqueue()
    assert await world.count("job_once") == 4


@proves("D3")
def test_nothing_is_imported_that_the_caller_did_not_import() -> None:
    code = (
        "import sys, ondot.sdk.transaction.connections;"
        "print([name for name in ('asyncpg', 'psycopg', 'psycopg2', 'sqlalchemy', 'django') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
