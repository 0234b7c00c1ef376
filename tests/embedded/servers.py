"""What the tests of the embedded PostgreSQL share: a home, a child that starts a server, a query."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import psutil
import pytest
import structlog

from ondot.embedded import binaries
from ondot.embedded.binaries import Account

if TYPE_CHECKING:
    from collections.abc import Iterator

AS_ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not AS_ROOT, reason="needs root: it changes owners or mounts a file system")
QUICK = {"fsync": "off", "shared_buffers": "16MB", "max_connections": "20"}
NOBODY = Account(65534, 65534)

PRELUDE = """
import subprocess, sys, threading
from pathlib import Path
from ondot.model.errors import Misconfigured
from ondot.embedded.server import EmbeddedPostgres
home = Path(sys.argv[1])
server = EmbeddedPostgres(home, settings={"fsync": "off", "shared_buffers": "16MB"})
"""
STAY = """
print("ready", server.start(), server.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(name="home")
def home_fixture() -> "Iterator[Path]":
    # Not tmp_path: what pytest makes is closed to others, and as root the server is another.
    directory = Path(tempfile.mkdtemp(prefix="ondot-"))
    directory.chmod(0o755)
    yield directory / "home"
    shutil.rmtree(directory)


def value(url: str, sql: str) -> object:
    async def fetch() -> object:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(fetch())


@contextmanager
def child(
    body: str, home: Path, *, user: Account | None = None, wrapper: tuple[str, ...] = ()
) -> "Iterator[subprocess.Popen[str]]":
    """Runs `body` after the prelude, as the leader of a process group that does not outlive the block."""
    python = interpreter_for(user)
    sources = [str(Path(module.__file__ or "").parents[depth]) for module, depth in ((binaries, 2), (structlog, 1))]
    with subprocess.Popen(
        [*wrapper, python, "-c", PRELUDE + body, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd="/",
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sources)},
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                kill_group(process)


def interpreter_for(user: Account | None) -> str:
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            asked = subprocess.run(
                [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
                check=False,
                user=user.uid if user else None,
            )
        except OSError:
            continue
        if asked.returncode == 0:
            return python
    pytest.skip("an unprivileged user can run no Python on this machine that is new enough")


def ordinary_user() -> Account | None:
    return NOBODY if AS_ROOT else None


def said(process: "subprocess.Popen[str]") -> str:
    return process.communicate(timeout=60)[0]


def await_ready(process: "subprocess.Popen[str]") -> tuple[str, psutil.Process]:
    assert process.stdout
    for line in process.stdout:
        if line.startswith("ready"):
            _, url, pid = line.split()
            return url, psutil.Process(int(pid))
    raise AssertionError("the child ended without a server")


def kill_group(process: "subprocess.Popen[str]") -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
