"""A worker: leases batches, runs an asyncio task for each attempt, writes the outcomes (E1, E6, C5).

One process is one incarnation at a time. An incarnation that was declared lost (frozen, or cut off for longer than
its timeout) drops what it runs, since others run it now, and the process goes on as a new one. On a stop nothing new
is leased, running attempts get their grace, outcomes are written, and what was not begun goes back without cost.
A process in which a call will not end (E7) is unfit: it leases no more, waits for the others, and is recycled.
"""

import asyncio
import os
import socket
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Literal

from ondot import __version__
from ondot.flow.attempt_log import Notes
from ondot.flow.complete import Completer, Done
from ondot.flow.dispatch import Dispatcher
from ondot.flow.handler_transaction import Transactor
from ondot.flow.in_flight import Attempt, InFlight
from ondot.flow.lease import Assignment, Batch, Leaser
from ondot.flow.output import Outputs
from ondot.flow.run import begin_attempt, direct_target, run_attempt
from ondot.model.completion import Completion
from ondot.model.errors import Unavailable
from ondot.model.ids import ExecutionId, LeaseId, PoolNo, WorkerId
from ondot.model.job import JobSpec
from ondot.model.liveness import BEATS_A_TIMEOUT
from ondot.model.retry import free_for_suspects
from ondot.ports.objects import Objects
from ondot.ports.target import Call, Cancel, Targets
from ondot.ports.transport import Transport, Wake
from ondot.roles.beat import BeatThread
from ondot.roles.loop import Passes, every
from ondot.roles.pulse import Culprit, OnHung, Pulse, Stall
from ondot.store.connection import DATABASE_ERROR, Connection
from ondot.store.database import Database
from ondot.store.endings import find_cancels
from ondot.store.workers import beat_worker, leave_worker, register_worker, report_stalled_worker
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import CANCELS

POLL_S = 1.0
LEASE_WITHIN_S = 600.0
"""A pass may have to read a thousand large payloads over a slow line."""
NOTES_EVERY_S = 1.0
CANCELS_EVERY_S = 0.5
STUCK_EVERY_S = 1.0
PATIENCE_S = 300.0
"""What the others get when a process is to be recycled."""
LOOK_AGAIN_S = 0.02
GATHER_SLOTS_S = 0.01
GATHERED_SHARE = 4
"""After a slot has come free, wait this long for more, or until a quarter is free: a lease of a hundred costs hardly
more than one of ten."""
WRITE_AT_STOP_S = 10.0
AT_A_TIME = 64
"""Attempts that are started together: a thousand at once leave the processor's caches before the first of them has run,
and each takes twice as long (34 µs instead of 18 for one that does nothing)."""
STEPS_OF_A_SHORT_ONE = 4

log = get_logger()


class Worker:
    def __init__(
        self,
        database: Database,
        transport: Transport,
        targets: Targets,
        pool_nos: Sequence[PoolNo],
        slots: int,
        objects: Objects | None = None,
        on_hung: OnHung | None = None,
    ) -> None:
        """`on_hung`: see `roles.pulse`."""
        self._database = database
        self._transport = transport
        self._targets = targets
        self._pool_nos = tuple(pool_nos)
        self._slots = slots
        self._objects = objects
        self._on_hung = on_hung

    async def run(self, stop: asyncio.Event) -> bool:
        """Until `stop`; as a new incarnation whenever the last one was lost. True: the process is to be recycled."""
        while not stop.is_set():
            incarnation = Incarnation(
                self._database,
                self._transport,
                self._targets,
                self._pool_nos,
                self._slots,
                self._objects,
                self._on_hung,
            )
            await incarnation.live(stop)
            if incarnation.unfit:
                return not stop.is_set()
        return False


