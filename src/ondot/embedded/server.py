"""A PostgreSQL of ondot's own, for `ondot up` without a database (O6).

It owns the directory `home`: `data/`, `run/` (the socket), `postgresql.log` and two lock files. The server has `fsync`
on, answers when `start` returns, and is reachable only through a socket in a private directory. No two processes use
one home. The server shuts down cleanly with the process that started it, also if that is killed with -9 together with
its process group. Every foreseeable error is a `Misconfigured` that says what to do. Whether a server runs is tested by
locks and by connecting, never by a pid in a file.
"""

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import structlog

from ondot.embedded.binaries import (
    WHAT_ELSE,
    choose_account,
    copy_if_needed,
    find_binaries,
    major_of,
    version_of,
)
from ondot.embedded.home import (
    ELSEWHERE,
    LEFTOVER_S,
    explain,
    lock_for_server,
    lock_for_us,
    make_home,
    socket_directory,
)
from ondot.embedded.postmaster import NO_SUCH_DATABASE, STARTING_OR_STOPPING, Guarded, ask
from ondot.model.errors import Misconfigured
from ondot.private import open_private

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ondot.embedded.binaries import Account

__all__ = ["EmbeddedPostgres", "find_binaries"]

DATABASE = "ondot"
ROLE = "ondot"
PORT = 5432  # a part of the socket's name; nothing listens on a network
SOCKET = f".s.PGSQL.{PORT}"
INITDB_S = 300.0
START_S = 300.0  # replaying 2 GB of WAL on a slow disk takes minutes
LOG_LIMIT = 10_000_000
TWO_WAL_SEGMENTS = 32 * 1024 * 1024

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_connections": "100",
    "wal_compression": "on",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "jit": "off",  # compiling costs more than it saves on statements of milliseconds
    "autovacuum_naptime": "10s",  # queue tables collect too many dead rows in the default minute
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.05",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
}

log = structlog.get_logger(__name__)


def url_of(sockets: Path, port: int | str) -> str:
    """The URL of an embedded server by the directory of its socket, which may contain a + or an @."""
    return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(sockets))}&port={port}"


