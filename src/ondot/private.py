"""Directories that are ours alone: nobody else can put something else in their place, or into them (P12).

Root, or another account, writes into the home of ondot. If a stranger could write there, or rename a directory on the
way to it, a symbolic link would turn those writes to any file of the machine. So every directory on the way is
examined, through every symbolic link: it belongs to us or to root, and nobody else may rename what is in it. A sticky
directory such as /tmp is good enough on the way: in it only the owner of an entry may rename that entry.
"""

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ondot.model.errors import Misconfigured
from ondot.settings import default_home

MOST_LINKS: Final = 40


def check_private(home: Path) -> None:
    """Raises Misconfigured if somebody else could change what lies in `home`, or put another one in its place.

    What does not exist yet is left out: it is to be made, and checked again before anything is written.
    """
    path = found = None
    for path in _way_to(home):
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        if found.st_uid not in {0, os.geteuid()}:
            raise Misconfigured(
                f"{path} belongs to {_name(found.st_uid)}, who could change what ondot keeps in {home}: {_elsewhere()}."
            )
        if stat.S_ISDIR(found.st_mode) and not found.st_mode & stat.S_ISVTX:
            _refuse_writers(path, found, home)
    if path and found and stat.S_ISDIR(found.st_mode):
        # The last is the home itself, where no sticky bit helps: others could make files that ondot has not made yet.
        _refuse_writers(path, found, home)


def open_private(path: Path, flags: int, mode: int) -> int:
    """Open a file of ours to write to. A symbolic link in its place is an OSError (ELOOP), and not followed."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def _way_to(home: Path) -> Iterator[Path]:
    """Every path that is looked up on the way to `home`, from the root on; of a symbolic link also its target's."""
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
            f"{others} may write to {path}, and so change what ondot keeps in {home}: take that away with"
            f" `chmod go-w {path}`, or {_elsewhere()}."
        )


def _who_may_write(found: os.stat_result) -> str | None:
    if found.st_mode & stat.S_IWOTH:
        return "Everyone"
    if found.st_mode & stat.S_IWGRP and (others := _others_of(found.st_gid)):
        return f"The group of {others}"
    return None


def _others_of(group: int) -> str | None:
    """Another account that belongs to a group. Many systems have one group for each user, which is as good as none."""
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
    return f"choose one of your own with --home or ONDOT_HOME, such as {default_home()}"
