"""Repair a run (W3, W8): retry failed steps, run again from a step, skip a step, set its result by hand.

The run's row is locked, so two people at once act one after the other, and the second one acts on what the first one
left. Steps that are replaced are kept as past generations. A step that runs is cancelled, and starts again when it has
ended. A RUNNING run goes on in the same transaction. A BLOCKED one queues for its slots, as a run that was asked for by
hand, and the worker that leases it resumes it. A run that has ended is not changed.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final
from uuid import UUID

from ondot.flow.dispatch import Dispatcher
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.work import Work, begin
from ondot.flow.workflows.advance import advance_run, move
from ondot.flow.workflows.maps import reset_maps
from ondot.flow.workflows.results import NeedsObjects, read_objects
from ondot.flow.workflows.run_pass import Effects, RunPass, open_pass
from ondot.flow.workflows.versions import take_latest
from ondot.model.errors import Conflict, Fault, InvalidBody, NotFound, Unavailable
from ondot.model.execution import CANCEL
from ondot.model.gates import encode_stages
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.target import AttemptTarget
from ondot.model.workflow.graph import Graph
from ondot.model.workflow.progress import StepRow
from ondot.model.workflow.repair import (
    Change,
    NotRepairable,
    Repair,
    apply_repair,
    find_unrepairable,
    plan_repair,
)
from ondot.model.workflow.states import ENDED_RUNS, RunState, StepState
from ondot.model.workflow.verdict import find_unhandled
from ondot.ports.objects import Objects
from ondot.store.audit import Action, By, record
from ondot.store.children import find_children, request_child_cancels
from ondot.store.database import Database
from ondot.store.endings import end_queued, request_cancels
from ondot.store.executions import get_execution
from ondot.store.passes import write_pass
from ondot.store.repairs import (
    RepairAction,
    find_live_of_steps,
    find_open_ends,
    insert_repair,
    keep_past_steps,
    reset_steps,
    resolve_step_letters,
)
from ondot.store.runs import RunRow, lock_run, requeue_run
from ondot.store.step_waits import stop_waits
from ondot.store.steps import find_all_steps
from ondot.telemetry.log import get_logger

TRIES = 5
NAMED = 10
AUDITED = 200
"""Steps whose states before and after are in the audit log; a repair may change 10,000."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A repair that a person asks for. `steps` None: all that failed. `payload`, `result`: JSON for these steps."""

    change: Change
    steps: tuple[str, ...] | None = None
    payload: str | None = None
    result: str | None = None
    dry_run: bool = False
    is_latest: bool = False
    """By the latest version of the workflow, not by the run's."""
    children: tuple[ExecutionId, ...] = ()
    """Child runs that are BLOCKED: they are retried too."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, or would do, by the names of steps."""

    run_id: ExecutionId
    action: Change
    state: RunState
    job_version: int
    named: tuple[str, ...]
    again: tuple[str, ...]
    stopped: tuple[str, ...]
    set_by_hand: dict[str, StepState] = field(default_factory=dict)
    repair_id: UUID | None = None
    rerun_of: ExecutionId | None = None


Render = Callable[[Repaired], str]


async def repair_run(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    run_id: ExecutionId,
    wanted: Wanted,
    *,
    by: By,
    render: Render,
    idempotency: Idempotency | None = None,
    objects: Objects | None = None,
) -> str:
    """Repair a run; returns the response. Raises Conflict if its state does not allow it, and says what does.

    A retry of all that failed descends into child runs that are BLOCKED.
    """
    read: dict[ExecutionId, str] = {}
    if wanted.change == "retry" and wanted.steps is None:
        async with database.connection() as connection:
            children = await find_children(connection, tenant_no, run_id)
        wanted = replace(wanted, children=tuple(child.id for child in children if child.state == RunState.BLOCKED))
    while True:
        effects = Effects()
        try:
            async with begin(database, tenant_no) as work:
                if not wanted.dry_run and (earlier := await find_response(work, idempotency)) is not None:
                    return earlier
                done, effects = await repair_in(work, run_id, wanted, by, read)
                text = render(done)
                if not wanted.dry_run:
                    await store_response(work, idempotency, text)
        except NeedsObjects as needs:
            read |= await read_objects(database, objects, needs)
            continue
        break
    if not wanted.dry_run:
        log.info("run.repaired", run_id=str(run_id), change=wanted.change, steps=len(done.again), actor=by.actor)
        await advance_after(database, dispatcher, effects, run_id, objects)
        for child in wanted.children:
            # One that another person has repaired meanwhile is left as it is.
            with suppress(Conflict, NotFound):
                again = Wanted("retry", payload=wanted.payload)
                await repair_run(
                    database, dispatcher, tenant_no, child, again, by=by, render=lambda _: "", objects=objects
                )
    return text


