"""What the scheduler that owns partition 0 does for transports with beats (C4, L5): a numbered beat twice a second
through each of them, to the pools that use it; and each second one look at all these pools.

The look finds due work for which no hint was sent: of callers' own transactions, of hints that were lost. While no pool
uses such a transport, it only reads, each two seconds, whether one does.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from ondot.flow.dispatch import Dispatcher
from ondot.flow.pool_transports import PoolTransports
from ondot.model.beats import BEAT_EVERY_S, Beat
from ondot.model.ids import NodeId, PoolNo
from ondot.model.routes import WITHOUT_BEATS
from ondot.roles.loop import every
from ondot.store.database import Database
from ondot.store.pools import find_hinted_pools
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import BEATS_LOST

LOOK_EVERY_S: Final = 1.0
LOOKS_A_READING: Final = 2
"""Which transports pools have is read with each second look."""
BEAT_WITHIN_S: Final = 0.4
"""A beat that takes longer is given up: the next must not wait for it."""

log = get_logger()


class Hinting:
    def __init__(
        self,
        database: Database,
        transports: PoolTransports,
        dispatcher: Dispatcher,
        node_id: NodeId,
        on_duty: Callable[[], bool],
    ) -> None:
        self._database = database
        self._transports = transports
        self._dispatcher = dispatcher
        self._node_id = node_id
        self._on_duty = on_duty
        self._looks = 0
        self._pools: dict[str, tuple[PoolNo, ...]] = {}
        """The pools of each transport with beats, by the last look."""
        self._beating: dict[str, asyncio.Task[None]] = {}
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(1))
        """They never start again: a listener ignores a number that it knows."""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:

            async def look_and_follow() -> int:
                await self.look_pass()
                self._follow(group)
                return 0

            await every(LOOK_EVERY_S, look_and_follow, name="hints")

    async def look_pass(self) -> int:
        """Hint the pools that have due work. Returns how many."""
        self._looks += 1
        async with self._database.connection() as connection:
            if self._looks % LOOKS_A_READING == 0:
                await self._database.pools.read_routes(connection)
            names = self._names()
            if not names or not self._on_duty():
                self._pools = {}
                return 0
            hinted = await find_hinted_pools(connection, sorted(names), self._transports.default)
        served = self._transports.serve(pool.pool_no for pool in hinted)
        self._pools = {name: pool_nos for name, pool_nos in served.items() if name not in WITHOUT_BEATS}
        now = self._database.clock.now()
        due = [(pool.pool_no, now) for pool in hinted if pool.is_due]
        self._dispatcher.wake(due)
        return len(due)

    def _names(self) -> set[str]:
        """The transports with beats that some pool uses."""
        routes = self._database.pools.routes.values()
        named = {self._transports.default, *(name for route in routes for name in (route.transport, route.was) if name)}
        return named - WITHOUT_BEATS

    def _follow(self, group: asyncio.TaskGroup) -> None:
        for name in self._beating.keys() - self._pools.keys():
            self._beating.pop(name).cancel()
        for name in self._pools.keys() - self._beating.keys():
            self._beating[name] = group.create_task(self._beat(name), name=f"beat-{name}")

    async def _beat(self, name: str) -> None:
        """Each transport at its own pace: one that is frozen delays no other."""
        next_s = time.monotonic()
        for number in self._numbers[name]:
            next_s = max(next_s + BEAT_EVERY_S, time.monotonic())
            pool_nos = self._pools.get(name, ())
            transport = self._transports.open_or_none(name)
            if self._on_duty() and pool_nos and transport is not None:
                try:
                    async with asyncio.timeout(BEAT_WITHIN_S):
                        await transport.beat(Beat(self._node_id, number), pool_nos)
                except Exception:  # noqa: BLE001 - workers notice the gap, and the listener reports why
                    BEATS_LOST.labels(name).inc()
            await asyncio.sleep(max(next_s - time.monotonic(), 0.0))
