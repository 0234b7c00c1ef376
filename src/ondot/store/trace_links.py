"""What led to an execution, for the links of its trace (O3). Read only if traces are recorded."""

from collections.abc import Collection

from ondot.model.ids import ExecutionId, TenantNo, first_id_at, instant_of
from ondot.store.connection import Connection
from ondot.store.own_events import CAUSED_WITHIN
from ondot.store.queries import load_queries

_SQL = load_queries("trace_links")


async def find_replayed(
    connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId]
) -> dict[ExecutionId, ExecutionId]:
    """The executions that these repeat."""
    rows = await connection.fetch(_SQL["find_replayed"].text, tenant_no, list(ids)) if ids else ()
    return {ExecutionId(row["id"]): ExecutionId(row["replay_of"]) for row in rows}


async def find_event_traces(
    connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId]
) -> dict[ExecutionId, str]:
    """The `traceparent` of the events that started these, if they have one."""
    if not ids:
        return {}
    oldest = first_id_at(instant_of(min(ids)) - CAUSED_WITHIN)
    rows = await connection.fetch(_SQL["find_event_traces"].text, tenant_no, list(ids), oldest, max(ids))
    return {ExecutionId(row["id"]): row["traceparent"] for row in rows}
