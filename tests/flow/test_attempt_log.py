"""What attempts say: the first lines live, the last at the end, all of it in object storage, and in bounded memory."""

import asyncio
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ondot.flow.attempt_log import LAST_LINES, LIVE_CHARACTERS, AttemptLogs
from ondot.flow.lease import Assignment
from ondot.flow.output import open_log
from ondot.model.errors import Unavailable
from ondot.model.ids import DEFAULT_TENANT, WorkerId
from ondot.objects import open_objects
from ondot.ports.objects import Objects
from ondot.store.database import Database
from ondot.store.logs import LogRow, list_log_lines
from ondot.store.queue import Leased
from ondot.targets.output import Output
from tests.proves import proves
from tests.world import World, job

if TYPE_CHECKING:
    from collections.abc import Callable


class Heard:
    """One attempt that talks, and what is kept of it."""

    def __init__(self, world: World, assignment: Assignment, worker_id: WorkerId, objects: Objects | None) -> None:
        self.world = world
        self.assignment = assignment
        self.objects = objects
        self.notes = AttemptLogs(world.database, worker_id, objects)
        self.say = self.notes.speaker(assignment.leased)

    @property
    def leased(self) -> Leased:
        return self.assignment.leased

    async def rows(self) -> list[LogRow]:
        async with self.world.database.connection() as connection:
            return await list_log_lines(connection, DEFAULT_TENANT, self.leased.id, limit=10_000)

    async def lines(self) -> list[str]:
        return [row.line for row in await self.rows()]

    async def whole(self, part: str | None = None) -> list[str]:
        chunks = await open_log(self.world.database, self.objects, DEFAULT_TENANT, self.leased.id, 1, part)
        return b"".join([chunk async for chunk in chunks]).decode().splitlines()


async def an_attempt(world: World, place: Path | None, **settings: Any) -> Heard:
    world.database.settings = world.database.settings.model_copy(update={"home": place, **settings})
    await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    return Heard(world, assignment, worker.id, open_objects(world.database.settings) if place else None)


@proves("E14")
async def test_what_is_said_can_be_read_while_the_attempt_runs(world: World, tmp_path: Path) -> None:
    heard = await an_attempt(world, tmp_path)
    heard.say("stdout", "first")
    heard.say("stderr", "second \x00 \ud800")
    await heard.notes.one_pass()
    assert [(row.stream, row.line) for row in await heard.rows()] == [("stdout", "first"), ("stderr", "second � ?")]
    assert (await heard.whole())[0].endswith("Z stdout first")
    await heard.notes.close(heard.leased)
    assert len(await heard.rows()) == 2


@proves("E14")
async def test_beyond_the_bound_the_last_lines_come_at_the_end_and_the_whole_text_is_an_object(
    world: World, tmp_path: Path
) -> None:
    heard = await an_attempt(world, tmp_path, log_lines=10)
    for n in range(1, 1001):
        heard.say("stdout", f"line {n}")
    await heard.notes.one_pass()
    live = await heard.lines()
    assert live[:10] == [f"line {n}" for n in range(1, 11)]
    assert live[10:] == ["ondot: further lines are written when the attempt ends."]
    await heard.notes.close(heard.leased)
    lines = await heard.lines()
    assert lines[:11] == live
    assert lines[-LAST_LINES:] == [f"line {n}" for n in range(1001 - LAST_LINES, 1001)]
    [told] = lines[11:-LAST_LINES]
    assert told.startswith("ondot: 940 lines are not shown here; the whole text (1,000 lines, ")
    assert [line.split(" ", 2)[2] for line in await heard.whole()] == [f"line {n}" for n in range(1, 1001)]
    [row] = await world.fetch("SELECT * FROM ondot.object")
    assert (row["kind"], row["tenant_no"], row["cut"]) == ("log", DEFAULT_TENANT, False)
    assert row["key"].endswith(f"/{heard.leased.id}/1/log.txt")
    assert row["bytes"] == (tmp_path / "objects" / row["key"]).stat().st_size


@proves("E14")
async def test_a_few_lines_beyond_the_bound_are_all_shown_and_need_no_object(world: World, tmp_path: Path) -> None:
    heard = await an_attempt(world, tmp_path, log_lines=10)
    for n in range(10 + LAST_LINES):
        heard.say("log", f"line {n}")
    await heard.notes.close(heard.leased)
    lines = [line for line in await heard.lines() if not line.startswith("ondot:")]
    assert lines == [f"line {n}" for n in range(10 + LAST_LINES)]
    assert await world.count("object") == 0
    assert len(await heard.whole()) == len(lines) + 1


@proves("E14")
async def test_what_is_too_much_for_object_storage_too_is_cut_and_counted(world: World, tmp_path: Path) -> None:
    heard = await an_attempt(world, tmp_path, log_lines=10, log_bytes=1024 * 1024)
    for _ in range(2_000):
        heard.say("stdout", "x" * 1_000)
    await heard.notes.close(heard.leased)
    [told] = [line for line in await heard.lines() if "not shown" in line]
    kept = len(await heard.whole())
    assert f"({kept:,} lines" in told
    assert f"{2_000 - kept:,} more lines" in told
    assert "ONDOT_LOG_BYTES" in told
    assert await world.value("SELECT cut AND bytes BETWEEN 1047000 AND 1048576 FROM ondot.object")


