"""The tools people would pick instead of ondot, each run in its recommended fast form, one module for each.

A peer's module is imported twice: by the benchmark, which produces with it, and by the peer's own workers, which find
their servers in the environment. It offers what `Peer` says. All run the same work, `marks.mark(number)`: the least
that shows that a job began, when, and how often. Nothing of a peer is imported before it is asked for: one that is not
installed is told by its ImportError.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

REDIS, DATABASE, MARKS, HERD = "PEER_REDIS", "PEER_DATABASE", "PEER_MARKS", "PEER_HERD"
PROCESSES = 2
BATCH = 1_000

Put = Callable[[Sequence[int]], Awaitable[None]]
"""Enqueue jobs with these numbers, in the peer's batch form where it has one; returns when they are accepted."""


class Peer(Protocol):
    FORM: str
    """How it is run, for the reader of a result."""
    SERVER: str
    """`redis` or `postgres`."""
    ENDS_WITHIN_S: float
    """How long its workers get to stop by themselves; most only wait then, and nothing is left to lose."""

    def workers(self) -> list[list[str]]:
        """The commands that start its worker processes."""

    async def prepare(self) -> None:
        """What its empty server needs before the first job."""

    def producer(self) -> AbstractAsyncContextManager[Put]: ...

    async def unfinished(self) -> int:
        """How many accepted jobs have not been stored as ended; 0 where the run of a job is all that is kept."""


def redis_url() -> str:
    return os.environ.get(REDIS, "redis://127.0.0.1:6379/0")


def database_url() -> str:
    return os.environ[DATABASE]


def command(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", module, *words]


def batches(numbers: Sequence[int], size: int = BATCH) -> list[Sequence[int]]:
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]