class EmbeddedPostgres:
    def __init__(
        self, home: Path, *, binaries: Path | None = None, settings: "Mapping[str, str] | None" = None
    ) -> None:
        self.home = home.expanduser().absolute()
        self.data = self.home / "data"
        self.log_path = self.home / "postgresql.log"
        self._binaries = binaries
        self._settings = SETTINGS | dict(settings or {})
        self._server: Guarded | None = None
        self._sockets: Path | None = None
        self._locks: list[int] = []
        self._url = ""

    @property
    def pid(self) -> int | None:
        return self._server.process.pid if self._server else None

    @property
    def url(self) -> str:
        return self._url

    def alive(self) -> bool:
        return self._server is not None and self._server.alive()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> str:
        """Return the server's URL for asyncpg once it answers and has the database; initialize the data on first use.

        Best from the main thread: from another, one more process watches the server.
        """
        if self.alive():
            return self._url
        self.stop()
        try:
            self._start()
        except OSError as trouble:
            self.stop()
            raise Misconfigured(explain(trouble, self.home)) from trouble
        except BaseException:
            self.stop()
            raise
        return self._url

    def stop(self) -> None:
        """A fast, clean shutdown; an immediate one if that takes too long. Does nothing if no server runs."""
        if self._server:
            self._server.stop()
            self._server = None
        self._url = ""
        if self._sockets and self._sockets.parent != self.home:
            with suppress(OSError):
                self._sockets.rmdir()
        while self._locks:
            os.close(self._locks.pop())

    def _start(self) -> None:
        account = choose_account(self.data)
        make_home(self.home, account)
        self._locks.append(lock_for_us(self.home))
        self._locks.append(lock_for_server(self.home))
        for remains in (*self.home.glob("data.new-*"), *self.home.glob("postgresql-*.new-*")):
            shutil.rmtree(remains)
        binaries = copy_if_needed(self._choose_binaries(), self.home, account)
        if not (self.data / "PG_VERSION").exists():
            self._initialize(binaries, account)
        self._repair(account)
        self._sockets = socket_directory(self.home, account, SOCKET)
        self._launch(binaries, self._sockets, account)
        self._await_answer(self._sockets / SOCKET)
        self._url = url_of(self._sockets, PORT)
        log.info("embedded.started", home=str(self.home), pid=self.pid)

    def _choose_binaries(self) -> Path:
        """Those that can open the existing data: a machine may have several versions."""
        marker = self.data / "PG_VERSION"
        if not marker.exists():
            return self._binaries or find_binaries()
        made_by = major_of(marker.read_text())
        try:
            binaries = self._binaries or find_binaries(made_by)
        except Misconfigured:
            binaries = find_binaries()
        version = version_of(binaries)
        if version and major_of(version) != made_by:
            raise Misconfigured(
                f"{self.data} was made by PostgreSQL {made_by}, but the one found is {version}: install "
                f"PostgreSQL {made_by}, or dump the data with it and restore into a new home, or move "
                f"{self.data} away to start from scratch, {WHAT_ELSE}."
            )
        return binaries

    def _initialize(self, binaries: Path, account: "Account | None") -> None:
        """Into a temporary directory that is renamed when complete: `data` is complete or does not exist."""
        if self.data.exists() and any(self.data.iterdir()):
            raise Misconfigured(f"{self.data} contains files but no PostgreSQL data: move it away, or {ELSEWHERE}.")
        log.info("embedded.initializing", home=str(self.home))
        fresh = Path(tempfile.mkdtemp(prefix="data.new-", dir=self.home))
        if account:
            os.chown(fresh, account.uid, account.gid)
        options = [f"--username={ROLE}", "--encoding=UTF8", "--locale=C", "--data-checksums"]
        options += ["--auth-local=trust", "--auth-host=reject", "--no-instructions", f"--pgdata={fresh}"]
        if self._settings["fsync"] == "off":
            options.append("--no-sync")
        command = [str(binaries / "initdb"), *options]
        initializing = Guarded(command, account, output=subprocess.PIPE, inherit=self._locks[1:])
        with initializing.process as process:
            try:
                output, _ = process.communicate(timeout=INITDB_S)
            except subprocess.TimeoutExpired:
                raise Misconfigured(
                    f"PostgreSQL did not initialize its data within {INITDB_S:.0f} s: is the disk of {self.home} "
                    f"in order? Try again, or {ELSEWHERE}."
                ) from None
            finally:
                initializing.stop()
        if process.returncode:
            raise Misconfigured(
                self._describe_failure("PostgreSQL could not initialize its data", output.decode(errors="replace"))
            )
        with suppress(FileNotFoundError):
            self.data.rmdir()
        fresh.rename(self.data)
        directory = os.open(self.home, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def _repair(self, account: "Account | None") -> None:
        """Fix what others left: root as the owner (of a restored copy), a pid file without a server."""
        if account and self.data.stat().st_uid == 0:
            for path in (*self.data.rglob("*"), self.data):
                os.chown(path, account.uid, account.gid, follow_symlinks=False)
        note = self.data / "postmaster.pid"
        if not note.exists():
            return
        pid, _, _, port, sockets, *_ = [*note.read_text().splitlines(), *5 * [""]]
        deadline = time.monotonic() + LEFTOVER_S
        while sockets and (answer := ask(Path(sockets) / f".s.PGSQL.{port}", ROLE, DATABASE)) is not None:
            if answer != STARTING_OR_STOPPING or time.monotonic() > deadline:
                raise Misconfigured(
                    f"A PostgreSQL server that ondot did not start, process {pid}, runs on {self.data}: stop "
                    f"it with pg_ctl stop -D {self.data}, then try again."
                )
            time.sleep(0.02)
        # The pid may have been reused, and PostgreSQL would refuse to start because of it. If a server without a socket
        # does run, its shared memory, found by the inode of `data`, still keeps a second one out.
        note.unlink()

    def _launch(self, binaries: Path, sockets: Path, account: "Account | None") -> None:
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_LIMIT:
            self.log_path.replace(self.log_path.with_name("postgresql.log.1"))
        settings = self._settings | {
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": str(sockets),
            "unix_socket_permissions": "0700",
        }
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        command = [str(binaries / "postgres"), "-D", str(self.data), *options]
        output = open_private(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self._server = Guarded(command, account, output=output, inherit=self._locks[1:])
        finally:
            os.close(output)

    def _await_answer(self, socket: Path) -> None:
        started_s = time.monotonic()
        is_reported = False
        while self.alive() and (waited_s := time.monotonic() - started_s) < START_S:
            answer = ask(socket, ROLE, DATABASE)
            if answer == NO_SUCH_DATABASE:
                answer = ask(socket, ROLE, "postgres", f"CREATE DATABASE {DATABASE}", timeout_s=60.0)
            if answer == "":
                return
            if answer == STARTING_OR_STOPPING and waited_s > 2.0 and not is_reported:
                is_reported = True
                log.info("embedded.recovering", home=str(self.home))
            time.sleep(0.01)
        what = "did not answer in time" if self.alive() else "did not start"
        raise Misconfigured(self._describe_failure(f"PostgreSQL {what}", self._log_tail()))

    def _log_tail(self) -> str:
        with self.log_path.open("rb") as file:
            file.seek(max(0, self.log_path.stat().st_size - 4000))
            return file.read().decode(errors="replace")

    def _describe_failure(self, what: str, output: str) -> str:
        # With a full disk the log may be empty.
        disk = os.statvfs(self.home)
        if "No space left" in output or disk.f_bavail * disk.f_frsize < TWO_WAL_SEGMENTS:
            what += f": there is no space left on the disk of {self.home}. Free some, or {ELSEWHERE}"
        lines = "\n".join(output.strip().splitlines()[-15:])
        return f"{what}. Its last lines (the server's log is {self.log_path}):\n{lines}"
