"""Cancelling running work (E8): the wait and the report that all targets share."""

import asyncio
from typing import Any

from ondot.model.outcome import Cancelled
from ondot.ports.target import Cancel


async def until_cancel(work: asyncio.Future[Any], cancel: Cancel, timeout_s: float | None) -> bool:
    """Wait until the work is done, it is cancelled, or the time is over. Returns whether it was cancelled."""
    if work.done():
        return cancel.requested
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def wake(_work: object = None) -> None:
        if not over.done():
            over.set_result(None)

    timer = None if timeout_s is None else loop.call_later(timeout_s, wake)
    work.add_done_callback(wake)
    cancel.listen(wake)
    try:
        await over
    finally:
        cancel.unlisten(wake)
        work.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()
    return cancel.requested


def not_called() -> Cancelled:
    return Cancelled("It was cancelled before the call began.")
