"""The tools that people would use instead of ondot, each in its recommended fast form, one module for each.

A peer's module is imported twice: by the benchmark, which produces with it, and by the peer's own workers, which find
their servers in the environment. It implements `Peer`. All run the same work, `marks.mark(number)`: the least that
shows that a job started, when, and how often. A peer is imported only when it is measured: one that is not installed is
reported by its ImportError.
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
"""Enqueue jobs with these numbers, in the peer's batch form if it has one; returns when they are accepted."""


class Peer(Protocol):
    FORM: str
    """How it is run, for the reader of a result."""
    SERVER: str
    """`redis` or `postgres`."""
    ENDS_WITHIN_S: float
    """How long its workers may take to stop; most only wait then, and nothing is left to lose."""

    def workers(self) -> list[list[str]]:
        """The commands that start its worker processes."""

    async def prepare(self) -> None:
        """Prepare its empty server for the first job."""

    def producer(self) -> AbstractAsyncContextManager[Put]: ...

    async def unfinished(self) -> int:
        """How many accepted jobs are not stored as ended; 0 if the peer stores no ends."""


def redis_url() -> str:
    return os.environ.get(REDIS, "redis://127.0.0.1:6379/0")


def database_url() -> str:
    return os.environ[DATABASE]


def command(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", module, *words]


def batches(numbers: Sequence[int], size: int = BATCH) -> list[Sequence[int]]:
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]
