"""Quotas of tenants that are counted when work is leased (E13, P11, T2): `concurrent`, `starts` and `reserved`.

They belong to the scopes of a lease (`flow.lease`). What runs of a tenant is counted by its leases and completions, one
row for each worker and pool, only while it has `concurrent` or `reserved`. A tenant that gets such a quota while it
runs is counted from scratch: until then nothing of it is leased. The first worker that meets it counts, so that no
other process is needed. The self-check counts again if a count is wrong.
"""

from collections.abc import Iterable, Mapping, Sequence

from ondot.model.ids import TenantNo
from ondot.store.connection import LOCKED
from ondot.store.database import Database
from ondot.store.pools import block_leases
from ondot.store.queue import Reserved, count_running, lock_tenant_to_count
from ondot.telemetry.log import get_logger

log = get_logger()


async def count_tenants(database: Database, tenant_nos: Iterable[TenantNo]) -> None:
    """Count what runs of these tenants. One that other leases keep from it, for now, is left to the next pass."""
    for tenant_no in tenant_nos:
        try:
            async with database.transaction() as connection:
                if not await lock_tenant_to_count(connection, tenant_no):
                    continue
                await block_leases(connection)
                await count_running(connection, tenant_no)
        except LOCKED:
            log.warning("tenant.not_counted", tenant_no=tenant_no, then="tried again: leases of it wait meanwhile")
        else:
            log.info("tenant.counted", tenant_no=tenant_no)


def hold_free(entries: Sequence[Reserved]) -> Mapping[TenantNo, int]:
    """How many slots this worker keeps free for each tenant that has reserved some.

    Each worker keeps a part by its slots: the parts of all add up to what is reserved, or to all slots if that is less.
    A part that the tenant uses is not kept as well, and no more is kept than the tenant lacks in the whole pool.
    """
    held: dict[TenantNo, int] = {}
    for pool_no in {entry.pool_no for entry in entries}:
        own = [entry for entry in entries if entry.pool_no == pool_no]
        total = sum(entry.reserved for entry in own)
        for entry in own:
            if entry.slots <= 0:
                continue
            reserved = entry.reserved * min(1.0, entry.slots / total)
            part = _whole(reserved, entry.before + entry.here, entry.slots) - _whole(
                reserved, entry.before, entry.slots
            )
            lacks = min(part - entry.running_here, int(reserved + 0.5) - entry.running)
            if lacks > 0:
                held[entry.tenant_no] = held.get(entry.tenant_no, 0) + lacks
    return held


def _whole(reserved: float, slots: int, of: int) -> int:
    return int(reserved * min(slots, of) / of + 1e-9)
