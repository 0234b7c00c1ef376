"""`/v1/pools`: the workers of each pool, the work that waits there, and its limits (E1, E13)."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field

from ondot.api.dependencies import BySender, RequestServices, Services, SharedView, View, needs
from ondot.api.openapi import takes
from ondot.api.parameters import only_known_parameters
from ondot.api.request_body import JsonBody
from ondot.document.fields import Body
from ondot.document.limits import AtOnce, RateBody, RateOrNone, or_text
from ondot.document.reading import read_form
from ondot.document.shorthand import rate_object
from ondot.flow.pools import PoolLimits, set_limits, set_transport
from ondot.model.access import Right
from ondot.model.errors import NotFound
from ondot.model.gates import Rate
from ondot.model.ids import TenantNo
from ondot.model.routes import TransportName
from ondot.store.pools import PoolRow, list_pools

router = APIRouter(tags=["pools"], dependencies=[Depends(only_known_parameters)])

BURST_S = 0.1

PoolPath = Annotated[str, Path(max_length=63, description="The name of the pool.", examples=["default"])]


class PoolBody(Body):
    """Limits of a pool, and its transport. A field that is left out stays as it is; null removes the limit, or means
    the installation's transport."""

    concurrency: AtOnce | None = Field(
        default=None, description="How many attempts of the pool run at once, over all its workers.", examples=[20]
    )
    rate: RateOrNone = Field(
        default=None,
        description="How many attempts of the pool start in a time, as `10/1m` or in full.",
        examples=["100/1m"],
        json_schema_extra=or_text("100/1m"),
    )
    transport: TransportName | None = Field(
        default=None,
        description="What carries its wake-ups, instead of the installation's `ONDOT_TRANSPORT`. It may change while"
        " everything runs: for 30 s both are used.",
        examples=["redis"],
    )


class PoolRateOut(BaseModel):
    limit: int
    per: float
    burst: int


class PoolOut(BaseModel):
    """A pool: its workers, and the work that waits there."""

    name: str
    workers: int = Field(description="Live workers that serve it.")
    slots: int = Field(description="Attempts that these workers can run at once.")
    running: int | None = Field(
        description="Attempts that they run, as of their last heartbeats; null if there are other tenants, whose"
        " work you do not see."
    )
    waiting: int = Field(
        description="The depth of its queue: due executions that wait for a worker, counted up to 10,000."
    )
    oldest_waiting_at: datetime | None = Field(description="When the oldest of them was due.")
    oldest_waiting_s: float | None = Field(description="How many seconds the oldest has waited.")
    gated: int = Field(
        description="Due executions that wait for a limit of their job: `overlap`, `concurrency`, `rate`, `order_key`."
        " Counted among the first 10,000 lines of all pools."
    )
    concurrency: int | None
    rate: PoolRateOut | None
    transport: str | None = Field(description="What carries its wake-ups; null: the installation's.")
    created_at: datetime


class PoolList(BaseModel):
    items: list[PoolOut]


@router.get("/pools", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=PoolList)
async def pools(services: RequestServices, view: SharedView) -> PoolList:
    """All pools that you may name, by name. A pool is created when a job or a worker first names it."""
    async with services.database.connection() as connection:
        rows = await list_pools(connection, view.caller.tenant_no)
    return PoolList(items=[_out(row, view) for row in rows if view.shows(row.name)])


@router.get("/pools/{name}", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=PoolOut)
async def get_pool(services: RequestServices, view: SharedView, name: PoolPath) -> PoolOut:
    """One pool: its workers, the work that waits there, and its limits."""
    row = await _row(services, view.caller.tenant_no, name)
    if not view.shows(name):
        raise _unknown(name)
    return _out(row, view)


@router.patch(
    "/pools/{name}", dependencies=[needs(Right.POOLS_MANAGE)], response_model=PoolOut, openapi_extra=takes(PoolBody)
)
async def change_pool(
    services: RequestServices, view: SharedView, by: BySender, name: PoolPath, body: JsonBody
) -> PoolOut:
    """Set the limits of a pool, which hold for attempts that start from now on, or its transport."""
    example = 'for example {"concurrency": 20, "rate": "100/1m"}'
    if isinstance(body, dict) and isinstance(text := body.get("rate"), str) and (rate := rate_object(text)) is not None:
        body = body | {"rate": {"limit": rate["limit"], "per": rate["per"]}}
    wanted = read_form(PoolBody, body, example)
    tenant_no = view.caller.tenant_no
    current = await _row(services, tenant_no, name)
    limits = PoolLimits(
        wanted.concurrency if "concurrency" in wanted.model_fields_set else current.concurrency,
        _rate(wanted.rate) if "rate" in wanted.model_fields_set else current.rate,
    )
    await set_limits(services.database, services.dispatcher, tenant_no, name, limits, by=by)
    if "transport" in wanted.model_fields_set:
        await set_transport(services.database, services.dispatcher, tenant_no, name, wanted.transport, by=by)
    return _out(await _row(services, tenant_no, name), view)


def _rate(body: RateBody | None) -> Rate | None:
    """Work is leased in batches: the default burst is what the rate allows in a tenth of a second."""
    if body is None:
        return None
    burst = body.burst if "burst" in body.model_fields_set else max(1, int(body.limit / body.per * BURST_S))
    return Rate(limit=body.limit, per_s=body.per, burst=burst)


async def _row(services: Services, tenant_no: TenantNo, name: str) -> PoolRow:
    async with services.database.connection() as connection:
        rows = await list_pools(connection, tenant_no, name=name)
    if not rows:
        raise _unknown(name)
    return rows[0]


def _unknown(name: str) -> NotFound:
    return NotFound(f"Unknown pool {name!r}. A pool is created when a job or a worker first names it.")


def _out(row: PoolRow, view: View) -> PoolOut:
    rate = None if row.rate is None else PoolRateOut(limit=row.rate.limit, per=row.rate.per_s, burst=row.rate.burst)
    return PoolOut(
        name=row.name,
        workers=row.workers,
        slots=row.slots,
        running=row.running if view.is_whole else None,
        waiting=row.waiting,
        oldest_waiting_at=row.oldest_waiting_at,
        oldest_waiting_s=row.oldest_waiting_s,
        gated=row.gated,
        concurrency=row.concurrency,
        rate=rate,
        transport=row.transport,
        created_at=row.created_at,
    )