@proves("E14")
async def test_a_flood_stays_in_bounded_memory(world: World, tmp_path: Path) -> None:
    """By tracemalloc, what Python holds: of 200 MB that were said it is no more than the live lines and a spool."""
    heard = await an_attempt(world, tmp_path, log_bytes=64 * 1024 * 1024)
    output = Output(heard.say)
    line = "x" * 5_000
    tracemalloc.start()
    try:
        for _ in range(40_000):
            output.add("stdout", line)
        output.close()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < LIVE_CHARACTERS * 3
    await heard.notes.close(heard.leased)
    assert await world.value("SELECT bytes < 67108864 FROM ondot.object")
    assert any("more lines" in line and "were cut" in line for line in (await heard.lines())[-LAST_LINES - 1 :])


@proves("E14")
async def test_a_log_that_cannot_be_put_is_cut_and_says_why(world: World, tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("in the way")
    heard = await an_attempt(world, tmp_path, log_lines=10)
    for n in range(100):
        heard.say("stdout", f"line {n}")
    await heard.notes.close(heard.leased)
    lines = await heard.lines()
    assert any("40 lines are not shown here; its whole text was not kept: Object storage at" in line for line in lines)
    assert lines[-1] == "line 99"
    assert await world.count("object") == 0


@proves("E14")
async def test_a_spool_that_cannot_be_written_ends_and_says_why(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = await an_attempt(world, tmp_path, log_lines=10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    for n in range(200):
        heard.say("stdout", f"{n} {'x' * 1_000}")
    await heard.notes.close(heard.leased)
    [told] = [line for line in await heard.lines() if "not shown" in line]
    kept = await heard.whole()
    assert 0 < len(kept) < 100
    assert f"{200 - len(kept)} more lines" in told
    assert "the temporary file cannot be written: No such file or directory" in told
    assert kept[-1].endswith(" stdout " + f"{len(kept) - 1} {'x' * 1_000}")
    assert (await heard.lines())[-1].startswith("199 x")


@proves("E14")
async def test_without_object_storage_the_rest_is_cut_and_said(world: World) -> None:
    heard = await an_attempt(world, None, log_lines=10)
    for n in range(100):
        heard.say("stdout", f"line {n}")
    await heard.notes.close(heard.leased)
    assert any("no object storage" in line for line in await heard.lines())


@proves("E14")
async def test_what_a_thread_says_after_the_end_is_no_longer_kept(world: World, tmp_path: Path) -> None:
    heard = await an_attempt(world, tmp_path)
    heard.say("log", "in time")
    await heard.notes.close(heard.leased)
    heard.say("log", "too late")
    await heard.notes.close(heard.leased)
    assert await heard.lines() == ["in time"]


@proves("E14")
async def test_the_whole_text_is_searched_whatever_its_size(world: World, tmp_path: Path) -> None:
    heard = await an_attempt(world, tmp_path, log_lines=10)
    for n in range(5_000):
        heard.say("stdout", f"stdout {n} {'Grün' if n % 1000 == 999 else ''}")
    assert await heard.whole("grÜN") == []
    await heard.notes.close(heard.leased)
    assert [line.split(" ")[3] for line in await heard.whole("grÜN")] == ["999", "1999", "2999", "3999", "4999"]
    assert await heard.whole("2026-11-15T") == [], "only what was said is searched, not when"


class Away:
    """A database that is away until it is back."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_away = True
        self.meanwhile: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        if name == "connection" and self.is_away:
            self.meanwhile()
            raise Unavailable("PostgreSQL does not answer.")
        return getattr(self._database, name)


@proves("E9", "E14")
async def test_words_and_checkpoints_outlive_a_database_that_is_away(world: World, tmp_path: Path) -> None:
    heard = await an_attempt(world, tmp_path, log_lines=10)
    away = Away(world.database)
    heard.notes._database = away  # type: ignore[assignment]
    for n in range(100):
        heard.say("stdout", f"line {n}")
    heard.notes.progress(heard.leased, 0.25, "quarter", '{"at": 25}')
    away.meanwhile = lambda: heard.notes.progress(heard.leased, 0.5, None, None)
    with pytest.raises(Unavailable):
        await heard.notes.one_pass()
    await heard.notes.close(heard.leased)
    assert await heard.lines() == []
    away.is_away = False
    await heard.notes.one_pass()
    assert len(await heard.lines()) == 10 + 1 + 1 + LAST_LINES
    assert len(await heard.whole()) == 100
    told = await world.execution(heard.leased.id)
    assert (told.progress, told.progress_message, told.checkpoint) == (0.5, "quarter", {"at": 25})


@proves("E14")
async def test_who_closes_an_attempt_waits_for_the_pass_that_has_its_words(world: World, tmp_path: Path) -> None:
    heard = await an_attempt(world, tmp_path)
    heard.say("log", "word")
    async with world.database.transaction() as connection:
        await connection.execute("LOCK TABLE ondot.log IN ACCESS EXCLUSIVE MODE")
        passing = asyncio.create_task(heard.notes.one_pass())
        while heard.notes._pending:
            await asyncio.sleep(0)
        closing = asyncio.create_task(heard.notes.close(heard.leased))
        done, _ = await asyncio.wait({closing}, timeout=0.1)
        assert not done
    await asyncio.gather(passing, closing)
    assert await heard.lines() == ["word"]
