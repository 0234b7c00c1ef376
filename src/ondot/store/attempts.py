"""Whether an attempt is still the one that counts, for its own worker (E11, P6)."""

from contextlib import suppress

import asyncpg

from ondot.model.ids import ExecutionId, TenantNo, WorkerId
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("attempts")

NOT_ONDOTS = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.UndefinedColumnError)
"""Errors of a database without ondot's schema."""


async def is_running(
    connection: Connection,
    tenant_no: TenantNo,
    execution_id: ExecutionId,
    attempt_no: int,
    worker_id: WorkerId,
    *,
    is_own: bool,
) -> bool:
    """Whether this worker's attempt is the running one, by the database of this connection.

    `is_own`: the connection is ondot's own, and a handler gets it now.
    """
    with suppress(*NOT_ONDOTS):
        arguments = (tenant_no, execution_id, attempt_no, worker_id, is_own)
        return bool(await connection.fetchval(_SQL["is_running"].text, *arguments))
    return False


async def wait_for_execution(connection: Connection, tenant_no: TenantNo, execution_id: ExecutionId) -> None:
    """Wait until no other transaction is about to end it."""
    await connection.execute(_SQL["wait_for_execution"].text, tenant_no, execution_id)
