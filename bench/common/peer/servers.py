"""The servers of the peers: the benchmark's own Redis, and a separate database in ondot's PostgreSQL.

Redis is Debian's (`redis-server`), on a free port of the loopback address, in its own directory, without append-only
file and snapshots: as task queues usually run it, and as fast as possible. It promises less than PostgreSQL with
`fsync` and `synchronous_commit` on, which ondot and the peers on PostgreSQL use.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psutil
from started import free_port

BEGINS_WITHIN_S = 20.0


@contextmanager
def redis(directory: Path) -> Iterator[tuple[str, psutil.Process | None]]:
    """Its URL and process; without a redis-server a URL where nothing answers, so that each peer reports the error."""
    port, found = free_port(), shutil.which("redis-server")
    url = f"redis://127.0.0.1:{port}/0"
    if found is None:
        yield url, None
        return
    directory.mkdir()
    words = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--save", "", "--appendonly", "no"]
    process = psutil.Popen([found, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        _wait_for(process, port)
        yield url, process
    finally:
        process.terminate()
        process.wait(20)


def forget_all(url: str) -> None:
    """Empty Redis, so that no peer finds the data of another."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        if not connection.recv(16).startswith(b"+OK"):
            raise RuntimeError("Redis could not be emptied")


async def new_database(url: str, name: str) -> str:
    """Make an empty database beside the one of this URL; return its URL."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _wait_for(process: psutil.Popen, port: int) -> None:
    deadline_s = time.monotonic() + BEGINS_WITHIN_S
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if process.poll() is not None:
                raise RuntimeError("redis-server ended before it answered") from None
            time.sleep(0.01)
        else:
            return
    raise RuntimeError("redis-server did not answer")
