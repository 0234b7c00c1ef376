"""Reads who uses how much of each pool (T2). For people: what runs is counted by its leases, so it is exact."""

from collections.abc import Sequence
from itertools import groupby

from ondot.model.ids import TenantNo
from ondot.model.tenant import Tenant
from ondot.model.usage import PoolUsage, TenantInPool, Usage
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("usage")

WAITING_COUNTED = 10_000
"""For each lane."""
TENANTS_LOOKED_AT = 1_000
"""For each class of a pool: with more tenants that wait, the later ones are not counted."""


async def read_pools(connection: Connection) -> list[PoolUsage]:
    """All pools, with all tenants that run or wait there."""
    rows = await connection.fetch(_SQL["read_usage"].text, WAITING_COUNTED, TENANTS_LOOKED_AT)
    pools = []
    for (name, slots), entries in groupby(rows, key=lambda row: (row["pool"], row["slots"])):
        tenants = tuple(
            TenantInPool(
                TenantNo(row["tenant_no"]),
                row["name"],
                row["weight"],
                row["running"],
                row["waiting"],
                row["oldest_at"],
            )
            for row in entries
            if row["tenant_no"] is not None
        )
        pools.append(PoolUsage(name, slots, tenants))
    return pools


async def read_load(connection: Connection, tenant_nos: Sequence[TenantNo]) -> dict[TenantNo, tuple[int, int]]:
    """The slots that each of these tenants holds, and how many due executions of it wait."""
    rows = await connection.fetch(_SQL["read_load"].text, tenant_nos, WAITING_COUNTED)
    return {TenantNo(row["tenant_no"]): (row["held"], row["waiting"]) for row in rows}


async def read_usage(connection: Connection, tenant: Tenant) -> Usage:
    """Of one tenant, in the pools that it may name."""
    own = await connection.fetchrow(_SQL["read_own_usage"].text, tenant.tenant_no)
    assert own is not None
    pools = [pool for pool in await read_pools(connection) if tenant.may_name(pool.name) or pool.of(tenant.tenant_no)]
    running = sum(one.running for pool in pools if (one := pool.of(tenant.tenant_no)) is not None)
    return Usage(
        tenant.tenant_no, tenant.name, tenant.weight, tenant.quotas, running, own["token_at"], tuple(pools), own["now"]
    )
