"""Enqueue in a transaction of asyncpg, psycopg, SQLAlchemy and Django: the same promises with each library.

All tests share one database, and each counts the jobs of its own function. Django refuses to block an event loop, which
these tests have: `DJANGO_ALLOW_ASYNC_UNSAFE` allows it.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from ondot import Ondot
from ondot.model.errors import InvalidBody, Misconfigured
from ondot.sdk.handler import Handler
from tests.proves import proves
from tests.sdk.libraries import LIBRARIES, Library
from tests.servers import Server, new_database

NOWHERE = "http://127.0.0.1:1"
pytestmark = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)


@pytest.fixture(scope="module")
async def url(server: Server) -> AsyncIterator[str]:
    async with new_database(server) as url:
        yield url


@pytest.fixture(scope="module")
async def bare_url(server: Server) -> AsyncIterator[str]:
    """A database without ondot."""
    async with new_database(server, template="template1") as url:
        yield url


@pytest.fixture(autouse=True)
def _django_may_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture
async def app() -> AsyncIterator[Ondot]:
    """Its server cannot be reached, so every request fails."""
    async with Ondot(NOWHERE, "key") as app:
        yield app


@pytest.fixture
def report(app: Ondot) -> Handler[..., Any]:
    """A function with a name of this test's own."""

    @app.job(name=f"report-{uuid4().hex}", labels={"team": "bi"})
    async def report(region: str = "eu", rows: list[str] | None = None) -> None: ...

    return report


