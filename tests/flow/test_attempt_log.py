"""Logs of attempts: the first lines live, the last at the end, the whole in object storage, all in bounded memory."""

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


class Logged:
    """One attempt that logs, and what is stored of it."""

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


async def an_attempt(world: World, place: Path | None, **settings: Any) -> Logged:
    world.database.settings = world.database.settings.model_copy(update={"home": place, **settings})
    await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    return Logged(world, assignment, worker.id, open_objects(world.database.settings) if place else None)


@proves("E14")
async def test_lines_can_be_read_while_the_attempt_runs(world: World, tmp_path: Path) -> None:
    logged = await an_attempt(world, tmp_path)
    logged.say("stdout", "first")
    logged.say("stderr", "second \x00 \ud800")
    await logged.notes.one_pass()
    assert [(row.stream, row.line) for row in await logged.rows()] == [("stdout", "first"), ("stderr", "second � ?")]
    assert (await logged.whole())[0].endswith("Z stdout first")
    await logged.notes.close(logged.leased)
    assert len(await logged.rows()) == 2


@proves("E14")
async def test_beyond_the_bound_the_last_lines_are_written_at_the_end_and_the_whole_log_is_an_object(
    world: World, tmp_path: Path
) -> None:
    logged = await an_attempt(world, tmp_path, log_lines=10)
    for n in range(1, 1001):
        logged.say("stdout", f"line {n}")
    await logged.notes.one_pass()
    live = await logged.lines()
    assert live[:10] == [f"line {n}" for n in range(1, 11)]
    assert live[10:] == ["ondot: further lines are written when the attempt ends."]
    await logged.notes.close(logged.leased)
    lines = await logged.lines()
    assert lines[:11] == live
    assert lines[-LAST_LINES:] == [f"line {n}" for n in range(1001 - LAST_LINES, 1001)]
    [summary] = lines[11:-LAST_LINES]
    assert summary.startswith("ondot: 940 lines are not shown here; the whole text (1,000 lines, ")
    assert [line.split(" ", 2)[2] for line in await logged.whole()] == [f"line {n}" for n in range(1, 1001)]
    [row] = await world.fetch("SELECT * FROM ondot.object")
    assert (row["kind"], row["tenant_no"], row["cut"]) == ("log", DEFAULT_TENANT, False)
    assert row["key"].endswith(f"/{logged.leased.id}/1/log.txt")
    assert row["bytes"] == (tmp_path / "objects" / row["key"]).stat().st_size


@proves("E14")
async def test_a_few_lines_beyond_the_bound_are_all_shown_and_need_no_object(world: World, tmp_path: Path) -> None:
    logged = await an_attempt(world, tmp_path, log_lines=10)
    for n in range(10 + LAST_LINES):
        logged.say("log", f"line {n}")
    await logged.notes.close(logged.leased)
    lines = [line for line in await logged.lines() if not line.startswith("ondot:")]
    assert lines == [f"line {n}" for n in range(10 + LAST_LINES)]
    assert await world.count("object") == 0
    assert len(await logged.whole()) == len(lines) + 1


@proves("E14")
async def test_lines_beyond_the_bound_of_object_storage_are_cut_and_counted(world: World, tmp_path: Path) -> None:
    logged = await an_attempt(world, tmp_path, log_lines=10, log_bytes=1024 * 1024)
    for _ in range(2_000):
        logged.say("stdout", "x" * 1_000)
    await logged.notes.close(logged.leased)
    [summary] = [line for line in await logged.lines() if "not shown" in line]
    kept = len(await logged.whole())
    assert f"({kept:,} lines" in summary
    assert f"{2_000 - kept:,} more lines" in summary
    assert "ONDOT_LOG_BYTES" in summary
    assert await world.value("SELECT cut AND bytes BETWEEN 1047000 AND 1048576 FROM ondot.object")


@proves("E14")
async def test_a_flood_stays_in_bounded_memory(world: World, tmp_path: Path) -> None:
    """By tracemalloc: of 200 MB that were logged, Python holds no more than the live lines and a spool."""
    logged = await an_attempt(world, tmp_path, log_bytes=64 * 1024 * 1024)
    output = Output(logged.say)
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
    await logged.notes.close(logged.leased)
    assert await world.value("SELECT bytes < 67108864 FROM ondot.object")
    assert any("more lines" in line and "were cut" in line for line in (await logged.lines())[-LAST_LINES - 1 :])


