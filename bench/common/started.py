"""A whole `ondot up` in its own home, for benchmarks and figures: started, watched from outside, stopped."""

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import psutil

BEGINS_WITHIN_S = 120
SERVER_PORTS = range(20_000, 32_768)
"""Below those that Linux (from 32768) and macOS (from 49152) choose for outgoing connections."""
_claims: list[IO[str]] = []
"""Locked files, one for each port that this process was given: kept until it ends."""


@dataclass(frozen=True, slots=True)
class Started:
    url: str
    home: Path
    process: psutil.Process
    took_s: float

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def post(self, path: str, body: object) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    @property
    def database_url(self) -> str:
        return f"postgresql://ondot@/ondot?host={self.home}/run&port=5432"

    def cpu_s(self) -> float:
        """Processor time of everything that was started, PostgreSQL included."""
        total = 0.0
        for process in [self.process, *self.process.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def memory_bytes(self) -> int:
        """Proportional set size if the kernel reports it: shared pages count once."""
        total = 0
        for process in [self.process, *self.process.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return total

    def stop(self, timeout_s: float = 60.0) -> int:
        """Stop it as Ctrl-C or a service manager does; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return int(self.process.wait(timeout_s) or 0)

    def kill(self) -> None:
        """`kill -9` of the whole process group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


def start(home: Path, *flags: str, **settings: str) -> Started:
    """Start `ondot up` in its own process group and wait until it serves."""
    port = free_port()
    began_s = time.monotonic()
    process = psutil.Popen(
        [sys.executable, "-m", "ondot", "up", "--home", str(home), "--port", str(port), *flags],
        env={**{name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}, **settings},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    started = Started(f"http://127.0.0.1:{port}", home, process, 0.0)
    _wait_for(started)
    return replace(started, took_s=time.monotonic() - began_s)


@contextmanager
def ondot_up(*flags: str) -> Iterator[Started]:
    """A whole ondot on an empty home that is removed afterwards."""
    with place() as home:
        started = start(home, *flags)
        try:
            yield started
        finally:
            started.stop()


@contextmanager
def place() -> Iterator[Path]:
    """A home that a server under another account can reach, removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="ondot-bench-", dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        yield directory / "home"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    """A port for a server that starts later, perhaps more than once; no other process that asks here gets it.

    The kernel's own choice would come from the ports of outgoing connections: one that was free took another
    process's connection before PostgreSQL listened ("Address already in use").
    """
    folder = Path(tempfile.gettempdir()) / "ondot-ports"
    folder.mkdir(exist_ok=True)
    while True:
        port = random.choice(SERVER_PORTS)
        claim = (folder / str(port)).open("a")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.create_server(("127.0.0.1", port)):
                pass
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port


def _wait_for(started: Started) -> None:
    deadline_s = time.monotonic() + BEGINS_WITHIN_S
    while time.monotonic() < deadline_s:
        if not started.process.is_running() or started.process.status() == psutil.STATUS_ZOMBIE:
            raise RuntimeError("ondot up ended before it served. See its message above.")
        try:
            started.get("/livez")
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError("ondot up did not answer.")
