"""`/v1/runs`: runs of workflows, their steps, and repairs of them (W3, W8).

A key that is limited to pools is refused: the steps of a run may belong to any pool.
"""

from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from ondot.api.backpressure import QUEUE_FULL
from ondot.api.dependencies import BySender, RequestServices, Services, Tenant, needs
from ondot.api.openapi import takes
from ondot.api.parameters import (
    Cursor,
    JobPath,
    Limit,
    Search,
    id_in_path,
    invalid_cursor,
    only_known_parameters,
    parse_cursor,
)
from ondot.api.request_body import JsonBody, Key, OptionalJsonBody, idempotency_of
from ondot.api.responses import SEARCHED_THROUGH, Page
from ondot.api.routes.jobs import load_job
from ondot.api.run_views import graph_of, repaired_out, run_detail, run_out, step_detail, step_out, waiting_run_out
from ondot.document.runs import (
    RerunBody,
    ResultBody,
    RunChange,
    RunChangeBody,
    RunDetail,
    RunOut,
    RunRetryBody,
    SkipBody,
    StepDetail,
    StepOut,
    payload_text,
    rerun_request,
    result_request,
    result_text,
    retry_run_request,
    run_change_request,
    skip_request,
)
from ondot.flow.cancel import cancel as cancel_execution
from ondot.flow.history.gone import find_why_unknown
from ondot.flow.workflows.control import cancel_run, give_up_run, pause_run, resume_run
from ondot.flow.workflows.repair import Wanted, repair_run
from ondot.flow.workflows.rerun import rerun
from ondot.model.access import Right
from ondot.model.errors import Conflict, NotFound
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.job import JobSpec
from ondot.model.query import merge, parse
from ondot.model.query.query import term
from ondot.model.workflow.graph import Graph
from ondot.model.workflow.spec import WorkflowTarget
from ondot.model.workflow.states import ENDED_RUNS, RunState, StepState
from ondot.store.audit import By
from ondot.store.connection import Connection
from ondot.store.executions import ExecutionRow, get_execution, list_job_executions
from ondot.store.maps import find_maps
from ondot.store.run_reads import (
    LISTED_RESULT_BYTES,
    RunRow,
    ShownStep,
    find_step_executions,
    get_run,
    get_step,
    list_past_steps,
    list_repairs,
    list_runs,
    list_step_times,
    list_steps,
)
from ondot.store.search_runs import search_runs

LARGEST = 2**31 - 1
STEPS_OF_A_RUN = 1_000
"""Steps in the answer about a run; a run may have 10,000."""

ControlAction = Literal["cancel", "give_up", "pause", "resume"]

router = APIRouter(tags=["runs"], dependencies=[Depends(only_known_parameters)])

RunPath = Annotated[UUID, Depends(id_in_path("run"))]
StepPath = Annotated[str, Path(alias="name", max_length=200, description="The name of the step.")]


class RunList(Page[RunOut]):
    searched_through: datetime | None = Field(default=None, description=SEARCHED_THROUGH)


class StepList(Page[StepOut]):
    pass


