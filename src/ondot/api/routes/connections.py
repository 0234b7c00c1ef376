"""`/v1/connections`: brokers and servers that jobs name (E3). No route shows a credential (T5)."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from msgspec import structs
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, RequestServices, Tenant, caller_of, needs
from ondot.api.openapi import takes
from ondot.api.parameters import Limit, only_known_parameters
from ondot.api.request_body import JsonBody
from ondot.api.responses import Page
from ondot.api.routes.channels import NOT_SEALED, read_cursor
from ondot.api.routes.secrets import UsedByOut
from ondot.document.connections import ConnectionBody, read_connection, read_connection_name
from ondot.flow.connections.manage import get_connection, put_connection, remove_connection, run_test
from ondot.model.access import Right
from ondot.model.connection import find_references, is_sealed, render_connection
from ondot.store.connections import ConnectionRow, list_connections
from ondot.store.secrets import UsedBy

router = APIRouter(tags=["connections"], dependencies=[Depends(only_known_parameters)])


class ConnectionWarning(BaseModel):
    code: Literal["not-encrypted"] = "not-encrypted"
    detail: str


class ConnectionOut(BaseModel):
    """A connection without its credentials: `•••`, or the secret that has them."""

    name: str
    kind: Literal["redis", "kafka", "rabbitmq", "nats", "grpc", "webhook"]
    url: str | None = None
    servers: str | None = None
    address: str | None = None
    username: str | None = None
    password: Any = None
    mechanism: str | None = None
    tls: bool | None = None
    ca: str | None = None
    certificate: str | None = None
    private_key: Any = None
    headers: dict[str, Any] | None = None
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str
    tested_at: datetime | None = Field(description="When it was tested last; null: not since it was changed.")
    test_error: str | None = Field(description="What was wrong then; null: nothing.")
    warnings: list[ConnectionWarning] = []


class ConnectionWithUsers(ConnectionOut):
    used_by: list[UsedByOut] = Field(description="Up to 20 of the jobs that recur or have a key and name it.")


class ConnectionList(Page[ConnectionOut]):
    pass


ConnectionPath = Annotated[str, Path(max_length=200, description="The connection's name.", examples=["kafka-main"])]
Force = Annotated[bool, Query(description="Delete it although jobs name it; their runs fail then.", examples=[True])]


@router.get("/connections", dependencies=[needs(Right.JOBS_READ)], response_model=ConnectionList)
async def list_all(
    services: RequestServices, tenant_no: Tenant, limit: Limit = 50, cursor: str | None = None
) -> ConnectionList:
    """Connections by name."""
    async with services.database.connection() as connection:
        rows = await list_connections(connection, tenant_no, after=read_cursor(cursor), limit=limit + 1)
    return ConnectionList(
        items=[connection_out(row) for row in rows[:limit]],
        next_cursor=rows[limit - 1].name if len(rows) > limit else None,
    )


@router.get("/connections/{name}", dependencies=[needs(Right.JOBS_READ)], response_model=ConnectionWithUsers)
async def get_one(services: RequestServices, tenant_no: Tenant, name: ConnectionPath) -> ConnectionWithUsers:
    """One connection, with jobs that name it."""
    row, users = await get_connection(services.database, tenant_no, name)
    return _with_users(row, users)


@router.put(
    "/connections/{name}",
    dependencies=[needs(Right.JOBS_WRITE)],
    response_model=ConnectionOut,
    openapi_extra=takes(ConnectionBody),
)
async def put(
    request: Request,
    response: Response,
    services: RequestServices,
    tenant_no: Tenant,
    name: ConnectionPath,
    body: JsonBody,
    by: ByCaller,
) -> ConnectionOut:
    """Create a connection, or replace its content. Credentials are encrypted, or refer to secrets; `•••` keeps one as
    long as the address stays."""
    name = read_connection_name(name)
    spec = read_connection(body)
    caller = await caller_of(request)
    if find_references(spec):
        caller.require(Right.SECRETS_USE)
    spec = structs.replace(spec, only_public=Right.PRIVATE_TARGETS not in caller.rights)
    row, is_new = await put_connection(services.vault, tenant_no, name, spec, by=by)
    response.status_code = 201 if is_new else 200
    return connection_out(row)


@router.delete("/connections/{name}", dependencies=[needs(Right.JOBS_WRITE)], response_model=ConnectionWithUsers)
async def delete(
    services: RequestServices, tenant_no: Tenant, name: ConnectionPath, by: ByCaller, force: Force = False
) -> ConnectionWithUsers:
    """Delete a connection. Refused while jobs name it, unless `force`."""
    row, users = await remove_connection(services.database, tenant_no, name, is_forced=force, by=by)
    return _with_users(row, users)


@router.post("/connections/{name}/test", dependencies=[needs(Right.JOBS_WRITE)], response_model=ConnectionOut)
async def try_out(services: RequestServices, tenant_no: Tenant, name: ConnectionPath, by: ByCaller) -> ConnectionOut:
    """Connect and log in, from this API, and send nothing. `test_error` says what is wrong."""
    return connection_out(await run_test(services.vault, tenant_no, name, services.connection_checker.check, by=by))


def connection_out(row: ConnectionRow) -> ConnectionOut:
    return ConnectionOut(
        name=row.name,
        **render_connection(row.spec),
        version=row.version,
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
        tested_at=row.tested_at,
        test_error=row.test_error,
        warnings=[] if is_sealed(row.spec) else [ConnectionWarning(detail=NOT_SEALED)],
    )


def _with_users(row: ConnectionRow, users: tuple[UsedBy, ...]) -> ConnectionWithUsers:
    return ConnectionWithUsers(
        **connection_out(row).model_dump(), used_by=[UsedByOut(id=user.id, name=user.name) for user in users]
    )
