"""Roles as real processes on a test's own database: started, frozen, killed, watched, and ended by their ids.

Each process writes its log to a file, and a test can wait for its events. A member may have its own database URL (a
proxy's), a wrong clock, a network namespace or a planted bug. After a restart it is the same member in a new process.
Every process that was started is ended when the fleet is left, frozen ones too.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import psutil

from ondot.document.parse import job_spec
from ondot.flow.cancel import cancel
from ondot.flow.dispatch import Dispatcher
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT, ExecutionId
from ondot.store.audit import By
from ondot.store.database import Database, open_database
from ondot.transports.polling import PollingTransport
from tests.faults.netns import Namespace
from tests.faults.unread import LogPipe
from tests.servers import settings_for

ROOT = Path(__file__).parent.parent.parent
APP = "tests.faults.hostile:app"
LOOK_AGAIN_S = 0.03
BUSY = 3.0
"""Timeouts are written for a quiet machine; on a busy one they are longer by this factor."""
COULD_NOT_START = (1, 2)
"""Exit codes of Python and of the command line; hostile functions use other codes."""
FAKETIME = "libfaketimeMT.so.1"
EFFECTS = """
CREATE TABLE IF NOT EXISTS public.effect (
    execution_id uuid NOT NULL, attempt integer NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE IF NOT EXISTS public.past (job_id uuid PRIMARY KEY)
"""
"""What functions did, and the jobs of days before the run."""

Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a member is started, and started again.

    `bug`: the bug planted in it (tests.faults.bugs). `clock`: a setting of libfaketime, such as "+3600s" or
    "+0 x1.01"; only for schedulers and APIs, because Python's `time.sleep` fails under it, and workers use that around
    shell targets. `pipe`: the log goes through a pipe, which may be left unread.
    """

    words: tuple[str, ...]
    environment: dict[str, str]
    log: Path
    bug: str | None = None
    clock: str | None = None
    netns: Namespace | None = None
    pipe: LogPipe | None = None

    def start(self) -> psutil.Popen:
        module = ["tests.faults.hangs"] if self.bug is None else ["tests.faults.bugs", self.bug]
        command = [sys.executable, "-m", *module, *self.words]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("ONDOT_")}
        with self.log.open("ab") as stderr:
            return psutil.Popen(
                self.netns.command(command) if self.netns else command,
                env=inherited | self.environment | self._faketime() | {"ONDOT_TEST_HANG": str(self.hang)},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr if self.pipe is None else self.pipe.theirs,
            )

    @property
    def hang(self) -> Path:
        """A hung loop stays so while this file exists."""
        return self.log.with_suffix(".hang")

    def _faketime(self) -> dict[str, str]:
        if self.clock is None:
            return {}
        library = _faketime_library()
        if library is None:
            raise RuntimeError("This machine has no libfaketime. Install faketime, or leave wrong clocks out.")
        return {"LD_PRELOAD": str(library), "FAKETIME": self.clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@dataclass(slots=True)
class Member:
    """One role of the fleet: its process, and the next one after a restart."""

    name: str
    launch: Launch
    process: psutil.Popen
    born_at_byte: int = 0
    """Where the present process starts in the log."""

    @property
    def role(self) -> str:
        return self.launch.words[0]

    @property
    def log(self) -> Path:
        return self.launch.log

    def events(self, name: str, *, from_byte: int = 0) -> list[dict[str, Any]]:
        """The log events with this name. The last line may be half written."""
        events = []
        for line in self.log.read_bytes()[from_byte:].decode(errors="replace").splitlines():
            if f'"event": "{name}"' in line:
                with suppress(ValueError):
                    events.append(json.loads(line))
        return events

    def signal(self, number: signal.Signals) -> None:
        with suppress(psutil.NoSuchProcess):
            self.process.send_signal(number)

    @property
    def is_up(self) -> bool:
        """Its present process runs, and has logged that it started."""
        return self.runs and bool(self.events(f"{self.role}.started", from_byte=self.born_at_byte))

    @property
    def is_frozen(self) -> bool:
        return bool(self.process.status() == psutil.STATUS_STOPPED)

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def hang(self) -> None:
        """Block its main loop; its other threads go on."""
        self.launch.hang.touch()
        self.signal(signal.SIGURG)

    def move(self) -> None:
        self.launch.hang.unlink(missing_ok=True)

    def restart(self, *, clock: str | None = None) -> None:
        """Start a new process under the same name after the old one has ended; with the right clock by default."""
        if self.runs:
            raise RuntimeError(f"{self.name} is running. Kill or stop it first.")
        self.launch = replace(self.launch, clock=clock)
        self.born_at_byte = self.log.stat().st_size
        self.process = self.launch.start()

    async def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        await asyncio.to_thread(self.process.wait, 10)

    async def stop(self, within_s: float = 20.0) -> int:
        """Stop it as a service manager does; return the exit code."""
        self.thaw()
        self.signal(signal.SIGTERM)
        return int(await asyncio.to_thread(self.process.wait, within_s * BUSY))


@dataclass(slots=True)
class Fleet:
    url: str
    directory: Path
    database: Database
    connection: asyncpg.Connection
    settings: dict[str, str]
    members: list[Member] = field(default_factory=list)

    @property
    def notes(self) -> Path:
        return self.directory / "notes.jsonl"

    def start(
        self,
        *words: str,
        name: str = "",
        url: str | None = None,
        bug: str | None = None,
        clock: str | None = None,
        netns: Namespace | None = None,
        piped: bool = False,
    ) -> Member:
        """Start `ondot` with these words. `url`: its own way to the database; see `Launch` for the rest."""
        name = f"{name or words[0]}-{len(self.members)}"
        environment = self.settings | ({"ONDOT_DATABASE_URL": url} if url else {})
        log = self.directory / f"{name}.log"
        launch = Launch(words, environment, log, bug, clock, netns, LogPipe(log) if piped else None)
        member = Member(name, launch, launch.start())
        self.members.append(member)
        return member

    def api(self, port: int, **how: Any) -> Member:
        return self.start("api", "--port", str(port), **how)

    def scheduler(self, **how: Any) -> Member:
        return self.start("scheduler", **how)

    def worker(self, *words: str, slots: int = 20, **how: Any) -> Member:
        return self.start("worker", "--slots", str(slots), "--allow-shell", "--tenant", "*", *words, APP, **how)

    async def wait_until_up(self, *members: Member, within_s: float = 30.0) -> None:
        """Wait until each of them has started."""

        async def all_up() -> bool | None:
            return all(member.is_up for member in members) or None

        names = ", ".join(member.name for member in members)
        await self.until(all_up, within_s=within_s, what=f"{names} are up")

    async def submit(self, *bodies: dict[str, Any]) -> list[UUID]:
        """Store jobs as the API would; return their ids."""
        now = self.database.clock.now()
        specs = [job_spec({"name": "hostile", **body}, now) for body in bodies]
        ids = await submit(
            self.database,
            Dispatcher(PollingTransport()),
            DEFAULT_TENANT,
            specs,
            render=lambda stored: " ".join(str(job.id) for job in stored),
        )
        return [UUID(id_) for id_ in ids.split()]

    async def cancel(self, execution_id: UUID) -> None:
        dispatcher = Dispatcher(PollingTransport())
        await cancel(self.database, dispatcher, DEFAULT_TENANT, ExecutionId(execution_id), by=By("test"))

    async def ended(self, job_ids: Sequence[UUID], *, within_s: float) -> list[asyncpg.Record]:
        """Wait until these one-time jobs have ended; return their executions in the order of the jobs."""

        async def all_ended() -> list[asyncpg.Record] | None:
            rows = await self.connection.fetch("SELECT * FROM ondot.history WHERE job_id = ANY ($1)", job_ids)
            return sorted(rows, key=lambda row: job_ids.index(row["job_id"])) if len(rows) == len(job_ids) else None

        return await self.until(all_ended, within_s=within_s, what=f"all of {len(job_ids)} executions ended")

    async def attempts(self, execution_id: UUID) -> list[asyncpg.Record]:
        """The recorded attempts: all but the one that succeeded."""
        rows: list[asyncpg.Record] = await self.connection.fetch(
            "SELECT * FROM ondot.attempt WHERE execution_id = $1 ORDER BY attempt_no", execution_id
        )
        return rows

    async def noted(self, what: str, *, count: int = 1, within_s: float) -> list[dict[str, Any]]:
        """Wait until functions have written this many notes; return them."""

        async def enough() -> list[dict[str, Any]] | None:
            lines = self.notes.read_text().splitlines() if self.notes.exists() else []
            found = [line for line in map(json.loads, lines) if line["what"] == what]
            return found if len(found) >= count else None

        return await self.until(enough, within_s=within_s, what=f"{count} notes of {what!r}")

    async def logged(self, member: Member, event: str, *, count: int = 1, within_s: float) -> list[dict[str, Any]]:
        async def enough() -> list[dict[str, Any]] | None:
            events = member.events(event)
            return events if len(events) >= count else None

        return await self.until(enough, within_s=within_s, what=f"{count} of {event!r} in the log of {member.name}")

    async def until(self, look: Callable[[], Awaitable[Fact | None]], *, within_s: float, what: str) -> Fact:
        """Look again and again until there is a result. Raises TimeoutError with `what`, and RuntimeError as soon as a
        process could not start, so that a test does not wait in vain."""
        deadline_s = time.monotonic() + within_s * BUSY
        while (fact := await look()) is None:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"waited {within_s * BUSY:g} s for: {what}")
            for member in self.members:
                if member.process.poll() in COULD_NOT_START:
                    raise RuntimeError(f"{member.name} could not start:\n{member.log.read_text()[-2000:]}")
            await asyncio.sleep(LOOK_AGAIN_S)
        return fact

    async def end(self) -> None:
        for member in self.members:
            if member.runs:
                member.signal(signal.SIGKILL)
        for member in self.members:
            await asyncio.to_thread(member.process.wait, 10)
            if member.launch.pipe is not None:
                member.launch.pipe.close()


