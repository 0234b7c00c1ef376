"""Exports under bad readers and a bad night (O2): real sockets, a real PostgreSQL, and a file that is whole or cut."""

import asyncio
import csv
import io
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import pytest
from structlog.testing import capture_logs

from ondot.api import export, protocol
from ondot.api.export import PAGE, PAGE_BYTES, PIECE_BYTES, csv_cell, next_size
from ondot.model.access import Role
from ondot.store.database import open_database
from tests.api.conftest import key_of
from tests.faults.proxy import a_proxy
from tests.flow.test_history import IN_TRANSACTION, age, keep_for, rewrite
from tests.proves import proves
from tests.servers import settings_for
from tests.ui.serving import Served, served
from tests.world import World, job

LARGE: Final = json.dumps("x" * 250_000).encode()
ROWS: Final = 60
"""Of 250 kB each: more than the buffers of a socket take."""


@asynccontextmanager
async def deaf_reader(page: Served, path: str) -> AsyncIterator[socket.socket]:
    """A client that sends a request and reads nothing."""
    host, _, port = page.url.removeprefix("http://").partition(":")
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(deaf, (host, int(port)))
        await loop.sock_sendall(deaf, f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        yield deaf


async def read_lines(http: httpx2.AsyncClient, path: str, **headers: str) -> list[Any]:
    answer = await http.get(path, params={"format": "jsonl"}, headers=headers)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


class Pages:
    """The pages that exports ask for: how many, and what happens before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.before: dict[int, Callable[[], Awaitable[object]]] = {}
        ask = export.Exports._ask

        async def counted(exports: Any, scope: Any, asked: Any) -> Any:
            self.asked += 1
            if action := self.before.get(self.asked):
                await action()
            return await ask(exports, scope, asked)

        monkeypatch.setattr(export.Exports, "_ask", counted)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    return Pages(monkeypatch)


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> "asyncio.Queue[protocol.Protocol]":
    """Connections whose client has stopped reading. Their deadlines do not come by themselves: a test calls them."""
    found: asyncio.Queue[protocol.Protocol] = asyncio.Queue()
    watch = protocol.Protocol._watch_unread

    def noted(self: protocol.Protocol) -> None:
        watch(self)
        found.put_nowait(self)

    monkeypatch.setattr(protocol.Protocol, "_watch_unread", noted)
    monkeypatch.setattr(protocol, "READ_WITHIN_S", 3600.0)
    return found


async def cut_of(logs: list[Any]) -> Any:
    async with asyncio.timeout(60):
        while not (found := [entry for entry in logs if entry["event"] == "export.cut"]):
            await asyncio.sleep(0)
    return found[0]


@proves("O2", "L7")
async def test_a_client_that_stops_reading_holds_no_transaction_and_is_cut_with_a_word_in_the_log(
    world: World, pages: Pages, stalled: "asyncio.Queue[protocol.Protocol]"
) -> None:
    await world.submit_all([job(payload=LARGE) for _ in range(ROWS)])
    async with served(world.database) as page, deaf_reader(page, "/v1/jobs?format=csv"):
        async with asyncio.timeout(60):
            connection = await stalled.get()
        asked = pages.asked
        async with world.second_connection() as other:
            assert await other.fetchval(IN_TRANSACTION) == 0
        assert connection.transport.get_write_buffer_size() < 4 * PIECE_BYTES, "not the page as a whole"
        with capture_logs() as logs:
            connection._check_unread()
            cut = await cut_of(logs)
        assert (cut["path"], cut["why"]) == ("/v1/jobs", "the client went away, or did not read")
        [unread] = [entry for entry in logs if entry["event"] == "response.unread"]
        assert (unread["path"], unread["within_s"]) == ("/v1/jobs", 3600.0)
        assert pages.asked == asked


@proves("O2", "L7")
async def test_a_client_that_reads_slowly_keeps_its_response(
    world: World, stalled: "asyncio.Queue[protocol.Protocol]"
) -> None:
    await world.submit_all([job(payload=LARGE) for _ in range(ROWS)])
    loop = asyncio.get_running_loop()
    # A page as JSON is one piece, which is in the buffers as a whole.
    async with served(world.database) as page, deaf_reader(page, "/v1/jobs?limit=60") as slow:
        async with asyncio.timeout(60):
            connection = await stalled.get()
            left = connection.transport.get_write_buffer_size()
            for _ in range(3):
                while connection.transport.get_write_buffer_size() > left - protocol.MOVES_BYTES:
                    await loop.sock_recv(slow, 65_536)
                connection._check_unread()
                assert not connection.transport.is_closing()
                left = connection.transport.get_write_buffer_size()
        connection._check_unread()
        assert connection.transport.is_closing(), "it has read nothing since"


@proves("O2")
async def test_a_client_that_goes_away_ends_its_export(world: World, pages: Pages) -> None:
    await world.submit_all([job(payload=LARGE) for _ in range(ROWS)])
    with capture_logs() as logs:
        async with served(world.database) as page:
            async with page.client.stream("GET", "/v1/jobs", params={"format": "jsonl"}) as answer:
                await anext(answer.aiter_bytes())
            cut = await cut_of(logs)
    assert cut["items"] < ROWS
    assert pages.asked < ROWS


@proves("O2", "L1")
async def test_a_file_is_cut_and_not_shortened_when_postgresql_goes_away(world: World, pages: Pages) -> None:
    await world.submit_all([job() for _ in range(ROWS)])
    async with a_proxy(world.url) as line:
        database = await open_database(settings_for(line.url))
        database.clock.freeze(world.now)

        async def cut() -> None:
            line.cut()

        try:
            with capture_logs() as logs:
                async with served(database) as page:
                    pages.before[2] = cut
                    with pytest.raises(httpx2.RemoteProtocolError):
                        await read_lines(page.client, "/v1/jobs")
                    cut_early = await cut_of(logs)
                    line.repair()
                    assert len(await read_lines(page.client, "/v1/jobs")) == ROWS
            assert (cut_early["why"], cut_early["items"]) == ("a page was answered with 503", 50)
        finally:
            await database.close()


@pytest.mark.parametrize("path", ["/v1/executions", "/v1/executions?q=state:succeeded"])
@proves("O2", "O4")
async def test_rows_that_go_or_arrive_meanwhile_break_no_export(world: World, pages: Pages, path: str) -> None:
    keep_for(world)
    worker = await world.worker()

    async def run(name: str, count: int) -> None:
        await world.submit_all([job(f"{name}-{n}") for n in range(count)])
        await worker.complete_all(await worker.lease(count))

    await run("old", ROWS)
    await age(world, 4)
    await run("new", 40)

    async def change() -> None:
        await run("late", 5)
        await rewrite(world)

    async with served(world.database) as page:
        before = [row["job_name"] for row in await read_lines(page.client, path)]
        pages.asked, pages.before = 0, {2: change}  # the first page ends among the old ones
        found = [row["job_name"] for row in await read_lines(page.client, path)]
    assert len(before) == 100
    assert found == before[:50], "no late one, none twice; the old ones of the second page are gone"


@proves("O2", "T1")
async def test_two_tenants_export_their_own_at_the_same_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PAGE", 5)
    acme = await world.add_tenant("acme")
    await world.submit_all([job("ours") for _ in range(ROWS)])
    await world.submit_all([job("theirs") for _ in range(ROWS)], acme)
    ours, theirs = await key_of(world, 1, Role.ADMIN), await key_of(world, acme, Role.ADMIN)
    async with served(world.database, auth="on") as page:
        reads = (read_lines(page.client, "/v1/jobs", **key) for key in (ours, theirs) * 3)
        files = await asyncio.gather(*reads)
    for file, name in zip(files, ("ours", "theirs") * 3, strict=True):
        assert [row["name"] for row in file] == [name] * ROWS


@proves("O2")
async def test_an_empty_list_is_a_header_alone_or_an_empty_file(world: World) -> None:
    async with served(world.database) as page:
        text = (await page.client.get("/v1/jobs", params={"format": "csv"})).text
        assert text.count("\r\n") == 1
        assert text.startswith("id,")
        assert (await page.client.get("/v1/jobs", params={"format": "jsonl"})).content == b""


@proves("O2")
async def test_huge_cells_pass_and_make_pages_short(world: World, pages: Pages) -> None:
    texts = ["=1+1", "\r\n=1", "quote \" and ' and ,", "🚀" * 60_000]
    await world.submit_all([job("huge", payload=json.dumps([texts[n % 4], "x" * 250_000]).encode()) for n in range(70)])
    async with served(world.database) as page:
        text = (await page.client.get("/v1/jobs", params={"format": "csv"})).text
    csv.field_size_limit(10_000_000)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(rows) == 70
    assert {json.loads(row["payload"])[0] for row in rows} == set(texts)
    assert pages.asked >= 3, "after 50 of 250 kB come pages of 4 MiB"


def test_pages_grow_by_doubling_and_shrink_with_the_size_of_their_items() -> None:
    assert next_size(50, 50 * 500) == 100
    assert next_size(200, 200 * 500) == PAGE
    assert next_size(50, 50 * 1024 * 1024) == PAGE_BYTES // 1024 // 1024
    assert next_size(1, 20 * PAGE_BYTES) == 1
    assert next_size(0, 40) == PAGE, "a search that found nothing yet goes on"


def test_text_of_any_beginning_is_inert_in_a_spreadsheet() -> None:
    for text in ("=1", "+1", "-1", "@A1", "\t=1", "\r=1", "\n=1", "＝1", "＠A1"):
        assert csv_cell(text) == f"'{text}"
