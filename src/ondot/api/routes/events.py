"""`/v1/events`: send CloudEvents, list what was sent, and show what each started (S11). `fast_path` serves sending."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from ondot.api.backpressure import QUEUE_FULL
from ondot.api.dependencies import RequestServices, Services, Tenant, caller_of, check_active, needs, services_of
from ondot.api.parameters import Cursor, Instant, Limit, check_instant, id_in_path, only_known_parameters, parse_cursor
from ondot.api.request_body import read_body
from ondot.api.traces import caller_trace
from ondot.document.sent_events import most_bytes, read_sent
from ondot.model.access import Right
from ondot.model.errors import Fault, InvalidBody, NotFound
from ondot.model.event import BATCH, MAX_ID, MAX_SOURCE, MAX_SUBJECT, MAX_TYPE, STRUCTURED, Event, carry_trace
from ondot.model.ids import TenantNo
from ondot.model.own_events import HOPS, why_too_far
from ondot.model.trace import TraceContext
from ondot.store.events import Answer, EventFilter, EventRow, MatchRow, get_event, list_events, list_matches
from ondot.telemetry.log import get_logger

log = get_logger()

router = APIRouter(tags=["events"], dependencies=[Depends(only_known_parameters)])

EventPath = Annotated[UUID, Depends(id_in_path("event"))]

LARGE: Final = 64 * 1024
_ENCODER: Final = msgspec.json.Encoder()


class SentOut(BaseModel):
    """What an event started. All of it exists when this is answered."""

    id: UUID = Field(description="Of the event in ondot; the same if it is sent again within 7 days.")
    matched: int = Field(description="How many jobs it matched.")
    executions: list[UUID] = Field(description="What it started. Paused jobs start nothing now.")


class SentBatch(BaseModel):
    events: list[SentOut] = Field(description="In the order in which they were sent.")


class MatchOut(BaseModel):
    job_id: UUID
    job_name: str | None
    execution_id: UUID | None
    outcome: Literal["started", "held", "skipped"] = Field(
        description="held: the job is paused, and its misfire policy decides when it is resumed."
    )


class EventOut(BaseModel):
    id: UUID
    received_at: datetime
    matched: int = Field(description="How many jobs it matched.")
    event: dict[str, Any] = Field(description="As it was sent; with the `traceparent` of its request if it had none.")


class EventDetail(EventOut):
    matches: list[MatchOut]


class EventList(BaseModel):
    items: list[EventOut]
    next_cursor: str | None


class CloudEventBody(BaseModel):
    """A CloudEvent 1.0. Further attributes are extensions: lower-case letters and digits."""

    specversion: Literal["1.0"] = Field(examples=["1.0"])
    id: str = Field(max_length=MAX_ID, description="Unique for its source.", examples=["4711"])
    source: str = Field(max_length=MAX_SOURCE, examples=["/shop"])
    type: str = Field(max_length=MAX_TYPE, examples=["com.acme.order.paid"])
    subject: str | None = Field(default=None, max_length=MAX_SUBJECT)
    time: datetime | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    data: Any = None
    data_base64: str | None = None


_EVENT: Final = {"$ref": "#/components/schemas/CloudEventBody"}
_TAKES: Final = {
    "requestBody": {
        "required": True,
        "content": {
            STRUCTURED: {"schema": _EVENT},
            BATCH: {"schema": {"type": "array", "items": _EVENT, "minItems": 1, "maxItems": 1000}},
        },
    }
}


@router.post(
    "/events",
    dependencies=[needs(Right.EVENTS_SEND, by_pool=False)],
    status_code=202,
    response_model=SentOut | SentBatch,
    responses=QUEUE_FULL,
    openapi_extra=_TAKES,
)
async def send_events(request: Request) -> Response:
    """Send one CloudEvent (structured or binary), or a batch, all or none. The jobs that it matches have started."""
    services, caller = services_of(request), await caller_of(request)
    # Here too, because the fast path resolves no dependencies.
    caller.require(Right.EVENTS_SEND)
    caller.require_all_pools()
    await check_active(request, caller)
    content_type = request.headers.get("content-type")
    raw = await read_body(request, most_bytes(content_type))
    headers = list(request.headers.items())
    events, is_batch = await services.intake.parse(
        lambda: read_sent(headers, content_type, raw), is_slow=len(raw) > LARGE
    )
    answers = await receive_events(services, caller.tenant_no, events, caller_trace(request.scope))
    body = {"events": answers} if is_batch else answers[0]
    return Response(_ENCODER.encode(body), status_code=202, media_type="application/json")


async def receive_events(
    services: Services, tenant_no: TenantNo, events: list[Event], trace: TraceContext | None
) -> list[Answer]:
    """Within the tenant's quotas and the room of its pools. `trace`: of the request."""
    if trace is not None:
        events = [carry_trace(event, trace) for event in events]
    faults = [
        Fault(f"/{place}/{HOPS}" if len(events) > 1 else f"/{HOPS}", why)
        for place, event in enumerate(events)
        if (why := why_too_far(event.value)) is not None
    ]
    if faults:
        log.warning("event.refused", tenant_no=tenant_no, type=events[0].type, why="too many hops", count=len(faults))
        raise InvalidBody(faults[0].message, faults=tuple(faults[:20]))
    if (tenant := services.quotas.with_quotas(tenant_no)) is not None:
        await services.quotas.room_for_events(tenant, [len(event.text) for event in events])

    async def count() -> dict[str, int]:
        return await services.events.count_pools(tenant_no, events)

    async with services.room_now(tenant_no, count, None):
        return await services.events.receive(tenant_no, events)


