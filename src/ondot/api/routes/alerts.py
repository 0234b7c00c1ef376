"""`/v1/alerts`: what people want to be notified of (O4). An alert is named by its id or its name."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Path, Request, Response
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, CallerDep, RequestServices, Tenant, caller_of, needs, services_of
from ondot.api.openapi import takes
from ondot.api.parameters import Limit, only_known_parameters
from ondot.api.request_body import JsonBody, Key, idempotency_of
from ondot.api.responses import Page
from ondot.document.alerts import AlertBody, MuteBody, read_alert
from ondot.document.reading import read_form
from ondot.flow.alerts.define import (
    base_of,
    create_alert,
    mute_alert,
    remove_alert,
    require_owner,
    unknown_alert,
    update_alert,
)
from ondot.flow.alerts.preview import preview_alert
from ondot.model.access import Right
from ondot.model.alerts.cause import Cause
from ondot.model.alerts.kinds import KINDS
from ondot.model.errors import InvalidParameters
from ondot.store.alerts import AlertRow, find_alert, list_alerts

router = APIRouter(tags=["alerts"], dependencies=[Depends(only_known_parameters)])


async def _alert(
    request: Request, written: Annotated[str, Path(alias="id", description="Its id or its name.")]
) -> UUID:
    caller = await caller_of(request)
    try:
        id_, name = UUID(written), None
    except ValueError:
        id_, name = None, written
    if name is not None and (len(name) > 200 or "\0" in name):
        raise unknown_alert(name)
    async with services_of(request).database.connection() as connection:
        row = await find_alert(connection, caller.tenant_no, id_=id_, name=name)
    if row is None:
        raise unknown_alert(written)
    return row.id


AlertPath = Annotated[UUID, Depends(_alert)]


class AlertOut(BaseModel):
    """An alert. Durations are seconds."""

    id: UUID
    name: str
    when: dict[str, dict[str, Any]] = Field(description="Its kind, with its thresholds.")
    scope: dict[str, Any] = Field(description="Which jobs it watches; empty: all of the tenant.")
    for_: float = Field(alias="for", description="How long it must hold before it is an incident.")
    repeat: float | None = Field(description="How often it reminds; null: never.")
    notify: list[str]
    muted_until: datetime | None
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime


class AlertList(Page[AlertOut]):
    pass


class KindOut(BaseModel):
    """A kind of alert."""

    name: str
    about: str = Field(description="What one cause is about: job, pool, tenant or installation.")
    says: str
    thresholds: list[dict[str, Any]]
    example: dict[str, Any]


class KindList(BaseModel):
    items: list[KindOut]


class CausePreview(BaseModel):
    kind: str
    subject: str
    message: str
    since: datetime
    job_id: UUID | None
    pool: str | None
    details: dict[str, Any]


class AlertPreview(BaseModel):
    """What an alert would find now."""

    would_open: bool = Field(description="Whether an incident would open now.")
    count: int = Field(description="How many causes hold now.")
    due: int = Field(description="How many of them have held for `for` already.")
    causes: list[CausePreview] = Field(description="The first 20.")
    incidents_24h: int = Field(
        description="Incidents that alerts of this kind opened in the last 24 hours, whatever their scope."
    )


@router.post(
    "/alerts",
    dependencies=[needs(Right.JOBS_WRITE)],
    status_code=201,
    response_model=AlertOut,
    openapi_extra=takes(AlertBody),
)
async def create(
    request: Request, services: RequestServices, caller: CallerDep, body: JsonBody, by: ByCaller, _key: Key = None
) -> Response:
    """Create an alert. It is looked at within a second or two."""
    wanted = read_alert(body)
    require_owner(caller, wanted)
    text = await create_alert(
        services.database,
        caller.tenant_no,
        wanted,
        render=lambda row: alert_out(row).model_dump_json(by_alias=True),
        idempotency=idempotency_of(request),
        by=by,
    )
    return Response(text, status_code=201, media_type="application/json", headers={"ETag": '"1"'})


@router.get("/alerts", dependencies=[needs(Right.JOBS_READ)], response_model=AlertList)
async def list_all(
    services: RequestServices, tenant_no: Tenant, limit: Limit = 50, cursor: str | None = None
) -> AlertList:
    """Alerts by name."""
    if cursor is not None and len(cursor) > 200:
        raise InvalidParameters("The cursor is not valid. Pass `next_cursor` of the page before.")
    async with services.database.reading(tenant_no) as connection:
        rows = await list_alerts(connection, tenant_no, after=cursor or "", limit=limit + 1)
    return AlertList(
        items=[alert_out(row) for row in rows[:limit]], next_cursor=rows[limit - 1].name if len(rows) > limit else None
    )


@router.get("/alerts/kinds", dependencies=[needs(Right.JOBS_READ)], response_model=KindList)
async def kinds() -> KindList:
    """The kinds of alerts, with their thresholds."""
    return KindList(
        items=[
            KindOut(
                name=kind.name,
                about=kind.about.value,
                says=kind.says,
                thresholds=[
                    {"name": each.name, "form": each.form.value, "says": each.says, "default": each.default}
                    for each in kind.thresholds
                ],
                example=kind.example,
            )
            for kind in KINDS.values()
        ]
    )


@router.post(
    "/alerts/preview",
    dependencies=[needs(Right.JOBS_READ)],
    response_model=AlertPreview,
    openapi_extra=takes(AlertBody),
)
async def preview(services: RequestServices, caller: CallerDep, body: JsonBody) -> AlertPreview:
    """What this alert would find now. Nothing is stored."""
    wanted = read_alert(body)
    require_owner(caller, wanted)
    found = await preview_alert(services.database, caller.tenant_no, wanted)
    return AlertPreview(
        would_open=found.due > 0,
        count=found.count,
        due=found.due,
        causes=[_cause_out(cause) for cause in found.causes],
        incidents_24h=found.incidents,
    )


@router.get("/alerts/{id}", dependencies=[needs(Right.JOBS_READ)], response_model=AlertOut)
async def get_one(services: RequestServices, tenant_no: Tenant, id_: AlertPath, response: Response) -> AlertOut:
    async with services.database.reading(tenant_no) as connection:
        row = await find_alert(connection, tenant_no, id_=id_)
    if row is None:
        raise unknown_alert(id_)
    response.headers["ETag"] = f'"{row.version}"'
    return alert_out(row)


@router.patch(
    "/alerts/{id}",
    dependencies=[needs(Right.JOBS_WRITE)],
    response_model=AlertOut,
    openapi_extra=takes(AlertBody),
)
async def update(
    services: RequestServices,
    caller: CallerDep,
    body: JsonBody,
    id_: AlertPath,
    by: ByCaller,
    response: Response,
    if_match: Annotated[
        str | None, Header(alias="If-Match", description="The ETag of the version to change.", max_length=64)
    ] = None,
) -> AlertOut:
    """Change an alert: each field that is given replaces the whole field. Open incidents go on under the new rules."""
    row = await update_alert(
        services.database,
        caller.tenant_no,
        id_,
        body,
        check=lambda wanted: require_owner(caller, wanted),
        if_version=_parse_etag(if_match),
        by=by,
    )
    response.headers["ETag"] = f'"{row.version}"'
    return alert_out(row)


@router.post(
    "/alerts/{id}/mute",
    dependencies=[needs(Right.JOBS_WRITE)],
    response_model=AlertOut,
    openapi_extra=takes(MuteBody),
)
async def mute(services: RequestServices, tenant_no: Tenant, body: JsonBody, id_: AlertPath, by: ByCaller) -> AlertOut:
    """Send no opening and no reminder for a while; `{"for": 0}` ends it. Recoveries are sent."""
    wanted = read_form(MuteBody, body, 'for example {"for": "2h"}')
    return alert_out(await mute_alert(services.database, tenant_no, id_, wanted, by=by))


@router.delete("/alerts/{id}", dependencies=[needs(Right.JOBS_WRITE)], response_model=AlertOut)
async def delete(services: RequestServices, tenant_no: Tenant, id_: AlertPath, by: ByCaller) -> AlertOut:
    """Delete an alert. Its open incidents recover; their history stays."""
    return alert_out(await remove_alert(services.database, tenant_no, id_, by=by))


def alert_out(row: AlertRow) -> AlertOut:
    return AlertOut.model_validate(
        {
            **base_of(row),
            "id": row.id,
            "muted_until": row.muted_until,
            "version": row.version,
            "created_at": row.created_at,
            "created_by": row.created_by,
            "updated_at": row.updated_at,
        }
    )


def _cause_out(cause: Cause) -> CausePreview:
    return CausePreview(
        kind=cause.kind,
        subject=cause.subject,
        message=cause.message,
        since=cause.since,
        job_id=cause.job_id,
        pool=cause.pool,
        details=cause.details,
    )


def _parse_etag(if_match: str | None) -> int | None:
    if if_match is None or if_match.strip() == "*":
        return None
    number = if_match.strip().removeprefix("W/").strip('"')
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise InvalidParameters(f'If-Match: {if_match[:64]!r} is not the ETag of an alert; an ETag looks like "3".')
    return int(number)
