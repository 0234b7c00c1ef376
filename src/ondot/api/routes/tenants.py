"""`/v1/tenants`: create, list, get, change, suspend, resume, delete (T1, T2). For owners; an admin reads its own."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, CallerDep, RequestServices, needs
from ondot.api.openapi import takes
from ondot.api.parameters import Cursor, Limit, invalid_cursor, only_known_parameters
from ondot.api.request_body import JsonBody, Key, idempotency_of
from ondot.document.tenants import (
    TenantBody,
    TenantPatchBody,
    new_tenant,
    patched_tenant,
    render_quotas,
    render_targets,
)
from ondot.flow.tenants import (
    count_tenant,
    create_tenant,
    delete_tenant,
    read_tenant,
    resume_tenant,
    suspend_tenant,
    unknown_tenant,
    update_tenant,
)
from ondot.model.access import Right
from ondot.model.errors import InvalidParameters
from ondot.model.ids import TenantNo
from ondot.model.tenant import TenantState
from ondot.store.tenants import TenantRow, list_tenants

router = APIRouter(tags=["tenants"], dependencies=[Depends(only_known_parameters)])

LARGEST_NO = 2**31 - 1

TenantPath = Annotated[str, Path(max_length=200, description="The name of the tenant.", examples=["acme"])]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="The ETag of the version that was read. If the tenant has changed since then, the response is 412.",
    ),
]


class RemovalOut(BaseModel):
    """How far the rows of a deleted tenant are removed."""

    rows: int = Field(description="Rows that are gone.")
    share: float = Field(description="How much of the tables this round has looked at, from 0 to 1.")
    done_at: datetime | None = Field(description="When nothing was left; null: it goes on.")


class TenantOut(BaseModel):
    """A tenant. `tenant_no` is never used again; the name is, after a deletion."""

    name: str
    tenant_no: int
    state: TenantState
    weight: float
    pools: list[str] = Field(description='The pools that it may name; ["*"]: all.')
    quotas: dict[str, object] = Field(description="Those that there are.")
    targets: dict[str, list[str]] = Field(description="Where its HTTP calls may go, besides the public internet.")
    retention_days: int | None = Field(description="How long its history is kept; null: as the installation's.")
    version: int
    created_at: datetime
    updated_at: datetime | None
    deleted_at: datetime | None
    removal: RemovalOut | None = Field(description="Of a deleted tenant.")


class TenantList(BaseModel):
    items: list[TenantOut]
    next_cursor: str | None


class TenantCounts(BaseModel):
    """What a deletion would remove. null: too many to count in two seconds."""

    dry_run: bool
    name: str
    counts: dict[str, int | None]


@router.post(
    "/tenants",
    dependencies=[needs(Right.TENANTS_MANAGE)],
    status_code=201,
    response_model=TenantOut,
    openapi_extra=takes(TenantBody),
)
async def create(
    request: Request, services: RequestServices, caller: CallerDep, by: ByCaller, body: JsonBody, _key: Key = None
) -> Response:
    """Create a tenant."""
    text = await create_tenant(
        services.database,
        caller.tenant_no,
        new_tenant(body),
        render=lambda row: _out(row).model_dump_json(),
        idempotency=idempotency_of(request),
        by=by,
    )
    return Response(text, status_code=201, headers={"ETag": '"1"'}, media_type="application/json")


@router.get("/tenants", dependencies=[needs(Right.TENANTS_MANAGE)], response_model=TenantList)
async def list_all(
    services: RequestServices,
    state: Annotated[TenantState | None, Query(description="Only tenants in this state.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> TenantList:
    """All tenants, by number. Deleted ones are listed only with `state=DELETED`."""
    after = _parse_cursor(cursor)
    async with services.database.connection() as connection:
        rows = await list_tenants(connection, state=state, after=after, limit=limit + 1)
    next_cursor = str(rows[limit - 1].tenant.tenant_no) if len(rows) > limit else None
    return TenantList(items=[_out(row) for row in rows[:limit]], next_cursor=next_cursor)


@router.get("/tenants/{name}", dependencies=[needs(Right.TENANT_MANAGE)], response_model=TenantOut)
async def get(services: RequestServices, caller: CallerDep, name: TenantPath, response: Response) -> TenantOut:
    """One tenant, with its quotas; a deleted one with the progress of its removal. An admin may read its own."""
    row = await read_tenant(services.database, name)
    if not caller.may(Right.TENANTS_MANAGE) and row.tenant.tenant_no != caller.tenant_no:
        raise unknown_tenant(name)
    return _answer(row, response)


@router.patch(
    "/tenants/{name}",
    dependencies=[needs(Right.TENANTS_MANAGE)],
    response_model=TenantOut,
    openapi_extra=takes(TenantPatchBody),
)
async def change(
    services: RequestServices,
    by: ByCaller,
    name: TenantPath,
    body: JsonBody,
    response: Response,
    if_match: IfMatch = None,
) -> TenantOut:
    """Change the weight, pools, quotas, targets or retention. Fields that are left out stay; a quota that is null is
    removed."""
    row = await update_tenant(
        services.database,
        name,
        lambda tenant: patched_tenant(body, tenant),
        if_version=_parse_etag(if_match),
        by=by,
    )
    return _answer(row, response)


@router.post("/tenants/{name}/suspend", dependencies=[needs(Right.TENANTS_MANAGE)], response_model=TenantOut)
async def suspend(
    services: RequestServices, by: ByCaller, name: TenantPath, response: Response, if_match: IfMatch = None
) -> TenantOut:
    """Nothing of the tenant is planned or started within a second; it can still be read, and running work finishes."""
    return _answer(await suspend_tenant(services.database, name, if_version=_parse_etag(if_match), by=by), response)


@router.post("/tenants/{name}/resume", dependencies=[needs(Right.TENANTS_MANAGE)], response_model=TenantOut)
async def resume(
    services: RequestServices, by: ByCaller, name: TenantPath, response: Response, if_match: IfMatch = None
) -> TenantOut:
    """Plan and start again. The misfire policy of each job decides about the fires of the suspension."""
    return _answer(await resume_tenant(services.database, name, if_version=_parse_etag(if_match), by=by), response)


@router.delete(
    "/tenants/{name}",
    dependencies=[needs(Right.TENANTS_MANAGE)],
    status_code=202,
    response_model=TenantOut | TenantCounts,
)
async def delete(
    services: RequestServices,
    caller: CallerDep,
    by: ByCaller,
    name: TenantPath,
    response: Response,
    dry_run: Annotated[bool, Query(description="Only count what would be removed.")] = False,
    if_match: IfMatch = None,
) -> TenantOut | TenantCounts:
    """Delete a tenant with everything. Its keys die and its work stops at once; its rows go in the background."""
    if dry_run:
        response.status_code = 200
        return TenantCounts(dry_run=True, name=name, counts=await count_tenant(services.database, name))
    row = await delete_tenant(
        services.database,
        name,
        home_no=caller.home_tenant_no or caller.tenant_no,
        if_version=_parse_etag(if_match),
        by=by,
    )
    return _answer(row, response)


def _answer(row: TenantRow, response: Response) -> TenantOut:
    response.headers["ETag"] = f'"{row.tenant.version}"'
    return _out(row)


def _out(row: TenantRow) -> TenantOut:
    tenant = row.tenant
    removal = None
    if tenant.state is TenantState.DELETED:
        removal = RemovalOut(rows=row.removed, share=round(row.removed_share, 3), done_at=row.purged_at)
    return TenantOut(
        name=tenant.name,
        tenant_no=tenant.tenant_no,
        state=tenant.state,
        weight=tenant.weight,
        pools=sorted(tenant.pools),
        quotas=render_quotas(tenant.quotas),
        targets=render_targets(tenant.targets),
        retention_days=tenant.retention_days,
        version=tenant.version,
        created_at=row.created_at,
        updated_at=row.updated_at,
        deleted_at=row.deleted_at,
        removal=removal,
    )


def _parse_etag(if_match: str | None) -> int | None:
    if if_match is None or if_match.strip() == "*":
        return None
    number = if_match.strip().removeprefix("W/").strip('"')
    if not (number.isascii() and number.isdecimal()) or len(number) > 9:
        raise InvalidParameters(f'If-Match: {if_match[:64]!r} is not the ETag of a tenant; an ETag looks like "3".')
    return int(number)


def _parse_cursor(cursor: str | None) -> TenantNo:
    if cursor is None:
        return TenantNo(0)
    if not (cursor.isascii() and cursor.isdecimal()) or int(cursor[:11]) > LARGEST_NO:
        raise invalid_cursor()
    return TenantNo(int(cursor))
