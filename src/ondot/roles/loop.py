"""Loop and work are two functions: the pass is bounded and is what tests call, this repeats it.

A pass that fails is logged and tried again after a pause that grows up to its tick; the role goes on. The database
being away is no fault of the pass: it is told once, and told again when it is over. Then the pauses stay short, so that
every role works again within seconds of the database's return (L4). All differ, so that a fleet does not come back all
at once.
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
"""Or a tick, if that is longer: what fails again and again is not to load the database, nor to fill the log."""

log = get_logger()


class Passes:
    """The passes that are under way, for who watches from another thread: a loop may move, and a pass that waits for
    something that never comes does no work (P13). Each has far more time than its statements' deadlines add up to."""

    def __init__(self) -> None:
        self._over_s: dict[str, float] = {}

    def begin(self, name: str, within_s: float) -> None:
        self._over_s[name] = time.monotonic() + within_s

    def end(self, name: str) -> None:
        self._over_s.pop(name, None)

    def overdue(self) -> str | None:
        """One that should have ended by now."""
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

    `passes`: where it is known that a pass is under way, which should take no longer than `within_s`.
    """
    if passes is not None:
        one_pass = _known(one_pass, passes, name, within_s)
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
        except Exception:  # the boundary of a pass: a role outlives its faults
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


def _known(
    one_pass: Callable[[], Awaitable[int]], passes: Passes, name: str, within_s: float
) -> Callable[[], Awaitable[int]]:
    async def known_pass() -> int:
        passes.begin(name, within_s)
        try:
            return await one_pass()
        finally:
            passes.end(name)

    return known_pass


def pause_after(failures: int, tick_s: float, longest_s: float = LONGEST_PAUSE_S) -> float:
    """How long to wait before the next try: a tick or a second, twice that, …, and never as long as the others."""
    pause_s: float = min(min(tick_s, FIRST_PAUSE_S) * 2 ** min(failures - 1, 10), longest_s)
    return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - nobody has to be unable to guess it
