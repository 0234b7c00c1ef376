"""No wake-ups at all, for code that stores work but runs no role: workers find the work by polling (C5)."""

import asyncio
from collections.abc import Callable, Sequence

from ondot.ports.transport import Wake


class PollingTransport:
    async def publish(self, wakes: Sequence[Wake]) -> None:
        """The next poll finds the work."""

    async def listen(self, on_wake: Callable[[Wake], None]) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """It holds nothing."""
