"""Housekeeping runs in scheduler nodes, on the owner of partition 0 (E6, L3, S4, S12)."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from ondot.flow.alerts.evaluate import Evaluator
from ondot.flow.audit_seal import Sealer, seal_keys
from ondot.flow.auto_pause import pause_failing_pass
from ondot.flow.bulk.turns import bulk_pass
from ondot.flow.channels.send import queue_message
from ondot.flow.check import SelfCheck, make_partitions_pass
from ondot.flow.days import Days
from ondot.flow.dispatch import Dispatcher
from ondot.flow.events.own import OwnEvents
from ondot.flow.events.receive import EventReceiver
from ondot.flow.events.tidy import tidy_events_pass
from ondot.flow.expect.watch import expect_pass, remove_misses_pass
from ondot.flow.gate import Tidying, expire_pass
from ondot.flow.history.archive import Archive
from ondot.flow.history.names import NameIndexes
from ondot.flow.history.objects import ObjectRemoval
from ondot.flow.history.rewrite import Rewriting
from ondot.flow.history.seals import SealRemoval
from ondot.flow.job_counts import JobCounts
from ondot.flow.pings import late_pass
from ondot.flow.recover import AT_ONCE, lose_pass, recover_pass
from ondot.flow.removal import Removal
from ondot.flow.retain import Retention, sweep_pass
from ondot.flow.suspension import unpark_pass
from ondot.flow.unknown_calls import known_calls_pass
from ondot.flow.workflows.advance import Advancer
from ondot.flow.workflows.depends import settle_due_pass
from ondot.flow.workflows.due import due_pass
from ondot.flow.zones import zones_pass
from ondot.model.liveness import Watch
from ondot.ports.objects import Objects
from ondot.roles.loop import Passes, every
from ondot.store.adaptive_batch import AdaptiveBatch
from ondot.store.chores import Chores, find_chores
from ondot.store.database import Database

LOSE_EVERY_S = 1.0
LOOKS_A_TIMEOUT = 5
"""Beats are read often enough that the housekeeper's own pauses never look like a gap (`model.liveness`)."""
AFTER_TIMEOUT_S = 0.02
RECOVER_WITHIN_S = 600.0
"""A pass may give back fifty leases of a thousand, in statements that take seconds each."""
SWEEP_EVERY_S = 5.0
CHORES_EVERY_S = 1.0
"""One statement that finds what has work. The passes that it wakes cost nothing until then."""
COUNT_EVERY_S = 1.0
SEAL_EVERY_S = 60.0
"""And within a second of a new entry of the audit log: the chores find it."""
RETAIN_EVERY_S = 60.0
ZONES_EVERY_S = 60.0
MISSES_EVERY_S = 600.0
CHECK_EVERY_S = 10.0
CHECK_MORE_S = 0.25
"""While a table is long: a step of a few thousand rows takes some 20 ms, and the rest of this time is for others."""
PARTITIONS_EVERY_S = 60.0
ALERTS_EVERY_S = 1.0
OWN_EVENTS_EVERY_S = 0.25
"""While jobs start by ondot's own events."""


