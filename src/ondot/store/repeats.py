"""What of a submission is there already, looked up without a lock: its idempotency key, `key`s of its jobs (P2, S12).

A hint for whoever would refuse it: a repetition makes nothing new. What is true in the end is said by the transaction
that stores the submission.
"""

from collections.abc import Sequence

from ondot.model.ids import TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("repeats")


async def has_key(connection: Connection, tenant_no: TenantNo, key: str) -> bool:
    """Whether a request with this idempotency key was accepted before."""
    return bool(await connection.fetchval(_SQL["has_key"].text, tenant_no, key))


async def keys_in_use(connection: Connection, tenant_no: TenantNo, keys: Sequence[str]) -> frozenset[str]:
    """Those that a job has."""
    rows = await connection.fetch(_SQL["keys_in_use"].text, tenant_no, keys)
    return frozenset(row["key"] for row in rows)
