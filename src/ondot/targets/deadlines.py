"""Timers by the thousand (E7): calls whose time is over in the same tenth of a second share one timer of the loop.

A timer for each call costs the loop more than a short function; nearly all are taken back long before their time. A
call that may take long is ended up to a tenth of a second late for it, a short one by a timer of its own.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

GRAIN_S: Final = 0.1
EXACT_BELOW_S: Final = 10.0

Ring = Callable[[], object]
Taken = Callable[[], object]
"""Takes a deadline back."""


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._shared: dict[int, dict[int, Ring]] = {}
        self._count = 0

    def add(self, seconds: float, ring: Ring) -> Taken:
        """Call `ring` when so much time has gone by, never sooner, unless it is taken back."""
        if seconds < EXACT_BELOW_S:
            return self.loop.call_later(seconds, ring).cancel
        tick = math.ceil((self.loop.time() + seconds) / GRAIN_S)
        shared = self._shared.get(tick)
        if shared is None:
            shared = self._shared[tick] = {}
            self.loop.call_at(tick * GRAIN_S, self._over, tick)
        self._count += 1
        number = self._count
        shared[number] = ring
        return lambda: shared.pop(number, None)

    def _over(self, tick: int) -> None:
        for ring in list(self._shared.pop(tick).values()):
            ring()
