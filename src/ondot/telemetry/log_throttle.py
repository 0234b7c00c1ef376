"""What happens again and again is told now and then, with how often it happened: an outage must not fill the log."""

import time
from collections.abc import Callable


class Seldom:
    def __init__(self, every_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock_s = clock_s
        self._next_s = -float("inf")
        self._times = 0

    def times(self) -> int:
        """It has happened: how often since it was last told, or 0 if that is too short a while ago to tell it again."""
        self._times += 1
        now_s = self._clock_s()
        if now_s < self._next_s:
            return 0
        self._next_s = now_s + self._every_s
        times, self._times = self._times, 0
        return times
