"""Servers that many tests need, started once for a test session and shared by all xdist workers.

The first test that needs one starts it; the process that started PostgreSQL ends it. A test that stops, kills or
freezes a server starts its own (`brokers.Kafka.running()`), and one that shares a server uses names of its own in it.
"""

import fcntl
import shutil
from pathlib import Path

import pytest

from brokers import Broker, Missing, kill_all_of

_started: list[Broker] = []
"""Python warns of a process that runs on when the last reference to it is gone."""


def share(kind: type[Broker], folder: Path) -> str:
    """The URL of the session's server of this kind, whose place is noted in the folder."""
    with (folder / f"{kind.__name__}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = folder / f"{kind.__name__}.broker"
        if not note.exists():
            broker = kind()
            _started.append(broker)
            (folder / f"{kind.__name__}.directory").write_text(str(broker.directory))
            try:
                broker.start()
            except Missing as missing:
                pytest.skip(str(missing))
            note.write_text(broker.url)
        return note.read_text()


def end_shared(folder: Path) -> None:
    for note in folder.glob("*.directory"):
        directory = Path(note.read_text())
        kill_all_of(directory)
        shutil.rmtree(directory, ignore_errors=True)