async def _payloads(url: str, handler: Handler[..., Any]) -> list[str | None]:
    """Those of the function's jobs that exist, in order."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "SELECT spec->>'payload' AS payload FROM ondot.job_once WHERE name = $1 ORDER BY id", handler.name
        )
    finally:
        await connection.close()
    return [row["payload"] for row in rows]


@proves("D3", "E11")
async def test_jobs_exist_after_the_commit_and_not_before(
    library: Library, url: str, app: Ondot, report: Handler[..., Any]
) -> None:
    async with library.enqueuing(app, url):
        now = await report.enqueue(region="Zürich 東京 🚀 'a\\b' %s $1 :x")
        later = await report.options(in_="10m").enqueue(region="later")
        at = await report.options(at="2031-01-31T09:00:00.123456+01:00").enqueue(region="at")
        if library.is_blocking:
            report.sync.enqueue(region="sync")
            report.sync.options(in_=60).enqueue(region="sync, later")
            report.sync.enqueue_many([report.args("sync, many")])
        many = await report.enqueue_many([report.args("é"), report.args(), report.args("c")])
        assert await _payloads(url, report) == []
    assert await _payloads(url, report) == [
        '{"region":"Zürich 東京 🚀 \'a\\\\b\' %s $1 :x"}',
        '{"region":"later"}',
        '{"region":"at"}',
        *(f'{{"region":"sync{how}"}}' for how in ("", ", later", ", many") if library.is_blocking),
        '{"region":"é"}',
        None,
        '{"region":"c"}',
    ]
    assert (now.job["next_fire_at"], at.job["next_fire_at"]) == (None, "2031-01-31T08:00:00.123456Z")
    assert later.job["next_fire_at"] > later.job["created_at"]
    assert now.job["labels"] == {"team": "bi"}
    assert len({one.id for one in (now, later, at, *many)}) == 6


@proves("D3", "E11")
async def test_nothing_remains_of_a_transaction_that_an_error_ended(
    library: Library, url: str, app: Ondot, report: Handler[..., Any]
) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tried
        async with library.enqueuing(app, url):
            await report.enqueue()
            await report.enqueue_many([report.args(), report.args()])
            raise ZeroDivisionError
    assert await _payloads(url, report) == []


@proves("D3", "E11")
async def test_a_savepoint_takes_back_its_own_jobs_only(
    library: Library, url: str, app: Ondot, report: Handler[..., Any]
) -> None:
    async with library.enqueuing(app, url) as connection:
        await report.enqueue(region="before")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with library.savepoint(connection):
                await report.enqueue(region="within")
                raise ZeroDivisionError
        async with library.savepoint(connection):
            await report.enqueue(region="kept")
        await report.enqueue(region="after")
    assert await _payloads(url, report) == ['{"region":"before"}', '{"region":"kept"}', '{"region":"after"}']


@proves("D3", "E11")
async def test_what_the_database_refuses_is_an_error_of_the_api_and_a_failed_transaction_says_so(
    library: Library, url: str, app: Ondot, report: Handler[..., Any]
) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with library.enqueuing(app, url):
            with pytest.raises(
                InvalidBody, match=r"^The job cannot be due at 2001-[^\n]*\. Give a future instant[^\n]*$"
            ):
                await report.options(at="2001-01-01T00:00:00Z").enqueue()
            with pytest.raises(RuntimeError, match=r"The transaction has failed: .* Roll back"):
                await report.enqueue()
            raise ZeroDivisionError
    assert await _payloads(url, report) == []


@proves("D3", "E11")
async def test_a_read_only_transaction_is_refused(
    library: Library, url: str, app: Ondot, report: Handler[..., Any]
) -> None:
    with pytest.raises(Misconfigured, match="read-only"):  # noqa: PT012
        async with library.enqueuing(app, url) as connection:
            await library.run(connection, "SET TRANSACTION READ ONLY")
            await report.enqueue()


@proves("D3", "E11")
async def test_a_role_without_rights_is_refused(
    library: Library, url: str, app: Ondot, report: Handler[..., Any]
) -> None:
    with pytest.raises(Misconfigured, match=r"may not enqueue.*permission denied"):  # noqa: PT012
        async with library.enqueuing(app, url) as connection:
            await library.run(connection, "SET LOCAL ROLE pg_monitor")
            await report.enqueue()


@proves("D3", "E11")
async def test_a_database_without_ondot_is_reported_as_such(
    library: Library, bare_url: str, app: Ondot, report: Handler[..., Any]
) -> None:
    with pytest.raises(Misconfigured, match=r"has no ondot schema.*ondot migrate up"):
        async with library.enqueuing(app, bare_url):
            await report.enqueue()


@proves("D3", "E11")
async def test_the_wrong_kind_of_block_is_a_type_error(library: Library, url: str, app: Ondot) -> None:
    async with library.begin(url) as connection:
        if library.is_blocking:
            with pytest.raises(TypeError, match="This connection is blocking: write `with"):
                async with app.transaction(connection):
                    pytest.fail("the block ran")
        else:
            with (
                pytest.raises(TypeError, match="This connection is async: write `async with"),
                app.transaction(connection),
            ):
                pytest.fail("the block ran")


@proves("D3", "E11")
async def test_concurrent_requests_and_apps_do_not_mix(
    library: Library, url: str, app: Ondot, report: Handler[..., Any]
) -> None:
    """Each of four requests has its own transaction; the odd ones roll back. Another app's block changes nothing."""
    other = Ondot(NOWHERE, "key")

    async def request(number: int) -> None:
        async with library.enqueuing(app, url) as connection, library.block(other, connection, tenant="nobody"):
            await asyncio.gather(*(report.enqueue(region=f"{number}") for _ in range(3)))
            if number % 2:
                raise ZeroDivisionError

    requests = await asyncio.gather(*map(request, range(4)), return_exceptions=True)
    assert [type(one) for one in requests] == [type(None), ZeroDivisionError] * 2
    assert sorted(map(str, await _payloads(url, report))) == ['{"region":"0"}'] * 3 + ['{"region":"2"}'] * 3


@proves("D3", "E11")
async def test_large_payloads_arrive_whole(library: Library, url: str, app: Ondot, report: Handler[..., Any]) -> None:
    rows = ["ö" * 1000] * 100
    async with library.enqueuing(app, url):
        await report.enqueue(rows=rows)
        await report.enqueue_many([report.args(rows=rows)] * 3)
    assert [json.loads(payload or "") for payload in await _payloads(url, report)] == [{"rows": rows}] * 4


@proves("D3", "E11")
async def test_the_block_does_not_commit_and_refuses_what_comes_after_it(
    library: Library, url: str, app: Ondot, report: Handler[..., Any]
) -> None:
    go = asyncio.Event()

    async def late() -> None:
        await go.wait()
        await report.enqueue()

    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with library.begin(url) as connection:
            async with library.block(app, connection):
                await report.enqueue()
                task = asyncio.create_task(late())
                await asyncio.sleep(0)
            go.set()
            with pytest.raises(RuntimeError, match="The transaction is over"):
                await task
            raise ZeroDivisionError
    assert await _payloads(url, report) == []
