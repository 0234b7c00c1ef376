"""How much one statement asks for or carries, where rows may be large, many, or on a slow line (L4).

A statement that did not fit into its deadline would not fit the next time either, and who repeats it stands still. So
the next one is for a quarter of it, down to a single row, and the ones that succeed become larger again: a mere outage
looks the same, and must not leave single rows behind.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from ondot.model.errors import Unavailable

FEWER: Final = 4
QUICK_S: Final = 0.5
"""Twice as long fits into the shortest deadline that can be set."""

_TIMED_OUT = (TimeoutError, asyncpg.QueryCanceledError)


class AdaptiveBatch:
    """`size` is how many there may be at once now: `most`, until something took too long."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = most

    @contextmanager
    def adapt(self, count: int, *, may_grow: bool = True) -> Iterator[None]:
        """Around what is done with so many at once; it `may_grow` only by what shows that so many do fit."""
        begun_s = time.monotonic()
        try:
            yield
        except (*_TIMED_OUT, Unavailable) as error:
            if isinstance(error, _TIMED_OUT) or isinstance(error.__cause__, _TIMED_OUT):
                self.size = max(min(count, self.size) // FEWER, 1)
            raise
        if may_grow and self.size < self._most:
            # One more even if it was slow: where every commit is, few rows in each would never get it out of that.
            more = count * 2 if time.monotonic() - begun_s < QUICK_S else count + 1
            self.size = min(max(self.size, more), self._most)