@router.get("/events", dependencies=[needs(Right.JOBS_READ, by_pool=False)], response_model=EventList)
async def list_sent_events(
    services: RequestServices,
    tenant_no: Tenant,
    type_: Annotated[str | None, Query(alias="type", max_length=MAX_TYPE, description="Only of this type.")] = None,
    source: Annotated[str | None, Query(max_length=MAX_SOURCE, description="Only of this source.")] = None,
    subject: Annotated[str | None, Query(max_length=MAX_SUBJECT, description="Only of this subject.")] = None,
    matched: Annotated[bool | None, Query(description="Only those that matched a job, or only the others.")] = None,
    from_at: Instant = None,
    to_at: Instant = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> EventList:
    """Events, newest first; `from_at` and `to_at` bound when they were received."""
    wanted = EventFilter(
        type_, source, subject, matched, check_instant("from_at", from_at), check_instant("to_at", to_at)
    )
    async with services.database.reading(tenant_no) as connection:
        rows = await list_events(connection, tenant_no, wanted, limit=limit + 1, before=parse_cursor(cursor))
    return EventList(
        items=[_out(row) for row in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


@router.get("/events/{id}", dependencies=[needs(Right.JOBS_READ, by_pool=False)], response_model=EventDetail)
async def get_sent_event(services: RequestServices, tenant_no: Tenant, id_: EventPath) -> EventDetail:
    """One event, and what it started."""
    async with services.database.reading(tenant_no) as connection:
        row = await get_event(connection, tenant_no, id_)
        if row is None:
            raise NotFound(f"There is no event {id_}. Events are listed by GET /v1/events.")
        matches = await list_matches(connection, tenant_no, id_)
    return EventDetail(**_out(row).model_dump(), matches=[_match_out(match) for match in matches])


def _out(row: EventRow) -> EventOut:
    return EventOut(id=row.id, received_at=row.received_at, matched=row.matched, event=msgspec.json.decode(row.body))


def _match_out(match: MatchRow) -> MatchOut:
    return MatchOut(
        job_id=match.job_id,
        job_name=match.job_name,
        execution_id=match.execution_id,
        outcome=match.outcome,  # type: ignore[arg-type]
    )
