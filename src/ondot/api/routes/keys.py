"""`/v1/keys`: create, list, rotate and revoke API keys (T1). A key is in one answer only: the one that creates it."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, CallerDep, RequestServices, Tenant, needs
from ondot.api.openapi import takes
from ondot.api.parameters import Cursor, Limit, id_in_path, only_known_parameters, parse_cursor
from ondot.api.request_body import JsonBody, Key, OptionalJsonBody, idempotency_of
from ondot.api.responses import Page
from ondot.document.key_body import KeyBody, RotateBody
from ondot.document.reading import read_form
from ondot.flow.keys import create_key, describe_key, revoke, rotate_key, wanted_key
from ondot.model.access import Right, Role
from ondot.model.errors import NotFound
from ondot.store.keys import KeyRow, KeyState, get_key, list_keys

NOT_KEPT = (
    "The key was shown in the first answer to this Idempotency-Key and is not stored. If you do not have it, rotate it:"
    " POST /v1/keys/{id}/rotate with an overlap of 0."
)

router = APIRouter(tags=["keys"], dependencies=[Depends(only_known_parameters)])

KeyPath = Annotated[UUID, Depends(id_in_path("key"))]


class KeyOut(BaseModel):
    """An API key, without its secret."""

    id: UUID = Field(description="It is also a part of the key, and not secret.")
    name: str
    state: KeyState
    role: Role
    scopes: list[Right] | None = Field(description="null: all of the role.")
    pools: list[str] | None = Field(description="null: all pools.")
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    last_used_at: datetime | None = Field(description="Written at most once a minute.")
    revoked_at: datetime | None
    replaced_by: UUID | None = Field(description="The key that it was rotated to.")


class KeyWarning(BaseModel):
    code: Literal["key-not-kept"] = "key-not-kept"
    detail: str


class NewKeyOut(KeyOut):
    """A new API key. `key` is shown only now; null in the answer to a repeated Idempotency-Key."""

    key: str | None
    warnings: list[KeyWarning] = []


class KeyList(Page[KeyOut]):
    pass


@router.post(
    "/keys",
    dependencies=[needs(Right.KEYS_MANAGE, by_pool=True)],
    status_code=201,
    response_model=NewKeyOut,
    openapi_extra=takes(KeyBody),
)
async def create(
    request: Request, services: RequestServices, caller: CallerDep, body: JsonBody, by: ByCaller, _key: Key = None
) -> Response:
    """Create an API key. It is shown only in this answer: only its hash is stored. None has more than its creator."""
    wanted = read_form(KeyBody, body, 'for example {"name": "ci", "role": "editor"}')
    text = await create_key(
        services.database,
        caller,
        wanted_key(wanted),
        render=render_new,
        idempotency=idempotency_of(request),
        by=by,
    )
    return Response(text, status_code=201, media_type="application/json")


@router.get("/keys", dependencies=[needs(Right.KEYS_MANAGE, by_pool=True)], response_model=KeyList)
async def list_all(services: RequestServices, tenant_no: Tenant, limit: Limit = 50, cursor: Cursor = None) -> KeyList:
    """API keys, newest first, also those that no longer work; without their secrets."""
    async with services.database.connection() as connection:
        rows = await list_keys(connection, tenant_no, before=parse_cursor(cursor), limit=limit + 1)
    return KeyList(
        items=[key_out(row) for row in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


@router.get("/keys/{id}", dependencies=[needs(Right.KEYS_MANAGE, by_pool=True)], response_model=KeyOut)
async def get_one(services: RequestServices, tenant_no: Tenant, id_: KeyPath) -> KeyOut:
    """One API key, without its secret."""
    async with services.database.connection() as connection:
        row = await get_key(connection, tenant_no, id_)
    if row is None:
        raise NotFound(f"There is no key {id_}.")
    return key_out(row)


@router.post(
    "/keys/{id}/rotate",
    dependencies=[needs(Right.KEYS_MANAGE, by_pool=True)],
    status_code=201,
    response_model=NewKeyOut,
    openapi_extra=takes(RotateBody, required=False),
)
async def rotate(
    request: Request,
    services: RequestServices,
    caller: CallerDep,
    id_: KeyPath,
    body: OptionalJsonBody,
    by: ByCaller,
    _key: Key = None,
) -> Response:
    """Replace an API key by a new one with the same rights. The old one works until the overlap is over; a key that
    expires is followed by one that lives as long again."""
    wanted = read_form(RotateBody, {} if body is None else body, 'for example {"overlap": "24h"}')
    text = await rotate_key(
        services.database,
        caller,
        id_,
        overlap_s=wanted.overlap,
        render=render_new,
        idempotency=idempotency_of(request),
        by=by,
    )
    return Response(text, status_code=201, media_type="application/json")


@router.delete("/keys/{id}", dependencies=[needs(Right.KEYS_MANAGE, by_pool=True)], response_model=KeyOut)
async def delete(
    services: RequestServices,
    caller: CallerDep,
    id_: KeyPath,
    by: ByCaller,
    force: Annotated[bool, Query(description="Also if it is the last key of an owner.")] = False,
) -> KeyOut:
    """Revoke an API key. It is refused within a second, and its open requests end."""
    return key_out(await revoke(services.database, caller, id_, force=force, by=by))


def render_new(row: KeyRow, key: str | None) -> str:
    warnings = [] if key else [KeyWarning(detail=NOT_KEPT.format(id=row.id))]
    return NewKeyOut(**key_out(row).model_dump(), key=key, warnings=warnings).model_dump_json()


def key_out(row: KeyRow) -> KeyOut:
    return KeyOut(**describe_key(row))