async def advance_after(
    database: Database, dispatcher: Dispatcher, effects: Effects, run_id: UUID, objects: Objects | None
) -> None:
    """Advance a run that this process had locked. If that fails now, housekeeping does it."""
    effects.send(dispatcher)
    with suppress(Unavailable):
        for id_ in {run_id, *effects.runs}:
            await advance_run(database, dispatcher, id_, objects)


async def repair_in(
    work: Work, run_id: ExecutionId, wanted: Wanted, by: By, read: dict[ExecutionId, str]
) -> tuple[Repaired, Effects]:
    """Repair a run in the caller's transaction."""
    run = await lock_repairable(work, run_id)
    before_version = run.job_version
    run_pass = await open_pass(work.database, work.connection, run, read)
    if run_pass is None:
        raise Conflict(f"The version of the workflow that the run {run_id} has is gone: it cannot be repaired.")
    rows = {row.step_no: row for row in await find_all_steps(work.connection, run_id)}
    start = _find_start(run, run_pass.graph, rows, wanted)
    first: Collection[int] = start
    if wanted.is_latest:
        run_pass, first = await take_latest(work, run_pass, rows, start, dry_run=wanted.dry_run)
    graph = run_pass.graph
    plan = plan_repair(graph, rows, wanted.change, first)
    named = tuple(graph.names[no] for no in start)
    if wanted.dry_run:
        state = RunState.PENDING if run.state is RunState.BLOCKED else run.state
        return _describe(run, graph, wanted, named, plan, state), Effects()
    before = _states(graph, rows, plan)
    repair_id = work.database.clock.new_id()
    why = f"{_WORDS[wanted.change]} by {by.actor}" + (f": {by.reason}" if by.reason else "")
    await _reset(run_pass, rows, plan, start, wanted, repair_id, by, why)
    if run.state is RunState.RUNNING:
        await move(run_pass, consider=plan.again)
    elif run.state is RunState.BLOCKED:
        await _requeue(run_pass)
    await run_pass.write()
    action, audited = _ACTIONS[wanted.change]
    await insert_repair(work.connection, work.tenant_no, repair_id, run_id, action, by, named)
    await record(
        work.connection,
        work.tenant_no,
        by,
        audited,
        run_id,
        {"job_id": run.job_id, "steps": named[:AUDITED], "reset": len(plan.again)},
        before={"steps": before} | ({"version": before_version} if wanted.is_latest else {}),
        after={"state": run.state.value, "steps": _states(graph, rows, plan)}
        | ({"version": run.job_version} if wanted.is_latest else {}),
    )
    return _describe(run, graph, wanted, named, plan, run.state, repair_id), run_pass.effects


_ACTIONS: Final[dict[Change, tuple[RepairAction, Action]]] = {
    "retry": ("retry", "run.retry"),
    "from": ("retry", "run.retry"),
    "skip": ("skip", "run.skip"),
    "result": ("result", "run.result"),
}
_WORDS: Final[dict[Change, str]] = {
    "retry": "retried",
    "from": "run again",
    "skip": "skipped",
    "result": "set",
}


async def lock_repairable(work: Work, run_id: ExecutionId) -> RunRow:
    """Lock a run that can be changed. Raises NotFound, or Conflict with what to do instead."""
    run = await lock_run(work.connection, run_id, work.tenant_no)
    if run is None:
        execution = await get_execution(work.connection, work.tenant_no, run_id)
        if execution is None or execution.origin == "step":
            raise NotFound(f"There is no run {run_id}.")
        raise Conflict(f"The run {run_id} has not started: it has no steps yet. Cancel it, or wait until it starts.")
    if run.state in ENDED_RUNS:
        raise Conflict(
            f"The run {run_id} has ended {run.state} and stays as it is. Make a new run that takes over its results:"
            f" POST /v1/runs/{run_id}/rerun, or `ondot run rerun {run_id}`."
        )
    if run.state is RunState.ENDING:
        raise Conflict(f"The run {run_id} is ending {run.verdict}: its `finally` steps run. Wait until it has ended.")
    return run


