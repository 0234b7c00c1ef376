"""Wake-ups within one process, and polling between processes (C5): behind PgBouncer in transaction mode there is no
LISTEN.

A worker that frees a slot of a limit, or writes a retry, is usually also the one that can run what comes next: it need
not wait for its own next poll. Polling finds the work that other processes have made ready.
"""

import asyncio
from collections.abc import Callable, Sequence

from ondot.ports.transport import Wake


class LocalTransport:
    def __init__(self) -> None:
        self._listeners: list[Callable[[Wake], None]] = []

    async def publish(self, wakes: Sequence[Wake]) -> None:
        for on_wake in self._listeners:
            for wake in wakes:
                on_wake(wake)

    async def listen(self, on_wake: Callable[[Wake], None]) -> None:
        self._listeners.append(on_wake)
        try:
            await asyncio.Event().wait()
        finally:
            self._listeners.remove(on_wake)

    async def close(self) -> None:
        """It holds nothing."""
