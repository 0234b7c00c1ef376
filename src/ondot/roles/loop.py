"""Loop and work are two functions: the pass is bounded and is what tests call, this repeats it.

A pass that fails is logged and tried again after a pause that grows up to its tick; the role goes on. The database
being away is no fault of the pass: it is told once, and told again when it is over. Then the pauses stay short, so that
every role works again within seconds of the database's return (L4). All differ, so that a fleet does not come back all
at once.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ondot.model.errors import Unavailable
from ondot.telemetry.log import get_logger

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 1.5
"""While the database is away."""
LONGEST_AFTER_FAULT_S = 5.0
"""Or a tick, if that is longer: what fails again and again is not to load the database, nor to fill the log."""

log = get_logger()


async def every(
    tick_s: float, one_pass: Callable[[], Awaitable[int]], *, name: str, wake: asyncio.Event | None = None
) -> None:
    """Repeat a pass until cancelled: at once while it finds work, else after a tick or a wake-up."""
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


def pause_after(failures: int, tick_s: float, longest_s: float = LONGEST_PAUSE_S) -> float:
    """How long to wait before the next try: a tick or a second, twice that, …, and never as long as the others."""
    pause_s: float = min(min(tick_s, FIRST_PAUSE_S) * 2 ** min(failures - 1, 10), longest_s)
    return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - nobody has to be unable to guess it
