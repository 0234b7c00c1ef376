"""Roles as separate processes on a separate PostgreSQL, for benchmarks: started, measured from outside, ended.

The server is the embedded one with its own settings (`fsync` and `synchronous_commit` on), or the one that
ONDOT_BENCH_DATABASE_URL names: an empty database that may be filled. Started processes are ended by their pid.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import psutil
from started import free_port, place
from structlog.testing import capture_logs

from ondot.embedded.server import EmbeddedPostgres
from ondot.flow.days import make_days
from ondot.settings import load_settings
from ondot.store.database import open_database
from ondot.store.migrate import migrate_up

HERE = Path(__file__).resolve().parent
APP = "handlers:app"
BEGINS_WITHIN_S = 60.0
GIVEN_URL = os.environ.pop("ONDOT_BENCH_DATABASE_URL", None)
"""Removed from the environment: ondot rejects ONDOT_ variables that it does not know."""


@dataclass(slots=True)
class Fleet:
    """`url`: of the database. A process's kind is the name of its role."""

    url: str
    postmaster: psutil.Process | None
    directory: Path
    members: list[tuple[str, psutil.Popen]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    """Of every role that is started from now on, and of clients, e.g. ONDOT_TRANSPORT."""

    def start(self, role: str, *words: str, **settings: str) -> psutil.Popen:
        """Start `ondot <role> <words>`; settings as environment, e.g. ONDOT_SLOTS="1000"."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
        ours = {"ONDOT_DATABASE_URL": self.url, "ONDOT_LOG_LEVEL": "warning", "ONDOT_LOG_FORMAT": "json"}
        path = os.pathsep.join([str(HERE), *filter(None, [kept.get("PYTHONPATH")])])
        process = psutil.Popen(
            [sys.executable, "-m", "ondot", role, *words],
            env=kept | ours | self.settings | settings | {"PYTHONPATH": path},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self.members.append((role, process))
        return process

    def scheduler(self, **settings: str) -> psutil.Popen:
        return self.start("scheduler", **settings)

    def worker(self, *words: str, processes: int = 1, slots: int = 1000, **settings: str) -> psutil.Popen:
        return self.start("worker", "--processes", str(processes), "--slots", str(slots), *words, APP, **settings)

    def api(self, **settings: str) -> str:
        """Start an API, by default one that requires no key; return its URL once it serves."""
        port = free_port()
        process = self.start("api", "--port", str(port), **({"ONDOT_AUTH": "off"} | settings))
        url = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + BEGINS_WITHIN_S
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                raise RuntimeError("The API ended before it served. See its message above.")
            try:
                urllib.request.urlopen(url + "/livez", timeout=5).close()
            except (urllib.error.URLError, OSError):
                time.sleep(0.02)
            else:
                return url
        raise RuntimeError("The API did not answer.")

    def stop(self, *processes: psutil.Popen) -> None:
        """Send SIGTERM to these (all, if none is named), and wait until they have ended."""
        ending = [(role, each) for role, each in self.members if not processes or each in processes]
        for _, process in ending:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for _, process in ending:
            try:
                process.wait(60)
            except psutil.TimeoutExpired:
                process.kill()
        self.members = [member for member in self.members if member not in ending]

    def cpu_s(self) -> dict[str, float]:
        """Processor time by kind, with all children, also those that have ended and were waited for."""
        total: dict[str, float] = {}
        for kind, process in [("postgres", self.postmaster), *self.members]:
            if process is not None:
                total[kind] = total.get(kind, 0.0) + sum(_cpu_s(each) for each in _family(process))
        return total

    def memory_bytes(self, kind: str) -> int:
        """Proportional set size of one kind of role, with children: shared pages count once."""
        members: list[psutil.Process] = [process for role, process in self.members if role == kind]
        if kind == "postgres" and self.postmaster is not None:
            members = [self.postmaster]
        return sum(_pss(each) for member in members for each in _family(member))

    async def beside(self, name: str) -> str:
        """Make another migrated database on the same server; return its URL. It stays on a server that was given."""
        connection = await self.connect()
        try:
            await connection.execute(f'CREATE DATABASE "{name}"')
        finally:
            await connection.close()
        parts = urllib.parse.urlsplit(self.url)
        url = urllib.parse.urlunsplit(parts._replace(path=f"/{name}"))
        await _prepare(url)
        return url

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self.url, server_settings={"timezone": "UTC", "jit": "off"})


@contextmanager
def fleet(**settings: str) -> Iterator[Fleet]:
    """A migrated database without processes. `settings`: of the embedded server, over ondot's own."""
    with place() as home:
        home.parent.joinpath("work").mkdir()
        given = GIVEN_URL
        postgres = None if given else EmbeddedPostgres(home, settings=settings)
        with capture_logs():
            url = given or _start(postgres)
        postmaster = psutil.Process(postgres.pid) if postgres is not None and postgres.pid else None
        made = Fleet(url, postmaster, home.parent / "work")
        try:
            with capture_logs():
                asyncio.run(_prepare(url))
            yield made
        finally:
            made.stop()
            if postgres is not None:
                with capture_logs():
                    postgres.stop()


def _start(postgres: EmbeddedPostgres | None) -> str:
    assert postgres is not None
    return postgres.start()


async def _prepare(url: str) -> None:
    database = await open_database(load_settings(database_url=url))
    try:
        await migrate_up(database)
        await make_days(database)
    finally:
        await database.close()


async def wal_bytes(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
