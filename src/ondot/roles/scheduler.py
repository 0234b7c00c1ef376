"""A scheduler node: owns partitions by lease, plans their fires ahead, catches up on missed ones, and does the
housekeeping if it owns partition 0 (C1, C2).

A thread beats each 1.5 s by default, while the loop moves; a beat also renews the lease and balances the partitions. A
node owns partitions until its row expires. The others beat again as soon as it has expired, so that the partitions of a
dead or hung node have a new owner within the lease and a moment. A node that cannot reach the database stops planning
when its lease is over. Two nodes that both believe they own a partition do the work twice and nothing worse, because
timers move by compare-and-set. A stopping node hands its partitions over at once.
"""

import asyncio
import time
from contextlib import suppress

from ondot.flow.backfill import TURN_S, owed_pass
from ondot.flow.days import make_days
from ondot.flow.dispatch import Dispatcher
from ondot.flow.plan import Planner
from ondot.flow.pool_transports import PoolTransports
from ondot.flow.workflows.advance import Advancer
from ondot.model.errors import Unavailable
from ondot.model.partition import balance
from ondot.ports.coordinator import Coordinator, Standing
from ondot.ports.objects import Objects
from ondot.roles.beat import BeatThread
from ondot.roles.dead_man import LOOK_EVERY_S, DeadMan
from ondot.roles.deliveries import Deliveries
from ondot.roles.hinting import Hinting
from ondot.roles.housekeeper import Housekeeper
from ondot.roles.loop import Passes, every
from ondot.roles.pulse import OnHung, Pulse, Stall
from ondot.roles.sinks import Sinks
from ondot.store.connection import DATABASE_ERROR, Connection
from ondot.store.database import Database
from ondot.store.nodes import report_stalled_node
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import LEASE_AGE, PARTITIONS_HELD, STALLED

PLAN_EVERY_S = 1.0
OWED_EVERY_S = 2.0
"""How often to look for missed fires; while there are any, each range has a turn each TURN_S."""
BEATS_A_LEASE = 10 / 3
AFTER_EXPIRY_S = 0.05
LEASES_UNTIL_HUNG = 2.0
"""After one lease others plan its partitions. A node that is alone loses nothing by a second: fires were planned."""
SHORT_OF_SHARE_S = 0.25
"""A node with less than its share looks this often, so that returned partitions do not wait for a beat."""

log = get_logger()


