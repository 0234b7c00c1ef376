"""Runs deliveries in a scheduler (O4): a worker for the pool of deliveries, with slots of its own.

So messages go out although no worker runs, "too few workers" among them. The worker exists only while there is work:
the housekeeper's query of chores finds due deliveries, an incarnation registers, runs them by the ordinary machinery,
and leaves when it sends nothing and nothing was due for a while. An idle installation pays nothing for it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from ondot.flow.channels import away
from ondot.flow.channels.away import DatabaseAway
from ondot.flow.pool_transports import PoolTransports
from ondot.model.channel import POOL
from ondot.ports.objects import Objects
from ondot.ports.target import Targets
from ondot.roles.leasing import first_of
from ondot.roles.loop import every
from ondot.roles.worker import Worker
from ondot.store.channels import has_due_deliveries, retire_channel_jobs
from ondot.store.database import Database
from ondot.store.pools import find_pools

SLOTS: Final = 100
"""A receiver that hangs holds a slot for the time of an attempt, and a channel has at most 10 new messages a minute."""
STAYS_S: Final = 10.0
"""It stays for what is due within this time, so that a retry after a few seconds needs no new incarnation."""
LOOK_EVERY_S: Final = 2.0
WITHOUT_WORK_S: Final = 3600.0
ENDS_WITHIN_S: Final = 5.0
"""On a stop. A delivery that takes longer is recovered by another scheduler, and sent again with the same id."""


class Deliveries:
    def __init__(
        self,
        database: Database,
        transports: PoolTransports,
        targets: Targets,
        objects: Objects | None = None,
        away: DatabaseAway | None = None,
    ) -> None:
        """`away`: says that the database is away; None: other schedulers do."""
        self._away = away
        self._database = database
        self._transports = transports
        self._targets = targets
        self._objects = objects
        self._stopping = asyncio.Event()
        self._working = asyncio.Lock()
        self.due = asyncio.Event()
        """Set by the housekeeper when a delivery is due."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then those that are being sent have a moment to end."""
        loop = asyncio.create_task(every(WITHOUT_WORK_S, self._pass, name="deliveries", wake=self.due))
        try:
            await stop.wait()
            self._stopping.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDS_WITHIN_S), self._working:
                    pass
        finally:
            loop.cancel()
            with suppress(asyncio.CancelledError):
                await loop

    async def watch_database(
        self, silent_s: Callable[[], float], is_first: Callable[[], bool], what: Callable[[], str]
    ) -> None:
        """Until cancelled. `silent_s`: how long no beat was confirmed. `is_first`: whether this scheduler is the one to
        send. `what`: which server is away, PostgreSQL or etcd."""
        if self._away is None:
            return
        watch = partial(self._away.watch_pass, silent_s, is_first, what)
        async with asyncio.TaskGroup() as group:
            group.create_task(every(away.REFRESH_EVERY_S, self._away.refresh_pass, name="channels-in-memory"))
            group.create_task(every(away.LOOK_EVERY_S, watch, name="database-away"))

    async def _pass(self) -> int:
        """One incarnation, until nothing is due."""
        async with self._working:
            async with self._database.connection() as connection:
                is_due = await has_due_deliveries(connection, 0.0)
                numbers = await find_pools(connection, [POOL])
            if not is_due or self._stopping.is_set():
                return 0
            worker = Worker(
                self._database,
                self._transports,
                self._targets,
                list(numbers.values()),
                SLOTS,
                self._objects,
            )
            is_idle = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch(worker, is_idle), name="idle-deliveries")
                await worker.run(is_idle)
                watch.cancel()
            async with self._database.connection() as connection:
                await retire_channel_jobs(connection)
        return 0

    async def _watch(self, worker: Worker, is_idle: asyncio.Event) -> None:
        async def look() -> int:
            # A worker that leaves leases nothing more: while a receiver hangs, messages to others would wait for it.
            if worker.running:
                return 0
            async with self._database.connection() as connection:
                if not await has_due_deliveries(connection, STAYS_S):
                    is_idle.set()
            return 0

        looking = asyncio.create_task(every(LOOK_EVERY_S, look, name="idle-deliveries"))
        try:
            await first_of(is_idle, self._stopping)
            is_idle.set()
        finally:
            looking.cancel()
