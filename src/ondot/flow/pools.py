"""The limits of a pool (E13): set by an operator, counted when its work is leased.

What runs at that moment is given its slots in the same transaction, so that a new limit counts from the first lease on.
"""

from dataclasses import dataclass

from ondot.flow.dispatch import Dispatcher
from ondot.model.errors import NotFound
from ondot.model.gates import Rate
from ondot.model.ids import TenantNo
from ondot.store.audit import record
from ondot.store.database import Database
from ondot.store.pools import set_pool_limits, slot_running


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """None: no limit."""

    concurrency: int | None
    rate: Rate | None


async def set_limits(
    database: Database, dispatcher: Dispatcher, tenant_no: TenantNo, name: str, limits: PoolLimits, *, actor: str
) -> None:
    async with database.transaction() as connection:
        pool_no = await set_pool_limits(connection, tenant_no, name, limits.concurrency, limits.rate)
        if pool_no is None:
            raise NotFound(f"There is no pool {name!r}.")
        if limits.concurrency is not None:
            await slot_running(connection, pool_no)
        detail = {"pool": name, "concurrency": limits.concurrency, "rate": limits.rate}
        await record(connection, tenant_no, actor, "pool.limits", None, detail)
    dispatcher.wake([(pool_no, database.clock.now())])
