"""Idempotency keys (P2) of many requests at once, with answers that are known before anything is stored."""

from collections.abc import Sequence

from ondot.model.ids import TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("together")


async def take_keys(
    connection: Connection, tenant_no: TenantNo, keys: Sequence[tuple[str, bytes, str]]
) -> frozenset[str]:
    """Of these, each with the request's hash and its answer, the keys that were free, and are ours if this commits.

    Raises one of REFUSED if a key is being taken elsewhere, and that takes its time: who waits for it does so alone.
    """
    await connection.execute(_SQL["wait_briefly"].text)
    columns = zip(*sorted(keys), strict=True)
    rows = await connection.fetch(_SQL["take_keys"].text, tenant_no, *(list(column) for column in columns))
    return frozenset(row["key"] for row in rows)
