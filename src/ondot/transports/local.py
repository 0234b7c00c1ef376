"""Wake-ups within a process, and polling between processes: for PgBouncer in transaction mode, which knows no LISTEN.

A worker that completes what others wait for (a slot of a limit, a retry) is most often the one that may go on, and
need not wait for its own next poll; whatever another process has made ready is found by polling (C5).
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
