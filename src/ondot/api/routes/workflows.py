"""`/v1/workflows`: jobs whose target is a graph of steps (W1). Create, list, get; everything else is as of any job."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from ondot.api import responses
from ondot.api.backpressure import QUEUE_FULL
from ondot.api.dependencies import CallerDep, RequestServices, Tenant, needs, services_of
from ondot.api.openapi import takes
from ondot.api.parameters import Cursor, JobPath, Limit, only_known_parameters, parse_cursor
from ondot.api.request_body import Key, idempotency_of, large_body_of, parse_body
from ondot.api.routes.create import created_one, creator_of, read_specs, submit_specs
from ondot.api.routes.jobs import get_one_job
from ondot.api.views import created_job_text
from ondot.document.parse import new_workflow_spec
from ondot.document.render import JobOut, render_workflow_row
from ondot.document.workflow import WorkflowJobBody
from ondot.model.access import Right
from ondot.model.errors import NotFound
from ondot.model.job import JobState
from ondot.store.clock import Moment
from ondot.store.jobs import list_jobs
from ondot.store.pools import find_pools

router = APIRouter(tags=["workflows"], dependencies=[Depends(only_known_parameters)])


@router.post(
    "/workflows",
    dependencies=[needs(Right.JOBS_WRITE, by_pool=True)],
    status_code=201,
    response_model=JobOut,
    responses=QUEUE_FULL,
    openapi_extra=takes(WorkflowJobBody),
)
async def create_workflow(request: Request, _key: Key = None) -> Response:
    """Create a workflow: steps that depend on each other. Without a schedule it runs once, now.

    The same as `POST /v1/jobs` with `"target": {"workflow": {"steps": …}}`, for bodies of the size of a batch.
    """
    services, caller = services_of(request), await creator_of(request)
    body = await large_body_of(request)

    async def create(moment: Moment) -> str:
        specs, warnings = await read_specs(
            services,
            caller,
            lambda functions: [new_workflow_spec(body, moment.at, functions=functions)],
            partial(parse_body, request),
        )
        idempotency = idempotency_of(request)
        return await submit_specs(
            request, services, caller, specs, moment, created_job_text, idempotency, warnings=warnings
        )

    return created_one(await services.database.by_clock(create))


@router.get("/workflows", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=responses.WorkflowList)
async def list_workflows(
    services: RequestServices,
    caller: CallerDep,
    state: Annotated[JobState | None, Query(description="Only workflows in this state.")] = None,
    name: Annotated[str | None, Query(max_length=200, description="The whole name.")] = None,
    q: Annotated[str | None, Query(max_length=200, description="Part of a name.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> responses.WorkflowList:
    """Workflows, newest first, without their steps. Deleted ones are listed only with `state=DELETED`."""
    async with services.database.reading(caller.tenant_no) as connection:
        wanted = caller.pools_among(None)
        pools = None if wanted is None else await find_pools(connection, wanted)
        rows = await list_jobs(
            connection,
            caller.tenant_no,
            before=parse_cursor(cursor),
            limit=limit + 1,
            state=state.value if state else None,
            name=name,
            pool_nos=None if pools is None else list(pools.values()),
            part=q,
            only_workflows=True,
        )
    return responses.WorkflowList(
        items=[render_workflow_row(row, row.updated_at) for row in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


@router.get("/workflows/{id}", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=responses.JobDetail)
async def get_workflow(
    services: RequestServices, tenant_no: Tenant, id_: JobPath, response: Response
) -> responses.JobDetail:
    """One workflow with its steps and its latest runs; `ETag` is its version."""
    found = await get_one_job(services, tenant_no, id_, response)
    if "workflow" not in found["target"]:
        raise NotFound(f"The job {id_} is no workflow: read it by `GET /v1/jobs/{id_}`.")
    return found
