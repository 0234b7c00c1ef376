"""Programs whose worker dies, by signals that cannot be caught; the worker is a real process, see `guarded`."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec
import psutil
import pytest

from ondot.model.target import ShellTarget
from ondot.targets.processes import guard_main
from ondot.targets.processes.descendants import MARK
from ondot.targets.processes.guard import Guard
from ondot.targets.shell import ShellCaller
from tests.conformance.calls import a_call, failure_of, gone
from tests.proves import proves

DAEMON = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("daemon", os.getpid(), flush=True)
        for fd in (0, 1, 2):
            os.close(fd)
        signal.pause()
    os._exit(0)
os.wait()
"""


class Worker:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def run(self, *words: str) -> None:
        self._send(words)

    async def fork(self) -> int:
        self._send("fork")
        return int((await self.line("forked")).split()[1])

    async def line(self, beginning: str) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            while line := (await asyncio.to_thread(self.process.stdout.readline)).decode():
                if line.startswith(beginning):
                    return line.strip()
        raise AssertionError("the worker has ended")

    async def pid(self, name: str) -> int:
        return int((await self.line(name)).split()[1])

    def guard(self) -> int:
        [guard] = [
            child.pid
            for child in psutil.Process(self.process.pid).children()
            if child.status() != psutil.STATUS_ZOMBIE and "ondot.targets.processes.guard_main" in child.cmdline()
        ]
        return guard

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)

    def _send(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(message) + b"\n")
        self.process.stdin.flush()


@pytest.fixture
def worker() -> Iterator[Worker]:
    words = (sys.executable, "-m", "tests.targets.guarded")
    root = Path(__file__).parents[2]
    with subprocess.Popen(words, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Worker(process)
        process.kill()


def alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def listening(guard: int) -> None:
    """Returns when a guard has seen that its worker lives: then its pipe does not block any more."""
    async with asyncio.timeout(20):
        while not _flags(guard) & os.O_NONBLOCK:
            await asyncio.sleep(0)


def _flags(guard: int) -> int:
    [flags] = [line for line in Path(f"/proc/{guard}/fdinfo/0").read_text().splitlines() if line.startswith("flags:")]
    return int(flags.split()[1], 8)


@proves("E6", "E7")
async def test_a_program_and_all_its_processes_are_gone_when_its_worker_is_killed(worker: Worker) -> None:
    worker.run("sh", "-c", f"echo program $$; sleep 1000 & echo child $!; {sys.executable} -c '{DAEMON}'; wait")
    pids = [await worker.pid(name) for name in ("program", "child", "daemon")]
    assert all(alive(pid) for pid in pids)
    guard = worker.guard()
    worker.kill()
    for pid in (*pids, guard):
        await gone(pid)


@proves("E6", "T4")
async def test_the_directory_of_a_program_is_removed_when_its_worker_is_killed(worker: Worker) -> None:
    worker.run("sh", "-c", "echo x > left; echo program $$; echo scratch $TMPDIR; exec sleep 1000")
    program = await worker.pid("program")
    scratch = (await worker.line("scratch")).split()[1]
    guard = worker.guard()
    worker.kill()
    await gone(program)
    await gone(guard)
    assert not os.path.exists(scratch)  # noqa: ASYNC240, PTH110


@proves("E6", "E7")
async def test_a_program_that_wiped_its_environment_is_gone_too(worker: Worker) -> None:
    worker.run("env", "-i", "sh", "-c", "echo program $$; sleep 1000 & echo child $!; exec sleep 1000")
    pids = [await worker.pid(name) for name in ("program", "child")]
    worker.kill()
    for pid in pids:
        await gone(pid)


@proves("E6", "E7")
async def test_of_many_that_are_being_started_when_the_worker_is_killed_none_is_left(worker: Worker) -> None:
    word = f"many-{uuid4()}"
    for _ in range(100):
        worker.run("sh", "-c", "echo program $$; sleep 1000; :", word)
    await worker.line("program")
    guard = worker.guard()
    worker.kill()
    await gone(guard)
    left = [process.pid for process in psutil.process_iter(["cmdline"]) if word in (process.info["cmdline"] or ())]
    assert not left


@proves("E6", "E7")
async def test_a_process_that_the_worker_forked_does_not_keep_its_programs_alive(worker: Worker) -> None:
    worker.run("sh", "-c", "echo program $$; exec sleep 1000")
    program = await worker.pid("program")
    forked = await worker.fork()
    await listening(worker.guard())
    try:
        worker.kill()
        await gone(program)
        assert alive(forked)
    finally:
        os.kill(forked, signal.SIGKILL)


@proves("E6")
async def test_a_signal_to_the_whole_unit_does_not_stop_the_guard(worker: Worker) -> None:
    worker.run("sh", "-c", "echo program $$; exec sleep 1000")
    program, guard = await worker.pid("program"), worker.guard()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(guard, number)
    worker.kill()
    await gone(program)


@proves("E6")
async def test_a_guard_that_was_killed_is_replaced_and_the_next_one_knows_all_programs(worker: Worker) -> None:
    worker.run("sh", "-c", "echo first $$; exec sleep 1000")
    first, guard = await worker.pid("first"), worker.guard()
    os.kill(guard, signal.SIGKILL)
    await gone(guard)
    worker.run("sh", "-c", "echo second $$; exec sleep 1000")
    second = await worker.pid("second")
    assert worker.guard() != guard
    assert alive(first)
    worker.kill()
    await gone(first)
    await gone(second)


@proves("E7")
async def test_processes_that_a_finished_program_left_in_the_background_stay(worker: Worker) -> None:
    worker.run(sys.executable, "-c", DAEMON)
    daemon = await worker.pid("daemon")
    try:
        assert await worker.line("report") == "report Succeeded"
        guard = worker.guard()
        worker.kill()
        await gone(guard)
        assert alive(daemon)
    finally:
        os.kill(daemon, signal.SIGKILL)


@proves("E6")
async def test_a_program_outlives_the_thread_that_started_it_and_its_guard() -> None:
    guard, mark = Guard(), uuid4().hex

    def start() -> subprocess.Popen[bytes]:
        guard.hold(mark)
        program = subprocess.Popen(
            ("cat",),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, MARK: mark},
            start_new_session=True,
        )
        guard.hold(mark, program.pid)
        return program

    program = await asyncio.to_thread(lambda: asyncio.run(asyncio.to_thread(start)))
    out, _ = await asyncio.to_thread(program.communicate, b"still here", 20)
    assert out == b"still here"
    assert program.returncode == 0
    guard.release(mark)


