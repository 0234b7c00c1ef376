"""Finds all processes of a program that must end (E7), also those that have left its process group:

    its group and its session        every process that has not called setsid
    its children and theirs          by parent, whatever their group, as long as the chain is unbroken
    processes with its mark          daemons whose parent is gone: the environment that they were started with has
                                     ONDOT_CALL_ID, a random word of this one call

Read from /proc, so only on Linux; elsewhere only the group is known. A process is not found only if it leaves the
session, loses its parent and clears its environment.
"""

import os
import signal
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

MARK: Final = "ONDOT_CALL_ID"

_PROC: Final = Path("/proc")
HAS_PROC: Final = (_PROC / "self" / "stat").exists()
_LOOK_AGAIN_S: Final = 0.01
_ENDED: Final = frozenset({b"Z", b"X"})


class _Row(NamedTuple):
    parent: int
    group: int
    session: int


def living(leader: int, mark: str, *, outside_group: bool = False) -> set[int]:
    """The running processes of a program, by its leader's id and its mark."""
    return living_of({leader}, {mark}, outside_group=outside_group)


def living_of(leaders: Set[int], marks: Set[str], *, outside_group: bool = False) -> set[int]:
    """The same for many programs, in one scan of all processes."""
    rows = _rows()
    found = {pid for pid, row in rows.items() if not leaders.isdisjoint((pid, row.group, row.session))}
    words = {f"{MARK}={mark}".encode() for mark in marks}
    found |= {pid for pid in rows.keys() - found if _is_marked(pid, words)}
    children: dict[int, list[int]] = {}
    for pid, row in rows.items():
        children.setdefault(row.parent, []).append(pid)
    pending = list(found)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in found:
                found.add(child)
                pending.append(child)
    if outside_group:
        found = {pid for pid in found if rows[pid].group not in leaders}
    return found - {os.getpid()}


def start_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it has ended, or without /proc."""
    try:
        stat = _stat(str(pid))
    except (OSError, IndexError):
        return None
    return None if stat[0] in _ENDED else int(stat[19])


def signal_outside_group(leader: int, mark: str, number: signal.Signals) -> None:
    for pid in living(leader, mark, outside_group=True):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_all(leader: int, mark: str, within_s: float) -> None:
    """Repeats until none is left: a process may fork during a scan. Blocks, so not for the loop."""
    give_up_at = time.monotonic() + within_s
    while (found := living(leader, mark)) and time.monotonic() < give_up_at:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_AGAIN_S)


def _rows() -> dict[int, _Row]:
    rows: dict[int, _Row] = {}
    if not HAS_PROC:
        return rows
    for name in os.listdir(_PROC):  # noqa: PTH208 - a hundred times a second on a stopping worker
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                stat = _stat(name)
                if stat[0] not in _ENDED:
                    rows[int(name)] = _Row(int(stat[1]), int(stat[2]), int(stat[3]))
    return rows


def _stat(name: str) -> list[bytes]:
    """The fields from the state on: the program's name before it, in parentheses, may contain anything."""
    return (_PROC / name / "stat").read_bytes().rpartition(b")")[2].split()


def _is_marked(pid: int, words: Set[bytes]) -> bool:
    try:
        return not words.isdisjoint((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return False
