"""The supervisor as a process, with small scripts as children: in which order and how fast it stops them, and that
files in the current directory do not shadow packages.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ondot.roles.signs import Signs, show_life
from ondot.roles.supervise import role_argv
from ondot.roles.up import UpOptions, children
from ondot.settings import load_settings
from tests.proves import proves

PARENT = """
import sys
from ondot.roles.supervise import Child, StopSignals, Supervisor

def show(kind):
    print("waiting for", kind, flush=True)

script, timeout_s, *names = sys.argv[1:]
children = [Child(name, name.partition("-")[0], [sys.executable, script, name]) for name in names]
supervisor = Supervisor(children, {}, float(timeout_s), StopSignals(), report_waiting=show)
supervisor.start()
sys.exit(supervisor.run())
"""
CHILD = """
import signal, sys
name = sys.argv[1]
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
import os
print("ready", name, os.getpid(), flush=True)
signal.sigwait({signal.SIGTERM})
print("asked", name, flush=True)
if "busy" in name:
    signal.sigwait({signal.SIGUSR1})
print("ended", name, flush=True)
"""

HANGS = """
import atexit, os, re, signal, sys, time
from ondot.roles.signs import show_life
name = sys.argv[1]
show_life(int(sys.argv[-1]))
print("ready", name, os.getpid(), flush=True)
if os.path.exists(name):
    signal.pause()
open(name, "w").close()
if name == "worker-regex":
    re.match(r"(a+)+$", "a" * 60 + "b")
if name == "worker-exit":
    atexit.register(signal.pause)
else:
    signal.pause()
