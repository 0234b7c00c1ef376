"""What attempts say while they run: log lines, output and progress, gathered and written in batches (E9, E14).

Progress is written at most once a second for each attempt, by the newest word. Lines are bounded for each attempt; what
was cut is said. Callers may be threads: nothing here awaits but the writing.
"""

import threading
from collections.abc import Iterable
from typing import cast

from ondot.flow.lease import Assignment
from ondot.model.ids import ExecutionId, WorkerId
from ondot.model.job import JobSpec
from ondot.ports.target import Call
from ondot.store.database import Database
from ondot.store.logs import LogLine, Progress, Stream, add_log_lines, find_checkpoint, save_progress
from ondot.store.queue import Leased
from ondot.telemetry.log import get_logger

log = get_logger()

LINES_AN_ATTEMPT = 2_000
LINE_LENGTH = 8_192


class Notes:
    def __init__(self, database: Database, worker_id: WorkerId) -> None:
        self._database = database
        self._worker_id = worker_id
        self._lock = threading.Lock()
        self._lines: list[LogLine] = []
        self._counts: dict[tuple[ExecutionId, int], int] = {}
        self._progress: dict[ExecutionId, Progress] = {}

    def call(self, assignment: Assignment, spec: JobSpec, checkpoint: str | None) -> Call:
        """The call of an attempt, whose words come here."""
        leased = assignment.leased
        return Call(
            execution_id=leased.id,
            job_id=leased.job_id,
            job_name=spec.name,
            attempt_no=leased.attempt_no,
            fire_at=leased.fire_at,
            payload=assignment.payload,
            timeout_s=spec.timeout_s,
            say=lambda stream, line: self.say(leased, stream, line),
            progress=lambda fraction, message, saved: self.progress(leased, fraction, message, saved),
            checkpoint=checkpoint,
        )

    def say(self, leased: Leased, stream: str, line: str) -> None:
        """Keep one line of an attempt."""
        attempt = (leased.id, leased.attempt_no)
        with self._lock:
            number = self._counts.get(attempt, 0) + 1
            self._counts[attempt] = number
            if number > LINES_AN_ATTEMPT + 1:
                return
            if number > LINES_AN_ATTEMPT:
                line = f"… more than {LINES_AN_ATTEMPT} lines: the rest is cut"
            text = line.replace("\x00", "\ufffd").encode(errors="replace").decode()[:LINE_LENGTH]
            now = self._database.clock.now()
            self._lines.append(
                LogLine(leased.id, leased.attempt_no, number, leased.tenant_no, now, cast("Stream", stream), text)
            )

    def progress(self, leased: Leased, fraction: float | None, message: str | None, checkpoint: str | None) -> None:
        """Keep the newest word of an attempt; what it leaves out stays as it was."""
        with self._lock:
            before = self._progress.get(leased.id)
            if before is not None and before.attempt_no == leased.attempt_no:
                fraction = before.progress if fraction is None else fraction
                message = before.message if message is None else message
                checkpoint = before.checkpoint if checkpoint is None else checkpoint
            self._progress[leased.id] = Progress(leased.id, leased.attempt_no, checkpoint, fraction, message)

    async def checkpoint_of(self, leased: Leased) -> str | None:
        """The last checkpoint of an execution that was tried before."""
        if leased.attempt_no == 1:
            return None
        async with self._database.connection() as connection:
            return await find_checkpoint(connection, leased.id)

    async def one_pass(self) -> int:
        """Write what was gathered; what cannot be written now is kept."""
        with self._lock:
            lines, self._lines = self._lines, []
            progress, self._progress = self._progress, {}
        if not lines and not progress:
            return 0
        try:
            async with self._database.connection() as connection:
                if lines:
                    await add_log_lines(connection, lines)
                if progress:
                    await save_progress(connection, self._worker_id, [progress[id_] for id_ in sorted(progress)])
        except BaseException:
            self._keep(lines, progress.values())
            raise
        return 0

    async def close(self, leased: Leased) -> None:
        """Before an attempt is completed: write what it said, so that who sees the end sees the words."""
        attempt = (leased.id, leased.attempt_no)
        if attempt in self._counts or leased.id in self._progress:
            try:
                await self.one_pass()
            except Exception as error:  # noqa: BLE001 - words are kept for the next pass; an outcome waits for none
                log.warning("notes.kept", execution_id=str(leased.id), error=str(error))
            finally:
                with self._lock:
                    self._counts.pop(attempt, None)

    def _keep(self, lines: list[LogLine], progress: Iterable[Progress]) -> None:
        with self._lock:
            self._lines[:0] = lines
            for entry in progress:
                self._progress.setdefault(entry.execution_id, entry)
