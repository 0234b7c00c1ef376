"""The PostgreSQL of a fault run, and everything that can happen to one: restarts, outages, terminated backends, a slow
or full disk, no free connections, an old snapshot, a clock that steps, a failover to its standby.

Each run has its own server: durable as ondot demands (P1), migrated, and removed with the run. A fault that lasts is a
pair of methods, one to start it and one to end it, or a context manager.
"""

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path

import asyncpg

from ondot.embedded.server import DATABASE, ROLE
from ondot.flow.days import make_days
from ondot.store.connection import AWAY
from ondot.store.database import open_database
from ondot.store.migrate import migrate_up
from ondot.store.sql_functions import functions
from tests.faults.instance import LOOK_AGAIN_S, Instance, Mode
from tests.servers import settings_for

LONGEST_COMMIT_DELAY_MS = 100
STANDBY = "standby"
ANSWERS_WITHIN_S = 30.0
CROWD_LOOKS_S = 0.1
LEFT_ON_A_FULL_DISK = 64 * 1024
LOG_FILES_AT_MOST = 64
OTHERS = """
SELECT pid FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name <> 'harness'
ORDER BY backend_start, pid
"""


@cache
def _template() -> tempfile.TemporaryDirectory[str]:
    """Holds the data of a migrated and stopped server; removed with this process."""
    return tempfile.TemporaryDirectory(prefix="ondot-template-")