def _find_start(run: RunRow, graph: Graph, rows: dict[int, StepRow], wanted: Wanted) -> tuple[int, ...]:
    """The numbers of the steps that the repair starts with. Raises if it cannot start with them."""
    if wanted.steps is None:
        failed = find_unhandled(graph, {no: row.state for no, row in rows.items()})
        if not failed and not wanted.children:
            raise Conflict(
                f"No step of the run {run.id} has failed, so there is nothing to retry. Name the steps that shall run"
                ' again: {"from": ["…"]}, or `ondot run retry --from STEP`.'
            )
        _check_payload(graph, failed, wanted)
        return tuple(failed)
    return find_named(graph, rows, wanted)


def find_named(graph: Graph, rows: Mapping[int, StepRow], wanted: Wanted) -> tuple[int, ...]:
    """The numbers of the steps that a person named. Raises if a repair cannot start with them."""
    assert wanted.steps is not None
    numbers = find_numbers(graph, wanted.steps, "/from" if wanted.change == "from" else "/steps")
    refused = find_unrepairable(graph, rows, wanted.change, numbers)
    if refused:
        sentences = [_refuse(graph, entry, wanted.change) for entry in refused[:NAMED]]
        more = [f"And {len(refused) - NAMED} more."] if len(refused) > NAMED else []
        raise Conflict(" ".join([*sentences, *more]), steps=[graph.names[entry.step_no] for entry in refused])
    _check_payload(graph, numbers, wanted)
    return numbers


def _check_payload(graph: Graph, numbers: Iterable[int], wanted: Wanted) -> None:
    """Raises if a payload is given to steps that would not use it."""
    if wanted.payload is None:
        return
    for no in numbers:
        step, name = graph.steps[no], graph.names[no]
        if step.map is not None:
            why = f"Step '{name}' is mapped: its items get their payloads from its list."
        elif not isinstance(step.target, AttemptTarget):
            why = f"Step '{name}' calls nothing that takes a payload."
        else:
            continue
        message = f"{why} Leave `payload` out, or name other steps."
        raise InvalidBody(message, faults=(Fault("/payload", message),))


def find_numbers(graph: Graph, names: Sequence[str], pointer: str) -> tuple[int, ...]:
    """Raises InvalidBody for names that the workflow does not have."""
    faults = []
    for place, name in enumerate(names):
        if name not in graph.numbers:
            close = get_close_matches(name, graph.names, n=1)
            advice = f"did you mean '{close[0]}'?" if close else "name a step of the run's workflow."
            faults.append(Fault(f"{pointer}/{place}", f"There is no step '{name}'; {advice}"))
    if faults:
        raise InvalidBody(" ".join(fault.message for fault in faults[:NAMED]), faults=tuple(faults[:NAMED]))
    return tuple(dict.fromkeys(graph.numbers[name] for name in names))


def _refuse(graph: Graph, refused: NotRepairable, change: Change) -> str:
    name = graph.names[refused.step_no]
    above = ", ".join(f"'{graph.names[no]}'" for no in refused.failed_above[:NAMED])
    does = {"retry": "retried", "from": "run again", "skip": "skipped", "result": "given a result"}[change]
    match refused.why:
        case "final":
            return f"Step '{name}' is a `finally` step: it runs when the run ends."
        case "succeeded":
            advice = ' To run it and everything below it again, name it in "from".' if change == "retry" else ""
            return f"Step '{name}' has succeeded, so it cannot be {does}.{advice}"
        case "running":
            return (
                f"Step '{name}' runs, so it cannot be {does}. Cancel its execution first, or wait until it has ended."
            )
        case "skipped" if not above:
            return f"Step '{name}' was skipped, so it cannot be {does}. Name it in \"from\" to decide it again."
        case _ if above:
            return f"Step '{name}' has not run because of {above}: repair that instead."
        case _:
            return f"Step '{name}' has not started: it waits for its parents, so it cannot be {does}."


