"""Days are archived before they go (O1): written, read back, recorded, and only then rewritten."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import aiohttp
import pytest
from aiohttp import web
from started import free_port

from ondot.archive.parquet import BUFFERED_BYTES, Broken, ParquetFiles, check_file, hash_file
from ondot.archive.query import KEYS, query_files
from ondot.cli.errors import NOT_FOUND
from ondot.flow.history.archive import Archive
from ondot.flow.history.rewrite import Rewriting
from ondot.flow.history.show import read_history
from ondot.model.errors import InvalidRequest, Unavailable
from ondot.model.ids import DEFAULT_TENANT, TenantNo, instant_of
from ondot.model.secret import Hidden
from ondot.model.target import HttpTarget
from ondot.objects import open_archive
from ondot.ports.objects import Objects, Stored
from ondot.store.archive import ArchiveFile, list_archive_files, list_columns
from tests.cli.running import ondot
from tests.flow.test_history import KEPT_DAYS, TABLES, age, is_there, keep_for, run_one
from tests.proves import proves
from tests.servers import settings_for
from tests.world import World, failed, job

OTHER = TenantNo(7)


async def rewrite(world: World, files: Objects) -> None:
    rewriting = Rewriting(world.database, Archive(world.database, files))
    while await rewriting.one_pass():
        pass


async def archived(world: World, **which: Any) -> list[ArchiveFile]:
    async with world.database.connection() as connection:
        return await list_archive_files(connection, **which)


async def conditions(world: World) -> list[str]:
    rows = await world.fetch("SELECT message FROM ondot.condition WHERE kind = 'archive'")
    return [row["message"] for row in rows]


def in_directory(path: Path) -> Objects:
    files = open_archive(settings_for("postgresql:///x", archive_url=path.as_uri()))
    assert files is not None
    return files


def list_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("**/*.parquet"))


def query(directory: Path, sql: str) -> list[tuple[Any, ...]]:
    files = {table: sorted((directory / table).glob("**/*.parquet")) for table in KEYS}
    return query_files(sql, files)[1]


class Unsure:
    """Storage in front of another that is away, or keeps only the first half of a file."""

    def __init__(self, files: Objects) -> None:
        self._files = files
        self.is_away = False
        self.cuts = False
        self.place = "unsure:"

    async def put(self, key: str, content: bytes | IO[bytes]) -> None:
        if self.is_away:
            raise Unavailable("it does not answer")
        assert not isinstance(content, bytes)
        whole = content.read()
        await self._files.put(key, whole[: len(whole) // 2] if self.cuts else whole)

    async def get(self, key: str) -> Stored | None:
        return await self._files.get(key)

    async def delete(self, keys: Any) -> None:
        await self._files.delete(keys)


@proves("O1", "T5")
async def test_a_day_is_archived_before_it_goes_and_rows_that_stayed_count_once(world: World, tmp_path: Path) -> None:
    keep_for(world)
    await world.fetch("INSERT INTO ondot.tenant (tenant_no, name) VALUES ($1, 'acme')", OTHER)
    gone = await run_one(world)
    of_other = await run_one(world, tenant_no=OTHER)
    sealed = HttpTarget(url="https://a.example.com", headers={"Authorization": Hidden(sealed="c2VhbGVk", mark="m")})
    await world.submit(job("letter", target=sealed, secrets=(), payload=b'{"n": 1}'))
    worker = await world.worker()
    letter = (await worker.run_one(failed(retryable=False))).leased.id
    files = Unsure(in_directory(tmp_path))
    await age(world, KEPT_DAYS + 2)

    for fault in ("is_away", "cuts"):
        setattr(files, fault, True)
        await rewrite(world, files)
        setattr(files, fault, False)
        assert await is_there(world, gone), "nothing is dropped that was not archived"
        assert not await archived(world)
        assert any("history cannot be archived" in message for message in await conditions(world))

    await rewrite(world, files)
    assert not await conditions(world)
    assert not await is_there(world, gone)
    assert not await is_there(world, of_other, OTHER)
    assert await is_there(world, letter), "an open dead letter stays"
    found = await archived(world)
    assert {(file.parent, file.tenant_no) for file in found} >= {
        (table, tenant_no) for table in ("history", "attempt", "log", "object") for tenant_no in (DEFAULT_TENANT, OTHER)
    }
    [whole] = [file for file in found if file.parent == "history" and file.tenant_no == DEFAULT_TENANT]
    assert whole.rows == 2
    assert whole.key.startswith(f"history/day={whole.day}/tenant=1/")
    assert list_files(tmp_path) == sorted(tmp_path / file.key for file in found), "no half of before is left"
    assert query(tmp_path, f"SELECT state, pool, labels FROM history WHERE id = '{gone}'") == [
        ("SUCCEEDED", "default", None)
    ]
    assert query(tmp_path, f"SELECT line FROM log WHERE execution_id = '{of_other}'") == [("hello",)]
    [(spec,)] = query(tmp_path, "SELECT spec FROM job_once WHERE name = 'letter'")
    assert json.loads(spec)["target"]["headers"] == {"Authorization": "•••"}
    assert b"c2VhbGVk" not in b"".join(path.read_bytes() for path in list_files(tmp_path))

    # The letter is resolved, and goes at last: it is archived again, and counts once.
    await world.fetch(
        "UPDATE ondot.dead_letter SET resolved_at = ondot.clock(), resolution = 'discarded' WHERE execution_id = $1",
        letter,
    )
    await age(world, 10)
    await rewrite(world, files)
    assert not await is_there(world, letter)
    assert len(await archived(world, parent="history", tenant_no=DEFAULT_TENANT)) == 2
    assert query(tmp_path, f"SELECT id FROM history WHERE id = '{letter}'") == [(str(letter),)]
    assert query(tmp_path, "SELECT count(*) FROM history") == [(3,)]
    with pytest.raises(InvalidRequest, match="DuckDB"):
        query(tmp_path, "SELECT * FROM read_text('/etc/passwd'), history")
    for empty in ("", " ; ", "-- only a comment"):
        with pytest.raises(InvalidRequest, match="The query is empty"):
            query(tmp_path, empty)

    # The commands read the same.
    place: dict[str, Any] = {
        "database_url": world.database.settings.needs_database_url,
        "archive_url": tmp_path.as_uri(),
    }
    listed = await asyncio.to_thread(ondot, "archive", "list", "--table", "history", "-o", "jsonl", **place)
    assert [json.loads(line)["rows"] for line in listed.out.splitlines()] == [2, 1, 1]
    counted = await asyncio.to_thread(
        ondot, "archive", "query", "SELECT count(*) AS n FROM history", "--of", "acme", "-o", "jsonl", **place
    )
    assert json.loads(counted.out) == {"n": 1}, counted.err
    verified = await asyncio.to_thread(ondot, "archive", "verify", **place)
    assert (verified.code, verified.out.split()[-2:]) == (0, ["0", "not."]), verified.err
    path = tmp_path / whole.key
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    cut = await asyncio.to_thread(ondot, "archive", "verify", "--table", "history", **place)
    unread = await asyncio.to_thread(ondot, "archive", "query", "SELECT count(*) FROM history", **place)
    path.unlink()
    missing = await asyncio.to_thread(ondot, "archive", "verify", "--table", "history", **place)
    wrong = await asyncio.to_thread(ondot, "archive", "query", "SELECT count(*) FROM history", **place)
    path.write_bytes(data)
    assert (cut.code, missing.code) == (1, 1)
    assert whole.key in cut.err
    assert f"{whole.key} is not what was written" in unread.err, unread
    assert "`ondot archive verify` lists all" in unread.err
    assert f"{whole.key} is not in the archive" in missing.err
    assert "`ondot archive verify` lists all" in wrong.err
    assert wrong.code == NOT_FOUND
    bad = await asyncio.to_thread(ondot, "archive", "query", "SELECT 1 FROM job_once, jobs", **place)
    assert "There are files of: job_once." in bad.err, bad

    # What is removed is gone from the storage and from the list; what is younger stays.
    assert whole.day is not None
    for day, left in (whole.day - timedelta(days=1), len(list_files(tmp_path))), (whole.day, 0):
        asked = await asyncio.to_thread(ondot, "archive", "remove", "--until", str(day), "--yes", **place)
        assert (asked.code, len(list_files(tmp_path)), len(await archived(world))) == (0, left, left), asked


@contextmanager
def an_s3() -> Iterator[str]:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@asynccontextmanager
async def a_network(upstream: str, lose: list[str]) -> AsyncIterator[str]:
    """A proxy that drops the connection of a request whose method is in `lose`, once for each entry."""

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        async with session.request(
            request.method, upstream + request.path_qs, data=body, headers=request.headers, allow_redirects=False
        ) as answer:
            data = await answer.read()
            if request.method in lose:
                # The server has done it; the answer is lost.
                lose.remove(request.method)
                assert request.transport is not None
                request.transport.close()
            headers = {
                name: value for name, value in answer.headers.items() if name.lower() in {"etag", "last-modified"}
            }
            if request.method == "HEAD":
                headers["content-length"] = answer.headers.get("content-length", "0")
            return web.Response(status=answer.status, body=data, headers=headers, content_type=answer.content_type)

    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{path:.*}", handle)
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        try:
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()


@proves("O1")
async def test_an_s3_that_loses_a_request_gets_the_day_all_the_same_and_one_that_is_gone_keeps_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_for(world)
    gone = await run_one(world)
    lose = ["PUT", "GET"]
    with an_s3() as upstream:
        async with a_network(upstream, lose) as url, aiohttp.ClientSession() as session:
            for name, value in {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
            }.items():
                monkeypatch.setenv(name, value)
            async with asyncio.timeout(60):
                while True:
                    try:
                        async with session.put(f"{upstream}/ondot") as answer:
                            assert answer.status == 200
                        break
                    except aiohttp.ClientConnectionError:
                        await asyncio.sleep(0.1)
            files = open_archive(settings_for("postgresql:///x", archive_url="s3://ondot/archive"))
            assert files is not None
            await age(world, KEPT_DAYS + 2)
            await rewrite(world, files)
            assert lose == []
            assert not await is_there(world, gone)
            kept = await run_one(world)
            found = await archived(world, parent="history")
            assert [file.rows for file in found] == [1]
            assert await files.get(found[0].key) is not None
    await age(world, KEPT_DAYS + 2)
    monkeypatch.setattr("ondot.objects.obstore.ARCHIVE_WITHIN_S", 2.0)
    away = open_archive(settings_for("postgresql:///x", archive_url="s3://ondot/archive"))
    assert away is not None
    await rewrite(world, away)
    assert await is_there(world, kept)
    assert await conditions(world)
    view = await read_history(world.database)
    assert view.next_day == instant_of(kept).date()
    assert view.next_at is not None
    assert view.next_at < view.now
    assert "cannot be archived to s3://ondot/archive, and are kept" in view.troubles[0]


@proves("O1")
def test_files_are_written_in_bounded_groups_and_a_changed_byte_is_found(tmp_path: Path) -> None:
    types = {"id": "uuid", "tenant_no": "integer", "result": "json"}
    files = ParquetFiles(tmp_path, types, ["id"], {"ondot.table": "history"})
    rows = [{"id": f"{n:032x}", "tenant_no": 1 + n % 2, "result": f'"{n}"' * 200} for n in range(100)]
    files.add(rows)
    written = files.close()
    assert {tenant_no: (file.rows, *check_file(file.path)) for tenant_no, file in written.items()} == {
        tenant_no: (50, 50, file.keys) for tenant_no, file in written.items()
    }
    path = written[1].path
    data = bytearray(path.read_bytes())
    for place in (10, len(data) // 2, len(data) - 30):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        assert hash_file(path) != written[1].digest
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(Broken):
        check_file(path)
    assert BUFFERED_BYTES <= 64 * 1024 * 1024


@proves("O1")
async def test_the_documented_columns_and_keys_are_those_of_the_tables(world: World) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/archive.md").read_text()
    documented = {
        found[1]: re.findall(r"`(\w+)`", found[2]) for found in re.finditer(r"^\| `(\w+)` \| (`.*) \|$", page, re.M)
    }
    assert set(documented) == set(KEYS) == set(TABLES)
    async with world.database.connection() as connection:
        for table, keys in KEYS.items():
            columns = await list_columns(connection, table)
            names = [column.name for column in columns]
            assert documented[table] == [*names, "pool"] if "pool_no" in names else names
            places = {column.key_place: column.name for column in columns if column.key_place is not None}
            assert [places[place] for place in sorted(places)] == list(keys)