class Scheduler:
    def __init__(
        self,
        database: Database,
        transports: PoolTransports,
        coordinator: Coordinator[Connection],
        on_hung: OnHung | None = None,
        objects: Objects | None = None,
        deliveries: Deliveries | None = None,
        dead_man: DeadMan | None = None,
        archive: Objects | None = None,
        sinks: Sinks | None = None,
    ) -> None:
        """`on_hung`: see `roles.pulse`. `objects`: the storage of large results and logs. `deliveries`: sends the
        messages of channels; None: other schedulers do. `dead_man`: called while all is well. `archive`: where days are
        written before they go. `sinks`: sends events; None: other schedulers do."""
        self._sinks = sinks
        self._database = database
        self._deliveries = deliveries
        self._dead_man = dead_man
        self._objects = objects
        self._archive = archive
        self._dispatcher = Dispatcher(transports)
        self._advancer = Advancer(database, self._dispatcher, objects)
        self._coordinator = coordinator
        self._node_id = coordinator.node_id
        self._hinting = Hinting(database, transports, self._dispatcher, self._node_id, on_duty=lambda: 0 in self.owned)
        self._owned: frozenset[int] = frozenset()
        self._planner = Planner(database, self._dispatcher)
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._owing = asyncio.Event()
        self._beat_every_s = database.settings.lease_s / BEATS_A_LEASE
        self._passes = Passes()
        lease_s = database.settings.lease_s
        pulse = Pulse(lease_s, passes=self._passes, on_hung=on_hung, hung_after_s=lease_s * LEASES_UNTIL_HUNG)
        self._beat = BeatThread(
            database.settings,
            self._beat_once,
            every_s=self._beat_every_s,
            name="node",
            pulse=pulse,
            one_report=self._report_stall,
            on_end=coordinator.disconnect,
        )
        coordinator.on_change = self._beat.beat_now
        STALLED.follow(lambda: pulse.stalled_s)
        LEASE_AGE.follow(lambda: self._beat.silent_s)
        PARTITIONS_HELD.follow(lambda: len(self.owned))

    @property
    def owned(self) -> frozenset[int]:
        """The partitions that this node may plan now: none once its lease is over, or while nothing may start."""
        is_over = self._beat.is_held or self._beat.silent_s >= self._database.settings.lease_s
        return frozenset() if is_over else self._owned

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then hand the partitions over."""
        with suppress(Unavailable, DATABASE_ERROR):
            await make_days(self._database)
        self._beat.start()
        log.info("scheduler.started", node_id=str(self._node_id))
        async with asyncio.TaskGroup() as outer:
            if self._deliveries is not None:
                # Outside of the tasks below: its last messages must not delay the hand-over of the partitions.
                outer.create_task(self._deliveries.run(stop), name="deliveries")
            await self._work(stop)

    async def _work(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._dispatcher.run(), name="dispatcher"),
                group.create_task(self._advancer.run(), name="advancer"),
                group.create_task(self._hinting.run(), name="hinting"),
                group.create_task(
                    every(PLAN_EVERY_S, self._plan_pass, name="plan", wake=self._moved, passes=self._passes),
                    name="plan",
                ),
                group.create_task(every(OWED_EVERY_S, self._owed_pass, name="owed", wake=self._owing), name="owed"),
                group.create_task(
                    Housekeeper(
                        self._database,
                        self._dispatcher,
                        lambda: 0 in self.owned,
                        self._passes,
                        self._objects,
                        self._advancer,
                        (lambda: None) if self._deliveries is None else self._deliveries.due.set,
                        self._archive,
                        self._note_sinks,
                    ).run(),
                    name="housekeeper",
                ),
            ]
            if self._deliveries is not None:
                silent = self._deliveries.watch_database(
                    lambda: self._beat.silent_s, lambda: 0 in self._owned, self._name_what_is_away
                )
                tasks.append(group.create_task(silent, name="database-away"))
            if self._sinks is not None:
                tasks.append(group.create_task(self._sinks.run(lambda: 0 in self.owned), name="sinks"))
            if self._dead_man is not None:
                tasks.append(group.create_task(every(LOOK_EVERY_S, self._dead_man_pass, name="dead-man")))
            await stop.wait()
            for task in tasks:
                task.cancel()
        await self._beat.stop()
        handed_over = 0
        # If the database is away, the lease ends by itself.
        with suppress(Unavailable, DATABASE_ERROR):
            handed_over = await self._coordinator.leave()
        log.info("scheduler.stopped", handed_over=handed_over, of=len(self._owned))

    def _note_sinks(self, are_there: bool) -> None:
        if self._sinks is not None:
            self._sinks.are_there = are_there

    def _name_what_is_away(self) -> str:
        """While no beat is confirmed: PostgreSQL, or what else holds the leases."""
        is_there = self._beat.database_silent_s < self._beat.silent_s - self._beat_every_s
        return self._coordinator.name if is_there else "PostgreSQL"

    async def _plan_pass(self) -> int:
        return await self._planner.one_pass(sorted(self.owned))

    async def _dead_man_pass(self) -> int:
        """By one process; two during a take-over do no harm."""
        return await self._dead_man.one_pass() if self._dead_man is not None and 0 in self.owned else 0

    async def _owed_pass(self) -> int:
        """One turn for each range of missed fires, and the next after a while: they run at a bounded rate."""
        owned = sorted(self.owned)
        if owned and await owed_pass(self._database, self._dispatcher, owned):
            self._loop.call_later(TURN_S, self._owing.set)
        return 0

    async def _report_stall(self, connection: Connection, stall: Stall, stalled_s: float) -> None:
        await report_stalled_node(connection, self._node_id, stalled_s=stalled_s, where=stall.where)

    async def _beat_once(self, connection: Connection) -> float:
        """Renew the lease, then take or give back partitions towards a fair share. Runs in the heartbeat's thread."""
        was_silent = self._beat.silent_s > self._database.settings.lease_s
        sent_s = time.monotonic()
        standing = await self._coordinator.beat(connection)
        self._database.clock.see(standing.now, sent_s)
        decision = balance(standing.owned, standing.live_nodes, standing.rank)
        owned = standing.owned - set(decision.give_back)
        if decision.give_back:
            self._owned = owned
            await self._coordinator.give_back(connection, decision.give_back)
        elif decision.take and not was_silent:
            # A node that was silent may be the first one back after the database was away: the others get one beat.
            owned |= await self._coordinator.take(connection, decision.take)
        if owned != self._owned:
            log.info("partitions.owned", count=len(owned), nodes=standing.live_nodes)
            self._owned = owned
            self._loop.call_soon_threadsafe(self._moved.set)
        return self._again_s(standing, is_short=not was_silent and len(owned - standing.owned) < decision.take)

    def _again_s(self, standing: Standing, *, is_short: bool) -> float:
        """When to beat again: as soon as the lease of another may be over, or soon while it has less than its share."""
        again_s = SHORT_OF_SHARE_S if is_short else self._beat_every_s
        if standing.next_expiry_s is not None:
            again_s = min(again_s, standing.next_expiry_s + AFTER_EXPIRY_S)
        return again_s
