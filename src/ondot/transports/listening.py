"""How a listener stays connected to a broker (C5, L5): it connects again by itself, and a broker that stays away is
reported, for alerts. Meanwhile workers poll.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from socket import gethostname
from time import monotonic

from ondot.model.ids import INSTALLATION
from ondot.store.conditions import put_condition
from ondot.store.database import Database
from ondot.telemetry.log import get_logger

RECONNECT_S = 1.0
CHECK_EVERY_S = 5.0
"""A half-open connection delivers nothing and reports nothing, so it is checked this often."""
AWAY_S = 5.0
"""A listener that is away for this long is reported, for alerts."""
REPORT_EVERY_S = 10.0
LONGEST_MESSAGE = 1_000
REPORT_HOLDS_S = 30.0
"""The condition ends when no listener has reported it for this long."""

log = get_logger()

OnAnswer = Callable[[], None]
"""The broker has answered right now."""


async def keep_listening(name: str, database: Database, listen_once: Callable[[OnAnswer], Awaitable[None]]) -> None:
    """Listen until cancelled. `listen_once` listens over one connection, and raises when it is lost."""
    is_away = False
    answered_s = reported_s = monotonic()

    def on_answer() -> None:
        nonlocal is_away, answered_s
        if is_away:
            log.info("transport.back", transport=name)
        is_away = False
        answered_s = monotonic()

    while True:
        try:
            await listen_once(on_answer)
        except Exception as error:  # noqa: BLE001 - whatever the reason, workers poll meanwhile
            if not is_away:
                log.warning("transport.away", transport=name, error=reason(error), then="workers poll")
            is_away = True
            if monotonic() >= max(answered_s + AWAY_S, reported_s + REPORT_EVERY_S):
                reported_s = monotonic()
                await _report_away(name, database, error)
        # Spread, so that a fleet does not reconnect in one moment.
        await asyncio.sleep(RECONNECT_S * random.uniform(0.5, 1.0))  # noqa: S311


def reason(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _report_away(name: str, database: Database, error: Exception) -> None:
    message = f"{gethostname()} cannot listen for wake-ups through {name}, so its workers only poll: {reason(error)}"
    with suppress(Exception):
        async with database.connection() as connection:
            await put_condition(
                connection,
                INSTALLATION,
                "transport",
                name,
                job_id=None,
                since=None,
                holds_s=REPORT_HOLDS_S,
                message=message[:LONGEST_MESSAGE],
                details={"command": "ondot doctor", "path": "/fleet"},
            )
