"""`/v1/views`: queries with a name, of the caller or shared by the tenant (O1)."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, CallerDep, RequestServices, check_active, needs
from ondot.api.openapi import takes
from ondot.api.parameters import Cursor, Limit, id_in_path, only_known_parameters, parse_cursor
from ondot.api.request_body import JsonBody, Key, idempotency_of
from ondot.api.responses import Page
from ondot.document.saved_views import ViewBody, ViewPatchBody, read_view, read_view_patch
from ondot.flow.saved_views import create_view, get_view, owners_seen_by, remove_view, update_view
from ondot.model.access import Right
from ondot.model.query import Of
from ondot.store.saved_views import ViewRow, list_views

router = APIRouter(tags=["views"], dependencies=[Depends(only_known_parameters)])

ViewPath = Annotated[UUID, Depends(id_in_path("view"))]
READS = needs(Right.JOBS_READ, by_pool=True)


class ViewOut(BaseModel):
    """A saved view."""

    id: UUID
    name: str
    of: Of
    q: str = Field(description="For the parameter `q` of the list.")
    shared: bool = Field(description="Of the whole tenant; otherwise the caller's own.")
    created_at: datetime
    created_by: str
    updated_at: datetime


class ViewList(Page[ViewOut]):
    pass


@router.post("/views", dependencies=[READS], status_code=201, response_model=ViewOut, openapi_extra=takes(ViewBody))
async def create(
    request: Request, services: RequestServices, caller: CallerDep, body: JsonBody, by: ByCaller, _key: Key = None
) -> Response:
    """Save a query under a name. `shared` needs the right `jobs:write`."""
    wanted = read_view(body)
    await check_active(request, caller)
    text = await create_view(
        services.database,
        caller,
        kind=wanted.of,
        name=wanted.name,
        q=wanted.q,
        shared=wanted.shared,
        render=lambda row: view_out(row).model_dump_json(),
        idempotency=idempotency_of(request),
        by=by,
    )
    return Response(text, status_code=201, media_type="application/json")


@router.get("/views", dependencies=[READS], response_model=ViewList)
async def list_all(
    services: RequestServices,
    caller: CallerDep,
    of: Annotated[Of | None, Query(description="Only views of these.")] = None,
    name: Annotated[str | None, Query(max_length=200, description="Only views with this name.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> ViewList:
    """The caller's own views and the shared ones, oldest first. A key that is limited to pools sees only its own."""
    async with services.database.reading(caller.tenant_no) as connection:
        rows = await list_views(
            connection,
            caller.tenant_no,
            owners_seen_by(caller),
            kind=of,
            name=name,
            after=parse_cursor(cursor),
            limit=limit + 1,
        )
    return ViewList(
        items=[view_out(row) for row in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


@router.get("/views/{id}", dependencies=[READS], response_model=ViewOut)
async def get_one(services: RequestServices, caller: CallerDep, id_: ViewPath) -> ViewOut:
    """One view. Those of other users are not found."""
    return view_out(await get_view(services.database, caller, id_))


@router.patch("/views/{id}", dependencies=[READS], response_model=ViewOut, openapi_extra=takes(ViewPatchBody))
async def change(
    request: Request, services: RequestServices, caller: CallerDep, id_: ViewPath, body: JsonBody, by: ByCaller
) -> ViewOut:
    """Change the name or the query of a view, or share it. A shared one needs the right `jobs:write`."""
    wanted = read_view_patch(body)
    await check_active(request, caller)
    row = await update_view(services.database, caller, id_, name=wanted.name, q=wanted.q, shared=wanted.shared, by=by)
    return view_out(row)


@router.delete("/views/{id}", dependencies=[READS], response_model=ViewOut)
async def delete(
    request: Request, services: RequestServices, caller: CallerDep, id_: ViewPath, by: ByCaller
) -> ViewOut:
    """Delete a view. A shared one needs the right `jobs:write`."""
    await check_active(request, caller)
    return view_out(await remove_view(services.database, caller, id_, by=by))


def view_out(row: ViewRow) -> ViewOut:
    return ViewOut(
        id=row.id,
        name=row.name,
        of=row.kind,
        q=row.q,
        shared=row.is_shared,
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
    )
