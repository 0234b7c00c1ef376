"""`/v1/incidents`: what went wrong, from the first message to the recovery (O4)."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, RequestServices, Tenant, needs
from ondot.api.openapi import takes
from ondot.api.parameters import Cursor, Limit, id_in_path, only_known_parameters
from ondot.api.request_body import OptionalJsonBody
from ondot.api.responses import Page
from ondot.document.alerts import NoteBody
from ondot.document.reading import read_form
from ondot.flow.alerts.incidents import acknowledge, resolve, unknown_incident
from ondot.flow.alerts.reads import IncidentView, read_incident, read_incidents
from ondot.flow.channels.send import queue_message
from ondot.model.access import Right
from ondot.model.alerts.kinds import KINDS
from ondot.model.errors import InvalidParameters
from ondot.store.incidents import CauseRow, IncidentFilter, IncidentRow

router = APIRouter(tags=["incidents"], dependencies=[Depends(only_known_parameters)])

IncidentPath = Annotated[UUID, Depends(id_in_path("incident"))]
NOTE = 'for example {"note": "the vendor is down"}'


class CauseOut(BaseModel):
    """A cause, from when it held until it ended."""

    kind: str
    subject: str
    message: str
    since: datetime
    ended_at: datetime | None = Field(description="null while it holds.")
    times: int = Field(description="How often it started while the incident was open.")
    job_id: UUID | None
    details: dict[str, Any]


class IncidentMessageOut(BaseModel):
    """A message about it, and whether it arrived."""

    id: UUID
    kind: str
    channel: str
    state: str = Field(description="QUEUED, SENDING, RETRYING, DELIVERED, FAILED or DROPPED.")
    attempts: int
    error: str | None
    created_at: datetime
    ended_at: datetime | None


class IncidentOut(BaseModel):
    """One time that something went wrong."""

    id: UUID
    state: str = Field(description="open, acknowledged or resolved.")
    title: str
    alert: str = Field(description="The name of the alert that opened it.")
    alert_id: UUID
    kind: str
    reason: str
    job_id: UUID | None = Field(description="null: it is about several jobs, or about none.")
    since: datetime = Field(description="When its first cause started.")
    opened_at: datetime
    resolved_at: datetime | None
    resolved_by: str | None = Field(description="null: it recovered by itself, or it is open.")
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    note: str | None
    causes: int = Field(description="How many causes it has had.")
    messages: int = Field(description="How many messages were sent.")
    notified: list[str] = Field(description="The channels that know of it.")
    reopened: int = Field(description="How often it came back soon after it had recovered.")
    remind_at: datetime | None


class IncidentDetail(IncidentOut):
    holding: int = Field(description="How many causes hold now.")
    jobs: int = Field(description="How many jobs it is about.")
    first_causes: list[CauseOut] = Field(description="The first 20 causes.")
    deliveries: list[IncidentMessageOut]


class IncidentList(Page[IncidentOut]):
    pass


@router.get("/incidents", dependencies=[needs(Right.JOBS_READ)], response_model=IncidentList)
async def list_all(
    services: RequestServices,
    tenant_no: Tenant,
    state: Annotated[Literal["open", "resolved"] | None, Query(description="Default: all, open ones first.")] = None,
    alert: Annotated[UUID | None, Query(description="The id of an alert.")] = None,
    job: Annotated[UUID | None, Query(description="The id of a job.")] = None,
    kind: Annotated[str | None, Query(max_length=64, description="A kind of alert.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> IncidentList:
    """Incidents, open ones first, the newest first."""
    if kind is not None and kind not in KINDS:
        raise InvalidParameters(f"Unknown kind {kind!r}. Use one of: {', '.join(KINDS)}.")
    where = IncidentFilter(None if state is None else state == "open", alert, job, kind)
    async with services.database.reading(tenant_no) as connection:
        rows, following = await read_incidents(connection, tenant_no, where, cursor=cursor, limit=limit)
    return IncidentList(items=[incident_out(row) for row in rows], next_cursor=following)


@router.get("/incidents/{id}", dependencies=[needs(Right.JOBS_READ)], response_model=IncidentDetail)
async def get_one(services: RequestServices, tenant_no: Tenant, id_: IncidentPath) -> IncidentDetail:
    """One incident, with its first causes, and its messages and whether they arrived."""
    async with services.database.connection() as connection:
        view = await read_incident(connection, tenant_no, id_)
    if view is None:
        raise unknown_incident(id_)
    return _detail(view)


@router.post(
    "/incidents/{id}/acknowledge",
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=IncidentOut,
    openapi_extra=takes(NoteBody, required=False),
)
async def acknowledge_one(
    services: RequestServices, tenant_no: Tenant, id_: IncidentPath, body: OptionalJsonBody, by: ByCaller
) -> IncidentOut:
    """Somebody looks into it: no further reminders."""
    note = read_form(NoteBody, {} if body is None else body, NOTE).note
    return incident_out(await acknowledge(services.database, queue_message, tenant_no, id_, note, by=by))


@router.post(
    "/incidents/{id}/resolve",
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=IncidentOut,
    openapi_extra=takes(NoteBody, required=False),
)
async def resolve_one(
    services: RequestServices, tenant_no: Tenant, id_: IncidentPath, body: OptionalJsonBody, by: ByCaller
) -> IncidentOut:
    """End it by hand. What still holds stays quiet until it was over once."""
    note = read_form(NoteBody, {} if body is None else body, NOTE).note
    return incident_out(await resolve(services.database, queue_message, tenant_no, id_, note, by=by))


def incident_out(row: IncidentRow) -> IncidentOut:
    return IncidentOut(**_fields(row))


def _detail(view: IncidentView) -> IncidentDetail:
    return IncidentDetail(
        **_fields(view.row),
        holding=view.holding,
        jobs=view.jobs,
        first_causes=[_cause_out(cause) for cause in view.causes],
        deliveries=[
            IncidentMessageOut(
                id=each.id,
                kind=each.kind,
                channel=each.channel,
                state=each.state.value,
                attempts=each.attempts,
                error=each.error,
                created_at=each.created_at,
                ended_at=each.ended_at,
            )
            for each in view.deliveries
        ],
    )


def _fields(row: IncidentRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "state": row.state,
        "title": row.title,
        "alert": row.alert,
        "alert_id": row.alert_id,
        "kind": row.kind,
        "reason": row.reason,
        "job_id": row.job_id,
        "since": row.since,
        "opened_at": row.opened_at,
        "resolved_at": row.resolved_at,
        "resolved_by": row.resolved_by,
        "acknowledged_at": row.acknowledged_at,
        "acknowledged_by": row.acknowledged_by,
        "note": row.note,
        "causes": row.causes,
        "messages": row.messages,
        "notified": list(row.notified),
        "reopened": row.reopened,
        "remind_at": row.remind_at,
    }


def _cause_out(cause: CauseRow) -> CauseOut:
    return CauseOut(
        kind=cause.kind,
        subject=cause.subject,
        message=cause.message,
        since=cause.since,
        ended_at=cause.ended_at,
        times=cause.times,
        job_id=cause.job_id,
        details=cause.details,
    )
