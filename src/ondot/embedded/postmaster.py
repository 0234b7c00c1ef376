"""One server process: starts it, ends it with this process, queries it, and stops it (O6).

A program that is started here runs in a session of its own, under the given account, and gets SIGINT (for PostgreSQL: a
fast, clean shutdown) when this process dies, in whatever way. On Linux the kernel sends it, if the main thread started
the program: that signal follows the thread that forked, which may end before the process does. Otherwise a watcher
sends it, which waits at the other end of a pipe that closes only with this process.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ondot.embedded.binaries import Account

# A new interpreter instead of preexec_fn, which may deadlock once there are threads. Imports come first: the account
# may not be able to read them. The kernel drops the signal when the uid changes, so it is requested last; if the parent
# died before that, the parent's id has changed.
LAUNCH = """
import os, signal, sys
parent, uid, gid = map(int, sys.argv[1:4])
if parent:
    import ctypes
    libc = ctypes.CDLL(None)
if uid >= 0:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if parent:
    PR_SET_PDEATHSIG = 1
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("ondot ended before its PostgreSQL started")
os.umask(0o077)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execv(sys.argv[4], sys.argv[4:])
"""
WATCH = """
import os, signal, sys
sys.stdin.read()
os.kill(int(sys.argv[1]), signal.SIGINT)
"""

STOP_S = 30.0
IMMEDIATE_STOP_S = 5.0
STARTING_OR_STOPPING = "57P03"
NO_SUCH_DATABASE = "3D000"


class Guarded:
    """A program that does not outlive this process. `inherit`: descriptors that it and its children keep open."""

    def __init__(
        self,
        command: "Sequence[str]",
        account: "Account | None",
        *,
        output: int,
        inherit: "Sequence[int]" = (),
    ) -> None:
        by_kernel = sys.platform == "linux" and threading.current_thread() is threading.main_thread()
        ids = (account.uid, account.gid) if account else (-1, -1)
        launch = (LAUNCH, str(os.getpid() if by_kernel else 0), *map(str, ids))
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        self.process = subprocess.Popen(  # noqa: S603  a program we found; no shell parses the arguments
            [sys.executable, "-I", "-S", "-c", *launch, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=inherit,
            cwd="/",  # the account may not be able to enter ours
            env=kept | {"LC_ALL": "C", "TZ": "UTC"},  # no PGDATA, no secrets
        )
        self._watcher: subprocess.Popen[bytes] | None = None
        if not by_kernel:
            self._watcher = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", "-c", WATCH, str(self.process.pid)],
                stdin=subprocess.PIPE,
                start_new_session=True,
                env=kept,
            )

    def alive(self) -> bool:
        if self.process.poll() is None:
            return True
        # Its pid may be reused from here on: the watcher must not signal it any more.
        if self._watcher:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None
        return False

    def stop(self) -> None:
        """A fast shutdown, then an immediate one, then SIGKILL."""
        patience = {signal.SIGINT: STOP_S, signal.SIGQUIT: IMMEDIATE_STOP_S, signal.SIGKILL: IMMEDIATE_STOP_S}
        for how, patience_s in patience.items():
            if not self.alive():
                return
            self.process.send_signal(how)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        self.alive()


def ask(path: "Path", user: str, database: str, sql: str = "", *, timeout_s: float = 5.0) -> str | None:
    """Connect, and run `sql` if there is any. Returns the SQLSTATE: "" is success, None is no answer."""
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(timeout_s)
            link.connect(str(path))
            with link.makefile("rwb") as stream:
                hello = f"user\0{user}\0database\0{database}\0\0".encode()
                stream.write(struct.pack("!II", len(hello) + 8, 3 << 16) + hello)
                stream.flush()
                state = _read_reply(stream)
                if state or not sql:
                    return state
                query = sql.encode() + b"\0"
                stream.write(b"Q" + struct.pack("!I", len(query) + 4) + query)
                stream.flush()
                return _read_reply(stream)
    except OSError:
        return None


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _read_reply(stream: _Readable) -> str:
    """Read until the server is ready for a query, or hangs up, as it does after refusing a connection."""
    state = ""
    while len(header := stream.read(5)) == 5:
        kind, size = struct.unpack("!cI", header)
        body = stream.read(size - 4)
        if kind == b"Z":
            return state
        if kind == b"E":
            state = next(field[1:].decode() for field in body.split(b"\0") if field[:1] == b"C")
    if not state:
        raise ConnectionResetError("hung up before it was ready")
    return state
