"""③ Wake the pool: hints over the transport, never the truth.

The first wake-up after an idle time is sent at once, then at most one message every 5 ms with all wake-ups since.
NOTIFY in every commit would cap the database at half its commits a second, so none is sent inside a submit.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime

from ondot.model.ids import PoolNo
from ondot.ports.transport import Hints, Wake
from ondot.telemetry.log import get_logger

BETWEEN_S = 0.005

log = get_logger()


class Dispatcher:
    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self._pending: dict[PoolNo, datetime] = {}
        self._wanted = asyncio.Event()
        self.on_wake: Callable[[Wake], None] = lambda _: None
        """The worker of this process: it hears of steps that were released here before a message has come back."""

    def wake_here_first(self, pools: Iterable[tuple[PoolNo, datetime]]) -> None:
        """The same as `wake`, and wakes the worker of this process at once."""
        pools = list(pools)
        for pool_no, ready_at in pools:
            self.on_wake(Wake(pool_no, ready_at))
        self.wake(pools)

    def wake(self, pools: Iterable[tuple[PoolNo, datetime]]) -> None:
        """Request a wake-up of these pools at these instants. Returns at once."""
        for pool_no, ready_at in pools:
            known = self._pending.get(pool_no)
            self._pending[pool_no] = ready_at if known is None else min(known, ready_at)
        if self._pending:
            self._wanted.set()

    async def run(self) -> None:
        """Send the requested wake-ups, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            wakes = [Wake(pool_no, ready_at) for pool_no, ready_at in self._pending.items()]
            self._pending.clear()
            try:
                await self._hints.publish(wakes)
            except Exception as error:  # noqa: BLE001 - a hint that is lost costs a poll, whatever the reason
                log.warning("wake.lost", error=str(error), pools=len(wakes))
            await asyncio.sleep(BETWEEN_S)
