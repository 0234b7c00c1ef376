"""Log a repeated event now and then, with its count: an outage must not fill the log."""

import time
from collections.abc import Callable


class LogThrottle:
    def __init__(self, every_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock_s = clock_s
        self._next_s = -float("inf")
        self._times = 0

    def times(self) -> int:
        """Count one event. Returns how many to log: those since the last time, or 0 while it is too early."""
        self._times += 1
        now_s = self._clock_s()
        if now_s < self._next_s:
            return 0
        self._next_s = now_s + self._every_s
        times, self._times = self._times, 0
        return times
