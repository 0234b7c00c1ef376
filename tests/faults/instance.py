"""One PostgreSQL process with its data: made, started, stopped in every mode, frozen and thawed.

It listens on TCP on 127.0.0.1, because the network is under test. As root it runs under another account, as PostgreSQL
demands, so its directory must be one that this account can reach. It ends with the process that started it.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import asyncpg
import psutil
from started import free_port

from ondot.embedded.binaries import choose_account, copy_if_needed, find_binaries
from ondot.embedded.postmaster import Guarded
from ondot.embedded.server import DATABASE, ROLE
from ondot.store.connection import AWAY

Mode = Literal["smart", "fast", "immediate"]
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
STARTS_WITHIN_S = 60.0
STOPS_WITHIN_S = 30.0
LOOK_AGAIN_S = 0.02
DURABLE = {
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "jit": "off",
    "timezone": "UTC",
    "autovacuum_naptime": "10s",
    "max_wal_size": "256MB",
    "log_min_messages": "warning",
    # A synchronous standby that reconnects only after the default 5 s would block every commit for as long.
    "wal_retrieve_retry_interval": "100ms",
}


class Instance:
    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        """Makes nothing yet; `directory` exists and is open to other accounts."""
        self.directory = directory
        self.data = directory / "data"
        self.log = directory / "postgresql.log"
        self.port = free_port()
        self._settings = DURABLE | dict(settings or {})
        self._account = choose_account(directory)
        self.found = find_binaries()
        self._binaries = copy_if_needed(self.found, directory, self._account)
        self._server: Guarded | None = None

    def url(self, database: str = DATABASE) -> str:
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    @property
    def runs(self) -> bool:
        return self._server is not None and self._server.alive()

    async def make(self) -> None:
        """Make empty data, with a superuser that every account of this machine may use."""
        self.data.mkdir(mode=0o700)
        self.give_away(self.data)
        command = [str(self._binaries / "initdb"), f"--pgdata={self.data}", f"--username={ROLE}", "--auth=trust"]
        command += ["--encoding=UTF8", "--locale=C", "--data-checksums", "--no-sync", "--no-instructions"]
        making = Guarded(command, self._account, output=subprocess.PIPE)
        said, _ = await asyncio.to_thread(making.process.communicate)
        if not making.alive() and making.process.returncode:
            raise RuntimeError(f"initdb failed:\n{said.decode(errors='replace')}")

    def give_away(self, path: Path) -> None:
        """Change the owner to the account of the server."""
        if self._account:
            for each in (path, *path.rglob("*")):
                os.chown(each, self._account.uid, self._account.gid, follow_symlinks=False)

    async def start(self) -> None:
        """Start it, and wait until it has recovered and answers."""
        if self.runs:
            return
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        settings = self._settings | {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
        }
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        output = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self._server = Guarded(
                [str(self._binaries / "postgres"), "-D", str(self.data), *options], self._account, output=output
            )
        finally:
            os.close(output)
        await self.answers()

    async def answers(self, within_s: float = STARTS_WITHIN_S) -> None:
        deadline_s = time.monotonic() + within_s
        while self.runs and time.monotonic() < deadline_s:
            with suppress(*AWAY):
                connection = await asyncpg.connect(self.url("postgres"), timeout=5)
                await connection.close()
                return
            await asyncio.sleep(LOOK_AGAIN_S)
        what = "does not answer" if self.runs else "has ended"
        raise RuntimeError(f"PostgreSQL {what}; its last lines:\n{self.log.read_text(errors='replace')[-2000:]}")

    async def stop(self, mode: Mode = "fast") -> None:
        """Stop it, and wait until it is gone; does nothing if it is."""
        if self._server is None or not self._server.alive():
            return
        self.thaw()
        self._server.process.send_signal(SIGNALS[mode])
        try:
            await asyncio.to_thread(self._server.process.wait, STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._server.process.send_signal(signal.SIGQUIT)
            await asyncio.to_thread(self._server.process.wait, STOPS_WITHIN_S)
        self._server.alive()

    def freeze(self) -> None:
        """The postmaster first, so that no backend starts meanwhile."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def thaw(self) -> None:
        for process in reversed(self._processes()):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def _processes(self) -> list[psutil.Process]:
        if self._server is None or not self._server.alive():
            return []
        postmaster = psutil.Process(self._server.process.pid)
        return [postmaster, *postmaster.children(recursive=True)]