async def _reset(
    work: RunPass,
    rows: dict[int, StepRow],
    plan: Repair,
    start: Sequence[int],
    wanted: Wanted,
    repair_id: UUID,
    by: By,
    why: str,
) -> None:
    """Write what the plan changes, and stop what runs of it."""
    run, connection = work.run, work.connection
    changed = sorted({*plan.again, *plan.set_by_hand})
    await keep_past_steps(connection, run.tenant_no, run.id, repair_id, changed)
    await reset_steps(connection, run.tenant_no, run.id, changed, start, payload=wanted.payload, result=wanted.result)
    for no in start if wanted.payload is not None else ():
        rows[no].own_payload = True
    await reset_maps(work, plan, start, wanted.change)
    work.progress.counts.update(apply_repair(work.graph, rows, plan, why))
    work.progress.load(rows.values())
    await _stop(work, plan, rows, why)
    await write_pass(connection, steps=[(run.id, rows[no], False) for no in changed])
    again = await resolve_step_letters(connection, run.tenant_no, run.id, plan.again, "replayed", by)
    by_hand = await resolve_step_letters(connection, run.tenant_no, run.id, [*plan.set_by_hand], "handled", by)
    for id_ in (*again, *by_hand):
        log.info("dead_letter.resolved", execution_id=str(id_), run_id=str(run.id))


async def _stop(work: RunPass, plan: Repair, rows: dict[int, StepRow], why: str) -> None:
    """Cancel what runs of steps that shall run again. Its ends arrive, and start the next generation."""
    if not plan.stopped:
        return
    run, connection = work.run, work.connection
    for _ in range(TRIES):
        live = await find_live_of_steps(connection, run.tenant_no, run.id, plan.stopped)
        ended = await end_queued(connection, run.tenant_no, dict.fromkeys(live, why), CANCEL) if live else []
        running = [id_ for id_ in live if id_ not in set(ended)]
        asked = await request_cancels(connection, run.tenant_no, running, why) if running else []
        if len(asked) == len(running):
            break
        # A worker took one or gave it back at this moment: look again.
    awaited = [ExecutionId(id_) for no in plan.stopped if (id_ := rows[no].execution_id) is not None]
    await stop_waits(connection, run.tenant_no, run.id, awaited)
    found: set[UUID] = set(await _stop_children(work, plan, why))
    # In this order: one that ends meanwhile is no longer live, and its end can be seen.
    found |= set(await find_live_of_steps(connection, run.tenant_no, run.id, plan.stopped))
    found |= await find_open_ends(connection, run.tenant_no, run.id, awaited)
    for no in plan.stopped:
        if rows[no].execution_id not in found:
            rows[no].execution_id = None  # Nothing of it ends: it waited for a time or a person, or is a map.
    work.effects.runs.add(run.id)


async def _stop_children(work: RunPass, plan: Repair, why: str) -> list[ExecutionId]:
    """Cancel the child runs of steps that shall run again; returns them."""
    run, connection = work.run, work.connection
    if not any(no in work.graph.sub_workflows for no in plan.stopped):
        return []
    found = await find_children(connection, run.tenant_no, run.id)
    children = [child for child in found if child.step_no in plan.stopped]
    fresh = {child.id: why for child in children if not child.has_started}
    ended = set(await end_queued(connection, run.tenant_no, fresh, CANCEL)) if fresh else set()
    left = [child.id for child in children if child.id not in ended]
    await request_child_cancels(connection, run.tenant_no, left, why)
    return [child.id for child in children]


async def _requeue(work: RunPass) -> None:
    """BLOCKED → PENDING: it waits for its slots."""
    run, spec = work.run, work.spec
    stages = encode_stages(spec.limits, run.tenant_no, run.job_id)
    queued = await requeue_run(work.connection, run.id, stages, int(spec.priority_class))
    if queued is None:
        raise Conflict(f"The run {run.id} changes at this moment: try again.")
    run.state, run.blocked_at, run.reason, run.look_at = RunState.PENDING, None, None, None
    work.effects.wake(*queued)


def _states(graph: Graph, rows: dict[int, StepRow], plan: Repair) -> dict[str, str]:
    changed = [*plan.set_by_hand, *plan.again][:AUDITED]
    return {graph.names[no]: rows[no].state.value for no in changed}


def _describe(
    run: RunRow,
    graph: Graph,
    wanted: Wanted,
    named: tuple[str, ...],
    plan: Repair,
    state: RunState,
    repair_id: UUID | None = None,
) -> Repaired:
    return Repaired(
        run_id=run.id,
        action=wanted.change,
        state=state,
        job_version=run.job_version,
        named=named,
        again=tuple(graph.names[no] for no in plan.again),
        stopped=tuple(graph.names[no] for no in plan.stopped),
        set_by_hand={graph.names[no]: state for no, state in plan.set_by_hand.items()},
        repair_id=repair_id,
    )
