"""The page of a tenant's usage (T2): what it runs and what waits in each pool, and who shares it.

Other tenants are shown one by one to an owner of the installation; to others only as totals.
"""

from dataclasses import dataclass
from datetime import datetime

from ondot.model.errors import NotFound
from ondot.model.ids import TenantNo
from ondot.model.tenant import Tenant
from ondot.model.usage import PoolUsage, TenantInPool, Usage
from ondot.store.database import Database
from ondot.store.usage import read_usage


@dataclass(frozen=True, slots=True)
class PoolLine:
    pool: PoolUsage
    own: TenantInPool | None
    fair_slots: float | None

    @property
    def waits_for(self) -> tuple[TenantInPool, ...]:
        return () if self.own is None else self.pool.waits_for(self.own.tenant_no)


@dataclass(frozen=True, slots=True)
class UsageView:
    now: datetime
    usage: Usage
    lines: tuple[PoolLine, ...]


async def read_usage_page(database: Database, tenant_no: TenantNo) -> UsageView:
    tenant = await database.tenants.get(tenant_no)
    if tenant is None:
        raise NotFound("There is no such tenant.")
    return await read_usage_of(database, tenant)


async def read_usage_of(database: Database, tenant: Tenant) -> UsageView:
    async with database.connection() as connection:
        usage = await read_usage(connection, tenant)
    no = tenant.tenant_no
    lines = tuple(PoolLine(pool, pool.of(no), pool.fair_slots(no)) for pool in usage.pools)
    return UsageView(usage.now, usage, lines)
