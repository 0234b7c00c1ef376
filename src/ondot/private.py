"""Private directories and files: no other account can replace them or write into them (P12).

ondot, perhaps as root, writes into its home. If another account could write there, or rename a directory on the path to
it, a symbolic link could direct those writes to any file of the machine. So every directory on the path is checked,
through every symbolic link: it must belong to us or to root, and no other account may rename its entries. A sticky
directory such as /tmp is allowed on the path, because there only the owner of an entry may rename it.
"""

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ondot.model.errors import Misconfigured
from ondot.settings import default_home

MOST_LINKS: Final = 40


def check_private(home: Path) -> None:
    """Raises Misconfigured if another account could change the files in `home`, or replace it.

    Directories that do not exist yet pass: the caller creates them and checks again before it writes.
    """
    path = found = None
    for path in _way_to(home):
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        if found.st_uid not in {0, os.geteuid()}:
            raise Misconfigured(
                f"{path} belongs to {_name(found.st_uid)}, who could change ondot's files in {home}: {_elsewhere()}."
            )
        if stat.S_ISDIR(found.st_mode) and not found.st_mode & stat.S_ISVTX:
            _refuse_writers(path, found, home)
    if path and found and stat.S_ISDIR(found.st_mode):
        # In the home itself a sticky bit does not help: others could create files before ondot does.
        _refuse_writers(path, found, home)


def open_private(path: Path, flags: int, mode: int) -> int:
    """Open a private file for writing. A symbolic link is not followed: it raises an OSError (ELOOP)."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def create_private(path: Path, line: str) -> None:
    """Create a file that this account alone can read, unless it exists. Atomic: a crash leaves the whole line or none,
    and of two that create it at once the first one's stays."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = open_private(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _way_to(home: Path) -> Iterator[Path]:
    """Every path that the kernel looks up to reach `home`, from the root on, including targets of symbolic links."""
    links = 0
    done = Path("/")
    left = list(home.parts[1:])
    yield done
    while left:
        name = left.pop(0)
        if name == "..":
            done = done.parent
            continue
        step = done / name
        yield step
        if step.is_symlink():
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(home))
            target = step.readlink()
            if target.is_absolute():
                done = Path("/")
            left = [part for part in target.parts if part != "/"] + left
        else:
            done = step


def _refuse_writers(path: Path, found: os.stat_result, home: Path) -> None:
    if others := _who_may_write(found):
        raise Misconfigured(
            f"{others} may write to {path}, and so change ondot's files in {home}: run `chmod go-w {path}`, or"
            f" {_elsewhere()}."
        )


def _who_may_write(found: os.stat_result) -> str | None:
    if found.st_mode & stat.S_IWOTH:
        return "Everyone"
    if found.st_mode & stat.S_IWGRP and (others := _others_of(found.st_gid)):
        return f"The group of {others}"
    return None


def _others_of(group: int) -> str | None:
    """Another account in a group, if any. Many systems have one group for each user, with no other member."""
    us = os.geteuid()
    if group == 0 and us == 0:
        return None
    members = {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == group and entry.pw_uid not in {0, us}}
    try:
        listed = grp.getgrgid(group).gr_mem
    except KeyError:
        listed = []
    ours = {_name(0), _name(us)}
    return min((members | set(listed)) - ours, default=None)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _elsewhere() -> str:
    return f"choose another home with --home or ONDOT_HOME, such as {default_home()}"
