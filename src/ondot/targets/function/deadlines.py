"""Timeouts by the thousand (E7): calls that time out in the same tenth of a second share one timer of the loop.

A timer for each call would cost the loop more than a short function, and nearly all are cancelled long before they
fire. So a call with a timeout of 10 s or more may time out up to a tenth of a second late; a shorter one has a timer of
its own.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

GRAIN_S: Final = 0.1
EXACT_BELOW_S: Final = 10.0

OnTimeout = Callable[[], object]
Remove = Callable[[], object]
"""Removes a deadline."""


@dataclass(slots=True)
class _Shared:
    """Calls that time out at one tick."""

    timer: asyncio.TimerHandle
    callbacks: dict[int, OnTimeout] = field(default_factory=dict)


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._shared: dict[int, _Shared] = {}
        self._count = 0

    def add(self, seconds: float, on_timeout: OnTimeout) -> Remove:
        """Call `on_timeout` after this time and never sooner, unless the deadline is removed."""
        if seconds < EXACT_BELOW_S:
            return self.loop.call_later(seconds, on_timeout).cancel
        tick = math.ceil((self.loop.time() + seconds) / GRAIN_S)
        shared = self._shared.get(tick)
        if shared is None:
            shared = self._shared[tick] = _Shared(self.loop.call_at(tick * GRAIN_S, self._time_out, tick))
        self._count += 1
        shared.callbacks[self._count] = on_timeout
        return partial(self._remove, tick, self._count)

    def _remove(self, tick: int, number: int) -> None:
        shared = self._shared.get(tick)
        if shared is None:
            return
        shared.callbacks.pop(number, None)
        if not shared.callbacks:
            # Not kept until it fires: with timeouts of a day there would be a million.
            shared.timer.cancel()
            del self._shared[tick]

    def _time_out(self, tick: int) -> None:
        for on_timeout in list(self._shared.pop(tick).callbacks.values()):
            on_timeout()
