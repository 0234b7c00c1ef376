"""`/tenants` and `/tenants/{name}`: the tenants of the installation (T1, T2), for its owners.

One tenant is shown with its quotas and with what it uses of each pool. The buttons call `/v1/tenants`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ondot.model.errors import NotFound
from ondot.model.gates import Rate
from ondot.model.tenant import Quotas, Tenant, TenantState
from ondot.store.database import Database
from ondot.store.tenants import TenantRow, find_tenant, list_tenants
from ondot.ui.usage import UsageView, read_usage_of

ROWS: Final = 100
LARGEST_NO: Final = 2**31 - 1
QUOTAS: Final = {
    "jobs": "live jobs",
    "payload_bytes": "bytes in a payload",
    "concurrent": "attempts at once",
    "reserved": "slots of each pool kept free",
    "starts": "attempts that start",
    "creates": "jobs created",
    "events": "events sent",
}


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """`written`: as in a form, such as 200/1s; empty: no quota."""

    name: str
    meaning: str
    written: str


@dataclass(frozen=True, slots=True)
class TenantsView:
    now: datetime
    rows: tuple[TenantRow, ...]
    more: str | None
    """The address of the next page."""


@dataclass(frozen=True, slots=True)
class TenantView:
    """`use`: None of a deleted tenant."""

    now: datetime
    row: TenantRow
    quotas: tuple[QuotaLine, ...]
    use: UsageView | None

    @property
    def tenant(self) -> Tenant:
        return self.row.tenant


async def read_tenants(database: Database, parameters: Mapping[str, str]) -> TenantsView:
    after = parameters.get("after") or "0"
    if not (after.isascii() and after.isdecimal()) or int(after[:11]) > LARGEST_NO:
        raise NotFound("There is no such page of tenants.")
    async with database.connection() as connection:
        rows = await list_tenants(connection, after=int(after), limit=ROWS + 1)
    more = f"/tenants?after={rows[ROWS - 1].tenant.tenant_no}" if len(rows) > ROWS else None
    return TenantsView(database.clock.now(), tuple(rows[:ROWS]), more)


async def read_tenant(database: Database, name: str) -> TenantView:
    async with database.connection() as connection:
        row = await find_tenant(connection, name)
    if row is None:
        raise NotFound(f"There is no tenant {name[:63]!r}.")
    use = None if row.tenant.state is TenantState.DELETED else await read_usage_of(database, row.tenant)
    return TenantView(database.clock.now(), row, describe_quotas(row.tenant.quotas), use)


def describe_quotas(quotas: Quotas) -> tuple[QuotaLine, ...]:
    return tuple(QuotaLine(name, meaning, _write(getattr(quotas, name))) for name, meaning in QUOTAS.items())


def _write(quota: int | Rate | None) -> str:
    if isinstance(quota, Rate):
        return f"{quota.limit}/{quota.per_s:g}s"
    return "" if quota is None else str(quota)