@asynccontextmanager
async def a_fleet(url: str, directory: Path, **settings: str) -> AsyncIterator[Fleet]:
    """A fleet without processes; settings by their names without the prefix. A short heartbeat detects losses soon."""
    own = {name: value for name, value in settings.items() if name != "database_url" and not name.startswith("test_")}
    database = await open_database(settings_for(url, **{"lease_s": "1", **own}))
    connection = await asyncpg.connect(url)
    environment = {
        "ONDOT_DATABASE_URL": url,
        "ONDOT_ALLOW_UNSAFE_DATABASE": "1",
        "ONDOT_ALLOW_PRIVATE_TARGETS": "1",
        "ONDOT_AUTH": "off",
        "ONDOT_LOG_FORMAT": "json",
        "ONDOT_HEARTBEAT_S": "2",
        "ONDOT_LEASE_S": "1",
        "ONDOT_TEST_NOTES": str(directory / "notes.jsonl"),
        "ONDOT_OBJECTS_URL": f"file://{directory}/objects",
        **{f"ONDOT_{name.upper()}": value for name, value in settings.items()},
    }
    fleet = Fleet(url, directory, database, connection, environment)
    try:
        await database.read_clock()
        await connection.execute(EFFECTS)
        yield fleet
    finally:
        await fleet.end()
        await connection.close()
        await database.close()


@cache
def _faketime_library() -> Path | None:
    places = (Path("/usr/lib"), Path("/usr/local/lib"))
    return next((path for place in places for path in place.glob(f"**/faketime/{FAKETIME}")), None)


def clocks_available() -> bool:
    """Whether members can have a wrong clock on this machine."""
    return _faketime_library() is not None