"""
IMPATIENT = PARENT.replace("report_waiting=show)", "report_waiting=show, hung_after_s=3.0, look_every_s=0.5)")


class Supervised:
    """What the supervisor and its children say, line by line, on one pipe."""

    def __init__(self, process: "subprocess.Popen[str]", names: Sequence[str]) -> None:
        self.process = process
        ready = [self.line().split() for _ in names]
        self.pids = {name: int(pid) for _, name, pid in ready}

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def lines(self, count: int) -> set[str]:
        return {self.line() for _ in range(count)}

    def let_end(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGUSR1)


@contextmanager
def supervised(
    directory: Path, *names: str, timeout_s: float = 60, parent: str = PARENT, child: str = CHILD
) -> Iterator[Supervised]:
    script = directory / "child.py"
    script.write_text(child)
    with subprocess.Popen(
        [sys.executable, "-c", parent, str(script), str(timeout_s), *names],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Supervised(process, names)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@proves("O6")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_workers_are_asked_to_stop_at_once_and_the_other_kinds_after_them(
    tmp_path: Path, number: signal.Signals
) -> None:
    with supervised(tmp_path, "worker-busy-1", "worker-busy-2", "scheduler", "api") as up:
        os.kill(up.process.pid, number)
        # Neither ends before it may: the second is asked though the first still runs.
        assert up.lines(2) == {"asked worker-busy-1", "asked worker-busy-2"}
        assert up.line() == "waiting for worker"
        up.let_end("worker-busy-2")
        assert up.line() == "ended worker-busy-2"
        up.let_end("worker-busy-1")
        assert [up.line() for _ in range(5)] == [
            "ended worker-busy-1",
            "asked scheduler",
            "ended scheduler",
            "asked api",
            "ended api",
        ]
        assert up.process.wait(30) == 0


@proves("O6")
def test_one_deadline_is_for_all_workers_and_those_that_exceed_it_are_killed(tmp_path: Path) -> None:
    names = [f"worker-busy-{number}" for number in range(4)]
    with supervised(tmp_path, *names, timeout_s=0.1) as up:
        os.kill(up.process.pid, signal.SIGTERM)
        assert up.process.wait(30) == 1
        assert up.process.stdout
        said = up.process.stdout.read()
        assert [said.count(f"child={name}") for name in names] == [1, 1, 1, 1]
        assert "ended" not in said


@proves("P13", "O6")
@pytest.mark.parametrize("name", ["worker-stopped", "worker-regex", "worker-exit"])
def test_a_child_of_which_no_thread_runs_is_replaced(tmp_path: Path, name: str) -> None:
    with supervised(tmp_path, name, "worker-well", parent=IMPATIENT, child=HANGS) as up:
        well = up.pids["worker-well"]
        if name == "worker-stopped":
            os.kill(up.pids[name], signal.SIGSTOP)
        said = up.line()
        while not said.startswith("ready"):
            said = up.line()
        _, again, pid = said.split()
        assert again == name
        assert int(pid) != up.pids[name]
        os.kill(well, 0)


@proves("P13")
def test_a_process_has_shown_life_before_its_own_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ondot.roles.signs.threading.Thread.start", lambda _: None)  # stopped before it begins
    monkeypatch.setattr("ondot.roles.signs.faulthandler.enable", lambda **_: None)
    reader, writer = os.pipe()
    try:
        show_life(writer)
        assert os.read(reader, 1)
    finally:
        os.close(reader)
        os.close(writer)


@proves("P13", "O6")
def test_children_that_were_stopped_together_with_their_supervisor_go_on(tmp_path: Path) -> None:
    signs = Signs(os.open(os.devnull, os.O_RDONLY))
    signs.look(60.0)
    assert signs.silent_s == 0, "one that has shown no life yet is not judged"
    signs.close()
    with supervised(tmp_path, "worker-1", "worker-2", parent=IMPATIENT, child=HANGS) as up:
        os.killpg(up.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, up.process.pid, os.WSTOPPED)
        time.sleep(4)  # longer than it takes to be judged: time itself is what is tried here
        os.killpg(up.process.pid, signal.SIGCONT)
        time.sleep(1.5)
        for pid in up.pids.values():
            os.kill(pid, 0)
        assert up.process.poll() is None


@proves("O6")
def test_kinds_that_are_stopped_later_have_their_moment_though_one_before_them_used_up_the_time(tmp_path: Path) -> None:
    with supervised(tmp_path, "worker-busy", "scheduler", "api", timeout_s=0.1) as up:
        os.kill(up.process.pid, signal.SIGTERM)
        assert up.process.wait(30) == 1
        assert up.process.stdout
        said = up.process.stdout.read()
        assert "ended scheduler" in said
        assert "ended api" in said


@proves("O6")
def test_a_second_signal_ends_the_waiting_once_that_is_shown(tmp_path: Path) -> None:
    with supervised(tmp_path, "worker-busy", "api-busy") as up:
        os.kill(up.process.pid, signal.SIGINT)
        assert [up.line(), up.line()] == ["asked worker-busy", "waiting for worker"]
        os.kill(up.process.pid, signal.SIGINT)
        assert up.process.wait(30) == 1


@proves("O6")
def test_a_stop_without_work_shows_nothing(tmp_path: Path) -> None:
    with supervised(tmp_path, "worker-1", "worker-2") as up:
        os.kill(up.process.pid, signal.SIGTERM)
        assert up.lines(4) == {f"{what} worker-{number}" for what in ("asked", "ended") for number in (1, 2)}
        assert up.process.wait(30) == 0
        assert up.line() == ""


def test_up_stops_its_workers_together_then_the_scheduler_then_the_api() -> None:
    kinds = [child.kind for child in children(load_settings(), UpOptions(workers=3))]
    assert kinds == ["worker", "worker", "worker", "scheduler", "api"]


@proves("O6")
@pytest.mark.parametrize("module", ["typer", "ondot"])
def test_a_role_does_not_take_a_file_of_the_current_directory_for_a_package(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("raise RuntimeError('not this one')\n")
    done = subprocess.run(role_argv("version"), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_worker_finds_the_app_of_the_current_directory_also_when_it_starts_again(tmp_path: Path) -> None:
    """The app ends the process as soon as it is imported for the second time, after one `execv`."""
    (tmp_path / "shop.py").write_text(
        "import os, sys\n"
        "from ondot import Ondot\n"
        "from ondot.roles.process import start_again\n"
        "app = Ondot()\n"
        "print('imported', sys.flags.safe_path, flush=True)\n"
        "if os.environ.pop('FIRST', None):\n"
        "    start_again()\n"
        "os._exit(7)\n"
    )
    environment = os.environ | {"FIRST": "1", "ONDOT_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/x"}
    argv = role_argv("worker", "shop:app")
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.count("imported True")) == (7, 2), done.stderr