@proves("E6")
async def test_a_guard_that_is_no_longer_needed_ends_and_is_waited_for() -> None:
    mine = psutil.Process()
    before = {child.pid for child in mine.children()}
    caller = ShellCaller(allow=True)
    await caller.call(ShellTarget(command=("true",)), a_call())
    [guard] = [child.pid for child in mine.children() if child.pid not in before]
    await caller.call(ShellTarget(command=("true",)), a_call())
    assert {child.pid for child in mine.children()} - before == {guard}
    del caller
    async with asyncio.timeout(20):
        while psutil.pid_exists(guard):
            await asyncio.sleep(0)


@proves("E4")
async def test_without_a_guard_no_program_is_started_and_it_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    made = tmp_path / "made"
    report = await ShellCaller(allow=True).call(ShellTarget(command=("touch", str(made))), a_call())
    failed = failure_of(report, "not_started")
    assert failed.retryable
    assert "its guard could not be started" in failed.error.message
    assert not made.exists()


@proves("E6")
@pytest.mark.parametrize("is_reused", [True, False])
def test_a_stranger_that_was_given_the_process_id_of_a_program_is_not_killed(
    monkeypatch: pytest.MonkeyPatch, *, is_reused: bool
) -> None:
    stranger = subprocess.Popen(("cat",), stdin=subprocess.PIPE, start_new_session=True)
    programs = guard_main.Programs()
    with monkeypatch.context() as patched:
        if is_reused:
            # Ids come round after thousands of processes: only the start time differs.
            patched.setattr(guard_main, "start_of", lambda pid: 1)
        programs.feed(f"{guard_main.HOLD} {uuid4().hex} {stranger.pid}\n".encode())
    programs.kill()
    stranger.communicate(timeout=20)
    assert stranger.returncode == (0 if is_reused else -signal.SIGKILL)
