"""`/v1/bulk`: operations on many executions, jobs, dead letters or runs (O8): count, start, progress, results, stop,
undo."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from ondot.api.dependencies import BySender, CallerDep, RequestServices, Tenant, needs
from ondot.api.openapi import takes
from ondot.api.parameters import Cursor, Limit, id_in_path, only_known_parameters, parse_cursor
from ondot.api.request_body import JsonBody, Key, OptionalJsonBody, idempotency_of
from ondot.api.responses import Page
from ondot.document.bulk import BulkBody, UndoBody, bulk_request, undo_request
from ondot.flow.bulk.start import Preview, bound_rate, missing, preview, require_rights, start_bulk, stop, undo_of
from ondot.model.access import Right
from ondot.model.bulk import DEFAULT_PER_S, BulkAction, BulkState, Kind
from ondot.model.query import parse
from ondot.store.bulk import BulkRow, NewBulk, list_bulk_items, list_bulks

router = APIRouter(tags=["bulk"], dependencies=[Depends(only_known_parameters)])

BulkPath = Annotated[UUID, Depends(id_in_path("operation"))]


class BulkOut(BaseModel):
    """An operation on many, and its progress."""

    id: UUID
    of: Kind
    action: BulkAction
    state: BulkState
    total: int = Field(description="Items that matched when it was requested.")
    total_is_least: bool = Field(description="There were more items than could be counted in two seconds.")
    done: int = Field(description="Items that it has changed.")
    refused: int = Field(description="Items that could not be changed: see `/v1/bulk/{id}/items`.")
    unchanged: int = Field(description="Items that were already as they should be.")
    q: str | None
    filter: dict[str, Any] | None = Field(description="Of dead letters: a filter instead of a query.")
    ids: int | None = Field(description="How many ids it was started with.")
    set: dict[str, Any] | None
    per_s: float
    reason: str | None
    actor: str
    created_at: datetime
    ended_at: datetime | None
    stopped_because: str | None = Field(description="Why ondot itself stopped it.")
    can_be_undone: bool
    undo_of: UUID | None = Field(description="The operation that this one undoes.")
    undone_by: UUID | None


class BulkList(Page[BulkOut]):
    pass


class BulkItemOut(BaseModel):
    id: UUID
    result: str = Field(description="`done` or `refused`.")
    detail: str | None = Field(description="Why it was refused.")
    execution_id: UUID | None = Field(default=None, description="The execution that was started for it.")


class BulkItemList(Page[BulkItemOut]):
    pass


class SampleOut(BaseModel):
    id: UUID
    state: str
    name: str | None


class BulkPreview(BaseModel):
    """What an operation would do."""

    dry_run: bool = True
    count: int = Field(description="Items that match now.")
    count_is_least: bool = Field(description="There are more than could be counted in two seconds.")
    looked_at: int = Field(description="How many of them were looked at for refusals: the newest 10,000.")
    refused: int = Field(description="How many of these would be refused.")
    sample: list[SampleOut]
    refusals: list[BulkItemOut] = Field(description="Some that would be refused, and why.")


@router.post(
    "/bulk",
    dependencies=[needs(Right.JOBS_RUN, by_pool=True)],
    status_code=202,
    response_model=BulkOut,
    responses={200: {"model": BulkPreview, "description": "A dry run."}},
    openapi_extra=takes(BulkBody),
)
async def start_operation(
    request: Request, services: RequestServices, caller: CallerDep, by: BySender, body: JsonBody, _key: Key = None
) -> Response:
    """Change many at once: by ids, or all that match a query now. It goes on in the background, at a bounded rate.
    `update` and `delete` need the right `jobs:write`."""
    wanted = bulk_request(body)
    require_rights(caller, wanted.of, wanted.action)
    tenant = services.database.tenants.known.get(caller.tenant_no)
    q = "" if wanted.all and wanted.of != "dead_letters" else wanted.q
    if q is not None:
        parse(q, wanted.of)
    bulk = NewBulk(
        services.database.clock.new_id(),
        wanted.of,
        wanted.action,
        bound_rate(tenant, wanted.action, wanted.per_s or DEFAULT_PER_S),
        ids=wanted.unique_ids,
        q=q,
        change=wanted.change,
        pools=caller.pools,
    )
    if wanted.dry_run:
        async with services.database.reading(caller.tenant_no) as connection:
            return _json(preview_out(await preview(connection, caller, bulk)).model_dump_json(), 200)
    text = await start_bulk(
        services.database,
        caller.tenant_no,
        bulk,
        by=by.because(wanted.reason),
        render=lambda row: bulk_out(row).model_dump_json(),
        idempotency=idempotency_of(request),
    )
    return _json(text, 202)


@router.get("/bulk", dependencies=[needs(Right.JOBS_READ)], response_model=BulkList)
async def list_operations(
    services: RequestServices,
    tenant_no: Tenant,
    of: Annotated[Kind | None, Query(description="Only operations on these.")] = None,
    state: Annotated[BulkState | None, Query(description="Only operations in this state.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> BulkList:
    """Operations with their progress, newest first."""
    async with services.database.reading(tenant_no) as connection:
        rows = await list_bulks(
            connection, tenant_no, kind=of, state=state, before=parse_cursor(cursor), limit=limit + 1
        )
    return BulkList(
        items=[bulk_out(row) for row in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


@router.get("/bulk/{id}", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=BulkOut)
async def get_operation(services: RequestServices, tenant_no: Tenant, id_: BulkPath) -> BulkOut:
    """One operation and its progress."""
    async with services.database.reading(tenant_no) as connection:
        rows = await list_bulks(connection, tenant_no, id_=id_)
    if not rows:
        raise missing(id_)
    return bulk_out(rows[0])


@router.get("/bulk/{id}/items", dependencies=[needs(Right.JOBS_READ)], response_model=BulkItemList)
async def list_results(
    services: RequestServices,
    tenant_no: Tenant,
    id_: BulkPath,
    result: Annotated[str | None, Query(pattern="^(done|refused)$", description="`done` or `refused`.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> BulkItemList:
    """Results by item: the first 10,000 that were refused, with the reason; and the first 100,000 that were changed, if
    that can be undone or has started an execution."""
    is_done = None if result is None else result == "done"
    async with services.database.reading(tenant_no) as connection:
        if not await list_bulks(connection, tenant_no, id_=id_):
            raise missing(id_)
        after = parse_cursor(cursor)
        rows = await list_bulk_items(connection, tenant_no, id_, is_done=is_done, after=after, limit=limit + 1)
    return BulkItemList(
        items=[
            BulkItemOut(
                id=row.id, result="done" if row.is_done else "refused", detail=row.detail, execution_id=row.made
            )
            for row in rows[:limit]
        ],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


@router.post("/bulk/{id}/stop", dependencies=[needs(Right.JOBS_RUN, by_pool=True)], response_model=BulkOut)
async def stop_operation(services: RequestServices, caller: CallerDep, by: BySender, id_: BulkPath) -> BulkOut:
    """Stop an operation: it reaches no further items. Changed ones stay changed."""
    async with services.database.reading(caller.tenant_no) as connection:
        rows = await list_bulks(connection, caller.tenant_no, id_=id_)
    if not rows:
        raise missing(id_)
    require_rights(caller, rows[0].kind, rows[0].action)
    return bulk_out(await stop(services.database, caller.tenant_no, id_, by=by))


@router.post(
    "/bulk/{id}/undo",
    dependencies=[needs(Right.JOBS_RUN, by_pool=True)],
    status_code=202,
    response_model=BulkOut,
    openapi_extra=takes(UndoBody, required=False),
)
async def undo_operation(
    request: Request,
    services: RequestServices,
    caller: CallerDep,
    by: BySender,
    id_: BulkPath,
    body: OptionalJsonBody,
    _key: Key = None,
) -> Response:
    """Undo an operation that has ended, by another one: pause and resume undo each other, and an update restores labels
    and priority of jobs that were not changed since."""
    wanted = undo_request(body)
    async with services.database.reading(caller.tenant_no) as connection:
        rows = await list_bulks(connection, caller.tenant_no, id_=id_)
    if not rows:
        raise missing(id_)
    require_rights(caller, rows[0].kind, rows[0].action)
    text = await start_bulk(
        services.database,
        caller.tenant_no,
        undo_of(rows[0], services.database.clock.new_id()),
        by=by.because(wanted.reason),
        render=lambda row: bulk_out(row).model_dump_json(),
        idempotency=idempotency_of(request),
    )
    return _json(text, 202)


def bulk_out(row: BulkRow) -> BulkOut:
    return BulkOut(
        id=row.id,
        of=row.kind,
        action=row.action,
        state=row.state,
        total=row.total,
        total_is_least=row.total_is_least,
        done=row.done,
        refused=row.refused,
        unchanged=row.unchanged,
        q=row.q,
        filter=None if row.filter.is_empty else msgspec.to_builtins(row.filter),
        ids=row.selected,
        set=row.change,
        per_s=row.per_s,
        reason=row.reason,
        actor=row.actor,
        created_at=row.created_at,
        ended_at=row.ended_at,
        stopped_because=row.stopped_because,
        can_be_undone=row.can_be_undone,
        undo_of=row.undo_of,
        undone_by=row.undone_by,
    )


def preview_out(seen: Preview) -> BulkPreview:
    return BulkPreview(
        count=seen.count,
        count_is_least=seen.count_is_least,
        looked_at=seen.looked_at,
        refused=seen.refused,
        sample=[SampleOut(id=id_, state=item.state, name=item.name) for id_, item in seen.sample],
        refusals=[BulkItemOut(id=id_, result="refused", detail=why) for id_, why in seen.refusals],
    )


def _json(text: str, status: int) -> Response:
    return Response(text, status_code=status, media_type="application/json")
