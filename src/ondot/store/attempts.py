"""One attempt, asked about by its own worker: whether it still counts (E11, P6)."""

from contextlib import suppress

import asyncpg

from ondot.model.ids import ExecutionId, TenantNo, WorkerId
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("attempts")

CANNOT_KNOW_IT = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.UndefinedColumnError)
"""What a database answers that is not ondot's."""


async def is_running(
    connection: Connection,
    tenant_no: TenantNo,
    execution_id: ExecutionId,
    attempt_no: int,
    worker_id: WorkerId,
    *,
    is_own: bool,
) -> bool:
    """Whether this worker's attempt is the one that runs, as this connection's database sees it.

    `is_own`: the connection is ondot's, and is handed over to a handler with this.
    """
    with suppress(*CANNOT_KNOW_IT):
        asked = (tenant_no, execution_id, attempt_no, worker_id, is_own)
        return bool(await connection.fetchval(_SQL["is_running"].text, *asked))
    return False


async def wait_for_execution(connection: Connection, tenant_no: TenantNo, execution_id: ExecutionId) -> None:
    """Until no other transaction is about to end it."""
    await connection.execute(_SQL["wait_for_execution"].text, tenant_no, execution_id)
