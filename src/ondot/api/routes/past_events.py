"""`/v1/events/try` and `/v1/events/{id}/replay`: past events again (S11)."""

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from ondot.api.dependencies import BySender, RequestServices, Tenant, needs
from ondot.api.openapi import takes
from ondot.api.parameters import id_in_path, only_known_parameters
from ondot.api.request_body import JsonBody, Key, idempotency_of
from ondot.document.events import EventBody
from ondot.document.events import read_event as read_event_body
from ondot.document.fields import Body, Instant, JobIdText
from ondot.document.reading import read_form
from ondot.flow.events.replay import replay_event
from ondot.model.access import Right
from ondot.model.errors import Fault, InvalidBody
from ondot.model.event import read_event
from ondot.model.ids import ExecutionId, JobId
from ondot.model.try_filter import Tried, try_rule
from ondot.store.events import EventFilter, EventRow, list_events

MOST_TRIED: Final = 1_000

router = APIRouter(tags=["events"], dependencies=[Depends(only_known_parameters)])

EventPath = Annotated[UUID, Depends(id_in_path("event"))]


class TryBody(Body):
    """Which past events a rule would match."""

    event: EventBody = Field(description="As in the `schedule` of a job.")
    limit: Annotated[int, Field(ge=1, le=MOST_TRIED)] = Field(
        default=100, description="How many of the newest events of this type are tried."
    )
    from_at: Instant | None = Field(default=None, description="Only events received since then.")


class ReplayEventBody(Body):
    """Which job gets the event again."""

    job_id: JobIdText = Field(description="A job that starts by events.")
    reason: Annotated[str, Field(max_length=500)] | None = Field(default=None, description="Kept in the audit log.")


class TriedOut(BaseModel):
    id: UUID
    received_at: datetime
    source: str
    subject: str | None
    event_id: str = Field(description="The sender's id of the event.")
    matches: bool
    why: str | None = Field(description="The first condition that it fails.")


class TriedList(BaseModel):
    tried: int
    matched: int
    items: list[TriedOut]


class ReplayedOut(BaseModel):
    execution_id: UUID


@router.post(
    "/events/try", dependencies=[needs(Right.JOBS_READ)], response_model=TriedList, openapi_extra=takes(TryBody)
)
async def try_filter(services: RequestServices, tenant_no: Tenant, body: JsonBody) -> TriedList:
    """Try a filter on past events, newest first: which match, and of the others the condition that fails."""
    wanted = read_form(TryBody, body, 'for example {"event": {"type": "com.acme.order.paid"}}')
    rule, faults = read_event_body(wanted.event)
    if rule is None:
        found = tuple(Fault("/event/" + "/".join(path), message) for path, message in faults)
        raise InvalidBody("The rule is not valid: see `errors`.", faults=found)
    async with services.database.reading(tenant_no) as connection:
        rows = await list_events(
            connection, tenant_no, EventFilter(type=rule.type, from_at=wanted.from_at), limit=wanted.limit
        )

    def judge() -> list[Tried]:
        return try_rule(rule, [(row.id, read_event(msgspec.json.decode(row.body), from_outside=False)) for row in rows])

    tried = await services.intake.parse(judge, is_slow=len(rows) > 20)
    return TriedList(
        tried=len(tried),
        matched=sum(one.why is None for one in tried),
        items=[_out(row, one) for row, one in zip(rows, tried, strict=True)],
    )


@router.post(
    "/events/{id}/replay",
    dependencies=[needs(Right.JOBS_RUN)],
    status_code=201,
    response_model=ReplayedOut,
    openapi_extra=takes(ReplayEventBody),
)
async def replay(
    request: Request,
    services: RequestServices,
    tenant_no: Tenant,
    id_: EventPath,
    body: JsonBody,
    by: BySender,
    _key: Key = None,
) -> Response:
    """Start a job again with a past event, whatever its filter says. It is a new execution."""
    wanted = read_form(ReplayEventBody, body, 'for example {"job_id": "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"}')
    text = await replay_event(
        services.database,
        services.dispatcher,
        tenant_no,
        id_,
        JobId(wanted.job_id),
        render=_render,
        idempotency=idempotency_of(request),
        by=by.because(wanted.reason),
    )
    return Response(text, status_code=201, media_type="application/json")


def _render(execution_id: ExecutionId) -> str:
    return ReplayedOut(execution_id=execution_id).model_dump_json()


def _out(row: EventRow, tried: Tried) -> TriedOut:
    return TriedOut(
        id=row.id,
        received_at=row.received_at,
        source=row.source,
        subject=row.subject,
        event_id=row.event_id,
        matches=tried.why is None,
        why=tried.why,
    )
