"""No wake-ups at all: for whoever stores work in passing and keeps no transport. It starts within a poll (C5)."""

import asyncio
from collections.abc import Callable, Sequence

from ondot.ports.transport import Wake


class PollingTransport:
    async def publish(self, wakes: Sequence[Wake]) -> None:
        """Nobody listens: the next poll finds the work."""

    async def listen(self, on_wake: Callable[[Wake], None]) -> None:
        await asyncio.Event().wait()
