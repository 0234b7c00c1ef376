"""Advance a run when steps of it have ended (W2, P14), without a row that every completion waits for.

The statement that ends a step inserts an arrival, and locks no row of the run. After its commit the same process
advances the run: it locks the run's row with SKIP LOCKED, then in further statements takes the arrivals, applies the
rules, releases steps, writes and commits; then it looks again. Only the transaction that has the row locked decides
steps and the state of the run: two last steps that each judged for themselves left a run RUNNING for ever.

An advance that finds the row locked does nothing: the holder looks for arrivals after its commit, and the arrival was
committed before. If the holder dies in between, housekeeping finds the arrival a second later (`due`).
"""

import asyncio
from collections.abc import Collection, Sequence
from uuid import UUID

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.children import fold_children
from ondot.flow.workflows.depends import settle_parents
from ondot.flow.workflows.end import end_without_spec, settle
from ondot.flow.workflows.maps import fold_items, go_on_with_maps
from ondot.flow.workflows.release import judge_conditions, release
from ondot.flow.workflows.results import NeedsObjects, read_objects
from ondot.flow.workflows.run_pass import Effects, RunPass, open_pass
from ondot.flow.workflows.waits import fold_waits
from ondot.model.errors import Unavailable
from ondot.model.ids import ExecutionId, JobId
from ondot.model.workflow.progress import Arrival
from ondot.model.workflow.states import ENDED_RUNS
from ondot.ports.objects import Objects
from ondot.store.arrivals import has_arrivals, take_arrivals
from ondot.store.database import Database
from ondot.store.runs import change_run, is_run, take_run
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import ADVANCES, ARRIVALS

TAKEN = 5_000
"""Arrivals in one pass."""
AT_ONCE = 4
"""Runs that one process advances at the same time."""
AGAIN_S = 0.5

log = get_logger()


async def advance_run(database: Database, dispatcher: Dispatcher, run_id: UUID, objects: Objects | None = None) -> int:
    """Advance a run until it has no arrivals, then the runs that wait for it; returns how many passes it took.

    0: another transaction has the run locked, and advances it; or there is no such run.
    """
    passes = 0
    read: dict[ExecutionId, str] = {}
    ahead = [run_id]
    while ahead:
        run_id = ahead[-1]
        try:
            effects = await _advance_once(database, ExecutionId(run_id), read)
        except NeedsObjects as needs:
            # Outside the transaction: storage may take seconds, and the run's row is locked.
            read |= await read_objects(database, objects, needs)
            continue
        if effects is None and not await _is_run(database, run_id):
            # Not a run: a one-time job that others depend on.
            await settle_parents(database, dispatcher, [JobId(run_id)])
        if effects is not None:
            passes += 1
            effects.send(dispatcher)
            ahead[:0] = [other for other in effects.runs if other not in ahead]
            async with database.connection() as connection:
                if await has_arrivals(connection, run_id):
                    continue
        ahead.pop()
    return passes


async def _is_run(database: Database, run_id: UUID) -> bool:
    async with database.connection() as connection:
        return await is_run(connection, run_id)


async def _advance_once(database: Database, run_id: ExecutionId, read: dict[ExecutionId, str]) -> Effects | None:
    async with database.transaction() as connection:
        run = await take_run(connection, run_id)
        if run is None:
            return None
        arrivals, waited_s = await take_arrivals(connection, run_id, TAKEN)
        ADVANCES.inc()
        ARRIVALS.observe(waited_s)
        if run.state in ENDED_RUNS:
            run.superseded += len(arrivals)
            run.look_at = None
            await change_run(connection, run)
            return Effects()
        work = await open_pass(database, connection, run, read)
        if work is None:
            return await end_without_spec(connection, run)
        await move(work, arrivals)
        await work.write()
        return work.effects


async def move(work: RunPass, arrivals: Sequence[Arrival] = (), consider: Collection[int] = ()) -> None:
    """Apply arrivals, and decide steps to be considered; then see what that means for the run."""
    graph = work.graph
    if arrivals:
        # At once, and not when each is asked for: a step that ends and its child would be two statements.
        ended = {arrival.step_no for arrival in arrivals}
        below = () if work.progress.is_ending else (child for no in ended for child in graph.children[no])
        await work.load(ended.union(below))
    others = work.progress.apply(await fold_waits(work, arrivals))
    work.progress.consider(consider)
    if graph.mapped:
        await fold_items(work, others)
        await go_on_with_maps(work)
    await fold_children(work, arrivals)
    await go_on(work)
    await settle(work, go_on)


async def go_on(work: RunPass) -> None:
    """Decide, skip, block and release until nothing follows from what has ended."""
    progress = work.progress
    while progress.has_work:
        while missing := progress.go_on():
            await work.load(missing)
        conditions = progress.take_conditions()
        if conditions and work.may_release:
            await judge_conditions(work, conditions)
        releases = progress.take_releases()
        if not work.may_release:
            for no in releases:
                progress.postpone(no)
        elif releases:
            await release(work, releases)


class Advancer:
    """Advances runs in the background of a role, each once at a time, those that were requested first before others."""

    def __init__(self, database: Database, dispatcher: Dispatcher, objects: Objects | None = None) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._objects = objects
        self._wanted: dict[UUID, None] = {}
        self._busy: set[UUID] = set()
        self._changed = asyncio.Event()

    def request(self, run_ids: Collection[UUID]) -> None:
        """Advance these runs soon. Returns at once; a run that waits for its turn already is not added again."""
        for run_id in run_ids:
            self._wanted[run_id] = None
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(self._advance_for_ever(), name=f"advancer-{number}")

    async def _advance_for_ever(self) -> None:
        while True:
            run_id = next((run_id for run_id in self._wanted if run_id not in self._busy), None)
            if run_id is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            del self._wanted[run_id]
            self._busy.add(run_id)
            try:
                await advance_run(self._database, self._dispatcher, run_id, self._objects)
            except Unavailable as error:
                log.warning("run.not_advanced", run_id=str(run_id), error=str(error))
                self._wanted[run_id] = None
                await asyncio.sleep(AGAIN_S)
            except Exception:
                # Housekeeping tries again: the arrivals are still there.
                log.exception("run.not_advanced", run_id=str(run_id))
            finally:
                self._busy.discard(run_id)
                self._changed.set()
