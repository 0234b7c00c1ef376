"""Repeats passes. Loop and work are two functions: a pass is bounded and is what tests call.

A pass that fails is logged and retried after a pause that grows up to its tick; the role continues. If the database is
away, the pass is not at fault: that is logged once, and once more when it is over. Meanwhile the pauses stay short, so
that every role works again within seconds of the database's return (L4). They are random, so that a fleet does not
return all at once.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ondot.model.errors import Unavailable
from ondot.telemetry.log import get_logger

PASS_WITHIN_S = 300.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 1.5
"""While the database is away."""
LONGEST_AFTER_FAULT_S = 5.0
"""Or a tick, if that is longer: a pass that keeps failing must not load the database or fill the log."""

log = get_logger()


class Passes:
    """The passes that are under way, read by a watching thread: while a loop moves, a pass may wait for something that
    never happens (P13). Each has far more time than the deadlines of its statements add up to."""

    def __init__(self) -> None:
        self._over_s: dict[str, float] = {}

    def begin(self, name: str, within_s: float) -> None:
        self._over_s[name] = time.monotonic() + within_s

    def end(self, name: str) -> None:
        self._over_s.pop(name, None)

    def overdue(self) -> str | None:
        """A pass that should have ended by now."""
        now_s = time.monotonic()
        return next((name for name, over_s in self._over_s.copy().items() if over_s < now_s), None)


async def every(
    tick_s: float,
    one_pass: Callable[[], Awaitable[int]],
    *,
    name: str,
    wake: asyncio.Event | None = None,
    passes: Passes | None = None,
    within_s: float = PASS_WITHIN_S,
) -> None:
    """Repeat a pass until cancelled: at once while it finds work, else after a tick or a wake-up.

    `passes`: records that a pass is under way and should end within `within_s`.
    """
    if passes is not None:
        one_pass = _record(one_pass, passes, name, within_s)
    wake = wake or asyncio.Event()
    failures = 0
    longest_s = LONGEST_PAUSE_S
    while True:
        wake.clear()
        try:
            worked = await one_pass()
        except Unavailable as error:
            failures += 1
            longest_s = LONGEST_PAUSE_S
            if failures == 1:
                log.warning("database.away", loop=name, error=error.message)
        except Exception:  # the boundary of a pass: a role survives its faults
            failures += 1
            longest_s = max(tick_s, LONGEST_AFTER_FAULT_S)
            log.exception("pass.failed", loop=name, failures=failures)
        else:
            if failures:
                log.info("loop.back", loop=name, after_failures=failures)
            failures = 0
            if worked:
                continue
        pause_s = pause_after(failures, tick_s, longest_s) if failures else tick_s
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await wake.wait()


def _record(
    one_pass: Callable[[], Awaitable[int]], passes: Passes, name: str, within_s: float
) -> Callable[[], Awaitable[int]]:
    async def recorded_pass() -> int:
        passes.begin(name, within_s)
        try:
            return await one_pass()
        finally:
            passes.end(name)

    return recorded_pass


def pause_after(failures: int, tick_s: float, longest_s: float = LONGEST_PAUSE_S) -> float:
    """The pause before the next try: a tick or a second, twice that, and so on; random, so that all differ."""
    pause_s: float = min(min(tick_s, FIRST_PAUSE_S) * 2 ** min(failures - 1, 10), longest_s)
    return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - not for security