@proves("E14")
async def test_a_log_that_cannot_be_stored_is_cut_with_the_reason(world: World, tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("in the way")
    logged = await an_attempt(world, tmp_path, log_lines=10)
    for n in range(100):
        logged.say("stdout", f"line {n}")
    await logged.notes.close(logged.leased)
    lines = await logged.lines()
    assert any("40 lines are not shown here; its whole text was not kept: Object storage at" in line for line in lines)
    assert lines[-1] == "line 99"
    assert await world.count("object") == 0


@proves("E14")
async def test_a_spool_that_cannot_be_written_ends_with_the_reason(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = await an_attempt(world, tmp_path, log_lines=10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    for n in range(200):
        logged.say("stdout", f"{n} {'x' * 1_000}")
    await logged.notes.close(logged.leased)
    [summary] = [line for line in await logged.lines() if "not shown" in line]
    kept = await logged.whole()
    assert 0 < len(kept) < 100
    assert f"{200 - len(kept)} more lines" in summary
    assert "the temporary file cannot be written: No such file or directory" in summary
    assert kept[-1].endswith(" stdout " + f"{len(kept) - 1} {'x' * 1_000}")
    assert (await logged.lines())[-1].startswith("199 x")


@proves("E14")
async def test_without_object_storage_the_rest_is_cut_and_counted(world: World) -> None:
    logged = await an_attempt(world, None, log_lines=10)
    for n in range(100):
        logged.say("stdout", f"line {n}")
    await logged.notes.close(logged.leased)
    assert any("no object storage" in line for line in await logged.lines())


@proves("E14")
async def test_lines_of_a_thread_after_the_end_are_dropped(world: World, tmp_path: Path) -> None:
    logged = await an_attempt(world, tmp_path)
    logged.say("log", "in time")
    await logged.notes.close(logged.leased)
    logged.say("log", "too late")
    await logged.notes.close(logged.leased)
    assert await logged.lines() == ["in time"]


@proves("E14")
async def test_the_whole_log_is_searched_whatever_its_size(world: World, tmp_path: Path) -> None:
    logged = await an_attempt(world, tmp_path, log_lines=10)
    for n in range(5_000):
        logged.say("stdout", f"stdout {n} {'Grün' if n % 1000 == 999 else ''}")
    assert await logged.whole("grÜN") == []
    await logged.notes.close(logged.leased)
    assert [line.split(" ")[3] for line in await logged.whole("grÜN")] == ["999", "1999", "2999", "3999", "4999"]
    assert await logged.whole("2026-11-15T") == [], "only what was said is searched, not when"


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
async def test_lines_and_checkpoints_are_kept_while_the_database_is_away(world: World, tmp_path: Path) -> None:
    logged = await an_attempt(world, tmp_path, log_lines=10)
    away = Away(world.database)
    logged.notes._database = away  # type: ignore[assignment]
    for n in range(100):
        logged.say("stdout", f"line {n}")
    logged.notes.progress(logged.leased, 0.25, "quarter", '{"at": 25}')
    away.meanwhile = lambda: logged.notes.progress(logged.leased, 0.5, None, None)
    with pytest.raises(Unavailable):
        await logged.notes.one_pass()
    await logged.notes.close(logged.leased)
    assert await logged.lines() == []
    away.is_away = False
    await logged.notes.one_pass()
    assert len(await logged.lines()) == 10 + 1 + 1 + LAST_LINES
    assert len(await logged.whole()) == 100
    execution = await world.execution(logged.leased.id)
    assert (execution.progress, execution.progress_message, execution.checkpoint) == (0.5, "quarter", {"at": 25})


@proves("E14")
async def test_closing_an_attempt_waits_for_the_pass_that_has_its_lines(world: World, tmp_path: Path) -> None:
    logged = await an_attempt(world, tmp_path)
    logged.say("log", "word")
    async with world.database.transaction() as connection:
        await connection.execute("LOCK TABLE ondot.log IN ACCESS EXCLUSIVE MODE")
        passing = asyncio.create_task(logged.notes.one_pass())
        while logged.notes._pending:
            await asyncio.sleep(0)
        closing = asyncio.create_task(logged.notes.close(logged.leased))
        done, _ = await asyncio.wait({closing}, timeout=0.1)
        assert not done
    await asyncio.gather(passing, closing)
    assert await logged.lines() == ["word"]
