"""`/v1/sinks`: where ondot's own events are sent (E3). No route shows a credential."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from msgspec import structs
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, RequestServices, Tenant, caller_of, needs
from ondot.api.openapi import takes
from ondot.api.parameters import Limit, only_known_parameters
from ondot.api.request_body import JsonBody
from ondot.api.responses import Page
from ondot.api.routes.channels import read_cursor
from ondot.document.sinks import SinkBody, check_name, read_sink, render_sink
from ondot.flow.sinks.manage import (
    pause_sink,
    read_sink_row,
    read_sink_rows,
    references_of,
    remove_sink,
    save_sink,
    send_test_event,
)
from ondot.model.access import Caller, Right
from ondot.model.sink import SinkKind, SinkSpec, WebhookPlace, kind_of
from ondot.store.sinks import Lag, SinkRow

router = APIRouter(tags=["sinks"], dependencies=[Depends(only_known_parameters)])


class SinkOut(BaseModel):
    """A sink without its credentials: what it sends, where to, and how far it is."""

    name: str
    kind: SinkKind
    types: list[str]
    pools: list[str]
    labels: dict[str, str]
    results: bool
    webhook: dict[str, Any] | None = None
    redis: dict[str, Any] | None = None
    kafka: dict[str, Any] | None = None
    rabbitmq: dict[str, Any] | None = None
    nats: dict[str, Any] | None = None
    is_paused: bool
    waiting: int = Field(description="Events that it has not sent; counted up to some thousands.")
    waiting_since: datetime | None = Field(description="When the oldest of them happened.")
    sent: int
    shortened: int = Field(description="Of those sent: without most of their data, because the receiver takes no more.")
    refused: int = Field(description="Events that the receiver refused for good, so that they were left out.")
    dropped: int = Field(
        description="Events that were older than `ONDOT_SINK_RETENTION_HOURS`, so that they were left out."
    )
    sent_at: datetime | None = Field(description="When it sent last.")
    error: str | None = Field(description="Why it failed last.")
    error_at: datetime | None
    failing_since: datetime | None = Field(description="Null: its last batch was sent.")
    retry_at: datetime | None
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime | None
    updated_by: str | None


class SinkList(Page[SinkOut]):
    pass


class SinkTest(BaseModel):
    state: Literal["DELIVERED", "REFUSED", "FAILED", "WAITING"]
    error: str | None = Field(description="Why it was not delivered.")
    waiting: int = Field(description="Events that the sink has not sent.")


Wait = Annotated[float, Query(ge=0, le=25, description="Seconds to wait for the answer.", examples=[10])]
SinkPath = Annotated[str, Path(max_length=200, description="The name of the sink.", examples=["events"])]


@router.get("/sinks", dependencies=[needs(Right.JOBS_READ)], response_model=SinkList)
async def list_all(
    services: RequestServices, tenant_no: Tenant, limit: Limit = 100, cursor: str | None = None
) -> SinkList:
    """List sinks by name, with what waits for each."""
    found = await read_sink_rows(services.database, tenant_no, after=read_cursor(cursor), limit=limit + 1)
    items = [sink_out(row, lag) for row, lag in found[:limit]]
    return SinkList(items=items, next_cursor=items[-1].name if len(found) > limit else None)


@router.get("/sinks/{name}", dependencies=[needs(Right.JOBS_READ)], response_model=SinkOut)
async def get(services: RequestServices, tenant_no: Tenant, name: SinkPath) -> SinkOut:
    """One sink."""
    return sink_out(*await read_sink_row(services.database, tenant_no, name))


@router.put(
    "/sinks/{name}",
    dependencies=[needs(Right.JOBS_WRITE)],
    response_model=SinkOut,
    openapi_extra=takes(SinkBody),
)
async def put(
    request: Request, services: RequestServices, tenant_no: Tenant, name: SinkPath, body: JsonBody, by: ByCaller
) -> SinkOut:
    """Create or replace a sink. It sends what happens from then on; a replaced one goes on where it was. `•••` for a
    credential leaves it as it is, unless the address changes."""
    spec = _admit(await caller_of(request), read_sink(body))
    row = await save_sink(services.database, services.vault, tenant_no, check_name(name), spec, by=by)
    return sink_out(row, Lag())


@router.delete("/sinks/{name}", dependencies=[needs(Right.JOBS_WRITE)], response_model=SinkOut)
async def delete(services: RequestServices, tenant_no: Tenant, name: SinkPath, by: ByCaller) -> SinkOut:
    """Delete a sink. Events that it has not sent are not sent any more."""
    return sink_out(await remove_sink(services.database, tenant_no, name, by=by), Lag())


@router.post("/sinks/{name}/pause", dependencies=[needs(Right.JOBS_WRITE)], response_model=SinkOut)
async def pause(services: RequestServices, tenant_no: Tenant, name: SinkPath, by: ByCaller) -> SinkOut:
    """Send nothing until it is resumed. Its events wait, at most as long as those of a sink that fails."""
    await pause_sink(services.database, tenant_no, name, is_paused=True, by=by)
    return sink_out(*await read_sink_row(services.database, tenant_no, name))


@router.post("/sinks/{name}/resume", dependencies=[needs(Right.JOBS_WRITE)], response_model=SinkOut)
async def resume(services: RequestServices, tenant_no: Tenant, name: SinkPath, by: ByCaller) -> SinkOut:
    """Send what has waited, and go on."""
    await pause_sink(services.database, tenant_no, name, is_paused=False, by=by)
    return sink_out(*await read_sink_row(services.database, tenant_no, name))


@router.post("/sinks/{name}/test", dependencies=[needs(Right.JOBS_WRITE)], response_model=SinkTest)
async def try_out(
    services: RequestServices, tenant_no: Tenant, name: SinkPath, by: ByCaller, wait: Wait = 10.0
) -> SinkTest:
    """Send an event of the type `ondot.sink.test` after those that wait, and return how it went within `wait`."""
    tested = await send_test_event(services.database, tenant_no, name, wait_s=wait, by=by)
    return SinkTest.model_validate(tested, from_attributes=True)


def sink_out(row: SinkRow, lag: Lag) -> SinkOut:
    return SinkOut(
        name=row.name,
        kind=kind_of(row.spec.place),
        **render_sink(row.spec),
        is_paused=row.is_paused,
        waiting=lag.events,
        waiting_since=lag.since,
        sent=row.sent,
        shortened=row.shortened,
        refused=row.refused,
        dropped=row.dropped,
        sent_at=row.sent_at,
        error=row.error,
        error_at=row.error_at,
        failing_since=row.failing_since,
        retry_at=row.retry_at,
        version=row.version,
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
    )


def _admit(caller: Caller, spec: SinkSpec) -> SinkSpec:
    """The rights that the writer of a job needs too: to refer to secrets, and to reach private addresses."""
    if references_of(spec.place):
        caller.require(Right.SECRETS_USE)
    if not isinstance(spec.place, WebhookPlace):
        return spec  # the connection says where it may lead
    only_public = Right.PRIVATE_TARGETS not in caller.rights
    return structs.replace(spec, place=structs.replace(spec.place, only_public=only_public))
