"""No wake-ups at all, for code that stores work but runs no role: workers find the work by polling (C5)."""

import asyncio
from collections.abc import Sequence

from ondot.model.beats import Beat
from ondot.model.ids import PoolNo
from ondot.ports.transport import OnBeat, OnWake, Wake


class PollingTransport:
    name = "polling"

    async def publish(self, wakes: Sequence[Wake]) -> None:
        """The next poll finds the work."""

    async def beat(self, beat: Beat, pool_nos: Sequence[PoolNo]) -> None:
        """Nobody listens."""

    async def listen(self, pool_nos: Sequence[PoolNo], on_wake: OnWake, on_beat: OnBeat) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """It holds nothing."""