@router.get("/runs", dependencies=[needs(Right.JOBS_READ)], response_model=RunList)
async def list_all_runs(
    services: RequestServices,
    tenant_no: Tenant,
    state: Annotated[list[RunState] | None, Query(description="Only runs in one of these states.")] = None,
    job_id: Annotated[UUID | None, Query(description="Only runs of this workflow.")] = None,
    parent: Annotated[UUID | None, Query(description="Only runs that steps of this run started.")] = None,
    q: Search = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> RunList:
    """Runs of workflows that have started, newest first. With `q`, the answer may stop before its page is full, with
    `searched_through`."""
    async with services.database.reading(tenant_no) as connection:
        if q is not None:
            terms = [
                state and term("state", *(one.value for one in state)),
                job_id and term("job", str(job_id)),
                parent and term("parent", str(parent)),
            ]
            query = merge(parse(q, "runs"), [each for each in terms if each])
            found = await search_runs(connection, tenant_no, query, parse_cursor(cursor), limit)
            return RunList(
                items=await _show_runs(services, connection, tenant_no, found.rows),
                next_cursor=str(found.next) if found.next else None,
                searched_through=found.searched_through,
            )
        rows = await list_runs(
            connection,
            tenant_no,
            limit=limit + 1,
            job_id=None if job_id is None else JobId(job_id),
            states=state or None,
            before=parse_cursor(cursor),
            parent_run_id=parent,
        )
        shown = await _show_runs(services, connection, tenant_no, rows[:limit])
    return RunList(items=shown, next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None)


@router.get("/workflows/{id}/runs", dependencies=[needs(Right.JOBS_READ)], response_model=RunList)
async def list_runs_of_workflow(
    services: RequestServices,
    tenant_no: Tenant,
    id_: JobPath,
    state: Annotated[RunState | None, Query(description="Only runs in this state.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> RunList:
    """Runs of a workflow, also those that wait for their turn, latest fire first."""
    job = await load_job(services, tenant_no, JobId(id_))
    if not isinstance(job.spec.target, WorkflowTarget):
        raise Conflict(f"The job {id_} is no workflow. List its executions: GET /v1/jobs/{id_}/executions.")
    async with services.database.reading(tenant_no) as connection:
        before = parse_cursor(cursor)
        if state is not None and state is not RunState.PENDING:
            rows = await list_runs(
                connection, tenant_no, limit=limit + 1, job_id=JobId(id_), states=[state], before=before
            )
            items = await _show_runs(services, connection, tenant_no, rows[:limit])
            return RunList(items=items, next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None)
        executions = await list_job_executions(
            connection,
            tenant_no,
            JobId(id_),
            before=before,
            limit=limit + 1,
            horizon_s=services.database.settings.horizon_s,
            state=state.value if state else None,
        )
        page = executions[:limit]
        rows = await list_runs(connection, tenant_no, limit=limit, ids=[row.id for row in page])
        specs = await services.database.specs.find(connection, [(row.job_id, row.job_version) for row in page])
    found = {row.id: row for row in rows}
    items = []
    for execution in page:
        run, spec = found.get(execution.id), specs.get((execution.job_id, execution.job_version))
        items.append(waiting_run_out(execution, spec) if run is None else run_out(run, execution, spec))
    return RunList(items=items, next_cursor=str(page[-1].id) if len(executions) > limit else None)


@router.get("/runs/{id}", dependencies=[needs(Right.JOBS_READ)], response_model=RunDetail)
async def get_one_run(services: RequestServices, tenant_no: Tenant, run_id: RunPath) -> RunDetail:
    """A run: its state, its steps with times and results, its critical path, and what people did to it."""
    async with services.database.reading(tenant_no) as connection:
        run, execution, spec = await _load_run(services, connection, tenant_no, run_id)
        payload = execution.payload if execution is not None else None
        graph = graph_of(spec)
        if run is None:
            assert execution is not None
            return run_detail(waiting_run_out(execution, spec), graph, payload, [], [], None, [])
        times = await list_step_times(connection, tenant_no, run_id)
        repairs = await list_repairs(connection, tenant_no, run_id)
        shown: list[StepOut] = []
        next_cursor = None
        if graph is not None:
            steps = await list_steps(connection, tenant_no, run_id, limit=STEPS_OF_A_RUN + 1)
            shown = await _show_steps(connection, tenant_no, run, graph, steps[:STEPS_OF_A_RUN])
            next_cursor = str(steps[STEPS_OF_A_RUN - 1].step_no) if len(steps) > STEPS_OF_A_RUN else None
    return run_detail(run_out(run, execution, spec), graph, payload, times, shown, next_cursor, repairs)


@router.get("/runs/{id}/steps", dependencies=[needs(Right.JOBS_READ)], response_model=StepList)
async def list_steps_of_run(
    services: RequestServices,
    tenant_no: Tenant,
    run_id: RunPath,
    state: Annotated[list[StepState] | None, Query(description="Only steps in one of these states.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> StepList:
    """The steps of a run, in the order in which the workflow has them."""
    after = _parse_step_no(cursor)
    async with services.database.reading(tenant_no) as connection:
        run, graph = await _load_begun(services, connection, tenant_no, run_id)
        if run is None:
            return StepList(items=[], next_cursor=None)
        steps = await list_steps(connection, tenant_no, run_id, after=after, limit=limit + 1, states=state or None)
        shown = await _show_steps(connection, tenant_no, run, graph, steps[:limit])
    return StepList(items=shown, next_cursor=str(steps[limit - 1].step_no) if len(steps) > limit else None)


@router.get("/runs/{id}/steps/{name}", dependencies=[needs(Right.JOBS_READ)], response_model=StepDetail)
async def get_one_step(services: RequestServices, tenant_no: Tenant, run_id: RunPath, name: StepPath) -> StepDetail:
    """A step of a run, with its result and all its generations."""
    async with services.database.reading(tenant_no) as connection:
        run, graph = await _load_begun(services, connection, tenant_no, run_id)
        if run is None:
            raise NotFound(f"The run {run_id} has not started: none of its steps exists yet.")
        step_no = number_of(graph, name)
        step = await get_step(connection, tenant_no, run_id, step_no)
        if step is None:
            raise NotFound(f"The run {run_id} has no step '{name}'.")
        past = await list_past_steps(connection, tenant_no, run_id, step_no)
        [shown] = await _show_steps(connection, tenant_no, run, graph, [step], most_result_bytes=LARGEST)
        ids = [entry.execution_id for entry in past if entry.execution_id is not None]
        executions = await find_step_executions(connection, tenant_no, ids)
    return step_detail(shown, run.id, step, past, executions)


def number_of(graph: Graph, name: str) -> int:
    """Raises NotFound with the names that are near."""
    no = graph.numbers.get(name)
    if no is None:
        close = get_close_matches(name[:100], graph.names, n=1)
        advice = f"Did you mean '{close[0]}'?" if close else "See its steps: GET /v1/runs/…/steps."
        raise NotFound(f"The workflow has no step '{name[:100]}'. {advice}")
    return no


async def _load_run(
    services: Services, connection: Connection, tenant_no: TenantNo, run_id: UUID
) -> tuple[RunRow | None, ExecutionRow | None, JobSpec | None]:
    """A run and its execution; the run is None if it has not started. Raises NotFound if there is neither."""
    run = await get_run(connection, tenant_no, run_id)
    execution = await get_execution(connection, tenant_no, ExecutionId(run_id))
    if run is not None:
        job_id, version = run.job_id, run.job_version
    elif execution is not None and execution.origin != "step":
        job_id, version = execution.job_id, execution.job_version
    else:
        raise await find_why_unknown(services.database, tenant_no, "run", run_id)
    spec = (await services.database.specs.find(connection, [(job_id, version)])).get((job_id, version))
    if run is None and (spec is None or not isinstance(spec.target, WorkflowTarget)):
        raise NotFound(f"There is no run {run_id}: the execution of that id is not one of a workflow.")
    return run, execution, spec


async def _load_begun(
    services: Services, connection: Connection, tenant_no: TenantNo, run_id: UUID
) -> tuple[RunRow | None, Graph]:
    """A run, None if it has not started, and its graph. Raises NotFound if its workflow is gone."""
    run, _, spec = await _load_run(services, connection, tenant_no, run_id)
    graph = graph_of(spec)
    if graph is None:
        raise NotFound(f"The version of the workflow that the run {run_id} had is gone.")
    return run, graph


async def _show_runs(
    services: Services, connection: Connection, tenant_no: TenantNo, rows: Sequence[RunRow]
) -> list[RunOut]:
    versions = {row.id: (row.job_id, row.job_version) for row in rows}
    specs = await services.database.specs.find(connection, versions.values())
    return [run_out(row, None, specs.get(versions[row.id])) for row in rows]


async def _show_steps(
    connection: Connection,
    tenant_no: TenantNo,
    run: RunRow,
    graph: Graph,
    steps: Sequence[ShownStep],
    *,
    most_result_bytes: int = LISTED_RESULT_BYTES,
) -> list[StepOut]:
    ids = [step.execution_id for step in steps if step.execution_id is not None]
    executions = await find_step_executions(connection, tenant_no, ids, most_result_bytes=most_result_bytes)
    states = {}
    if any(step.state is StepState.WAITING for step in steps):
        states = {step.step_no: step.state for step in await list_step_times(connection, tenant_no, run.id)}
    mapped = [step.step_no for step in steps if graph.steps[step.step_no].map is not None]
    maps = await find_maps(connection, tenant_no, run.id, mapped) if mapped else {}
    return [step_out(step, graph, run.started_at, executions, states, maps.get(step.step_no)) for step in steps]


def _parse_step_no(cursor: str | None) -> int:
    if cursor is None:
        return -1
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 9):
        raise invalid_cursor()
    return int(cursor)


@router.post(
    "/runs/{id}/retry",
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=RunChange,
    openapi_extra=takes(RunRetryBody, required=False),
)
async def retry_run(
    request: Request,
    services: RequestServices,
    tenant_no: Tenant,
    by: BySender,
    run_id: RunPath,
    body: OptionalJsonBody,
    _key: Key = None,
) -> Response:
    """Run steps of a run again, under its id: those that failed, those that are named, or everything below a step."""
    wanted = retry_run_request(body)
    how = _wanted(wanted)
    services.quotas.check_replay(tenant_no, how.payload)
    return await _repair(request, services, tenant_no, run_id, how, by.because(wanted.reason))


@router.post(
    "/runs/{id}/rerun",
    dependencies=[needs(Right.JOBS_RUN)],
    status_code=201,
    response_model=RunChange,
    responses={**QUEUE_FULL, 200: {"description": "A dry run.", "model": RunChange}},
    openapi_extra=takes(RerunBody, required=False),
)
async def rerun_run(
    request: Request,
    services: RequestServices,
    tenant_no: Tenant,
    by: BySender,
    run_id: RunPath,
    body: OptionalJsonBody,
    _key: Key = None,
) -> Response:
    """Make a new run of one that has ended: what failed runs again, and the results of all other steps are taken over.
    It passes the limits of its job like a run asked for by hand."""
    wanted = rerun_request(body)
    how, idempotency = _wanted(wanted), idempotency_of(request)
    ask = partial(
        rerun,
        services.database,
        services.dispatcher,
        tenant_no,
        ExecutionId(run_id),
        how,
        by=by.because(wanted.reason),
        render=lambda done: repaired_out(done).model_dump_json(),
        idempotency=idempotency,
    )
    if how.dry_run:
        return Response(await ask(), media_type="application/json")
    if (tenant := services.quotas.with_quotas(tenant_no)) is not None:
        await services.quotas.room_for_run(tenant, None if how.payload is None else how.payload.encode(), idempotency)

    async def pools() -> dict[str, int]:
        async with services.database.reading(tenant_no) as connection:
            _, _, spec = await _load_run(services, connection, tenant_no, run_id)
        return {} if spec is None else {spec.pool: 1}

    async with services.room_now(tenant_no, pools, idempotency):
        return Response(await ask(), status_code=201, media_type="application/json")


def _wanted(body: RunRetryBody) -> Wanted:
    return Wanted(
        "retry" if body.from_ is None else "from",
        None if (names := body.steps or body.from_) is None else tuple(names),
        payload=payload_text(body),
        dry_run=body.dry_run,
        is_latest=body.version == "latest",
    )


@router.post(
    "/runs/{id}/skip",
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=RunChange,
    openapi_extra=takes(SkipBody),
)
async def skip_step(
    request: Request,
    services: RequestServices,
    tenant_no: Tenant,
    by: BySender,
    run_id: RunPath,
    body: JsonBody,
    _key: Key = None,
) -> Response:
    """Count a failed step as skipped, and decide everything below it again."""
    wanted = skip_request(body)
    how = Wanted("skip", (wanted.step,), dry_run=wanted.dry_run)
    return await _repair(request, services, tenant_no, run_id, how, by.because(wanted.reason))


@router.post(
    "/runs/{id}/result",
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=RunChange,
    openapi_extra=takes(ResultBody),
)
async def set_result(
    request: Request,
    services: RequestServices,
    tenant_no: Tenant,
    by: BySender,
    run_id: RunPath,
    body: JsonBody,
    _key: Key = None,
) -> Response:
    """Count a failed step as succeeded with this result, and decide everything below it again."""
    wanted = result_request(body)
    how = Wanted("result", (wanted.step,), result=result_text(wanted), dry_run=wanted.dry_run)
    services.quotas.check_replay(tenant_no, how.result)
    return await _repair(request, services, tenant_no, run_id, how, by.because(wanted.reason))


@router.post(
    "/runs/{id}/give-up",
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=RunChange,
    openapi_extra=takes(RunChangeBody, required=False),
)
async def give_up(
    services: RequestServices, tenant_no: Tenant, by: BySender, run_id: RunPath, body: OptionalJsonBody
) -> RunChange:
    """End a BLOCKED run FAILED; its `finally` steps run. Its dead letters stay open."""
    return await _control(services, tenant_no, by, run_id, body, "give_up")


@router.post(
    "/runs/{id}/pause",
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=RunChange,
    openapi_extra=takes(RunChangeBody, required=False),
)
async def pause(
    services: RequestServices, tenant_no: Tenant, by: BySender, run_id: RunPath, body: OptionalJsonBody
) -> RunChange:
    """Start no further steps of a run. Steps that run go on, and so does the timeout of the run."""
    return await _control(services, tenant_no, by, run_id, body, "pause")


@router.post(
    "/runs/{id}/resume",
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=RunChange,
    openapi_extra=takes(RunChangeBody, required=False),
)
async def resume(
    services: RequestServices, tenant_no: Tenant, by: BySender, run_id: RunPath, body: OptionalJsonBody
) -> RunChange:
    """Start steps of a paused run again."""
    return await _control(services, tenant_no, by, run_id, body, "resume")


@router.post(
    "/runs/{id}/cancel",
    dependencies=[needs(Right.JOBS_RUN)],
    status_code=202,
    response_model=RunChange,
    openapi_extra=takes(RunChangeBody, required=False),
)
async def cancel(
    services: RequestServices, tenant_no: Tenant, by: BySender, run_id: RunPath, body: OptionalJsonBody
) -> RunChange:
    """Cancel a run: steps that have not started are CANCELLED, those that run are asked to end, then `finally` steps
    run. A second cancel stops these too."""
    return await _control(services, tenant_no, by, run_id, body, "cancel")


async def _control(
    services: Services, tenant_no: TenantNo, by: By, run_id: UUID, body: object, action: ControlAction
) -> RunChange:
    wanted = run_change_request(body)
    by, id_ = by.because(wanted.reason), ExecutionId(run_id)
    database, dispatcher = services.database, services.dispatcher
    async with database.reading(tenant_no) as connection:
        run, execution, _ = await _load_run(services, connection, tenant_no, run_id)
    if run is None and (action != "cancel" or execution is None):
        raise Conflict(f"The run {run_id} has not started. Cancel it, or wait until it starts.")
    if wanted.dry_run:
        if run is not None and run.state in ENDED_RUNS:
            raise Conflict(f"The run {run_id} has ended {run.state}: there is nothing left to change.")
    elif run is None:
        await cancel_execution(database, dispatcher, tenant_no, id_, by=by)
    else:
        match action:
            case "cancel":
                await cancel_run(database, dispatcher, tenant_no, id_, by=by, objects=services.objects)
            case "give_up":
                await give_up_run(database, dispatcher, tenant_no, id_, by=by, objects=services.objects)
            case "pause":
                await pause_run(database, dispatcher, tenant_no, id_, by=by)
            case "resume":
                await resume_run(database, dispatcher, tenant_no, id_, by=by, objects=services.objects)
    async with database.reading(tenant_no) as connection:
        run = await get_run(connection, tenant_no, run_id) or run
    state = RunState.CANCELLED if run is None else run.state
    if wanted.dry_run:
        state = {"cancel": RunState.CANCELLED, "give_up": RunState.FAILED}.get(action, state)
    version = run.job_version if run is not None else execution.job_version if execution is not None else 0
    return RunChange(
        run_id=run_id,
        action=action,
        dry_run=wanted.dry_run,
        state=state,
        runs_again=[],
        stops=[],
        job_version=version,
    )


async def _repair(
    request: Request, services: Services, tenant_no: TenantNo, run_id: UUID, wanted: Wanted, by: By
) -> Response:
    text = await repair_run(
        services.database,
        services.dispatcher,
        tenant_no,
        ExecutionId(run_id),
        wanted,
        by=by,
        render=lambda done: repaired_out(done).model_dump_json(),
        idempotency=idempotency_of(request),
        objects=services.objects,
    )
    return Response(text, media_type="application/json")
