"""The logs of running attempts: lines, output and progress, gathered and written in batches (E9, E14).

Progress is written at most once a second for each attempt, the newest only. The first lines of an attempt
(`ONDOT_LOG_LINES`) go to the database as they arrive, so that they can be followed. After these only its last lines do,
when it ends. Its whole log, spooled to a temporary file from the first line (up to `ONDOT_LOG_BYTES`), is then put into
object storage. Lines that are cut are counted in the log. Callers may be threads: only the writing awaits.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import cast

from ondot.flow.spool import Spool, as_text
from ondot.model.errors import Unavailable
from ondot.model.ids import ExecutionId, WorkerId
from ondot.ports.objects import Objects, key_of
from ondot.store.connection import DATABASE_ERROR, is_about_content
from ondot.store.database import Database
from ondot.store.logs import LogLine, Progress, Stream, add_log_lines, find_checkpoint, save_progress
from ondot.store.objects import ObjectRow, add_objects
from ondot.store.queue import Leased
from ondot.telemetry.log import get_logger

log = get_logger()

LINE_LENGTH = 16_384
"""No line is longer; targets cut at half of it, and mark the cut."""
LAST_LINES = 50
LIVE_CHARACTERS = 512 * 1024
"""Of one attempt in the database, before its last lines: long lines count as much as many short ones."""
PENDING_CHARACTERS = 64 * 1024 * 1024
"""Of all attempts, not yet written: while the database is away, no more is kept in memory; the rest is spooled."""
LINES_A_STATEMENT = 2_000


@dataclass(slots=True)
class _Lines:
    """The log of one attempt. `last`: None while its lines go to the database at once, later the newest lines, which
    wait for its end; `beyond` counts the lines since then."""

    leased: Leased
    spool: Spool
    numbered: int = 0
    characters: int = 0
    last: deque[tuple[datetime, str, str]] | None = None
    beyond: int = 0
    closed: bool = False


@dataclass(slots=True)
class _Pending:
    """Rows to be written next."""

    lines: list[LogLine] = field(default_factory=list)
    characters: int = 0
    objects: list[ObjectRow] = field(default_factory=list)
    progress: dict[ExecutionId, Progress] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.lines or self.objects or self.progress)


class AttemptLogs:
    def __init__(self, database: Database, worker_id: WorkerId, objects: Objects | None = None) -> None:
        self._database = database
        self._worker_id = worker_id
        self._objects = objects
        self._lock = threading.Lock()
        self._writing = asyncio.Lock()
        self._attempts: dict[tuple[ExecutionId, int], _Lines] = {}
        self._pending = _Pending()

    # Gathering -------------------------------------------------------------------------------------------------------

    def say(self, leased: Leased, stream: str, line: str) -> None:
        """Keep one line of an attempt that has not been closed."""
        attempt = (leased.id, leased.attempt_no)
        with self._lock:
            lines = self._attempts.get(attempt)
            if lines is None:
                lines = self._attempts[attempt] = _Lines(leased, Spool(self._database.settings.log_bytes))
            self._add(lines, stream, line)

    def progress(self, leased: Leased, fraction: float | None, message: str | None, checkpoint: str | None) -> None:
        """Keep the newest progress of an attempt; fields that are None keep their value."""
        with self._lock:
            newest = Progress(leased.id, leased.attempt_no, checkpoint, fraction, message)
            self._pending.progress[leased.id] = _later(self._pending.progress.get(leased.id), newest)

    async def checkpoint_of(self, leased: Leased) -> str | None:
        """The last checkpoint of an execution that was tried before."""
        if leased.attempt_no == 1:
            return None
        async with self._database.connection() as connection:
            return await find_checkpoint(connection, leased.id)

    def speaker(self, leased: Leased) -> Callable[[str, str], None]:
        """Adds lines of one attempt, and nothing after its end: a thread that was left behind may go on."""
        lines: _Lines | None = None

        def speak(stream: str, line: str) -> None:
            nonlocal lines
            if lines is None:
                self.say(leased, stream, line)
                lines = self._attempts.get((leased.id, leased.attempt_no))
                return
            with self._lock:
                if not lines.closed:
                    self._add(lines, stream, line)

        return speak

    def _add(self, lines: _Lines, stream: str, line: str) -> None:
        line = line[:LINE_LENGTH]
        if not line.isascii() or "\x00" in line:
            line = line.replace("\x00", "\ufffd").encode(errors="replace").decode()
        now = self._database.clock.now()
        lines.spool.add(as_text(now, stream, line))
        if lines.last is None:
            lines.characters += len(line)
            if (
                lines.numbered < self._database.settings.log_lines
                and lines.characters <= LIVE_CHARACTERS
                and self._pending.characters <= PENDING_CHARACTERS
            ):
                self._append(lines, now, stream, line)
                return
            lines.last = deque(maxlen=LAST_LINES)
            self._append(lines, now, "log", "ondot: further lines are written when the attempt ends.")
        lines.beyond += 1
        # Not a LogLine yet: nearly all lines of a flood are never written, and each would cost the loop time.
        lines.last.append((now, stream, line))

    def _append(self, lines: _Lines, at: datetime, stream: str, line: str) -> None:
        lines.numbered += 1
        leased = lines.leased
        self._pending.lines.append(
            LogLine(leased.id, leased.attempt_no, lines.numbered, leased.tenant_no, at, cast("Stream", stream), line)
        )
        self._pending.characters += len(line)

    # Writing ---------------------------------------------------------------------------------------------------------

    async def one_pass(self) -> int:
        """Write the gathered rows; those that cannot be written now are kept."""
        # One at a time: close() must not overtake a pass that has taken the lines and has not written them yet.
        async with self._writing:
            with self._lock:
                taken, self._pending = self._pending, _Pending()
            if taken:
                try:
                    await self._write(taken)
                except BaseException:
                    self._keep(taken)
                    raise
        return 0

    def has_lines_of(self, leased: Leased) -> bool:
        """Whether there is anything to be written before the attempt is completed."""
        return (leased.id, leased.attempt_no) in self._attempts or leased.id in self._pending.progress

    async def close(self, leased: Leased) -> None:
        """Write the log of an attempt before it is completed, so that it is there when the end shows."""
        with self._lock:
            lines = self._attempts.pop((leased.id, leased.attempt_no), None)
            if lines is not None:
                lines.closed = True
            nothing = lines is None and leased.id not in self._pending.progress
        if nothing:
            return
        try:
            if lines is not None:
                await self._end(lines)
            await self.one_pass()
        except Exception as error:  # noqa: BLE001 - the lines are kept for the next pass; an outcome does not wait
            log.warning("notes.kept", execution_id=str(leased.id), error=str(error))
        finally:
            if lines is not None:
                lines.spool.close()

    async def _end(self, lines: _Lines) -> None:
        """Add the last lines of a long log, and before them a line about those that are left out."""
        if lines.last is None:
            return
        hidden = lines.beyond - len(lines.last)
        whole = "its whole text was not kept: the worker stopped"
        try:
            if hidden:
                whole = await self._put(lines)
        finally:
            with self._lock:
                if hidden:
                    line = f"ondot: {hidden:,} lines are not shown here; {whole}."
                    self._append(lines, lines.last[0][0], "log", line)
                for at, stream, line in lines.last:
                    self._append(lines, at, stream, line)

    async def _put(self, lines: _Lines) -> str:
        """Put the whole log into object storage; returns where it is, or why it is not there."""
        if self._objects is None:
            return "this process has no object storage for its whole text"
        leased, spool = lines.leased, lines.spool
        key = key_of(leased.tenant_no, leased.id, leased.attempt_no, "log")
        try:
            await self._objects.put(key, spool.content())
        except (Unavailable, OSError) as error:
            log.warning("log.cut", execution_id=str(leased.id), attempt=leased.attempt_no, error=str(error))
            return f"its whole text was not kept: {str(error).rstrip('.')}"
        row = ObjectRow(
            leased.id, leased.attempt_no, "log", leased.tenant_no, key, spool.bytes, cut=bool(spool.cut_lines)
        )
        with self._lock:
            self._pending.objects.append(row)
        stored = f"the whole text ({spool.lines:,} lines, {spool.bytes:,} bytes) is in object storage (whole=true)"
        return f"{stored}; {spool.cut_message}" if spool.cut_lines else stored

    async def _write(self, taken: _Pending) -> None:
        async with self._database.connection() as connection:
            for start in range(0, len(taken.lines), LINES_A_STATEMENT):
                lines = taken.lines[start : start + LINES_A_STATEMENT]
                await _or_dropped(add_log_lines(connection, lines), "lines", len(lines))
            if taken.objects:
                await _or_dropped(add_objects(connection, taken.objects), "objects", len(taken.objects))
            if taken.progress:
                newest = [taken.progress[id_] for id_ in sorted(taken.progress)]
                await _or_dropped(save_progress(connection, self._worker_id, newest), "progress", len(newest))

    def _keep(self, taken: _Pending) -> None:
        with self._lock:
            self._pending.lines[:0] = taken.lines
            self._pending.characters += taken.characters
            self._pending.objects[:0] = taken.objects
            for id_, entry in taken.progress.items():
                newer = self._pending.progress.get(id_)
                self._pending.progress[id_] = entry if newer is None else _later(entry, newer)


def _later(before: Progress | None, newest: Progress) -> Progress:
    """The newest progress of an attempt; fields that are None keep the value of before."""
    if before is None or before.attempt_no != newest.attempt_no:
        return newest
    return replace(
        newest,
        progress=before.progress if newest.progress is None else newest.progress,
        message=before.message if newest.message is None else newest.message,
        checkpoint=before.checkpoint if newest.checkpoint is None else newest.checkpoint,
    )


async def _or_dropped(writing: Awaitable[None], what: str, count: int) -> None:
    """Drop rows that PostgreSQL will never accept: kept, they would block the logs of all other attempts for ever."""
    try:
        await writing
    except (DATABASE_ERROR, ValueError) as error:
        if not is_about_content(error):
            raise
        log.warning("notes.dropped", what=what, count=count, error=str(error)[:500])
