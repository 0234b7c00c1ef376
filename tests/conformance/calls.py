"""Calls as a worker makes them, and a recorder of their output."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import psutil

from ondot.model.ids import ExecutionId, JobId
from ondot.model.outcome import Failed, Succeeded
from ondot.ports.target import Call, CallReport

EXECUTION = ExecutionId(UUID("0192f3a1-5b7c-7d3e-8f90-a1b2c3d4e5f6"))
JOB = JobId(UUID("0192f3a1-0000-7000-8000-000000000001"))
PATIENCE_S = 60
"""A failing test waits this long; a busy machine may need many seconds to start a process."""
FIRE_AT = datetime(2030, 1, 31, 9, 0, tzinfo=UTC)


@dataclass
class Recorder:
    """Records the output of an attempt; `line` waits for the first line with some words in it."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    progress: list[tuple[float | None, str | None, str | None]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, stream: str, line: str) -> None:
        self.lines.append((stream, line))
        self._changed.set()

    def report(self, fraction: float | None, message: str | None, checkpoint: str | None) -> None:
        self.progress.append((fraction, message, checkpoint))

    def of(self, stream: str) -> list[str]:
        return [line for said, line in self.lines if said == stream]

    async def line(self, words: str) -> str:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self._changed.clear()
                for _, line in self.lines:
                    if words in line:
                        return line
                await self._changed.wait()

    async def count(self, lines: int) -> None:
        """Return after this many lines. They arrive as fast as the machine can: a flood is never timed."""
        while len(self.lines) < lines:
            self._changed.clear()
            await self._changed.wait()


def a_call(
    recorder: Recorder | None = None, payload: Any = None, timeout_s: float | None = 10.0, **fields: Any
) -> Call:
    recorder = recorder or Recorder()
    return Call(
        execution_id=EXECUTION,
        job_id=JOB,
        job_name=fields.pop("job_name", "report"),
        attempt_no=fields.pop("attempt_no", 3),
        fire_s=FIRE_AT.timestamp(),
        payload=payload if isinstance(payload, bytes) else msgspec.json.encode(payload),
        timeout_s=timeout_s,
        say=recorder.say,
        progress=recorder.report,
        **fields,
    )


def result_of(report: CallReport) -> Any:
    assert isinstance(report, Succeeded), report
    return None if report.result is None else msgspec.json.decode(report.result)


def failure_of(report: CallReport, code: str) -> Failed:
    assert isinstance(report, Failed), report
    assert report.error.code == code, report.error
    assert "\n" not in report.error.message
    return report


async def gone(pid: int) -> None:
    """Return when a process has ended. There is no event for the end of a process that is not our child."""
    async with asyncio.timeout(PATIENCE_S):
        while psutil.pid_exists(pid):
            try:
                if psutil.Process(pid).status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
                    return
            except psutil.NoSuchProcess:
                return
            await asyncio.sleep(0)
