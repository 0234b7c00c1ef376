"""The scheduler and the worker of a world: runs the passes that roles repeat, until nothing is left to do at an
instant, then at the next.

`Engine.run_until` strides from one instant with something to do to the next, so that nothing runs early or late. At
each it plans, leases, runs and completes by the passes of `ondot.flow`, as one scheduler and one worker of all pools
would; work that a handler creates for that instant also runs at it. Handlers take no time by the world's clock. Fires
are planned ahead up to the end of the run and no further: an outage after it finds as many planned fires as the horizon
of a real scheduler would have left.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from ondot import __version__
from ondot.flow.attempt_log import AttemptLogs
from ondot.flow.auto_pause import pause_failing_pass
from ondot.flow.backfill import owed_pass
from ondot.flow.complete import Completer, Done, end_attempt
from ondot.flow.dispatch import Dispatcher
from ondot.flow.gate import expire_pass
from ondot.flow.handler_transaction import Transactor
from ondot.flow.lease import Assignment, Leaser
from ondot.flow.plan import FULL_SCAN_EVERY, Planner
from ondot.flow.retain import sweep_pass
from ondot.flow.run import Runner, refuse
from ondot.flow.vault import Vault
from ondot.flow.workflows.advance import advance_run
from ondot.flow.workflows.begin import begin
from ondot.flow.workflows.depends import settle_due_pass
from ondot.flow.workflows.due import due_pass
from ondot.flow.workflows.waits import end_waits_pass
from ondot.model.completion import Completion, stop
from ondot.model.ids import PARTITIONS, PoolNo, WorkerId
from ondot.model.job import JobSpec, TargetSpec
from ondot.model.target import FunctionTarget, GrpcTarget, HttpTarget, PublishTarget, ShellTarget
from ondot.model.workflow.spec import WorkflowTarget
from ondot.ports.target import Targets
from ondot.settings import Settings
from ondot.store.connection import DATABASE_ERROR
from ondot.store.database import Database
from ondot.store.workers import register_worker
from ondot.testing.clock import Instant, stride, turn_clock
from ondot.testing.records import Call

PLANNED_AHEAD = timedelta(days=32)
"""Within one run: long enough that a daily job is planned twelve times a year, short enough for a short queue."""
SWEEP_EVERY = 500
"""Dead rows are vacuumed from the small tables after this many instants: left there, they would double the cost of an
instant in a year of hourly fires."""
_SWEEP = "VACUUM ondot.ready, ondot.execution, ondot.lease, ondot.timer, ondot.hand_clock"
FUTILE = 2 * FULL_SCAN_EVERY
"""After this many passes at one instant that changed nothing, an error is raised."""

Pass = Callable[[], Awaitable[int]]


class Engine:
    def __init__(
        self, database: Database, dispatcher: Dispatcher, targets: Targets, slots: int, vault: Vault | None = None
    ) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._slots = slots
        self._settings = database.settings
        self._worker_id = WorkerId(database.clock.new_id())
        self._arrived = set[UUID]()
        """Runs whose steps have ended, and jobs that others wait for."""
        self._completer = Completer(database, dispatcher, self._worker_id, on_arrivals=self._arrived.update)
        self._runner = Runner(
            targets,
            AttemptLogs(database, self._worker_id),
            Transactor(database, dispatcher, self._worker_id, self._arrived.update),
            self._completer,
            vault=vault,
        )
        self._leaser = Leaser(database, self._worker_id, ())
        self._pool_nos: tuple[PoolNo, ...] = ()
        planner = Planner(database, dispatcher)
        self._passes: tuple[Pass, ...] = (
            lambda: planner.one_pass(range(PARTITIONS)),
            lambda: owed_pass(database, dispatcher, range(PARTITIONS)),
            lambda: pause_failing_pass(database),
            lambda: expire_pass(database),
            self._look_at_runs,
        )
        """The passes of a scheduler; `clock.stride` finds when they have something to do."""
        self._instants = 0
        self.calls: list[Call] = []

    async def start(self) -> None:
        async with self._database.connection() as connection:
            # Planning the same four statements for every instant took half of a year's time. The pool returns the
            # connection that was used last, so nearly all of them use this one.
            await connection.execute("SET plan_cache_mode = force_generic_plan")
            await register_worker(
                connection,
                self._worker_id,
                host="world",
                pid=0,
                release=__version__,
                pool_nos=(),
                slots=self._slots,
            )

    async def run_until(self, until: datetime) -> None:
        """Do everything that is due up to and at an instant, each at its time; the clock ends there."""
        futile = 0
        while (instant := await self._stride(until)).to_plan or instant.to_lease:
            done = (await self._plan(instant, until) if instant.to_plan else 0) + await self._work(instant)
            futile = 0 if done else futile + 1
            if futile == FUTILE:
                raise RuntimeError(
                    f"The world is stuck at {instant.at.isoformat()}: something is due that cannot be "
                    f"{'planned' if instant.to_plan else 'leased'}; see the log."
                )
        await turn_clock(self._database, until)

    async def _stride(self, until: datetime) -> Instant:
        self._instants += 1
        async with self._database.connection() as connection:
            if self._instants % SWEEP_EVERY == 0:
                await connection.execute(_SWEEP)
            return await stride(connection, self._database, until=until, horizon_s=self._settings.horizon_s)

    async def _plan(self, instant: Instant, until: datetime) -> int:
        ahead = min(until - instant.at, PLANNED_AHEAD).total_seconds()
        self._database.settings = _with_horizon(self._settings, max(ahead, self._settings.horizon_s))
        try:
            return sum([await one_pass() for one_pass in self._passes])
        finally:
            # Jobs that handlers submit are planned with the usual horizon.
            self._database.settings = self._settings

    async def _work(self, instant: Instant) -> int:
        """Lease a batch, run it, write the outcomes; return how many attempts there were."""
        if instant.pool_nos != self._pool_nos:
            self._pool_nos = instant.pool_nos
            self._leaser = Leaser(self._database, self._worker_id, instant.pool_nos)
        batch = await self._leaser.one_pass(self._slots)
        if not batch.assignments:
            # Below the lower bound of its lane: a clock was set back, or a transaction took long.
            return await sweep_pass(self._database, self._dispatcher) if instant.to_lease else 0
        self._completer.hold(batch.assignments[0].lease_id, len(batch.assignments))
        self._leaser.acknowledge()
        # The same order in every run, which a lease does not promise.
        ordered = sorted(batch.assignments, key=lambda one: (one.leased.ready_at, one.leased.fire_at, one.leased.id))
        runs = [one for one in ordered if one.spec is not None and isinstance(one.spec.target, WorkflowTarget)]
        for assignment in runs:
            await self._begin(assignment)
        attempts = [assignment for assignment in ordered if assignment not in runs]
        completions = await asyncio.gather(*(self._runner.run(assignment) for assignment in attempts))
        ended = list(zip(attempts, completions, strict=True))
        self.calls.extend(
            _record(assignment, assignment.spec, completion, instant.at)
            for assignment, completion in ended
            if assignment.spec is not None and refuse(assignment, assignment.spec) is None
        )
        await self._write(
            [
                end_attempt(assignment, completion)
                for assignment, completion in ended
                if not self._runner.is_committed(assignment, completion)
            ]
        )
        await self._advance()
        return len(ordered)

    async def _begin(self, assignment: Assignment) -> None:
        """Begin a run, which has no attempt that would be a call."""
        leased, spec = assignment.leased, assignment.spec
        assert spec is not None
        refusal = refuse(assignment, spec)
        begun = await begin(self._database, self._dispatcher, self._worker_id, leased, refusal)
        if begun is True:
            self._completer.release(assignment.lease_id)
        else:
            completion = begun if isinstance(begun, Completion) else stop(leased, reason="cancelled")
            await self._write([end_attempt(assignment, completion)])

    async def _advance(self) -> None:
        """Advance runs whose steps have ended, and free jobs whose parents have."""
        while self._arrived:
            await advance_run(self._database, self._dispatcher, self._arrived.pop())

    async def _look_at_runs(self) -> int:
        """What housekeeping does each second: waits that are over, timeouts, jobs that others wait for."""
        self._arrived.update(await end_waits_pass(self._database))
        await due_pass(self._database, self._dispatcher, self._arrived.update)
        async with self._database.connection() as connection:
            rows = await connection.fetch("SELECT DISTINCT run_id FROM ondot.arrival")
        self._arrived.update(row["run_id"] for row in rows)
        found = len(self._arrived)
        await self._advance()
        return found + await settle_due_pass(self._database, self._dispatcher)

    async def _write(self, batch: list[Done]) -> None:
        try:
            await self._completer.write(batch)
        except (DATABASE_ERROR, ValueError):
            # PostgreSQL rejects the output of an attempt. The completer's loop handles that, as in a worker.
            for done in batch:
                self._completer.add(done)
            writing = asyncio.create_task(self._completer.run())
            await self._completer.drained()
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing


def _with_horizon(settings: Settings, horizon_s: float) -> Settings:
    return settings.model_copy(update={"horizon_s": horizon_s})


def _record(assignment: Assignment, spec: JobSpec, completion: Completion, at: datetime) -> Call:
    leased = assignment.leased
    arguments = msgspec.json.decode(assignment.payload)
    if arguments is None and isinstance(spec.target, FunctionTarget):
        arguments = {}
    return Call(
        job=spec.name,
        fire_at=leased.fire_at,
        at=at,
        attempt=leased.attempt_no,
        arguments=arguments,
        outcome=completion.outcome,
        target=_name_of(spec.target),
        result=_decode(completion.result),
        error=_decode(completion.error),
        job_id=leased.job_id,
        execution_id=leased.id,
    )


def _name_of(target: TargetSpec) -> str:
    match target:
        case FunctionTarget():
            return target.name
        case HttpTarget():
            return target.url
        case GrpcTarget():
            return f"{target.place}/{target.method}"
        case ShellTarget():
            return " ".join(target.command)
        case PublishTarget():
            return f"publish to {target.place}"
        case WorkflowTarget():
            return "workflow"


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