class Postgres:
    def __init__(self, directory: Path, *, disk_mb: int | None = None, **settings: str) -> None:
        """`disk_mb`: put the data on a separate file system that can be filled; only root can make one."""
        self.directory = directory
        self._settings = settings
        self._disk_mb = disk_mb
        self._primary = self._instance("primary")
        self._standby: Instance | None = None
        self._retired: list[Instance] = []

    def _instance(self, name: str) -> Instance:
        place = self.directory / name
        place.mkdir()
        place.chmod(0o755)
        if self._disk_mb is not None:
            _run("mount", "-t", "tmpfs", "-o", f"size={self._disk_mb}m,mode=755", f"ondot-{name}", str(place))
        return Instance(place, self._settings)

    @property
    def url(self) -> str:
        """The URL of the present primary."""
        return self._primary.url()

    @property
    def failover_url(self) -> str:
        """A URL that lists every server of this run and finds the primary among them."""
        ports = [each.port for each in (*self._retired, self._primary, self._standby) if each is not None]
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://{ROLE}@{hosts}/{DATABASE}?sslmode=disable&target_session_attrs=primary"

    @property
    def port(self) -> int:
        return self._primary.port

    @property
    def has_standby(self) -> bool:
        return self._standby is not None

    @property
    def can_fill_disk(self) -> bool:
        return self._disk_mb is not None

    async def connect(self) -> asyncpg.Connection:
        """Open a connection that no fault of the harness ends."""
        return await asyncpg.connect(self.url, timeout=10, server_settings={"application_name": "harness"})

    async def make(self) -> None:
        """Make a server with the schema of this release: a copy of the first one that this process made."""
        template = Path(_template().name) / "data"
        if template.exists():
            await asyncio.to_thread(shutil.copytree, template, self._primary.data, dirs_exist_ok=True)
            self._primary.give_away(self._primary.data)
            await self._primary.start()
            return
        await self._make_from_scratch()
        await self._primary.stop("fast")
        await asyncio.to_thread(shutil.copytree, self._primary.data, template)
        await self._primary.start()

    async def _make_from_scratch(self) -> None:
        await self._primary.make()
        await self._primary.start()
        admin = await asyncpg.connect(self._primary.url("postgres"))
        await admin.execute(f"CREATE DATABASE {DATABASE}")
        await admin.close()
        database = await open_database(settings_for(self.url))
        await migrate_up(database)
        await make_days(database)
        await database.close()

    # There and not there ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._primary.start()

    async def stop(self, mode: Mode = "fast") -> None:
        await self._primary.stop(mode)

    async def restart(self, mode: Mode = "immediate") -> None:
        await self.stop(mode)
        await self.start()

    async def away(self, seconds: float, mode: Mode = "immediate") -> None:
        await self.stop(mode)
        try:
            await asyncio.sleep(seconds)
        finally:
            await self.start()

    def freeze(self) -> None:
        self._primary.freeze()

    def thaw(self) -> None:
        self._primary.thaw()

    async def repair(self) -> None:
        """End every fault: it answers, its clock is right, its disk is fast and has room."""
        self.thaw()
        if self._disk_mb is not None:
            await self.free_disk()
        await self.start()
        await self.slow_commits(0)
        await self.step_clock(0)

    # Connections ------------------------------------------------------------------------------------------------------

    async def terminate_backends(
        self, rng: random.Random, *, count: int | None = None, share: float | None = None
    ) -> int:
        """Terminate this many of the other connections, or this share of them; return how many."""
        connection = await self.connect()
        try:
            return await _terminate(connection, rng, count=count, share=share)
        finally:
            await _close(connection)

    async def crowd(self, seconds: float, rng: random.Random, *, share: float = 0.5) -> int:
        """Take every free connection, and a share of the others' too, so that a new connection finds no room.

        Returns how many were taken.
        """
        taken: list[asyncpg.Connection] = []
        try:
            await self._take_all(taken)
            await _terminate(taken[0], rng, share=share)
            async with asyncio.timeout(seconds):
                while True:
                    await self._take_all(taken)
                    await asyncio.sleep(CROWD_LOOKS_S)
        except TimeoutError:
            return len(taken)
        finally:
            await asyncio.gather(*map(_close, taken))

    async def _take_all(self, taken: list[asyncpg.Connection]) -> None:
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                taken.append(await self.connect())

    @asynccontextmanager
    async def hold_snapshot(self) -> AsyncIterator[None]:
        """Keep vacuum from removing dead rows while the block runs."""
        connection = await self.connect()
        try:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await connection.fetchval("SELECT count(*) FROM ondot.installation")
            yield
        finally:
            await _close(connection)

    # Disk and clock ---------------------------------------------------------------------------------------------------

    async def slow_commits(self, ms: int) -> None:
        """Delay the flush of each commit, as on a slow disk; 0: as before."""
        if not 0 <= ms <= LONGEST_COMMIT_DELAY_MS:
            raise ValueError(f"PostgreSQL delays a commit by 0 to {LONGEST_COMMIT_DELAY_MS} ms, not by {ms}.")
        await self._set("commit_delay", str(ms * 1000) if ms else None)
        await self._set("commit_siblings", "0" if ms else None)

    async def step_clock(self, seconds: float) -> None:
        """Put the database's clock off by this much; 0: set it right again."""
        [replaced] = [function.sql for function in functions() if function.name == "clock"]
        if seconds:
            now = "statement_timestamp()"
            replaced = replaced.replace(now, f"{now} + interval ''{seconds:g} seconds''")
        connection = await self.connect()
        try:
            await connection.execute(replaced)
        finally:
            await _close(connection)

    async def fill_disk(self, *, up_to_the_log: bool = False) -> None:
        """Leave no byte for new pages until `free_disk`.

        `up_to_the_log`: also use up the WAL files that the server keeps in stock, without which it ends.
        """
        if self._disk_mb is None:
            raise ValueError("The disk of this server cannot be filled. Make the server with disk_mb, as root.")
        place = self._primary.directory
        used = os.statvfs(place)
        size = (used.f_blocks - used.f_bfree) * used.f_frsize + LEFT_ON_A_FULL_DISK
        _run("mount", "-o", f"remount,size={size}", str(place))
        if up_to_the_log:
            await self._use_up_the_log()

    async def _use_up_the_log(self) -> None:
        connection = await self.connect()
        try:
            with suppress(*AWAY):
                for _ in range(LOG_FILES_AT_MOST):
                    await connection.execute("SELECT pg_logical_emit_message(true, 'full', '')")
                    await connection.execute("SELECT pg_switch_wal()")
        finally:
            await _close(connection)

    async def free_disk(self) -> None:
        """Make room again. A server that found no room for its WAL has ended, and is started."""
        _run("mount", "-o", f"remount,size={self._disk_mb}m", str(self._primary.directory))
        try:
            await self._primary.answers()
        except RuntimeError:
            await self._primary.stop("immediate")
            await self._primary.start()

    async def _set(self, name: str, value: str | None) -> None:
        connection = await self.connect()
        try:
            await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'" if value else f"ALTER SYSTEM RESET {name}")
            await connection.execute("SELECT pg_reload_conf()")
        finally:
            await _close(connection)

    # Standby ----------------------------------------------------------------------------------------------------------

    async def add_standby(self, *, synchronous: bool = True) -> str:
        """Add a streaming standby and return its URL. A synchronous one has every commit before its client knows."""
        if self._standby is not None:
            raise ValueError("This server has a standby already.")
        standby = self._instance(f"standby-{len(self._retired) + 1}")
        command = [str(standby.found / "pg_basebackup"), "-h", "127.0.0.1", "-p", str(self.port), "-U", ROLE]
        command += ["-D", str(standby.data), "-X", "stream", "-c", "fast", "--no-sync"]
        await asyncio.to_thread(_run, *command)
        with (standby.data / "postgresql.auto.conf").open("a") as file:
            source = f"host=127.0.0.1 port={self.port} user={ROLE} application_name={STANDBY}"
            file.write(f"primary_conninfo = '{source}'\n")
        (standby.data / "standby.signal").touch()
        standby.give_away(standby.data)
        await standby.start()
        self._standby = standby
        if synchronous:
            await self._set("synchronous_standby_names", STANDBY)
        await self._until(
            "SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1",
            "sync" if synchronous else "async",
        )
        return standby.url()

    async def fail_over(self) -> None:
        """End the primary at once and for good, and promote the standby."""
        if self._standby is None:
            raise ValueError("There is no standby to fail over to. Call add_standby first.")
        await self._primary.stop("immediate")
        self._retired.append(self._primary)
        self._primary, self._standby = self._standby, None
        connection = await self.connect()
        try:
            await connection.execute("SELECT pg_promote(wait => true)")
        finally:
            await _close(connection)
        await self._until("SELECT NOT pg_is_in_recovery()")

    async def _until(self, fact: str, *arguments: object) -> None:
        connection = await self.connect()
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                while not await connection.fetchval(fact, *arguments):
                    await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            await _close(connection)

    async def close(self) -> None:
        """End every server, whatever its state, and remove its disk."""
        for instance in (self._primary, self._standby, *self._retired):
            if instance is not None:
                await instance.stop("immediate")
                if self._disk_mb is not None:
                    _run("umount", "--lazy", str(instance.directory))