class Housekeeper:
    def __init__(
        self,
        database: Database,
        dispatcher: Dispatcher,
        on_duty: Callable[[], bool],
        passes: Passes | None = None,
        objects: Objects | None = None,
        advancer: Advancer | None = None,
        on_delivery: Callable[[], None] = lambda: None,
        archive: Objects | None = None,
        on_sinks: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`advancer`: advances runs of workflows. `on_delivery`: called when a message is due. `passes`: records the
        passes that others wait for, so that an overdue one is noticed. `objects`: the storage of large results and
        logs. `archive`: where days are written before they go. `on_sinks`: called with whether there are sinks."""
        self._on_sinks = on_sinks
        self._passes = passes
        self._on_delivery = on_delivery
        self._database = database
        # Only lost workers must be found fast: the rest may read a large table, and may take its time.
        self._patient = database.patient
        self._dispatcher = dispatcher
        self._on_duty = on_duty
        self._days = Days(database)
        self._check = SelfCheck(self._patient, dispatcher)
        self._check_more = asyncio.Event()
        self._to_seal = asyncio.Event()
        self._has_own_events = False
        self._has_alerts = False
        self._evaluator = Evaluator(self._patient, queue_message)
        self._own_events_due = asyncio.Event()
        self._sealer = Sealer(self._patient, next(iter(seal_keys(database.settings)), None))
        self._watch = Watch(database.settings.heartbeat_s)
        self._may_be_lost = asyncio.Event()
        self._is_lost = asyncio.Event()
        self._found: Chores | None = None
        self._has_runs = asyncio.Event()
        self._has_parents = asyncio.Event()
        self._has_rare = asyncio.Event()
        self._has_removal = asyncio.Event()
        self._has_bulk = asyncio.Event()
        self._removal = Removal(self._patient, objects)
        self._rewriting = Rewriting(database, None if archive is None else Archive(database, archive))
        self._object_removal = ObjectRemoval(database, objects)
        self._seal_removal = SealRemoval(database, next(iter(seal_keys(database.settings)), None))
        self._advancer = advancer or Advancer(database, dispatcher, objects)
        self._own_events = OwnEvents(database, EventReceiver(database, dispatcher, self._advancer.request))
        self._recovered_at_once = AdaptiveBatch(AT_ONCE)
        self._lose_every_s = min(LOSE_EVERY_S, database.settings.heartbeat_s / LOOKS_A_TIMEOUT)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, tick_s, one_pass in (
                ("sweep", SWEEP_EVERY_S, lambda: sweep_pass(self._patient, self._dispatcher)),
                ("chores", CHORES_EVERY_S, self._chores_pass),
                ("alerts", ALERTS_EVERY_S, self._alerts_pass),
                ("tidy", RETAIN_EVERY_S, Tidying(self._patient).one_pass),
                ("days", RETAIN_EVERY_S, self._days.one_pass),
                ("retain", RETAIN_EVERY_S, Retention(self._patient).one_pass),
                ("history", RETAIN_EVERY_S, self._rewriting.one_pass),
                ("gone-objects", RETAIN_EVERY_S, self._object_removal.one_pass),
                ("names", RETAIN_EVERY_S, NameIndexes(database=self._patient).one_pass),
                ("old-seals", RETAIN_EVERY_S, self._seal_removal.one_pass),
                ("job-counts", COUNT_EVERY_S, JobCounts(self._patient).one_pass),
                ("event-windows", RETAIN_EVERY_S, lambda: tidy_events_pass(self._patient)),
                ("misses", MISSES_EVERY_S, lambda: remove_misses_pass(self._patient)),
                ("zones", ZONES_EVERY_S, lambda: zones_pass(self._patient, self._dispatcher)),
            ):
                group.create_task(every(tick_s, self._if_on_duty(one_pass), name=name), name=name)
            # Separate from recovery, which may take long: a delay of the watch would count as its own gap.
            watch = every(
                self._lose_every_s, self._watch_pass, name="watch", wake=self._may_be_lost, passes=self._passes
            )
            group.create_task(watch, name="watch")
            recover = every(
                self._lose_every_s,
                self._if_on_duty(self._recover_pass),
                name="recover",
                wake=self._is_lost,
                passes=self._passes,
                within_s=RECOVER_WITHIN_S,
            )
            group.create_task(recover, name="recover")
            # Each on its own: none waits for a slow pass of another, and the next look waits for none.
            for name, wake, one_pass in (
                ("runs", self._has_runs, self._runs_pass),
                ("depends", self._has_parents, lambda: settle_due_pass(self._patient, self._dispatcher)),
                ("rare", self._has_rare, self._rare_pass),
                ("removal", self._has_removal, self._removal.one_pass),
                ("bulk", self._has_bulk, self._bulk_pass),
            ):
                loop = every(RETAIN_EVERY_S, self._if_on_duty(one_pass), name=name, wake=wake)
                group.create_task(loop, name=name)
            seal = every(SEAL_EVERY_S, self._if_on_duty(self._sealer.one_pass), name="seal", wake=self._to_seal)
            group.create_task(seal, name="seal")
            own_events = every(
                RETAIN_EVERY_S, self._if_on_duty(self._own_events_pass), name="own-events", wake=self._own_events_due
            )
            group.create_task(own_events, name="own-events")
            check = every(CHECK_EVERY_S, self._if_on_duty(self._check_pass), name="check", wake=self._check_more)
            group.create_task(check, name="check")
            # On duty or not: without the first partition no node is.
            partitions = every(PARTITIONS_EVERY_S, lambda: make_partitions_pass(self._patient), name="partitions")
            group.create_task(partitions, name="partitions")

    async def _check_pass(self) -> int:
        """One step of the self-check, and the next soon if there is more to do."""
        if await self._check.one_pass():
            asyncio.get_running_loop().call_later(CHECK_MORE_S, self._check_more.set)
        return 0

    async def _own_events_pass(self) -> int:
        """Match ondot's own events, and the next soon while any job starts by them."""
        matched = await self._own_events.one_pass() if self._has_own_events else 0
        if self._has_own_events and not matched:
            asyncio.get_running_loop().call_later(OWN_EVENTS_EVERY_S, self._own_events_due.set)
        return matched

    async def _watch_pass(self) -> int:
        """Every node watches the workers, so that the next on duty knows them; it looks again when the next may be
        lost.
        """
        if await lose_pass(self._database, self._watch, on_duty=self._on_duty()):
            self._is_lost.set()
        silent_s = self._watch.next_loss_s(time.monotonic())
        if silent_s is not None and 0 < silent_s < self._lose_every_s:
            asyncio.get_running_loop().call_later(silent_s + AFTER_TIMEOUT_S, self._may_be_lost.set)
        return 0

    async def _recover_pass(self) -> int:
        return await recover_pass(
            self._database, self._dispatcher, self._recovered_at_once, on_arrivals=self._advancer.request
        )

    async def _runs_pass(self) -> int:
        return await due_pass(self._database, self._dispatcher, self._advancer.request)

    async def _bulk_pass(self) -> int:
        return await bulk_pass(self._patient, self._dispatcher)

    async def _chores_pass(self) -> int:
        """Find what has work by one query, and wake the passes that do it."""
        async with self._patient.connection() as connection:
            chores = self._found = await find_chores(connection)
        for is_due, wake in (
            (chores.runs or chores.arrivals, self._has_runs),
            (chores.parents or chores.arrivals, self._has_parents),
            (chores.has_rare, self._has_rare),
            (chores.bulk, self._has_bulk),
            (chores.removal, self._has_removal),
            (chores.seal, self._to_seal),
            (chores.own_events and not self._has_own_events, self._own_events_due),
        ):
            if is_due:
                wake.set()
        if chores.deliveries:
            self._on_delivery()
        self._on_sinks(chores.sinks)
        self._has_own_events = chores.own_events
        self._has_alerts = chores.alerts
        return 0

    async def _rare_pass(self) -> int:
        """Short passes that few installations need, one after the other, so that they hold one connection."""
        chores, self._found = self._found, None
        if chores is None:
            return 0
        if chores.expire:
            await expire_pass(self._patient)
        if chores.failing:
            await pause_failing_pass(self._patient)
        if chores.parked:
            await unpark_pass(self._patient)
        if chores.expect:
            await expect_pass(self._patient)
        if chores.pings:
            await late_pass(self._patient)
        if chores.returned:
            await known_calls_pass(self._patient, self._dispatcher)
        return 0

    async def _alerts_pass(self) -> int:
        """Costs nothing while there is no alert."""
        if self._has_alerts and await self._evaluator.one_pass():
            self._on_delivery()
        return 0

    def _if_on_duty(self, one_pass: Callable[[], Awaitable[int]]) -> Callable[[], Awaitable[int]]:
        async def pass_on_duty() -> int:
            return await one_pass() if self._on_duty() else 0

        return pass_on_duty
