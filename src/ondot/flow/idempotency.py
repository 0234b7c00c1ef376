"""Idempotency keys (P2): a request that is repeated with its key gets the response of the first time, byte for byte.

A stage calls `find_response` first in its transaction and `store_response` last: the key, the work and the text of the
response commit together. Of two equal requests at once, the second waits in `find_response` until the first commits.
"""

from dataclasses import dataclass

from ondot.flow.work import Work
from ondot.store.idempotency import store_answer, take_key


@dataclass(frozen=True, slots=True)
class Idempotency:
    """The caller's key for a request, and a hash of everything that makes the request what it is."""

    key: str
    request_hash: bytes


async def find_response(work: Work, idempotency: Idempotency | None) -> str | None:
    """The response to the same request before; None: the request is new, and its key is ours in this transaction."""
    if idempotency is None:
        return None
    return await take_key(work.connection, work.tenant_no, idempotency.key, idempotency.request_hash)


async def store_response(work: Work, idempotency: Idempotency | None, text: str) -> None:
    if idempotency is not None:
        await store_answer(work.connection, work.tenant_no, idempotency.key, text)
