"""`/v1/channels`: where messages go, their deliveries, and a test message (O4). No route shows a credential."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from msgspec import structs
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, RequestServices, Tenant, caller_of, needs
from ondot.api.openapi import takes
from ondot.api.parameters import Limit, id_in_path, only_known_parameters
from ondot.api.request_body import JsonBody, Key, idempotency_of
from ondot.api.responses import Page
from ondot.document.channels import ChannelBody, ChannelPatchBody, patch_channel, read_channel
from ondot.flow.channels.credentials import find_references, find_unsealed
from ondot.flow.channels.explain import explain_delivery
from ondot.flow.channels.manage import create_channel, get_channel, remove_channel, send_test, update_channel
from ondot.model.access import Caller, Right
from ondot.model.channel import ChannelSpec, DeliveryState, EmailChannel, kind_of, render_channel
from ondot.model.errors import InvalidParameters
from ondot.model.execution import Outcome
from ondot.store.channels import ChannelRow, DeliveryRow, list_channels, list_deliveries

router = APIRouter(tags=["channels"], dependencies=[Depends(only_known_parameters)])

LATEST = 20
NOT_SEALED = (
    "Its credentials are stored without encryption, because this installation has no master key: set ONDOT_SECRET_KEY,"
    " then send them again."
)


class DeliveryOut(BaseModel):
    """One message to one channel."""

    id: UUID = Field(description="Of the delivery. Each attempt carries it, so that a receiver can join repetitions.")
    channel: str
    incident_id: UUID | None
    kind: Literal["opened", "reminder", "acknowledged", "recovered", "test"]
    title: str
    state: DeliveryState = Field(
        description="`QUEUED`, `SENDING`, `RETRYING`, `DELIVERED`, `FAILED`, or `DROPPED`: it was not needed any more."
    )
    joined: int = Field(description="How many messages were joined into it; 0 for a single one.")
    attempts: int
    answer: str | None = Field(description="What the receiver answered last, the first 1,000 characters.")
    error: str | None = Field(description="Why the last attempt failed.")
    created_at: datetime
    tried_at: datetime | None
    ended_at: datetime | None


class FailedAttemptOut(BaseModel):
    attempt: int
    outcome: Outcome
    started_at: datetime | None
    ended_at: datetime | None
    error: Any


class DeliveryWithAttempts(DeliveryOut):
    failed_attempts: list[FailedAttemptOut] = Field(description="The latest attempts that did not deliver it.")
    next_attempt_at: datetime | None = Field(description="When it is sent again; null if it is not.")
    explanation: str = Field(description="Why it is where it is, for people.")


class ChannelWarning(BaseModel):
    code: Literal["not-encrypted"] = "not-encrypted"
    detail: str


class ChannelOut(BaseModel):
    """A channel without its credentials: one of `webhook`, `email`, `slack`, `pagerduty` is set."""

    name: str
    kind: Literal["webhook", "email", "slack", "pagerduty"]
    webhook: dict[str, Any] | None = None
    email: dict[str, Any] | None = None
    slack: dict[str, Any] | None = None
    pagerduty: dict[str, Any] | None = None
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime | None
    updated_by: str | None
    warnings: list[ChannelWarning] = []


class ChannelWithDeliveries(ChannelOut):
    deliveries: list[DeliveryOut] = Field(description="The latest 20.")


class ChannelList(Page[ChannelOut]):
    pass


class DeliveryList(Page[DeliveryOut]):
    pass


Wait = Annotated[float, Query(ge=0, le=25, description="Seconds to wait for the answer.", examples=[20])]
DeliveryId = Annotated[UUID, Depends(id_in_path("delivery"))]
ChannelPath = Annotated[str, Path(max_length=200, description="The name of the channel.", examples=["ops"])]


@router.post(
    "/channels",
    dependencies=[needs(Right.JOBS_WRITE)],
    status_code=201,
    response_model=ChannelOut,
    openapi_extra=takes(ChannelBody),
)
async def create(
    request: Request, services: RequestServices, tenant_no: Tenant, body: JsonBody, by: ByCaller, _key: Key = None
) -> Response:
    """Create a channel. Credentials are references to secrets, or are encrypted and never shown."""
    name, spec = read_channel(body)
    spec = _admit(await caller_of(request), spec)
    text = await create_channel(
        services.database,
        services.vault,
        tenant_no,
        name,
        spec,
        render=lambda row: channel_out(row).model_dump_json(),
        idempotency=idempotency_of(request),
        by=by,
    )
    return Response(text, status_code=201, media_type="application/json")


@router.get("/channels", dependencies=[needs(Right.JOBS_READ)], response_model=ChannelList)
async def list_all(
    services: RequestServices, tenant_no: Tenant, limit: Limit = 50, cursor: str | None = None
) -> ChannelList:
    """Channels by name."""
    async with services.database.connection() as connection:
        rows = await list_channels(connection, tenant_no, after=read_cursor(cursor), limit=limit + 1)
    return ChannelList(
        items=[channel_out(row) for row in rows[:limit]],
        next_cursor=rows[limit - 1].name if len(rows) > limit else None,
    )


@router.get("/channels/{name}", dependencies=[needs(Right.JOBS_READ)], response_model=ChannelWithDeliveries)
async def get_one(services: RequestServices, tenant_no: Tenant, name: ChannelPath) -> ChannelWithDeliveries:
    """One channel with its latest deliveries."""
    row = await get_channel(services.database, tenant_no, name)
    async with services.database.connection() as connection:
        deliveries = await list_deliveries(connection, tenant_no, channel_id=row.id, limit=LATEST)
    return ChannelWithDeliveries(
        **channel_out(row).model_dump(), deliveries=[delivery_out(each) for each in deliveries]
    )


@router.get("/channels/{name}/deliveries", dependencies=[needs(Right.JOBS_READ)], response_model=DeliveryList)
async def deliveries(
    services: RequestServices, tenant_no: Tenant, name: ChannelPath, limit: Limit = 50, cursor: UUID | None = None
) -> DeliveryList:
    """The deliveries of a channel, newest first."""
    row = await get_channel(services.database, tenant_no, name)
    async with services.database.connection() as connection:
        rows = await list_deliveries(connection, tenant_no, channel_id=row.id, before=cursor, limit=limit + 1)
    return DeliveryList(
        items=[delivery_out(each) for each in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


@router.get(
    "/channels/{name}/deliveries/{id}", dependencies=[needs(Right.JOBS_READ)], response_model=DeliveryWithAttempts
)
async def get_delivery(
    services: RequestServices, tenant_no: Tenant, name: ChannelPath, id_: DeliveryId
) -> DeliveryWithAttempts:
    """One delivery: its attempts, when it is sent again, and why."""
    found = await explain_delivery(services.database, tenant_no, name, id_)
    return DeliveryWithAttempts(
        **delivery_out(found.delivery).model_dump(),
        failed_attempts=[
            FailedAttemptOut(
                attempt=each.attempt_no,
                outcome=each.outcome,
                started_at=each.started_at,
                ended_at=each.ended_at,
                error=each.error,
            )
            for each in found.attempts
        ],
        next_attempt_at=found.next_attempt_at,
        explanation=found.words,
    )


@router.patch(
    "/channels/{name}",
    dependencies=[needs(Right.JOBS_WRITE)],
    response_model=ChannelOut,
    openapi_extra=takes(ChannelPatchBody),
)
async def change(
    request: Request, services: RequestServices, tenant_no: Tenant, name: ChannelPath, body: JsonBody, by: ByCaller
) -> ChannelOut:
    """Change a channel. `•••` for a credential leaves it as it is, unless the address changes."""
    caller = await caller_of(request)
    row = await update_channel(
        services.database,
        services.vault,
        tenant_no,
        name,
        lambda stored: _admit(caller, patch_channel(body, stored)),
        by=by,
    )
    return channel_out(row)


@router.delete("/channels/{name}", dependencies=[needs(Right.JOBS_WRITE)], response_model=ChannelOut)
async def delete(services: RequestServices, tenant_no: Tenant, name: ChannelPath, by: ByCaller) -> ChannelOut:
    """Delete a channel, with its deliveries. Refused while an alert names it."""
    return channel_out(await remove_channel(services.database, tenant_no, name, by=by))


@router.post("/channels/{name}/test", dependencies=[needs(Right.JOBS_WRITE)], response_model=DeliveryOut)
async def try_out(
    services: RequestServices, tenant_no: Tenant, name: ChannelPath, by: ByCaller, wait: Wait = 20.0
) -> DeliveryOut:
    """Send a test message once, and return what came back, or how far it is after `wait`."""
    return delivery_out(await send_test(services.database, tenant_no, name, wait_s=wait, by=by))


def channel_out(row: ChannelRow) -> ChannelOut:
    kind = kind_of(row.spec)
    return ChannelOut(
        name=row.name,
        kind=kind,
        **{kind: render_channel(row.spec)},
        version=row.version,
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
        warnings=[ChannelWarning(detail=NOT_SEALED)] if find_unsealed(row.spec) else [],
    )


def delivery_out(row: DeliveryRow) -> DeliveryOut:
    return DeliveryOut.model_validate(row, from_attributes=True)


def _admit(caller: Caller, spec: ChannelSpec) -> ChannelSpec:
    """The rights that the writer of a job needs too: to refer to secrets, and to reach private addresses."""
    if find_references(spec):
        caller.require(Right.SECRETS_USE)
    if isinstance(spec, EmailChannel):
        return spec
    return structs.replace(spec, only_public=Right.PRIVATE_TARGETS not in caller.rights)


def read_cursor(cursor: str | None) -> str:
    if cursor is not None and (len(cursor) > 200 or "\0" in cursor):
        raise InvalidParameters("The cursor is not valid. Pass `next_cursor` of the page before.")
    return cursor or ""
