"""Advance a run when steps of it have ended (W2, P14), without a row that every completion waits for.

The statement that ends a step inserts an arrival, and locks no row of the run. After its commit the same process
advances the run: it locks the run's row with SKIP LOCKED, takes the arrivals with a snapshot from after that, applies
the rules, releases steps, writes and commits; then it looks again. Only the transaction that has the row locked decides
steps and the state of the run: two last steps that each judged for themselves left a run RUNNING for ever.

An advance that finds the row locked does nothing: the holder looks for arrivals after its commit, and the arrival was
committed before. If the holder dies in between, housekeeping finds the arrival a second later (`due`).
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from uuid import UUID

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.children import fold_children
from ondot.flow.workflows.depends import settle_parents
from ondot.flow.workflows.end import end_before_begin, end_without_spec, settle
from ondot.flow.workflows.maps import fold_items, go_on_with_maps
from ondot.flow.workflows.release import judge_conditions, release
from ondot.flow.workflows.results import NeedsObjects, read_objects
from ondot.flow.workflows.run_pass import Effects, RunPass, open_pass, write_passes
from ondot.flow.workflows.waits import fold_waits
from ondot.model.errors import Unavailable
from ondot.model.ids import ExecutionId, JobId
from ondot.model.workflow.progress import Arrival
from ondot.model.workflow.states import ENDED_RUNS
from ondot.ports.objects import Objects
from ondot.store.arrivals import find_with_arrivals
from ondot.store.connection import DATABASE_ERROR, Connection
from ondot.store.database import Database
from ondot.store.passes import change_run
from ondot.store.runs import RunRow, is_run, postpone_run, take_runs
from ondot.store.steps import find_steps
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import ADVANCES, ARRIVALS

TAKEN = 5_000
"""Arrivals in one pass."""
RUNS = 50
"""Runs in one transaction, if so many are to be advanced."""
AT_ONCE = 4
"""Transactions that one process has in flight."""
AGAIN_S = 0.5
AFTER_FAULT_S = 10.0
FAULT = "ondot cannot advance it, which is a bug; it is tried again: "
LONGEST_REASON = 500

log = get_logger()


async def advance_run(database: Database, dispatcher: Dispatcher, run_id: UUID, objects: Objects | None = None) -> int:
    """Advance a run until it has no arrivals, then the runs that wait for it; returns how many passes it took.

    0: another transaction has the run locked, and advances it; or there is no such run.
    """
    return await advance_runs(database, dispatcher, [run_id], objects)


async def advance_runs(
    database: Database, dispatcher: Dispatcher, run_ids: Sequence[UUID], objects: Objects | None = None
) -> int:
    """The same for several, as many as are wanted in one transaction: a statement for fifty runs costs little more than
    for one."""
    passes = 0
    read: dict[ExecutionId, str] = {}
    wanted = list(dict.fromkeys(run_ids))
    while wanted:
        portion = wanted[:RUNS]
        try:
            advanced = await _advance_once(database, portion, read)
        except NeedsObjects as needs:
            # Outside the transaction: storage may take seconds, and the runs are locked.
            read |= await read_objects(database, objects, needs)
            continue
        except Unavailable:
            raise
        except Exception:
            if len(portion) == 1:
                raise
            # A fault in one run must not stop the others.
            for run_id in portion:
                passes += await _advance_alone(database, dispatcher, run_id, objects)
            wanted = wanted[len(portion) :]
            continue
        passes += len(advanced)
        others: dict[UUID, None] = {}
        for effects in advanced.values():
            effects.send(dispatcher)
            others |= dict.fromkeys(other for other in effects.runs if other not in advanced)
        for run_id in portion:
            if run_id not in advanced and not await _is_run(database, run_id):
                # Not a run: a one-time job that others depend on.
                await settle_parents(database, dispatcher, [JobId(run_id)])
        again: list[UUID] = []
        if advanced:
            async with database.connection() as connection:
                again = await find_with_arrivals(connection, list(advanced))
        wanted = list(dict.fromkeys([*again, *wanted[len(portion) :], *others]))
    return passes


async def advance_arrived(
    database: Database, dispatcher: Dispatcher, ids: Sequence[UUID], objects: Objects | None = None
) -> None:
    """Advance those of these runs, and of jobs that others depend on, that have arrivals. For a process that has just
    committed: if it fails now, the request has succeeded all the same, and housekeeping advances them."""
    with suppress(Unavailable):
        async with database.connection() as connection:
            arrived = await find_with_arrivals(connection, ids)
        if arrived:
            await advance_runs(database, dispatcher, arrived, objects)


async def _advance_alone(database: Database, dispatcher: Dispatcher, run_id: UUID, objects: Objects | None) -> int:
    try:
        return await advance_run(database, dispatcher, run_id, objects)
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001 - the run shows it
        await _postpone(database, run_id, error)
        return 0


async def _postpone(database: Database, run_id: UUID, error: Exception) -> None:
    """Housekeeping tries again: the arrivals are still there. After a fault of ours, which may repeat, not at once."""
    log.error("run.not_advanced", run_id=str(run_id), exc_info=error)
    if isinstance(error, DATABASE_ERROR):
        return
    reason = f"{FAULT}{type(error).__name__}: {error}"[:LONGEST_REASON]
    with suppress(Unavailable, DATABASE_ERROR):
        async with database.connection() as connection:
            await postpone_run(connection, run_id, reason, AFTER_FAULT_S)


async def _is_run(database: Database, run_id: UUID) -> bool:
    async with database.connection() as connection:
        return await is_run(connection, run_id)


async def _advance_once(
    database: Database, run_ids: Sequence[UUID], read: dict[ExecutionId, str]
) -> dict[UUID, Effects]:
    """One pass over each of these runs that no other transaction has locked."""
    effects: dict[UUID, Effects] = {}
    async with database.transaction() as connection:
        found = await take_runs(connection, run_ids, TAKEN)
        if not found:
            return {}
        ADVANCES.inc(len(found))
        ARRIVALS.observe_all([waited_s for entry in found for waited_s in entry.waited_s])
        taken = {entry.run.id: entry.arrivals for entry in found}
        passes: list[RunPass] = []
        for run in (entry.run for entry in found):
            if run.state in ENDED_RUNS:
                run.superseded += sum(arrival.execution_id != run.id for arrival in taken[run.id])
                run.look_at = None
                await change_run(connection, run)
                effects[run.id] = Effects()
            elif (end := _find_own_end(run, taken[run.id])) is not None:
                await end_before_begin(connection, run, end)
                effects[run.id] = Effects()
            elif (work := await open_pass(database, connection, run, read)) is None:
                effects[run.id] = await end_without_spec(connection, run)
            else:
                passes.append(work)
                effects[run.id] = work.effects
        await _load_steps(connection, passes, taken)
        for work in passes:
            if work.run.reason is not None and work.run.reason.startswith(FAULT):
                work.run.reason = None
            await move(work, taken[work.run.id])
        if passes:
            await write_passes(connection, passes)
    return effects


def _find_own_end(run: RunRow, arrivals: Sequence[Arrival]) -> str | None:
    """How a rerun ended that no worker had begun."""
    return next((arrival.state for arrival in arrivals if arrival.execution_id == run.id), None)


async def _load_steps(
    connection: Connection, passes: Sequence[RunPass], taken: Mapping[ExecutionId, list[Arrival]]
) -> None:
    """The steps that have ended and their children, of all runs at once."""
    wanted = [(work.run.id, no) for work in passes for no in _steps_concerned(work, taken[work.run.id])]
    if wanted:
        found = await find_steps(connection, wanted)
        for work in passes:
            work.progress.load(found.get(work.run.id, ()))


def _steps_concerned(work: RunPass, arrivals: Sequence[Arrival]) -> set[int]:
    ended = {arrival.step_no for arrival in arrivals}
    below = () if work.progress.is_ending else (child for no in ended for child in work.graph.children[no])
    return ended.union(below)


async def move(work: RunPass, arrivals: Sequence[Arrival] = (), consider: Collection[int] = ()) -> None:
    """Apply arrivals, and decide steps to be considered; then see what that means for the run."""
    graph = work.graph
    # At once, and not when each is asked for: a step that ends and its child would be two statements.
    await work.load(_steps_concerned(work, arrivals))
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
        self._idle = asyncio.Event()
        self._idle.set()

    def request(self, run_ids: Collection[UUID]) -> None:
        """Advance these runs soon. Returns at once; a run that waits for its turn already is not added again."""
        for run_id in run_ids:
            self._wanted[run_id] = None
        if self._wanted:
            self._idle.clear()
            self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(self._advance_for_ever(), name=f"advancer-{number}")

    async def drained(self) -> None:
        """Wait until nothing is requested."""
        await self._idle.wait()

    async def _advance_for_ever(self) -> None:
        while True:
            portion = list(islice((run_id for run_id in self._wanted if run_id not in self._busy), RUNS))
            if not portion:
                self._changed.clear()
                await self._changed.wait()
                continue
            for run_id in portion:
                del self._wanted[run_id]
            self._busy.update(portion)
            try:
                await advance_runs(self._database, self._dispatcher, portion, self._objects)
            except Unavailable as error:
                log.warning("run.not_advanced", runs=len(portion), error=str(error))
                self._wanted.update(dict.fromkeys(portion))
                await asyncio.sleep(AGAIN_S)
            except Exception as error:  # noqa: BLE001 - the run shows it
                await _postpone(self._database, portion[0], error)
            finally:
                self._busy.difference_update(portion)
                self._changed.set()
                if not self._busy and not self._wanted:
                    self._idle.set()
