"""Timers by the thousand (E7): calls whose time is over in the same tenth of a second share one timer of the loop.

A timer for each call costs the loop more than a short function; nearly all are taken back long before their time. A
call that may take long is ended up to a tenth of a second late for it, a short one by a timer of its own.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

GRAIN_S: Final = 0.1
EXACT_BELOW_S: Final = 10.0

Ring = Callable[[], object]
Taken = Callable[[], object]
"""Takes a deadline back."""


@dataclass(slots=True)
class _Shared:
    """Calls whose time is over at one tick."""

    timer: asyncio.TimerHandle
    rings: dict[int, Ring] = field(default_factory=dict)


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._shared: dict[int, _Shared] = {}
        self._count = 0

    def add(self, seconds: float, ring: Ring) -> Taken:
        """Call `ring` when so much time has gone by, never sooner, unless it is taken back."""
        if seconds < EXACT_BELOW_S:
            return self.loop.call_later(seconds, ring).cancel
        tick = math.ceil((self.loop.time() + seconds) / GRAIN_S)
        shared = self._shared.get(tick)
        if shared is None:
            shared = self._shared[tick] = _Shared(self.loop.call_at(tick * GRAIN_S, self._over, tick))
        self._count += 1
        shared.rings[self._count] = ring
        return partial(self._take_back, tick, self._count)

    def _take_back(self, tick: int, number: int) -> None:
        shared = self._shared.get(tick)
        if shared is None:
            return
        shared.rings.pop(number, None)
        if not shared.rings:
            # Not kept until its time: of work that may take a day there would be a million.
            shared.timer.cancel()
            del self._shared[tick]

    def _over(self, tick: int) -> None:
        for ring in list(self._shared.pop(tick).rings.values()):
            ring()
