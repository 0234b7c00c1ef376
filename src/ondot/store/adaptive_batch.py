"""How many rows one statement reads or writes, where rows may be large, many, or on a slow line (L4).

A statement that misses its deadline would miss it the next time too, and a caller that repeats it makes no progress. So
the next statement is for a quarter of the rows, down to one. Statements that succeed make it larger again: an outage
looks the same as a large row, and must not leave batches of one behind.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from ondot.model.errors import Unavailable

FEWER: Final = 4
QUICK_S: Final = 0.5
"""Twice this fits into the shortest deadline that can be set."""

_TIMED_OUT = (TimeoutError, asyncpg.QueryCanceledError)


class AdaptiveBatch:
    """`size`: how many rows the next statement is for; `most`, until one took too long."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = most

    @contextmanager
    def adapt(self, count: int, *, may_grow: bool = True) -> Iterator[None]:
        """Wraps a statement for `count` rows and sets `size` accordingly. `may_grow`: a success shows that they fit."""
        started_s = time.monotonic()
        try:
            yield
        except (*_TIMED_OUT, Unavailable) as error:
            if isinstance(error, _TIMED_OUT) or isinstance(error.__cause__, _TIMED_OUT):
                self.size = max(min(count, self.size) // FEWER, 1)
            raise
        if may_grow and self.size < self._most:
            # Grow by one even if it was slow: where every commit is slow, small batches would stay small.
            more = count * 2 if time.monotonic() - started_s < QUICK_S else count + 1
            self.size = min(max(self.size, more), self._most)