async def _terminate(
    connection: asyncpg.Connection, rng: random.Random, *, count: int | None = None, share: float | None = None
) -> int:
    pids = [row["pid"] for row in await connection.fetch(OTHERS)]
    wanted = count if count is not None else round(len(pids) * (share or 0.0))
    chosen = rng.sample(pids, min(wanted, len(pids)))
    await connection.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::integer[]) AS pid", chosen)
    return len(chosen)


async def _close(connection: asyncpg.Connection) -> None:
    """Also closes a connection whose server is gone."""
    with suppress(*AWAY):
        await connection.close(timeout=5)


def _place() -> Path:
    """Not one of pytest's directories: other accounts cannot read them, and as root the server uses another account."""
    directory = Path(tempfile.mkdtemp(prefix="ondot-faults-", dir="/var/tmp"))
    directory.chmod(0o755)
    return directory


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")


@asynccontextmanager
async def a_postgres(*, disk_mb: int | None = None, **settings: str) -> AsyncIterator[Postgres]:
    """A separate server, started and migrated. Settings by PostgreSQL's names."""
    directory = _place()
    postgres = Postgres(directory, disk_mb=disk_mb, **settings)
    try:
        await postgres.make()
        yield postgres
    finally:
        await postgres.close()
        shutil.rmtree(directory, ignore_errors=True)
