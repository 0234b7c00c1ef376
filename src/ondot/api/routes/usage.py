"""`GET /v1/tenants/{name}/usage` (T2): what a tenant uses of its quotas and of each pool, and what it waits for.

A tenant sees its own figures and the totals of all; other tenants are named to an owner of the installation alone.
"""

from datetime import datetime

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from ondot.api.dependencies import CallerDep, RequestServices, needs
from ondot.api.parameters import only_known_parameters
from ondot.api.routes.tenants import TenantPath
from ondot.document.tenants import render_quotas
from ondot.flow.usage import read_tenant_usage
from ondot.model.access import Caller, Right
from ondot.model.usage import PoolUsage, TenantInPool, Usage

router = APIRouter(tags=["tenants"], dependencies=[Depends(only_known_parameters)])


class TenantInPoolOut(BaseModel):
    """What a tenant runs in a pool, and what of it waits there for a slot (counted up to 10,000 for each class)."""

    name: str
    weight: float
    running: int
    waiting: int
    oldest_waiting_at: datetime | None


class PoolUsageOut(BaseModel):
    """A pool that the tenant may name. `running`, `waiting`: its own; `_of_all`: of all tenants."""

    name: str
    slots: int = Field(description="Of the live workers.")
    running: int
    waiting: int
    oldest_waiting_at: datetime | None
    fair_slots: float | None = Field(
        description="Its share of the slots by weight, among the tenants that run or wait there; null: it does neither."
    )
    running_of_all: int
    waiting_of_all: int
    waits_for: list[TenantInPoolOut] | None = Field(
        description="The tenants that hold slots while it waits, most slots first; null: the caller is no owner."
    )


class UsageOut(BaseModel):
    """Attempts that run, by pool, against the quotas that there are."""

    name: str
    weight: float
    quotas: dict[str, object]
    running: int
    next_start_at: datetime | None = Field(
        description="When it may start the next attempt by its quota `starts`; null: at once."
    )
    pools: list[PoolUsageOut]
    now: datetime


@router.get("/tenants/{name}/usage", dependencies=[needs(Right.JOBS_READ)], response_model=UsageOut)
async def usage(services: RequestServices, caller: CallerDep, name: TenantPath) -> UsageOut:
    """What a tenant uses now. Every role may read its own."""
    return _out(await read_tenant_usage(services.database, caller, name), caller)


def _out(found: Usage, caller: Caller) -> UsageOut:
    return UsageOut(
        name=found.name,
        weight=found.weight,
        quotas=render_quotas(found.quotas),
        running=found.running,
        next_start_at=found.token_at,
        pools=[_pool_out(pool, found, caller) for pool in found.pools if caller.sees(pool.name)],
        now=found.now,
    )


def _pool_out(pool: PoolUsage, found: Usage, caller: Caller) -> PoolUsageOut:
    own = pool.of(found.tenant_no)
    return PoolUsageOut(
        name=pool.name,
        slots=pool.slots,
        running=own.running if own else 0,
        waiting=own.waiting if own else 0,
        oldest_waiting_at=own.oldest_waiting_at if own else None,
        fair_slots=pool.fair_slots(found.tenant_no),
        running_of_all=pool.running,
        waiting_of_all=pool.waiting,
        waits_for=[_tenant_out(one) for one in pool.waits_for(found.tenant_no)] if caller.is_owner else None,
    )


def _tenant_out(one: TenantInPool) -> TenantInPoolOut:
    return TenantInPoolOut(
        name=one.name,
        weight=one.weight,
        running=one.running,
        waiting=one.waiting,
        oldest_waiting_at=one.oldest_waiting_at,
    )
