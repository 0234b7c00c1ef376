"""Wake-ups within one process, and polling between processes (C5): behind PgBouncer in transaction mode there is no
LISTEN.

A worker that frees a slot of a limit, or writes a retry, is usually also the one that can run what comes next: it need
not wait for its own next poll. Polling finds the work that other processes have made ready.
"""

import asyncio
from collections.abc import Sequence

from ondot.model.beats import Beat
from ondot.model.ids import PoolNo
from ondot.ports.transport import OnBeat, OnWake, Wake


class LocalTransport:
    name = "local"

    def __init__(self) -> None:
        self._listeners: list[tuple[frozenset[PoolNo], OnWake]] = []

    async def publish(self, wakes: Sequence[Wake]) -> None:
        for pool_nos, on_wake in list(self._listeners):
            for wake in wakes:
                if wake.pool_no in pool_nos:
                    on_wake(wake)

    async def beat(self, beat: Beat, pool_nos: Sequence[PoolNo]) -> None:
        """It carries none: its workers poll each second, because other processes cannot hint them."""

    async def listen(self, pool_nos: Sequence[PoolNo], on_wake: OnWake, on_beat: OnBeat) -> None:
        listener = (frozenset(pool_nos), on_wake)
        self._listeners.append(listener)
        try:
            await asyncio.Event().wait()
        finally:
            self._listeners.remove(listener)

    async def close(self) -> None:
        """It holds nothing."""
