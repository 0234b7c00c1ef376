"""Run an ended run again, as a new run (W8).

A rerun is queued like a run asked for by hand and passes the same limits. Its steps are made with it: those that do not
run again have the outcome that they had, and name the executions of the run before, so that results of any size and
items of maps are taken over by reference. The worker that leases it begins it with the others. The run before stays as
it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ondot.flow.dispatch import Dispatcher
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.work import Work, begin
from ondot.flow.workflows.repair import AUDITED, Repaired, Wanted, find_named
from ondot.flow.workflows.versions import (
    NAMED,
    count_steps,
    find_spec,
    graph_of,
    latest_graph,
    name_steps,
    refuse_version,
)
from ondot.model.errors import Conflict, NotFound
from ondot.model.gates import encode_stages
from ondot.model.ids import ExecutionId, PoolNo, TenantNo
from ondot.model.job import JobSpec, JobState
from ondot.model.workflow.graph import Graph
from ondot.model.workflow.progress import StepRow
from ondot.model.workflow.repair import ENDED_BADLY, count_parents
from ondot.model.workflow.rerun import (
    find_again,
    find_default_start,
    find_open,
    find_version_faults,
    has_same_items,
)
from ondot.model.workflow.spec import Approve, Wait
from ondot.model.workflow.states import ENDED_RUNS, RunState, StepState
from ondot.store.audit import By, record
from ondot.store.database import Database
from ondot.store.dead_letters import find_replay_payload
from ondot.store.executions import get_execution
from ondot.store.jobs import JobRow, get_job, share_jobs
from ondot.store.maps import find_maps, reset_failed_items
from ondot.store.passes import write_pass
from ondot.store.repairs import insert_repair, reset_steps
from ondot.store.reruns import NewRerun, NewStep, copy_maps, copy_steps, find_oldest_items, insert_rerun
from ondot.store.runs import RunRow, lock_run, read_run
from ondot.store.steps import find_all_steps, find_ends_missed
from ondot.store.traces import put_traces
from ondot.telemetry.log import get_logger

TAKEN_OVER: Final = "taken over"

log = get_logger()


@dataclass(frozen=True, slots=True)
class _Plan:
    """`start`, in numbers of the run's version; `again` and the rest in those of the new run's."""

    old: Graph
    new: Graph
    rows: Mapping[int, StepRow]
    start: tuple[int, ...]
    again: frozenset[int]

    def old_no(self, no: int) -> int | None:
        return self.old.numbers.get(self.new.names[no])


async def rerun(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    run_id: ExecutionId,
    wanted: Wanted,
    *,
    by: By,
    render: Callable[[Repaired], str],
    idempotency: Idempotency | None = None,
) -> str:
    """Make a new run of an ended one; returns the response. Raises Conflict if it cannot run again, and says why."""
    async with begin(database, tenant_no) as work:
        if not wanted.dry_run and (earlier := await find_response(work, idempotency)) is not None:
            return earlier
        job, run = await _lock(work, run_id)
        plan, spec, version = await _plan(work, job, run, wanted)
        await _refuse_lost_results(work, run, plan)
        done = Repaired(
            run_id=run_id,
            action=wanted.change,
            state=RunState.PENDING,
            job_version=version,
            named=tuple(plan.old.names[no] for no in plan.start),
            again=tuple(plan.new.names[no] for no in sorted(plan.again)),
            stopped=(),
            rerun_of=run_id,
        )
        if wanted.dry_run:
            return render(done)
        done, queued = await _make(work, run, plan, spec, wanted, done, by)
        text = render(done)
        await store_response(work, idempotency, text)
    dispatcher.wake([queued])
    log.info("run.rerun", run_id=str(done.run_id), rerun_of=str(run_id), steps=len(done.again), actor=by.actor)
    return text


async def _lock(work: Work, run_id: ExecutionId) -> tuple[JobRow, RunRow]:
    """An ended run, locked so that it is not removed meanwhile, and its job, which does not change."""
    connection, tenant_no = work.connection, work.tenant_no
    found = await read_run(connection, tenant_no, run_id)
    if found is None:
        await _refuse_without_row(work, run_id)
    assert found is not None
    # Before it is read: a run that follows an acknowledged delete or update obeys it (P10).
    await share_jobs(connection, [found.job_id])
    job = await get_job(connection, tenant_no, found.job_id)
    if job is None or job.state is JobState.DELETED:
        raise Conflict(f"The workflow {found.job_id} is deleted: create it again to run it.")
    run = await lock_run(connection, run_id, tenant_no)
    if run is None:
        raise NotFound(f"There is no run {run_id}: it was removed.")
    if run.state not in ENDED_RUNS:
        raise Conflict(
            f"The run {run_id} is {run.state} and has not ended. Repair it under its id: POST /v1/runs/{run_id}/retry,"
            f" or `ondot run retry {run_id}`. To start a run beside it: `ondot job run {run.job_id}`."
        )
    return job, run


async def _refuse_without_row(work: Work, run_id: ExecutionId) -> None:
    execution = await get_execution(work.connection, work.tenant_no, run_id)
    if execution is None or execution.origin == "step":
        raise NotFound(f"There is no run {run_id}; one that ended long ago was removed with its history.")
    what = "has no steps: it ended before it began" if execution.ended_at else "has not started"
    raise Conflict(
        f"The run {run_id} {what}, or is none of a workflow, so there is nothing to take over. Start a new one:"
        f" `ondot job run {execution.job_id}`."
    )


async def _plan(work: Work, job: JobRow, run: RunRow, wanted: Wanted) -> tuple[_Plan, JobSpec, int]:
    """What runs again, the definition of the new run, and its version."""
    spec = await find_spec(work, run, run.job_version)
    if spec is None:
        raise Conflict(f"The version of the workflow that the run {run.id} had is gone: it cannot run again.")
    old, version = graph_of(spec), run.job_version
    rows = {row.step_no: row for row in await find_all_steps(work.connection, run.id)}
    states = {no: row.state for no, row in rows.items()}
    if wanted.steps is None:
        start = find_default_start(old, states)
    else:
        start = tuple(sorted({*find_named(old, rows, wanted), *find_open(old, states)}))
    new = old
    if wanted.is_latest and job.version != version:
        spec, version = job.spec, job.version
        new = latest_graph(job)
        refuse_version(find_version_faults(old, new, start), version)
    return _Plan(old, new, rows, start, frozenset(find_again(old, new, start))), spec, version


async def _refuse_lost_results(work: Work, run: RunRow, plan: _Plan) -> None:
    """Raises Conflict if history no longer has what steps that run again may read."""
    above = plan.new.find_ancestors(plan.again) - plan.again
    ids: dict[int, ExecutionId] = {}
    mapped: list[int] = []
    for no in above:
        old_no = plan.old_no(no)
        assert old_no is not None, "a step that was added is refused"
        row, step = plan.rows[old_no], plan.old.steps[old_no]
        if row.state is not StepState.SUCCEEDED:
            continue
        if step.map is not None:
            mapped.append(old_no)
        elif row.execution_id is not None and not isinstance(step.target, Wait | Approve):
            ids[old_no] = ExecutionId(row.execution_id)
    if mapped:
        ids |= await find_oldest_items(work.connection, work.tenant_no, run.id, mapped)
    known = await find_ends_missed(work.connection, list(ids.values()))
    if lost := sorted(plan.old.names[no] for no, id_ in ids.items() if id_ not in known):
        raise Conflict(
            f"{name_steps(lost)} left results that were removed with the history of their day, and steps that would run"
            ' again may need them. Name these steps in "from", so that they run again too.',
            steps=lost[:NAMED],
        )


async def _make(
    work: Work, run: RunRow, plan: _Plan, spec: JobSpec, wanted: Wanted, done: Repaired, by: By
) -> tuple[Repaired, tuple[PoolNo, datetime]]:
    connection, tenant_no = work.connection, work.tenant_no
    id_ = ExecutionId(work.database.clock.new_id())
    repair_id = work.database.clock.new_id()
    payload = await find_replay_payload(connection, tenant_no, run.id) if run.own_payload else None
    if run.own_payload and payload is None:
        raise Conflict(
            f"The payload of the run {run.id} was removed with the history of its day. Start a new run with a payload:"
            f" `ondot job run {run.job_id} --payload …`."
        )
    new = NewRerun(
        id_,
        run.id,
        run.job_id,
        done.job_version,
        await work.pool_no_of_job(spec.pool),
        int(spec.priority_class),
        payload,
        encode_stages(spec.limits, tenant_no, run.job_id),
        spec.start_deadline_s,
    )
    queued = await insert_rerun(connection, tenant_no, new)
    await put_traces(connection, tenant_no, [id_], by.trace)
    await _copy(work, run, id_, plan, wanted)
    await insert_repair(connection, tenant_no, repair_id, id_, "rerun", by, done.named)
    before = {plan.new.names[no]: _state_before(plan, no) for no in sorted(plan.again)[:AUDITED]}
    await record(
        connection,
        tenant_no,
        by,
        "run.rerun",
        run.id,
        {"job_id": run.job_id, "run_id": id_, "steps": done.named[:AUDITED], "reset": len(plan.again)},
        before={"state": run.state.value, "steps": before},
        after={"run_id": str(id_), "state": "PENDING", "steps": dict.fromkeys(before, "WAITING")},
    )
    return (
        Repaired(id_, done.action, done.state, done.job_version, done.named, done.again, (), {}, repair_id, run.id),
        queued,
    )


def _state_before(plan: _Plan, no: int) -> str | None:
    old_no = plan.old_no(no)
    return None if old_no is None else plan.rows[old_no].state.value


async def _copy(work: Work, run: RunRow, id_: ExecutionId, plan: _Plan, wanted: Wanted) -> None:
    """The steps and maps of the new run."""
    connection, tenant_no, new = work.connection, work.tenant_no, plan.new
    steps = []
    for no, step in enumerate(new.steps):
        is_kept = no not in plan.again and not step.is_final
        steps.append(NewStep(no, plan.old_no(no), is_kept))
    await copy_steps(connection, tenant_no, id_, run.id, steps, TAKEN_OVER)
    if wanted.payload is not None and wanted.steps is not None:
        named = [new.numbers[name] for name in wanted.steps if name in new.numbers]
        await reset_steps(connection, tenant_no, id_, named, named, payload=wanted.payload)
    failed = await _find_maps_with_failures(work, run, plan, wanted)
    maps = [
        step for step in steps if new.steps[step.step_no].map is not None and (step.is_kept or step.step_no in failed)
    ]
    if maps:
        await copy_maps(connection, tenant_no, id_, run.id, maps)
    if failed:
        await reset_failed_items(connection, tenant_no, id_, sorted(failed))
    rows = {row.step_no: row for row in await find_all_steps(connection, id_)}
    for no in plan.again:
        count_parents(new, rows, no)
    made = await lock_run(connection, id_, tenant_no)
    assert made is not None
    count_steps(made, new, rows)
    await write_pass(connection, steps=[(id_, rows[no], False) for no in sorted(plan.again)], runs=[made])


async def _find_maps_with_failures(work: Work, run: RunRow, plan: _Plan, wanted: Wanted) -> set[int]:
    """Maps of which only the failed items run again, as with a retry: those that the rerun starts with, and those that
    follow them item by item."""
    old, new = plan.old, plan.new
    if wanted.change == "from" or not old.mapped:
        return set()
    found = await find_maps(work.connection, work.tenant_no, run.id, list(old.mapped))
    kept: set[int] = set()
    for no in new.mapped:
        old_no = plan.old_no(no)
        if no not in plan.again or old_no not in found or not has_same_items(old.steps[old_no], new.steps[no]):
            continue
        counts = found[old_no].counts
        is_settled = not counts.active and not counts.stuck
        starts = old_no in plan.start and plan.rows[old_no].state in ENDED_BADLY
        if is_settled and (starts or new.find_each(no) in kept):
            kept.add(no)
    return kept
