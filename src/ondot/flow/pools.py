"""The limits of a pool (E13): set by an operator, counted when its work is leased.

What runs at that moment is given its slots in the same transaction, so that a new limit counts from the first lease on.
The audit log tells what was and what is; a change that changes nothing is none, and not told.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ondot.flow.dispatch import Dispatcher
from ondot.model.errors import NotFound
from ondot.model.gates import Rate
from ondot.model.ids import TenantNo
from ondot.store.audit import record
from ondot.store.database import Database
from ondot.store.pools import list_pools, set_pool_limits, slot_running

NO_LIMIT: Final = "none"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """None: no limit."""

    concurrency: int | None
    rate: Rate | None


async def set_limits(
    database: Database, dispatcher: Dispatcher, tenant_no: TenantNo, name: str, limits: PoolLimits, *, actor: str
) -> None:
    async with database.transaction() as connection:
        rows = await list_pools(connection, tenant_no, name=name)
        if not rows:
            raise NotFound(f"There is no pool {name!r}.")
        before = PoolLimits(rows[0].concurrency, rows[0].rate)
        if limits == before:
            return
        pool_no = await set_pool_limits(connection, tenant_no, name, limits.concurrency, limits.rate)
        if pool_no is None:
            raise NotFound(f"There is no pool {name!r}.")
        if limits.concurrency is not None:
            await slot_running(connection, pool_no)
        await record(
            connection, tenant_no, actor, "pool.limits", None, {"pool": name, **dict(_changes(before, limits))}
        )
    dispatcher.wake([(pool_no, database.clock.now())])


def _changes(before: PoolLimits, after: PoolLimits) -> Iterator[tuple[str, dict[str, object]]]:
    """Each limit that changed, as it was and as it is. No limit is told as a word: the log leaves out what is None."""
    if before.concurrency != after.concurrency:
        yield "concurrency", {"from": before.concurrency or NO_LIMIT, "to": after.concurrency or NO_LIMIT}
    if before.rate != after.rate:
        yield "rate", {"from": before.rate or NO_LIMIT, "to": after.rate or NO_LIMIT}
