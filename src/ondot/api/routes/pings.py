"""`/v1/pings`, and `/ping/{token}` for jobs elsewhere (O4), which call it as they would call Healthchecks.

A token is in one answer only: the one that creates it. The route for callers needs no API key, because the token is
one; GET, HEAD and POST mean the same, so that any client can call it.
"""

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from ondot.api.dependencies import ByCaller, RequestServices, Tenant, check_tenant, needs, services_of
from ondot.api.openapi import takes
from ondot.api.parameters import Limit, only_known_parameters
from ondot.api.request_body import JsonBody, Key, idempotency_of
from ondot.api.responses import Page
from ondot.api.routes.channels import read_cursor
from ondot.document.pings import PingBody, read_ping
from ondot.document.render import render_schedule
from ondot.flow.pings import unknown_ping
from ondot.model.access import Right
from ondot.model.errors import NotFound
from ondot.model.ping import LONGEST_BODY, PingState, read_kind
from ondot.store.pings import PingCallRow, PingRow, get_ping, list_ping_calls, list_pings

BODY_WITHIN_S: Final = 10.0
SHOWN: Final = 100
NOT_KEPT: Final = (
    "The token was shown in the first answer to this Idempotency-Key and is not stored. If you do not have it, rotate"
    " it: POST /v1/pings/{name}/rotate."
)

router = APIRouter(tags=["pings"], dependencies=[Depends(only_known_parameters)])


class PingOut(BaseModel):
    """A ping, without its token."""

    name: str
    state: PingState = Field(description="`NEW`: never called, `UP`, `LATE`, or `FAILED`.")
    period: float | None = Field(description="Seconds between calls; null: it has a schedule.")
    schedule: dict[str, Any] | None
    grace: float = Field(description="Seconds.")
    due_at: datetime | None = Field(description="When the next call is late; null: none is expected, or it is late.")
    last_call_at: datetime | None = Field(description="Written at most once in 5 seconds.")
    started_at: datetime | None = Field(description="A run has started and not ended.")
    took_s: float | None = Field(description="How long the last run took, from `start` to its end.")
    created_at: datetime
    created_by: str


class PingWarning(BaseModel):
    code: Literal["token-not-kept"] = "token-not-kept"
    detail: str


class NewPingOut(PingOut):
    """A ping with what is shown only now."""

    token: str | None
    url: str | None = Field(description="What the job calls.")
    warnings: list[PingWarning] = []


class PingCallOut(BaseModel):
    id: UUID
    at: datetime
    kind: Literal["start", "success", "fail", "log"]
    exit_code: int | None
    took_s: float | None
    body: str | None = Field(description="The first 10,000 bytes of what was sent.")
    address: str | None


class PingWithCalls(PingOut):
    calls: list[PingCallOut] = Field(description="The latest 100.")


class PingList(Page[PingOut]):
    pass


PingPath = Annotated[str, Path(max_length=200, description="The name of the ping.", examples=["backup"])]


@router.post(
    "/pings",
    dependencies=[needs(Right.JOBS_WRITE)],
    status_code=201,
    response_model=NewPingOut,
    openapi_extra=takes(PingBody),
)
async def create(
    request: Request, services: RequestServices, tenant_no: Tenant, body: JsonBody, by: ByCaller, _key: Key = None
) -> Response:
    """Create a ping. Its URL is shown only in this answer: only the hash of its token is stored."""
    name, expected = read_ping(body, services.database.clock.now())
    text = await services.pings.create(
        tenant_no,
        name,
        expected,
        render=lambda row, token: _new(request, row, token).model_dump_json(),
        idempotency=idempotency_of(request),
        by=by,
    )
    return Response(text, status_code=201, media_type="application/json")


@router.get("/pings", dependencies=[needs(Right.JOBS_READ)], response_model=PingList)
async def list_all(
    services: RequestServices, tenant_no: Tenant, limit: Limit = 50, cursor: str | None = None
) -> PingList:
    """Pings by name, without their tokens."""
    async with services.database.connection() as connection:
        rows = await list_pings(connection, tenant_no, after=read_cursor(cursor), limit=limit + 1)
    return PingList(
        items=[ping_out(row) for row in rows[:limit]], next_cursor=rows[limit - 1].name if len(rows) > limit else None
    )


