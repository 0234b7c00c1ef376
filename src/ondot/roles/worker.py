"""A worker process: registers, beats, and runs its duties until it is stopped, lost or unfit (E1, E6, C5). Leasing is
`roles.leasing`, one attempt `flow.run`.

A process is one incarnation at a time. An incarnation that was declared lost (frozen, or cut off for longer than its
timeout) drops its attempts, because others run them now, and the process continues as a new one. On a stop it leases
nothing more, running attempts get their grace, outcomes are written, and work that has not started goes back without
cost. A process in which a call does not end (E7) is unfit: it leases nothing more, waits for its other calls, and is
recycled.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

from ondot import __version__
from ondot.flow.attempt_log import AttemptLogs
from ondot.flow.complete import Completer
from ondot.flow.declare import Declarer
from ondot.flow.dispatch import Dispatcher
from ondot.flow.events.followed import Followed
from ondot.flow.handler_transaction import Transactor
from ondot.flow.known_functions import register as register_functions
from ondot.flow.lease import Leaser
from ondot.flow.output import Outputs
from ondot.flow.pool_transports import PoolTransports
from ondot.flow.run import Runner
from ondot.flow.served_tenants import ServedTenants, TenantNos
from ondot.flow.traced_run import TracedRunner
from ondot.flow.vault import Vault
from ondot.flow.workflows.advance import Advancer
from ondot.flow.workflows.begin import Beginner
from ondot.flow.workflows.results import read_for_attempt
from ondot.model.app_release import AppRelease
from ondot.model.beats import POLL_S
from ondot.model.errors import Unavailable
from ondot.model.function import DeclaredFunction
from ondot.model.ids import ExecutionId, LeaseId, PoolNo, WorkerId
from ondot.model.liveness import BEATS_A_TIMEOUT
from ondot.ports.objects import Objects
from ondot.ports.target import Targets
from ondot.roles.beat import BeatThread
from ondot.roles.leasing import LeaseLoop, first_of
from ondot.roles.loop import Passes, every
from ondot.roles.pool_listener import PoolListener
from ondot.roles.pulse import Culprit, OnHung, Pulse, Stall
from ondot.store.connection import DATABASE_ERROR, Connection
from ondot.store.database import Database
from ondot.store.endings import find_cancels
from ondot.store.workers import (
    beat_worker,
    leave_worker,
    register_worker,
    report_stalled_worker,
    set_worker_tenants,
)
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import LEASE_AGE, SLOTS, STALLED, UNWRITTEN
from ondot.telemetry.trace import active_tracer

REGISTER_AGAIN_S = 1.0
LEASE_WITHIN_S = 600.0
"""A pass may have to read a thousand large payloads over a slow line."""
NOTES_EVERY_S = 1.0
CANCELS_EVERY_S = 0.5
STUCK_EVERY_S = 1.0
TENANTS_EVERY_S = 1.0
DECLARE_EVERY_S = 10.0
PATIENCE_S = 300.0
"""How long the other calls of an unfit process may take before it is recycled."""
WRITE_AT_STOP_S = 10.0

log = get_logger()


class Worker:
    def __init__(
        self,
        database: Database,
        transports: PoolTransports,
        targets: Targets,
        pool_nos: Sequence[PoolNo],
        slots: int,
        objects: Objects | None = None,
        on_hung: OnHung | None = None,
        served: ServedTenants | None = None,
        vault: Vault | None = None,
        app: AppRelease | None = None,
        functions: Sequence[DeclaredFunction] = (),
        declarer: Declarer | None = None,
    ) -> None:
        """`on_hung`: see `roles.pulse`. `served`: the tenants whose work it leases; None: all. `vault`: None if it has
        no secrets to read. `functions`: those of its app, to be registered. `declarer`: None if it has no app."""
        self._new_incarnation = partial(
            Incarnation,
            *(database, transports, targets, tuple(pool_nos), slots, objects, on_hung, served, vault, app, functions),
            declarer=declarer,
        )
        self._incarnation: Incarnation | None = None

    @property
    def running(self) -> int:
        """How many attempts it runs."""
        return 0 if self._incarnation is None else self._incarnation.running

    async def run(self, stop: asyncio.Event) -> bool:
        """Until `stop`, as a new incarnation whenever the last one was lost. Returns True if the process is unfit."""
        while not stop.is_set():
            incarnation = self._incarnation = self._new_incarnation()
            await incarnation.live(stop)
            if incarnation.unfit:
                return not stop.is_set()
        return False


class Incarnation:
    """One life of a worker process, under an id that is never used again."""

    def __init__(
        self,
        database: Database,
        transports: PoolTransports,
        targets: Targets,
        pool_nos: tuple[PoolNo, ...],
        slots: int,
        objects: Objects | None,
        on_hung: OnHung | None,
        served: ServedTenants | None,
        vault: Vault | None,
        app: AppRelease | None,
        functions: Sequence[DeclaredFunction],
        declarer: Declarer | None,
    ) -> None:
        self._database = database
        self._functions = functions
        self._app = app
        self._declarer = declarer
        self._targets = targets
        self._pool_nos = pool_nos
        self._slots = slots
        self._served = served
        self._id = WorkerId(database.clock.new_id())
        self._unfit = asyncio.Event()
        self._lost = asyncio.Event()
        slot_free, followed = asyncio.Event(), Followed()
        self._dispatcher = Dispatcher(transports)
        self._notes = AttemptLogs(database, self._id, objects)
        self._advancer = Advancer(database, self._dispatcher, objects)
        self._completer = Completer(
            database, self._dispatcher, self._id, slot_free.set, self._advancer.request, followed
        )
        tracer = active_tracer()
        new_runner: Callable[..., Runner] = Runner
        if tracer is not None:
            new_runner = partial(TracedRunner, tracer=tracer, worker_id=self._id, now=database.clock.now)
        self._runner = new_runner(
            targets,
            self._notes,
            Transactor(database, self._dispatcher, self._id, self._advancer.request),
            self._completer,
            outputs=None if objects is None else Outputs(objects, database, self._notes.say),
            vault=vault,
            begin_run=Beginner(database, self._dispatcher, self._id, objects).begin,
            read_results=partial(read_for_attempt, database, objects),
            may_start=self._may_start,
            on_free=slot_free.set,
            on_fault=self._unfit.set,
        )
        self._leaser = Leaser(database, self._id, pool_nos, self._tenants, self._runner.in_flight, followed)
        self._lease_loop = LeaseLoop(
            *(database, self._leaser, self._runner, self._completer, pool_nos, slots, slot_free, self._lost),
            trusted_until_s=lambda: self._listener.trusted_until_s,
        )
        self._listener = PoolListener(transports, pool_nos, self._lease_loop.on_wake)
        self._dispatcher.on_wake = self._lease_loop.on_wake
        self._state: Literal["ALIVE", "DRAINING"] = "ALIVE"
        self._loop = asyncio.get_running_loop()
        self._beat_every_s = database.settings.heartbeat_s / BEATS_A_TIMEOUT
        self._passes = Passes()
        pulse = Pulse(
            database.settings.heartbeat_s, passes=self._passes, find_culprit=self._find_culprit, on_hung=on_hung
        )
        self._beat = BeatThread(
            database.settings,
            self._beat_once,
            every_s=self._beat_every_s,
            name="worker",
            pulse=pulse,
            one_report=self._report_stall,
        )
        STALLED.follow(lambda: pulse.stalled_s)
        LEASE_AGE.follow(lambda: self._beat.silent_s)
        SLOTS.follow(lambda: slots, "all")
        SLOTS.follow(lambda: len(self._runner.in_flight), "running")
        UNWRITTEN.follow(lambda: self._completer.unwritten)

    @property
    def running(self) -> int:
        return len(self._runner.in_flight)

    @property
    def unfit(self) -> bool:
        return self._unfit.is_set()

    async def live(self, stop: asyncio.Event) -> None:
        """Register, work until `stop` or until this incarnation is lost or unfit, then end in order."""
        if not await self._register(stop):
            return
        self._beat.start()
        log.info("worker.started", worker_id=str(self._id), slots=self._slots)
        try:
            async with asyncio.TaskGroup() as group:
                duties = [
                    group.create_task(self._dispatcher.run(), name="dispatcher"),
                    group.create_task(self._listener.run(), name="listener"),
                    group.create_task(self._completer.run(), name="completer"),
                    group.create_task(self._advancer.run(), name="advancer"),
                    group.create_task(every(NOTES_EVERY_S, self._notes.one_pass, name="notes"), name="notes"),
                    group.create_task(every(CANCELS_EVERY_S, self._cancel_pass, name="cancels"), name="cancels"),
                    group.create_task(every(STUCK_EVERY_S, self._stuck_pass, name="stuck"), name="stuck"),
                ]
                if self._served is not None and self._served.may_change:
                    duties.append(group.create_task(every(TENANTS_EVERY_S, self._tenants_pass, name="tenants")))
                if self._declarer is not None:
                    duties.append(group.create_task(every(DECLARE_EVERY_S, self._declare_pass, name="declare")))
                lease = partial(self._lease_loop.one_pass, group)
                leasing = group.create_task(
                    every(POLL_S, lease, name="lease", passes=self._passes, within_s=LEASE_WITHIN_S), name="lease"
                )
                await first_of(stop, self._lost, self._unfit)
                self._state = "DRAINING"
                self._beat.beat_now()
                async with self._lease_loop.leasing:
                    # Not in the middle of a lease: the executions that it returns must be known, to be given back.
                    leasing.cancel()
                if self.unfit:
                    await self._wait_for_others(stop)
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
                await self._register_functions(self._tenants())
                async with self._database.connection() as connection:
                    registered = await register_worker(
                        connection,
                        self._id,
                        host=socket.gethostname(),
                        pid=os.getpid(),
                        release=__version__,
                        pool_nos=self._pool_nos,
                        slots=self._slots,
                        tenant_nos=self._tenants(),
                        app=self._app,
                    )
                self._isolate(registered.blocking)
            except (Unavailable, DATABASE_ERROR) as error:
                # Refused by a server that is being set up, or whose password is being changed.
                log.warning("worker.waits", error=str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(REGISTER_AGAIN_S):
                        await stop.wait()
            else:
                return True
        return False

    async def _register_functions(self, tenant_nos: TenantNos) -> None:
        if self._app is not None:
            await register_functions(self._database, self._app, self._functions, tenant_nos)

    async def _leave(self) -> None:
        with suppress(Unavailable):
            async with self._database.connection() as connection:
                await leave_worker(connection, self._id)
        log.info("worker.stopped", worker_id=str(self._id))

    # Running ---------------------------------------------------------------------------------------------------------

    async def _cancel_pass(self) -> int:
        """Ask those attempts to end that were cancelled."""
        if self._runner.cancels:
            async with self._database.connection() as connection:
                attempts = await find_cancels(connection, self._id)
            self._runner.cancel(attempts)
        return 0

    def _tenants(self) -> TenantNos:
        return None if self._served is None else self._served.numbers

    async def _tenants_pass(self) -> int:
        """Follow changes of the tenants that it serves: an owner gave one its pools, or took them away."""
        if self._served is not None and await self._served.read_again() and self._served.numbers is not None:
            await self._register_functions(self._served.numbers)
            async with self._database.connection() as connection:
                await set_worker_tenants(connection, self._id, self._served.numbers)
        return 0

    async def _declare_pass(self) -> int:
        """Show that this release is alive, and declare what its code declares when it is its turn."""
        assert self._declarer is not None
        assert self._served is not None
        return await self._declarer.one_pass(self._served.registers_for)

    async def _stuck_pass(self) -> int:
        if not self.unfit and (stuck := sum(target.stuck for target in self._targets.values())):
            log.error("worker.unfit", worker_id=str(self._id), stuck=stuck, then="it is recycled when the others ended")
            self._unfit.set()
        return 0

    def _may_start(self) -> str | None:
        if self._state == "DRAINING":
            return "The worker was stopping when the call was to start."
        if self._beat.is_held:
            return "Nothing starts until an operator has looked at the database and accepted it."
        if self._beat.silent_s > self._database.settings.heartbeat_s:
            return "The worker had no confirmed heartbeat for its timeout: it may have been declared lost."
        return None

    # Ending ----------------------------------------------------------------------------------------------------------

    async def _wait_for_others(self, stop: asyncio.Event) -> None:
        """The other attempts of an unfit process get a while, unless it is to stop anyway."""
        others = asyncio.create_task(self._runner.in_flight.wait_until_none())
        ends = [others, *(asyncio.create_task(event.wait()) for event in (stop, self._lost))]
        await asyncio.wait(ends, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()

    async def _drain(self) -> None:
        """Running attempts get their grace, then are interrupted; every outcome is written."""
        grace_s = self._database.settings.grace_s
        if self._runner.in_flight:
            log.info("worker.draining", running=len(self._runner.in_flight), grace_s=grace_s)
            await self._wait_for_attempts(grace_s)
        if self._runner.in_flight:
            log.warning("worker.interrupts", running=len(self._runner.in_flight))
            self._runner.in_flight.interrupt_all()
            await self._wait_for_attempts(WRITE_AT_STOP_S)
        try:
            async with asyncio.timeout(WRITE_AT_STOP_S):
                await self._completer.drained()
                await self._advancer.drained()
        except TimeoutError:
            log.warning("outcomes.unwritten", then="the executions are recovered when this worker is declared lost")

    async def _drop(self) -> None:
        """Others run its work now: its own attempts are interrupted, and their outcomes refused and counted."""
        log.warning("worker.was_lost", worker_id=str(self._id), dropped=len(self._runner.in_flight))
        self._runner.in_flight.interrupt_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITE_AT_STOP_S):
                await self._runner.in_flight.wait_until_none()
                await self._completer.drained()

    async def _wait_for_attempts(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._runner.in_flight.wait_until_none()

    def _leases(self) -> tuple[LeaseId, ...]:
        """The leases that it has, and the pending one. That is read first: it becomes one of the others, and never
        back."""
        pending = self._leaser.pending
        leases = self._completer.leases
        return leases if pending is None else (*leases, pending)

    async def _beat_once(self, connection: Connection) -> float | None:
        """Runs in the heartbeat's thread, and reads snapshots."""
        sent_s = time.monotonic()
        answer = await beat_worker(
            connection,
            self._id,
            state=self._state,
            running=len(self._runner.in_flight),
            lease_ids=self._leases(),
            bounds=self._leaser.bounds,
            held=self._leaser.slots_held,
            trusts=self._listener.trusts,
        )
        if answer is None:
            self._loop.call_soon_threadsafe(self._lost.set)
            return None
        self._database.clock.see(answer.now, sent_s)
        self._database.pools.see_routes(answer.routes)
        self._isolate(answer.blocking)
        return self._beat_every_s

    def _find_culprit(self) -> Culprit | None:
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
