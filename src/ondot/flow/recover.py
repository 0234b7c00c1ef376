"""Recover: lost workers → back to the queue (E6, P6, P7, L3).

Whether a worker is lost is judged by two clocks (`model.liveness`) and written by compare-and-set on the beat that was
judged; from then on the incarnation's beats and leases are refused. Then the leases of lost or missing workers are
given back: executions that are RUNNING under exactly that worker and attempt return in the class that is served first,
which costs one of their losses. A lease that its live worker does not name for two beats is one whose reply never
arrived: it is given back without cost. A worker may have run 50,000 executions: they go back in statements of 1,000,
and of fewer where that does not fit into a deadline.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from ondot.flow.complete import OnArrivals, pools_to_wake, runs_to_advance
from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.attempts import find_step_attempts
from ondot.model.completion import Completion, class_of_returned, decide_loss, expire, give_back, with_labels
from ondot.model.execution import State
from ondot.model.ids import LeaseId, WorkerId
from ondot.model.job import JobSpec
from ondot.model.liveness import BEATS_A_TIMEOUT, Watch
from ondot.model.outcome import AttemptError
from ondot.store.adaptive_batch import AdaptiveBatch
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.outcomes import complete_executions
from ondot.store.specs import Specs
from ondot.store.workers import (
    LostExecution,
    OrphanedLease,
    find_lost_executions,
    find_orphaned_leases,
    lose_worker,
    read_beats,
)
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import RECOVERED, WORKERS_LOST

LEASES_A_PASS = 50
AT_ONCE = 1_000
"""Executions in one statement."""

log = get_logger()


async def lose_pass(
    database: Database, watch: Watch, monotonic: Callable[[], float] = time.monotonic, *, on_duty: bool = True
) -> int:
    """Look at the beats once and mark workers lost; returns how many.

    A node that is not on duty looks too, and does no more: if it becomes the housekeeper, it knows since when a worker
    is silent, and does not wait for a whole timeout of its own.
    """
    async with database.connection() as connection:
        asked_s = monotonic()
        beats, now = await read_beats(connection)
        if now is None:
            return 0
        lost = 0
        seen_s = monotonic()
        for beat in watch.look(beats, monotonic_s=seen_s, database_now=now, took_s=seen_s - asked_s):
            if on_duty and await lose_worker(connection, beat):
                lost += 1
                WORKERS_LOST.inc()
                log.warning(
                    "worker.lost",
                    worker_id=str(beat.worker_id),
                    silent_s=round((now - beat.beat_at).total_seconds(), 1),
                    then="its executions go back to the queue",
                )
    return lost


async def recover_pass(
    database: Database,
    dispatcher: Dispatcher,
    at_once: AdaptiveBatch | None = None,
    *,
    on_arrivals: OnArrivals = lambda _: None,
) -> int:
    """Give back the executions of some orphaned leases; returns how many leases were looked at.

    `at_once`: how many executions go back in a statement; the loop that repeats the pass keeps it. `on_arrivals`: some
    were steps of these runs, and were given up.
    """
    at_once = at_once or AdaptiveBatch(AT_ONCE)
    beat_every_s = database.settings.heartbeat_s / BEATS_A_TIMEOUT
    async with database.connection() as connection:
        with at_once.adapt(at_once.size, may_grow=False):
            limit = max(LEASES_A_PASS * at_once.size // AT_ONCE, 1)
            leases = await find_orphaned_leases(connection, beat_every_s, limit)
            if not leases:
                return 0
            executions = await find_lost_executions(connection, [lease.id for lease in leases])
        unnamed = {lease.id for lease in leases if lease.unnamed}
        for worker_id, ids, portion in _statements(leases, executions, at_once):
            with at_once.adapt(len(portion)):
                completions = await _completions(connection, database.specs, portion, unnamed)
                # If one of them meets a cancel or an outcome, the leases stay and the next pass looks again.
                written = await complete_executions(connection, worker_id, completions, ids)
            dispatcher.wake(pools_to_wake(written, database.clock.now()))
            if awaiting := runs_to_advance(written):
                on_arrivals(awaiting)
            _report(worker_id, ids, completions, len(written))
    return len(leases)


def _statements(
    leases: Sequence[OrphanedLease], executions: Sequence[LostExecution], at_once: AdaptiveBatch
) -> Iterator[tuple[WorkerId, list[LeaseId], list[LostExecution]]]:
    """The work of one statement each: whole leases of one worker, and their executions.

    The executions of a lease that is larger than a portion go in parts, without the lease. It stays, and the next pass
    finds it empty: a statement for one part does not know whether the others changed their rows.
    """
    by_lease: dict[LeaseId, list[LostExecution]] = defaultdict(list)
    for execution in executions:
        by_lease[execution.lease_id].append(execution)
    for worker_id, ids in _leases_by_worker(leases).items():
        whole: list[LeaseId] = []
        portion: list[LostExecution] = []
        for lease_id in ids:
            rest = by_lease[lease_id]
            if portion and len(portion) + len(rest) > at_once.size:
                yield worker_id, whole, portion
                whole, portion = [], []
            if len(rest) <= at_once.size:
                whole.append(lease_id)
                portion.extend(rest)
                continue
            while rest:
                part, rest = rest[: at_once.size], rest[at_once.size :]
                yield worker_id, [], part
        if whole:
            yield worker_id, whole, portion


async def _completions(
    connection: Connection, known: Specs, executions: Sequence[LostExecution], unnamed: set[LeaseId]
) -> list[Completion]:
    of_steps = [row for row in executions if row.origin == "step"]
    others = [(row.job_id, row.job_version) for row in executions if row.origin != "step"]
    steps = await find_step_attempts(connection, known, [(row.id, row.job_id, row.job_version) for row in of_steps])
    specs = await known.find(connection, others)

    def spec_of(row: LostExecution) -> JobSpec | None:
        if row.origin != "step":
            return specs.get((row.job_id, row.job_version))
        return steps[row.id].spec if row.id in steps else None

    return [_give_back(row, spec_of(row), unnamed=row.lease_id in unnamed) for row in executions]


def _give_back(execution: LostExecution, spec: JobSpec | None, *, unnamed: bool) -> Completion:
    if unnamed:
        error = AttemptError("lease_unheard", "The worker never received this lease: no call was made.")
        return with_labels(give_back(execution, error, priority_class=class_of_returned(spec, execution.losses)), spec)
    if execution.expired_at is not None:
        return with_labels(expire(execution, execution.expired_at), spec)
    losses = execution.losses + 1
    priority_class = class_of_returned(spec, losses)
    return decide_loss(execution, spec, losses, _loss(execution), priority_class=priority_class)


def _loss(execution: LostExecution) -> AttemptError:
    """The error of a loss. If a function blocked the worker's loop, its execution and the others learn its name."""
    if execution.stalled_by is None:
        where = f": its loop stood still at {execution.stalled_in}" if execution.stalled_in else ""
        message = f"The worker {execution.worker_id} was lost while it ran this{where}."
        return AttemptError("worker_lost", message)
    if execution.stalled_by == execution.id:
        message = (
            f"The function {execution.blocked_by} blocked its worker's loop, at {execution.stalled_in}, until the"
            " worker was lost. It runs in a child process from now on. Make it a plain function (`def`), which runs in"
            " a thread, or await instead of blocking."
        )
        return AttemptError("loop_blocked", message)
    message = (
        f"The worker {execution.worker_id} was lost while it ran this: another execution, {execution.stalled_by},"
        f" blocked its loop in the function {execution.blocked_by}."
    )
    return AttemptError("worker_lost", message)


def _leases_by_worker(leases: Sequence[OrphanedLease]) -> dict[WorkerId, list[LeaseId]]:
    by_worker: dict[WorkerId, list[LeaseId]] = defaultdict(list)
    for lease in leases:
        by_worker[lease.worker_id].append(lease.id)
    return by_worker


def _report(worker_id: WorkerId, leases: list[LeaseId], completions: list[Completion], written: int) -> None:
    for completion in completions:
        RECOVERED.labels("returned" if completion.state is State.PENDING else completion.state.value.lower()).inc()
    if not written:
        return
    log.warning("executions.recovered", worker_id=str(worker_id), leases=len(leases), executions=written)
