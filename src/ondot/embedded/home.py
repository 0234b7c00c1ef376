"""The home of an embedded PostgreSQL: creates and locks the directory, and finds a place for the socket (O6).

One process at a time uses a home, nothing outside of it changes its owner or mode, and errors say what to do. Both
locks are flocks: `ondot.lock` is held by this process alone, `server.lock` is inherited by every process of the server,
so that it is free exactly when the last of them is gone. A pid in a file proves nothing; it is only for people to read.
"""

import errno
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ondot.embedded.binaries import blocking_directory
from ondot.model.errors import Misconfigured
from ondot.private import check_private, open_private
from ondot.settings import default_home

if TYPE_CHECKING:
    from ondot.embedded.binaries import Account

ELSEWHERE = "choose another home with --home or ONDOT_HOME"
SOCKET_LIMIT = 100  # bytes; sun_path holds 103 on macOS and 107 on Linux
LEFTOVER_S = 30.0


def make_home(home: Path, account: "Account | None") -> None:
    # Before anything is created, because a link could lead anywhere, and again after it.
    check_private(home)
    for directory in (*reversed(home.parents), home):
        if not directory.exists():
            directory.mkdir()
            # The server's account must pass through, but need not list.
            directory.chmod(0o700 if account is None else 0o711 if directory == home else 0o755)
    if not home.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(home))
    check_private(home)
    if account and (blocking := blocking_directory(home, account)):
        raise Misconfigured(
            f"ondot runs as root, so its PostgreSQL runs as user {account.name}, which may not enter "
            f"{blocking}: choose a home outside of it (ONDOT_HOME={default_home()}), or allow it with "
            f"chmod o+x {blocking}."
        )


def lock_for_us(home: Path) -> int:
    descriptor = open_private(home / "ondot.lock", os.O_RDWR | os.O_CREAT, 0o644)
    if not _flock(descriptor):
        holder = os.pread(descriptor, 20, 0).decode().strip()
        os.close(descriptor)
        user = f"process {holder}" if holder else "a process that is just starting"
        raise Misconfigured(f"{home} is in use by {user}: stop it first, or {ELSEWHERE}.", holder=holder)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def lock_for_server(home: Path) -> int:
    """Waits while the server of an ondot that was killed shuts down."""
    descriptor = open_private(home / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LEFTOVER_S
    while not _flock(descriptor):
        if time.monotonic() > deadline:
            os.close(descriptor)
            raise Misconfigured(
                f"The PostgreSQL server that an earlier ondot left in {home} has not ended within "
                f"{LEFTOVER_S:.0f} s: see its postgresql.log, then try again."
            )
        time.sleep(0.02)
    return descriptor


def socket_directory(home: Path, account: "Account | None", name: str) -> Path:
    """A private directory in which a socket of that name has a short path: in the home, else a temporary one."""
    short = f"ondot-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}"
    temporary = (os.environ.get("XDG_RUNTIME_DIR", ""), "/run", tempfile.gettempdir(), "/tmp")  # noqa: S108
    places = [home / "run", *(Path(base) / short for base in temporary if base.startswith("/"))]
    for place in places:
        # PostgreSQL's list of directories gives commas and quotes a meaning: plain names have none.
        plain = re.fullmatch(r"[\w/.+@~-]+", str(place), re.ASCII)
        if plain and len(str(place / name)) <= SOCKET_LIMIT and _private(place, account):
            return place
    longest = SOCKET_LIMIT - len(f"/run/{name}")
    raise Misconfigured(
        f"No private directory for the server's socket among {', '.join(map(str, places))}: choose a home "
        f"whose path has at most {longest} plain characters, by --home or ONDOT_HOME."
    )


def explain(trouble: OSError, home: Path) -> str:
    where = trouble.filename or home
    match trouble.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"There is no space left on the disk of {home}: free some, or {ELSEWHERE}."
        case errno.ENOTDIR | errno.EEXIST | errno.EISDIR:
            return f"{where} is a file where a directory must be, or the reverse: move it, or {ELSEWHERE}."
        case errno.ELOOP:
            return f"{where} is a symbolic link, and ondot writes through none: remove it, or {ELSEWHERE}."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            why = trouble.strerror
            return f"ondot may not write to {where} ({why}): make it writable for this user, or {ELSEWHERE}."
        case _:
            return f"The embedded PostgreSQL in {home} did not start ({trouble}): fix that, or {ELSEWHERE}."


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _private(place: Path, account: "Account | None") -> bool:
    owner = account.uid if account else os.geteuid()
    try:
        place.mkdir(mode=0o700)
        if account:
            os.chown(place, account.uid, account.gid)
    except FileExistsError:
        pass
    except OSError:
        return False
    # Another user can create a name under /tmp before us: only a directory of the server's alone is used.
    found = place.lstat()
    ours = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == owner
    return ours and blocking_directory(place, account) is None
