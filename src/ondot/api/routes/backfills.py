"""`/v1/jobs/{id}/backfill`: run the fires of a past range, show the progress, cancel (S7)."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, RequestServices, Tenant, needs
from ondot.api.openapi import takes
from ondot.api.parameters import JobPath, Limit, id_in_path, only_known_parameters
from ondot.api.request_body import JsonBody, Key, idempotency_of
from ondot.api.routes.jobs import load_job
from ondot.document.requests import BackfillBody, backfill_request
from ondot.flow.backfill import Backfill, cancel_backfill, count_backfill, start_backfill
from ondot.model.access import Right
from ondot.model.errors import NotFound
from ondot.model.ids import JobId
from ondot.model.job import JobState
from ondot.store.owed import BackfillRow, list_backfills

router = APIRouter(tags=["backfills"], dependencies=[Depends(only_known_parameters)])

BackfillPath = Annotated[UUID, Depends(id_in_path("backfill", parameter="backfill_id"))]


class BackfillOut(BaseModel):
    """A backfill and its progress."""

    id: UUID
    job_id: UUID
    state: Literal["RUNNING", "HELD", "DONE", "CANCELLED"] = Field(description="HELD: its job is paused.")
    from_at: datetime
    to_at: datetime
    order: Literal["oldest", "newest"]
    concurrency: int
    total: int = Field(description="Fires in the range.")
    existing: int = Field(description="Fires left out so far because they already had an execution.")
    made: int = Field(description="Executions created so far.")
    open: int = Field(description="Its executions that have not ended.")
    succeeded: int
    failed: int
    stopped: int = Field(description="Cancelled with the backfill, or skipped because the job was paused.")
    created_at: datetime
    ended_at: datetime | None


class BackfillList(BaseModel):
    items: list[BackfillOut]


class BackfillCountOut(BaseModel):
    """How many fires a backfill would run."""

    dry_run: Literal[True] = True
    total: int = Field(description="Fires in the range.")
    existing: int = Field(description="Fires that already have an execution.")
    to_run: int


@router.post(
    "/jobs/{id}/backfill",
    dependencies=[needs(Right.JOBS_RUN, by_pool=True)],
    status_code=202,
    response_model=BackfillOut,
    responses={200: {"model": BackfillCountOut, "description": "With `dry_run`: only the count."}},
    openapi_extra=takes(BackfillBody),
)
async def backfill_job(
    request: Request,
    services: RequestServices,
    tenant_no: Tenant,
    id_: JobPath,
    body: JsonBody,
    by: ByCaller,
    _key: Key = None,
) -> Response:
    """Run the fires of a past range that have no execution yet, after live work; with `dry_run` only count them."""
    wanted = backfill_request(body)
    backfill = Backfill(wanted.from_at, wanted.to_at, wanted.order == "newest", wanted.concurrency)
    if wanted.dry_run:
        count = await count_backfill(services.database, tenant_no, JobId(id_), backfill)
        counted = BackfillCountOut(total=count.total, existing=count.existing, to_run=count.total - count.existing)
        return Response(counted.model_dump_json(), media_type="application/json")
    text = await start_backfill(
        services.database,
        tenant_no,
        JobId(id_),
        backfill,
        render=lambda row: _out(row).model_dump_json(),
        idempotency=idempotency_of(request),
        by=by,
    )
    return Response(text, status_code=202, media_type="application/json")


@router.get("/jobs/{id}/backfills", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=BackfillList)
async def job_backfills(services: RequestServices, tenant_no: Tenant, id_: JobPath, limit: Limit = 50) -> BackfillList:
    """The backfills of a job, newest first."""
    row = await load_job(services, tenant_no, JobId(id_))
    async with services.database.reading(tenant_no) as connection:
        rows = await list_backfills(connection, tenant_no, row.id, limit=limit)
    return BackfillList(items=[_out(backfill) for backfill in rows])


@router.get(
    "/jobs/{id}/backfills/{backfill_id}",
    dependencies=[needs(Right.JOBS_READ, by_pool=True)],
    response_model=BackfillOut,
)
async def get_backfill(
    services: RequestServices, tenant_no: Tenant, id_: JobPath, backfill_id: BackfillPath
) -> BackfillOut:
    """One backfill and its progress."""
    async with services.database.reading(tenant_no) as connection:
        rows = await list_backfills(connection, tenant_no, JobId(id_), id_=backfill_id)
    if not rows:
        raise NotFound(f"The job {id_} has no backfill {backfill_id}.")
    return _out(rows[0])


@router.post(
    "/jobs/{id}/backfills/{backfill_id}/cancel",
    dependencies=[needs(Right.JOBS_RUN, by_pool=True)],
    response_model=BackfillOut,
)
async def cancel_one_backfill(
    services: RequestServices, tenant_no: Tenant, id_: JobPath, backfill_id: BackfillPath, by: ByCaller
) -> BackfillOut:
    """Start no further executions of a backfill. Those that wait are cancelled, those that run may end."""
    return _out(await cancel_backfill(services.database, tenant_no, JobId(id_), backfill_id, by=by))


def _out(row: BackfillRow) -> BackfillOut:
    is_held = row.state == "RUNNING" and row.job_state is JobState.PAUSED
    return BackfillOut(
        id=row.id,
        job_id=row.job_id,
        state="HELD" if is_held else row.state,
        from_at=row.from_at,
        to_at=row.to_at,
        order="newest" if row.newest_first else "oldest",
        concurrency=row.concurrency,
        total=row.total,
        existing=row.existing,
        made=row.made,
        open=row.live,
        succeeded=row.succeeded,
        failed=row.failed,
        stopped=row.stopped,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
