"""The limits of a pool (E13): set by an operator, counted when its work is leased; and its transport (C4).

Running attempts get their slots in the same transaction, so that a new limit counts from the first lease on. Leases on
their way must be counted too. A lease from a pool without limits locks nothing that shows it, so all leases are blocked
for a moment. The audit log records the limits before and after. A change to the same limits is not recorded.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from ondot.flow.dispatch import Dispatcher
from ondot.model.errors import Fault, InvalidBody, NotFound, Unavailable
from ondot.model.gates import Rate
from ondot.model.ids import PoolNo, TenantNo
from ondot.store.audit import By, record
from ondot.store.connection import LOCKED
from ondot.store.database import Database
from ondot.store.pools import add_missing_slots, block_leases, list_pools, set_pool_limits, set_pool_transport

TRIES: Final = 25
LET_PASS_S: Final = 0.05
"""Between two tries to block the leases, each at most 200 ms long: work continues meanwhile."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """None: no limit."""

    concurrency: int | None
    rate: Rate | None


async def set_limits(
    database: Database, dispatcher: Dispatcher, tenant_no: TenantNo, name: str, limits: PoolLimits, *, by: By
) -> None:
    for _ in range(TRIES):
        try:
            pool_no = await _set(database, tenant_no, name, limits, by)
        except LOCKED:
            await asyncio.sleep(LET_PASS_S)
        else:
            break
    else:
        raise Unavailable(f"Pool {name!r} is too busy to count its running attempts. Try again.")
    if pool_no is not None:
        dispatcher.wake([(pool_no, database.clock.now())])


async def set_transport(
    database: Database, dispatcher: Dispatcher, tenant_no: TenantNo, name: str, transport: str | None, *, by: By
) -> None:
    """`transport` None: the installation's. Raises InvalidBody for one whose server this process does not know."""
    if transport is not None and (missing := database.settings.missing_for(transport)) is not None:
        message = (
            f"The transport {transport} needs its server: set {missing} for every process of ondot, then try again."
        )
        raise InvalidBody(message, (Fault("/transport", message),))
    async with database.transaction() as connection:
        rows = await list_pools(connection, tenant_no, name=name)
        if not rows:
            raise NotFound(f"Unknown pool {name!r}.")
        pool_no = await set_pool_transport(connection, name, transport)
        if pool_no is None:
            return
        before, after = {"transport": rows[0].transport}, {"transport": transport}
        await record(connection, tenant_no, by, "pool.transport", None, {"pool": name}, before=before, after=after)
    async with database.connection() as connection:
        await database.pools.read_routes(connection)
    dispatcher.wake([(pool_no, database.clock.now())])


async def _set(database: Database, tenant_no: TenantNo, name: str, limits: PoolLimits, by: By) -> PoolNo | None:
    """Returns the pool's number; None: the limits are the same. Raises LOCKED if leases take too long."""
    async with database.transaction() as connection:
        rows = await list_pools(connection, tenant_no, name=name)
        if not rows:
            raise NotFound(f"Unknown pool {name!r}.")
        before = PoolLimits(rows[0].concurrency, rows[0].rate)
        if limits == before:
            return None
        pool_no = await set_pool_limits(connection, name, limits.concurrency, limits.rate)
        if pool_no is None:
            raise NotFound(f"Unknown pool {name!r}.")
        if limits.concurrency is not None:
            await block_leases(connection)
            await add_missing_slots(connection, pool_no)
        was, is_now = _changes(before, limits)
        await record(connection, tenant_no, by, "pool.limits", None, {"pool": name}, before=was, after=is_now)
    return pool_no


def _changes(before: PoolLimits, after: PoolLimits) -> tuple[dict[str, object], dict[str, object]]:
    """The limits that changed, before and after."""
    names = [name for name in ("concurrency", "rate") if getattr(before, name) != getattr(after, name)]
    return {name: getattr(before, name) for name in names}, {name: getattr(after, name) for name in names}
