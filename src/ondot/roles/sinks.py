"""The loops of sinks in a scheduler (E3). The one that does the housekeeping sends; two during a take-over send twice,
with the same ids. They cost nothing while there is no sink."""

import asyncio
from collections.abc import Callable
from typing import Final

from ondot.flow.sinks.deliver import SinkDelivery
from ondot.roles.loop import every

SEND_EVERY_S: Final = 0.2
"""While there are sinks. A sink that has more to send does not wait for it."""
TIDY_EVERY_S: Final = 5.0
WATCH_EVERY_S: Final = 30.0


class Sinks:
    def __init__(self, delivery: SinkDelivery) -> None:
        self._delivery = delivery
        self.are_there = False
        """Whether there is a sink, or something that waited for one. Set by the housekeeper."""

    async def run(self, on_duty: Callable[[], bool]) -> None:
        """Until cancelled."""

        async def send_pass() -> int:
            if self.are_there and on_duty():
                await self._delivery.one_pass()
            return 0

        async def tidy_pass() -> int:
            return await self._delivery.tidy_pass() if self.are_there and on_duty() else 0

        async def watch_pass() -> int:
            return await self._delivery.watch_pass() if self.are_there and on_duty() else 0

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(every(SEND_EVERY_S, send_pass, name="sinks", wake=self._delivery.done), name="sinks")
                group.create_task(every(TIDY_EVERY_S, tidy_pass, name="outbox"), name="outbox")
                group.create_task(every(WATCH_EVERY_S, watch_pass, name="behind"), name="behind")
        finally:
            await self._delivery.stop()
