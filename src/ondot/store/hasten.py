"""Starting the next attempt of a waiting execution now (E4, D1)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from ondot.model.ids import ExecutionId, PoolNo, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL: Final = load_queries("hasten")


@dataclass(frozen=True, slots=True)
class Hastened:
    pool_no: PoolNo
    ready_at: datetime


async def hasten(
    connection: Connection, tenant_no: TenantNo, id_: ExecutionId, state: Literal["PENDING", "RETRYING"]
) -> Hastened | None:
    """Start the next attempt of an execution that waits in this state now; None: it is due already, a worker is taking
    it, or it is in another state."""
    await connection.fetchval(_SQL["lock_gates_of"].text, tenant_no, id_)
    row = await connection.fetchrow(_SQL["hasten"].text, tenant_no, id_, state)
    if row is None:
        return None
    if row["is_gated"]:
        await connection.execute(_SQL["hasten_gated"].text, tenant_no, id_, row["ready_at"])
    return Hastened(PoolNo(row["pool_no"]), row["ready_at"])
