"""A worker begins a run (W1): instead of a call it makes the run's steps, in one fenced transaction.

The transaction names worker, attempt and state RUNNING as any completion does. It makes the rows of the run and its
steps, releases the roots, and gives back worker, pool slot and count; the run keeps the slots of its gates. From then
on it is RUNNING with no worker, and ends of its steps move it (`advance`). If the reply is lost, or the worker dies
before it commits, the next try finds the run as it is.

A run that was BLOCKED and is retried queues for its slots, and the worker that leases it resumes it here. A rerun has
its steps already, some with outcomes that it takes over.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from uuid import UUID

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.advance import advance_runs, move
from ondot.flow.workflows.children import report_to_parent
from ondot.flow.workflows.end import next_look
from ondot.flow.workflows.results import NeedsObjects, read_objects
from ondot.flow.workflows.run_pass import RunPass, open_pass, write_passes
from ondot.model.completion import Completion
from ondot.model.errors import Unavailable
from ondot.model.ids import ExecutionId, WorkerId
from ondot.model.workflow.progress import StepRow
from ondot.model.workflow.states import RunState
from ondot.ports.objects import Objects
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.queue import Leased
from ondot.store.runs import RunRow, begin_runs, insert_runs, lock_runs
from ondot.store.steps import insert_steps
from ondot.telemetry.log import get_logger

RUNS = 50
"""Runs in one transaction."""
TURNS = 2
"""Such transactions that one worker has in flight."""

Wanted = tuple[Leased, Completion | None]
"""A run that was leased, and the outcome to be written instead if it is new."""

Waiting = tuple[Wanted, asyncio.Future[Completion | bool]]

log = get_logger()


class Beginner:
    """Begins the runs that a worker leased, many in one transaction if many wait for it."""

    def __init__(
        self, database: Database, dispatcher: Dispatcher, worker_id: WorkerId, objects: Objects | None = None
    ) -> None:
        self._begin = partial(begin_many, database, dispatcher, worker_id, objects=objects)
        self._waiting: list[Waiting] = []
        self._turns = asyncio.Semaphore(TURNS)

    async def begin(self, leased: Leased, refusal: Completion | None) -> Completion | bool:
        """As `begin`."""
        future: asyncio.Future[Completion | bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(((leased, refusal), future))
        async with self._turns:
            if not future.done():
                await self._begin_waiting()
        return await future

    async def _begin_waiting(self) -> None:
        batch, self._waiting = self._waiting[:RUNS], self._waiting[RUNS:]
        try:
            await self._begin_batch(batch)
        except Unavailable as error:
            _fail(batch, error)
        except Exception as fault:  # noqa: BLE001 - a fault in one run must not fail the others
            log.warning("runs.not_begun", runs=len(batch), error=str(fault), then="each is begun alone")
            for one in batch:
                try:
                    await self._begin_batch([one])
                except Exception as error:  # noqa: BLE001 - its attempt reports it
                    _fail([one], error)
        except asyncio.CancelledError:
            _fail(batch, Unavailable("The attempt that was beginning these runs was interrupted."))
            raise

    async def _begin_batch(self, batch: Sequence[Waiting]) -> None:
        answers = await self._begin([wanted for wanted, _ in batch])
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def _fail(batch: Sequence[Waiting], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)


async def begin(
    database: Database,
    dispatcher: Dispatcher,
    worker_id: WorkerId,
    leased: Leased,
    refusal: Completion | None = None,
    *,
    objects: Objects | None = None,
) -> Completion | bool:
    """Begin or resume a run. False: the attempt is no longer the worker's, or was cancelled.

    `refusal`: the outcome to be written instead if the run is new: it expired, or its job was stopped.
    """
    [answer] = await begin_many(database, dispatcher, worker_id, [(leased, refusal)], objects=objects)
    return answer


async def begin_many(
    database: Database,
    dispatcher: Dispatcher,
    worker_id: WorkerId,
    wanted: Sequence[Wanted],
    *,
    objects: Objects | None = None,
) -> list[Completion | bool]:
    """The same for several, in their order."""
    read: dict[ExecutionId, str] = {}
    while True:
        passes: list[RunPass] = []
        try:
            async with database.transaction() as connection:
                answers = await _begin(database, connection, worker_id, wanted, passes, read)
        except NeedsObjects as needs:
            read |= await read_objects(database, objects, needs)
            continue
        break
    others = set[UUID]()
    for work in passes:
        work.effects.send(dispatcher)
        # Arrivals of earlier generations may wait for a run that is resumed.
        others |= {*work.effects.runs, work.run.id} if work.run.started_at != work.run.now else work.effects.runs
    await advance_runs(database, dispatcher, sorted(others), objects)
    return [answers[leased.id] for leased, _ in wanted]


async def _begin(
    database: Database,
    connection: Connection,
    worker_id: WorkerId,
    wanted: Sequence[Wanted],
    passes: list[RunPass],
    read: dict[ExecutionId, str],
) -> dict[ExecutionId, Completion | bool]:
    """Fills `passes` with those that begin or go on."""
    runs = await lock_runs(connection, [leased.id for leased, _ in wanted])
    is_new = {leased.id: (run := runs.get(leased.id)) is None or run.started_at is None for leased, _ in wanted}
    answers: dict[ExecutionId, Completion | bool] = {
        leased.id: refusal for leased, refusal in wanted if is_new[leased.id] and refusal is not None
    }
    attempts = [
        (leased.id, leased.attempt_no, not is_new[leased.id]) for leased, _ in wanted if leased.id not in answers
    ]
    begun = await begin_runs(connection, worker_id, sorted(attempts))
    runs |= await insert_runs(connection, [entry for entry in begun if entry.id not in runs])
    # The steps of a rerun exist.
    fresh = {id_ for id_, run in runs.items() if is_new[id_] and not run.is_rerun}
    for id_, _, _ in attempts:
        # Not taken: the reply of an earlier try was lost, or another worker has it.
        answers[id_] = (run := runs.get(id_)) is not None and run.state is not RunState.PENDING
    for entry in begun:
        answers[entry.id] = True
        run = runs[entry.id]
        if run.state is not RunState.PENDING:
            continue  # it ends meanwhile
        work = await open_pass(database, connection, run, read)
        assert work is not None, "the worker has read the spec of the run"
        passes.append(work)
        run.state = RunState.RUNNING
        run.blocked_at = None
        if is_new[run.id]:
            run.started_at, run.reason = run.now, None
        if run.id in fresh:
            run.waiting = len(work.graph.steps) - len(work.graph.finals)
            work.progress.load(StepRow(no) for no in work.graph.roots)
        run.look_at = next_look(work)
    if new := [(work.run, len(work.graph.steps)) for work in passes if work.run.id in fresh]:
        await insert_steps(connection, new)
    for work in passes:
        await move(work, consider=work.graph.roots if work.run.id in fresh else work.ordinary)
        if not is_new[work.run.id]:
            await report_to_parent(work, "RUNNING")
        _report(work.run, is_new=is_new[work.run.id])
    if passes:
        await write_passes(connection, passes)
    return answers


def _report(run: RunRow, *, is_new: bool) -> None:
    steps = run.waiting + run.active + run.succeeded + run.failed + run.skipped + run.blocked
    log.info("run.begun" if is_new else "run.resumed", run_id=str(run.id), job_id=str(run.job_id), steps=steps)
