"""The mark of a job: its number and the instant of its start, 16 bytes appended to a file of its process.

One `write` on a file opened to append is atomic among threads, costs about a microsecond, and can be counted from
outside: the same for every peer and for ondot.
"""

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from peer import MARKS

RECORD = struct.Struct("<qq")
_files: dict[int, int] = {}


def mark(number: int) -> None:
    pid = os.getpid()
    if (file := _files.get(pid)) is None:
        # One file per process: a forked worker must not write into its parent's. Threads may open it twice: harmless.
        name = os.path.join(os.environ[MARKS], str(pid))  # noqa: PTH118 - on the measured path of every peer
        file = _files[pid] = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, RECORD.pack(number, time.time_ns()))


def count(directory: Path) -> int:
    return sum(each.stat().st_size for each in os.scandir(directory)) // RECORD.size


def processes(directory: Path) -> int:
    """How many processes have run a job."""
    return len(list(directory.iterdir()))


def last(directory: Path) -> int:
    """The instant (ns) of the latest mark: each process appends its own in order."""
    return max(int(RECORD.unpack(path.read_bytes()[-RECORD.size :])[1]) for path in directory.iterdir())


def read(directory: Path) -> Iterator[tuple[int, int]]:
    """Number and instant (ns) of every job that started, unordered."""
    for path in directory.iterdir():
        content = path.read_bytes()
        yield from RECORD.iter_unpack(content[: len(content) // RECORD.size * RECORD.size])
