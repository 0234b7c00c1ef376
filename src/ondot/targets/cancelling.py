"""Cancels of running work (E8), in the words and by the one wait that all targets share."""

import asyncio
from typing import Any

from ondot.model.outcome import Cancelled
from ondot.ports.target import Cancel


async def until_cancel(work: asyncio.Future[Any], cancel: Cancel, timeout_s: float | None) -> bool:
    """Wait until the work is done, somebody asks it to end, or the time is over. Gives whether somebody asked."""
    asked = asyncio.ensure_future(cancel.wait())
    try:
        await asyncio.wait({work, asked}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
    return cancel.requested


def not_called() -> Cancelled:
    return Cancelled("It was cancelled before the call began.")