class Incarnation:
    """One life of a worker process, under an id that is never used again."""

    def __init__(
        self,
        database: Database,
        transport: Transport,
        targets: Targets,
        pool_nos: tuple[PoolNo, ...],
        slots: int,
        objects: Objects | None,
        on_hung: OnHung | None,
    ) -> None:
        self._database = database
        self._transport = transport
        self._targets = targets
        self._pool_nos = pool_nos
        self._slots = slots
        self._id = WorkerId(database.clock.new_id())
        self._dispatcher = Dispatcher(transport)
        self._leaser = Leaser(database, self._id, pool_nos)
        self._transactor = Transactor(database, self._dispatcher, self._id)
        self._notes = Notes(database, self._id, objects)
        self._outputs = None if objects is None else Outputs(objects, database, self._notes.say)
        self._cancels: dict[tuple[ExecutionId, int], Cancel] = {}
        self._unfit = asyncio.Event()
        self._wake = asyncio.Event()
        self._slot_free = asyncio.Event()
        self._running = InFlight(self._slot_free.set)
        self._completer = Completer(database, self._dispatcher, self._id, self._slot_free.set)
        self._leasing = asyncio.Lock()
        self._lost = asyncio.Event()
        self._state: Literal["ALIVE", "DRAINING"] = "ALIVE"
        self._loop = asyncio.get_running_loop()
        self._beat_every_s = database.settings.heartbeat_s / BEATS_A_TIMEOUT
        self._passes = Passes()
        self._beat = BeatThread(
            database.settings,
            self._beat_once,
            every_s=self._beat_every_s,
            name="worker",
            pulse=Pulse(
                database.settings.heartbeat_s, passes=self._passes, find_culprit=self._culprit, on_hung=on_hung
            ),
            one_report=self._report_stall,
        )

    @property
    def unfit(self) -> bool:
        return self._unfit.is_set()

    async def live(self, stop: asyncio.Event) -> None:
        """Register, work until `stop` or until this incarnation is lost, then end in order."""
        if not await self._register(stop):
            return
        self._beat.start()
        log.info("worker.started", worker_id=str(self._id), slots=self._slots)
        try:
            async with asyncio.TaskGroup() as group:
                duties = [
                    group.create_task(self._dispatcher.run(), name="dispatcher"),
                    group.create_task(self._transport.listen(self._heard), name="listener"),
                    group.create_task(self._completer.run(), name="completer"),
                    group.create_task(every(NOTES_EVERY_S, self._notes.one_pass, name="notes"), name="notes"),
                    group.create_task(every(CANCELS_EVERY_S, self._hear_cancels, name="cancels"), name="cancels"),
                    group.create_task(every(STUCK_EVERY_S, self._look_for_stuck, name="stuck"), name="stuck"),
                ]
                lease = partial(self._lease, group)
                leasing = group.create_task(
                    every(POLL_S, lease, name="lease", passes=self._passes, within_s=LEASE_WITHIN_S), name="lease"
                )
                await self._first_of(stop, self._lost, self._unfit)
                self._state = "DRAINING"
                self._beat.beat_now()
                async with self._leasing:
                    # Not in the middle of a lease: what it brings must be known, to be given back.
                    leasing.cancel()
                if self.unfit:
                    await self._let_others_end(stop)
                if self._lost.is_set():
                    await self._drop()
                else:
                    await self._drain()
                for duty in duties:
                    duty.cancel()
        finally:
            await self._beat.stop()
        if not self._lost.is_set():
            await self._leave()

    async def _register(self, stop: asyncio.Event) -> bool:
        while not stop.is_set():
            try:
                async with self._database.connection() as connection:
                    heard = await register_worker(
                        connection,
                        self._id,
                        host=socket.gethostname(),
                        pid=os.getpid(),
                        release=__version__,
                        pool_nos=self._pool_nos,
                        slots=self._slots,
                    )
                self._isolate(heard.blocking)
            except (Unavailable, DATABASE_ERROR) as error:
                # Refused: of a server that is being set up, or whose password is being changed.
                log.warning("worker.waits", error=str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await stop.wait()
            else:
                return True
        return False

    async def _leave(self) -> None:
        with suppress(Unavailable):
            async with self._database.connection() as connection:
                await leave_worker(connection, self._id)
        log.info("worker.stopped", worker_id=str(self._id))

    # Leasing ---------------------------------------------------------------------------------------------------------

    async def _lease(self, group: asyncio.TaskGroup) -> int:
        """One pass: lease what fits into the free slots, start it, and wait for a reason to look again."""
        self._wake.clear()
        self._slot_free.clear()
        async with self._leasing:
            free = self._free_slots()
            batch = await self._leaser.one_pass(free, free_for_suspects(self._slots, self._running.suspects))
            if batch.assignments:
                self._completer.hold(batch.assignments[0].lease_id, len(batch.assignments))
                self._leaser.acknowledge()
            for number, assignment in enumerate(batch.assignments, 1):
                self._begin(group, assignment)
                if number % AT_A_TIME == 0:
                    await _let_them_run()
        await self._wait(batch, free - len(batch.assignments))
        return 1

    def _free_slots(self) -> int:
        """Outcomes wait for PostgreSQL without a slot, but not without a bound: as many as there are slots. None are
        free for what may not begin."""
        if self._may_begin() is not None:
            return 0
        free = self._slots - len(self._running)
        return max(min(free, free + self._slots - self._completer.unwritten), 0)

    async def _wait(self, batch: Batch, free: int) -> None:
        """Until a wake-up, the next known instant, a free slot if there is a backlog, or the next poll."""
        if batch.more and free > 0:
            return
        if batch.more:
            # Each second all the same: who waits before a gate may have to be skipped, or to cancel what runs here.
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._first_of(self._slot_free, self._lost)
            await self._gather_slots()
            return
        pause_s = LOOK_AGAIN_S if batch.contended else POLL_S
        if batch.next_at is not None:
            pause_s = min(pause_s, max((batch.next_at - self._database.clock.now()).total_seconds(), 0.0))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._wake.wait()

    async def _gather_slots(self) -> None:
        enough = self._slots - max(self._slots // GATHERED_SHARE, 1)
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_SLOTS_S):
                while len(self._running) > enough:
                    self._slot_free.clear()
                    await self._slot_free.wait()

    def _heard(self, wake: Wake) -> None:
        """A wake-up for work further off than the next poll changes nothing: the poll will find it."""
        if wake.pool_no in self._pool_nos and self._soon(wake.ready_at):
            self._wake.set()

    def _soon(self, ready_at: datetime) -> bool:
        return (ready_at - self._database.clock.now()).total_seconds() < POLL_S

    # Running ---------------------------------------------------------------------------------------------------------

    def _begin(self, group: asyncio.TaskGroup, assignment: Assignment) -> None:
        leased = assignment.leased
        attempt = (leased.id, leased.attempt_no)
        self._running.add(attempt, is_suspect=assignment.is_suspect)
        target = direct_target(assignment, self._targets)
        if target is not None:
            ended = partial(self._ended, group, assignment)
            interrupt = begin_attempt(assignment, target, partial(self._call, None), self._may_begin, ended)
            if interrupt is not None:
                self._running.set_interrupt(attempt, interrupt)
        else:
            self._run_task(group, attempt, self._attempt(assignment))

    def _run_task(self, group: asyncio.TaskGroup, attempt: Attempt, work: Coroutine[Any, Any, None]) -> None:
        task = group.create_task(work, name="attempt")
        task.add_done_callback(lambda _task: self._running.remove(attempt))
        # Not before its first step: a task that is cancelled sooner does nothing at all, and its outcome would be lost.
        self._running.set_interrupt(attempt, partial(self._loop.call_soon, task.cancel))

    def _ended(self, group: asyncio.TaskGroup, assignment: Assignment, completion: Completion) -> None:
        """A function has ended. A fault of ours in what follows must not leave its execution with a live worker."""
        leased = assignment.leased
        attempt = (leased.id, leased.attempt_no)
        try:
            self._take_over(group, assignment, attempt, completion)
        except Exception:
            log.exception("attempt.unsettled", execution_id=str(leased.id), then="the worker is recycled")
            self._running.remove(attempt)
            self._unfit.set()

    def _take_over(
        self, group: asyncio.TaskGroup, assignment: Assignment, attempt: Attempt, completion: Completion
    ) -> None:
        """Most leave nothing behind that would have to be kept first."""
        leased = assignment.leased
        fits = self._outputs is None or self._outputs.fits(completion)
        if fits and not self._notes.has_words_of(leased):
            self._cancels.pop(attempt, None)
            self._settle(assignment, completion)
            self._running.remove(attempt)
        else:
            self._run_task(group, attempt, self._finish(assignment, completion))

    async def _attempt(self, assignment: Assignment) -> None:
        leased, checkpoint = assignment.leased, None
        if leased.attempt_no > 1:
            with suppress(Unavailable, asyncio.CancelledError):
                # Cancelled here: the worker stops, and the call will not be begun.
                checkpoint = await self._notes.checkpoint_of(leased)
        completion = await run_attempt(assignment, self._targets, partial(self._call, checkpoint), self._may_begin)
        await self._finish(assignment, completion)

    async def _finish(self, assignment: Assignment, completion: Completion) -> None:
        leased = assignment.leased
        self._cancels.pop((leased.id, leased.attempt_no), None)
        try:
            if self._outputs is not None:
                completion = await self._outputs.keep(leased, completion)
            await self._notes.close(leased)
        finally:
            # Whatever becomes of the words, the outcome is not lost.
            self._settle(assignment, completion)

    def _settle(self, assignment: Assignment, completion: Completion) -> None:
        if self._transactor.settled(completion):
            self._completer.release(assignment.lease_id)
        else:
            self._completer.add(Done(completion, assignment.lease_id))

    def _call(self, checkpoint: str | None, assignment: Assignment, spec: JobSpec) -> Call:
        leased = assignment.leased
        cancel = self._cancels[leased.id, leased.attempt_no] = Cancel(spec.cancel_grace_s)
        transaction = self._transactor.opener(assignment, spec)
        return self._notes.call(assignment, spec, checkpoint, cancel=cancel, transaction=transaction)

    async def _hear_cancels(self) -> int:
        """One pass: ask those attempts to end that somebody wants ended."""
        if not self._cancels:
            return 0
        async with self._database.connection() as connection:
            wanted = await find_cancels(connection, self._id)
        for attempt in wanted:
            cancel = self._cancels.get(attempt)
            if cancel is not None and not cancel.requested:
                CANCELS.inc()
                log.info("attempt.cancelled", execution_id=str(attempt[0]), attempt=attempt[1], grace_s=cancel.grace_s)
                cancel.request()
        return 0

    async def _look_for_stuck(self) -> int:
        if not self.unfit and (stuck := sum(target.stuck for target in self._targets.values())):
            log.error("worker.unfit", worker_id=str(self._id), stuck=stuck, then="it is recycled when the others ended")
            self._unfit.set()
        return 0

    def _may_begin(self) -> str | None:
        if self._state == "DRAINING":
            return "The worker was stopping when the call was to begin."
        if self._beat.is_held:
            return "Everything is held, until a person has looked at the database."
        if self._beat.silent_s > self._database.settings.heartbeat_s:
            return "The worker had no confirmed heartbeat for its timeout: it may have been declared lost."
        return None

    # Ending ----------------------------------------------------------------------------------------------------------

    async def _let_others_end(self, stop: asyncio.Event) -> None:
        """Of a process that will be recycled: its innocent attempts have a while, unless it is to stop anyway."""
        others = asyncio.create_task(self._running.wait_until_none())
        ends = [others, *(asyncio.create_task(event.wait()) for event in (stop, self._lost))]
        await asyncio.wait(ends, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()

    async def _drain(self) -> None:
        """Running attempts get their grace, then are ended; every outcome is written."""
        grace_s = self._database.settings.grace_s
        if self._running:
            log.info("worker.draining", running=len(self._running), grace_s=grace_s)
            await self._ended_within(grace_s)
        if self._running:
            log.warning("worker.interrupts", running=len(self._running))
            self._running.interrupt_all()
            await self._ended_within(WRITE_AT_STOP_S)
        try:
            async with asyncio.timeout(WRITE_AT_STOP_S):
                await self._completer.drained()
        except TimeoutError:
            log.warning("outcomes.unwritten", then="the executions are recovered when this worker is declared lost")

    async def _drop(self) -> None:
        """Others run what this incarnation had: its own attempts are ended, their outcomes refused and counted."""
        log.warning("worker.was_lost", worker_id=str(self._id), dropped=len(self._running))
        self._running.interrupt_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITE_AT_STOP_S):
                await self._running.wait_until_none()
                await self._completer.drained()

    async def _ended_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._running.wait_until_none()

    def _leases(self) -> tuple[LeaseId, ...]:
        """The leases held, and the one that is on its way: read first, since it becomes a held one and not back."""
        pending = self._leaser.pending
        held = self._completer.leases
        return held if pending is None else (*held, pending)

    async def _beat_once(self, connection: Connection) -> float | None:
        """Runs in the beat's thread; what it reads are snapshots."""
        sent_s = time.monotonic()
        heard = await beat_worker(
            connection,
            self._id,
            state=self._state,
            running=len(self._running),
            lease_ids=self._leases(),
            bounds=self._leaser.bounds,
        )
        if heard is None:
            self._loop.call_soon_threadsafe(self._lost.set)
            return None
        self._database.clock.see(heard.now, sent_s)
        self._isolate(heard.blocking)
        return self._beat_every_s

    def _culprit(self) -> Culprit | None:
        for target in self._targets.values():
            if (found := target.find_running()) is not None:
                function, call = found
                return Culprit(function, call.execution_id, call.attempt_no)
        return None

    def _isolate(self, functions: frozenset[str]) -> None:
        for target in self._targets.values():
            target.isolate(functions)

    async def _report_stall(self, connection: Connection, stall: Stall, stalled_s: float) -> None:
        culprit = stall.culprit
        await report_stalled_worker(
            connection,
            self._id,
            stalled_s=stalled_s,
            where=stall.where,
            execution_id=None if culprit is None else ExecutionId(culprit.execution_id),
            function=None if culprit is None else culprit.function,
        )

    @staticmethod
    async def _first_of(*events: asyncio.Event) -> None:
        waits = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def _let_them_run() -> None:
    """As many turns of the loop as an attempt takes that waits for nothing."""
    for _ in range(STEPS_OF_A_SHORT_ONE):
        await asyncio.sleep(0)
