"""Worker processes of a peer: started, halted while a backlog is made, measured, and ended, all by their own pids."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from peer import MARKS


class Workers:
    """`marks`: where their jobs leave marks; `trouble`: what they wrote to stderr."""

    def __init__(
        self, commands: list[list[str]], directory: Path, environment: Mapping[str, str], ends_within_s: float
    ) -> None:
        self._ends_within_s = ends_within_s
        self.marks = directory / "marks"
        self.marks.mkdir(parents=True)
        self._trouble = directory / "stderr"
        variables = {**os.environ, **environment, MARKS: str(self.marks), "PYTHONPATH": str(Path(__file__).parents[1])}
        with self._trouble.open("wb") as trouble:
            self._processes = [
                psutil.Popen(
                    command,
                    cwd=directory,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=trouble,
                    start_new_session=True,
                )
                for command in commands
            ]

    def check(self) -> None:
        """Raise if one of them has ended by itself."""
        for process in self._processes:
            if (code := process.poll()) is not None:
                raise RuntimeError(f"a worker ended with {code}: {self.trouble() or 'no message'}")

    def trouble(self) -> str:
        """The last line that they wrote to stderr."""
        lines = self._trouble.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def halt(self) -> None:
        """Freeze them while they are warm, so that jobs enqueued now wait until `go_on`."""
        self._send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._send_signal(signal.SIGCONT)

    def _send_signal(self, number: signal.Signals) -> None:
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def family(self) -> list[psutil.Process]:
        return [member for process in self._processes for member in family(process)]

    def end(self) -> None:
        """Stop them gracefully first; then kill the rest by the process groups that were made for them."""
        for process in self._processes:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.terminate()
        psutil.wait_procs(self._processes, timeout=self._ends_within_s)
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


@contextmanager
def working(
    commands: list[list[str]], directory: Path, environment: Mapping[str, str], ends_within_s: float
) -> Iterator[Workers]:
    workers = Workers(commands, directory, environment, ends_within_s)
    try:
        yield workers
    finally:
        workers.end()


def family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def processor_s(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