@router.get("/pings/{name}", dependencies=[needs(Right.JOBS_READ)], response_model=PingWithCalls)
async def get_one(services: RequestServices, tenant_no: Tenant, name: PingPath) -> PingWithCalls:
    """One ping with its latest calls, without its token."""
    async with services.database.connection() as connection:
        row = await get_ping(connection, tenant_no, name)
        if row is None:
            raise unknown_ping(name)
        calls = await list_ping_calls(connection, row, SHOWN)
    return PingWithCalls(**ping_out(row).model_dump(), calls=[_call(each) for each in calls])


@router.post("/pings/{name}/rotate", dependencies=[needs(Right.JOBS_WRITE)], status_code=201, response_model=NewPingOut)
async def rotate(
    request: Request, services: RequestServices, tenant_no: Tenant, name: PingPath, by: ByCaller
) -> NewPingOut:
    """Give a ping a new token, and so a new URL. The old one is refused within a second."""
    row, token = await services.pings.rotate(tenant_no, name, by=by)
    return _new(request, row, token)


@router.delete("/pings/{name}", dependencies=[needs(Right.JOBS_WRITE)], response_model=PingOut)
async def delete(services: RequestServices, tenant_no: Tenant, name: PingPath, by: ByCaller) -> PingOut:
    """Delete a ping, with its calls."""
    return ping_out(await services.pings.delete(tenant_no, name, by=by))


receiver = APIRouter(tags=["pings"])
"""For jobs elsewhere: without an API key, because the token in the path is one."""


@receiver.api_route("/ping/{token}", methods=["GET", "HEAD", "POST"], include_in_schema=False)
@receiver.api_route("/ping/{token}/{what}", methods=["GET", "HEAD", "POST"], include_in_schema=False)
async def call(request: Request, services: RequestServices) -> Response:
    """A job reports its start, its success, its failure, its exit code, or a line of log."""
    kind = read_kind(request.path_params.get("what", ""))
    ping = await services.pings.find(request.path_params["token"])
    address = request.client.host if request.client else ""
    if ping is None or kind is None:
        if ping is None:
            services.wrong_pings.count(address)
        raise NotFound("There is no such ping.")
    await check_tenant(services, ping.tenant_no)
    body = await _read_body(request)
    await services.pings.record(ping, *kind, body or None, address or None)
    return PlainTextResponse("OK")


async def _read_body(request: Request) -> str:
    """The start of what was sent. The rest is not read: a job may send its whole output."""
    raw = b""
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(BODY_WITHIN_S):
            async for chunk in request.stream():
                raw += chunk[: LONGEST_BODY - len(raw)]
                if len(raw) >= LONGEST_BODY:
                    break
    return raw.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def ping_out(row: PingRow) -> PingOut:
    schedule = row.expected.schedule
    return PingOut(
        name=row.name,
        state=row.standing.state,
        period=row.expected.period_s,
        schedule=None if schedule is None else msgspec.to_builtins(render_schedule(schedule)),
        grace=row.expected.grace_s,
        due_at=row.standing.due_at,
        last_call_at=row.pinged_at,
        started_at=row.standing.started_at,
        took_s=row.standing.took_s,
        created_at=row.created_at,
        created_by=row.created_by,
    )


def _new(request: Request, row: PingRow, token: str | None) -> NewPingOut:
    base = (services_of(request).database.settings.public_url or "").rstrip("/")
    return NewPingOut(
        **ping_out(row).model_dump(),
        token=token,
        url=None if token is None else f"{base}/ping/{token}",
        warnings=[] if token is not None else [PingWarning(detail=NOT_KEPT.format(name=row.name))],
    )


def _call(row: PingCallRow) -> PingCallOut:
    return PingCallOut.model_validate(row, from_attributes=True)
