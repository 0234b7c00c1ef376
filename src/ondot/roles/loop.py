"""Loop and work are two functions: the pass is bounded and is what tests call, this repeats it.

A pass that fails is logged and tried again after a pause that grows; the role goes on. The database being away is no
fault of the pass: it is told once, and told again when it is over. The pauses stay short, so that every role works
again within seconds of the database's return (L4), and differ, so that a fleet does not come back all at once.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ondot.model.errors import Unavailable
from ondot.telemetry.log import get_logger

LONGEST_PAUSE_S = 1.5

log = get_logger()


async def every(
    tick_s: float, one_pass: Callable[[], Awaitable[int]], *, name: str, wake: asyncio.Event | None = None
) -> None:
    """Repeat a pass until cancelled: at once while it finds work, else after a tick or a wake-up."""
    wake = wake or asyncio.Event()
    failures = 0
    while True:
        wake.clear()
        try:
            worked = await one_pass()
        except Unavailable as error:
            failures += 1
            if failures == 1:
                log.warning("database.away", loop=name, error=error.message)
        except Exception:  # the boundary of a pass: a role outlives its faults
            failures += 1
            log.exception("pass.failed", loop=name, failures=failures)
        else:
            if failures:
                log.info("loop.back", loop=name, after_failures=failures)
            failures = 0
            if worked:
                continue
        pause_s = pause_after(failures, tick_s) if failures else tick_s
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await wake.wait()


def pause_after(failures: int, tick_s: float) -> float:
    """How long to wait before the next try: a tick, twice that, …, never long, and never as long as the others."""
    longest_s: float = min(tick_s * 2 ** min(failures - 1, 10), LONGEST_PAUSE_S)
    return longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - nobody has to be unable to guess it
