"""Idempotency keys (P2): one object for each key within seven days, over any number of retries and crashes."""

from collections.abc import Sequence

from ondot.model.errors import KeyReused
from ondot.model.ids import TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("idempotency")


async def take_key(connection: Connection, tenant_no: TenantNo, key: str, request_hash: bytes) -> str | None:
    """Take a key. Returns None if it was free, otherwise the answer to the same request before.

    A concurrent twin waits in the insert until the first has committed, and then finds its answer.
    """
    if await connection.fetchval(_SQL["take_key"].text, tenant_no, key, request_hash):
        return None
    row = await connection.fetchrow(_SQL["find_key"].text, tenant_no, key)
    assert row is not None, "a key that is taken can be read"
    if row["request_hash"] != request_hash:
        raise KeyReused(
            f"The Idempotency-Key {key!r} was used for another request in the last 7 days: use a new key for a new one."
        )
    answer: str = row["answer"]
    return answer


async def take_keys(
    connection: Connection, tenant_no: TenantNo, keys: Sequence[tuple[str, bytes, str]]
) -> frozenset[str]:
    """Take many keys, each with the hash of its request and its answer. Returns those that were free.

    Raises a DATABASE_ERROR if another transaction is taking one of them for long: its request then waits alone.
    """
    await connection.execute(_SQL["wait_briefly"].text)
    columns = zip(*sorted(keys), strict=True)
    rows = await connection.fetch(_SQL["take_keys"].text, tenant_no, *(list(column) for column in columns))
    return frozenset(row["key"] for row in rows)


async def has_key(connection: Connection, tenant_no: TenantNo, key: str) -> bool:
    """Whether a request with this key was accepted before; a hint, read without a lock, as `find_keys_in_use`."""
    return bool(await connection.fetchval(_SQL["has_key"].text, tenant_no, key))


async def find_keys_in_use(connection: Connection, tenant_no: TenantNo, keys: Sequence[str]) -> frozenset[str]:
    """Those of these `key`s that a job has (S12). The transaction that stores a submission decides in the end."""
    rows = await connection.fetch(_SQL["find_keys_in_use"].text, tenant_no, keys)
    return frozenset(row["key"] for row in rows)


async def store_answer(connection: Connection, tenant_no: TenantNo, key: str, answer: str) -> None:
    await connection.execute(_SQL["store_answer"].text, tenant_no, key, answer)


async def forget_keys(connection: Connection, limit: int) -> int:
    return int(await connection.fetchval(_SQL["forget_keys"].text, limit))
