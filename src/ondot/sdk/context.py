"""What a handler knows of its attempt, and how it speaks while it runs (E9, E11).

A function that names its first parameter `ctx`, or annotates it `Context`, is handed one. It may be used from the
function itself, from its tasks and from its threads. Nothing here waits: what is said is kept by the worker and
written with its next beat.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from ondot.sdk.transaction import Opened

MAX_CHECKPOINT_BYTES: Final = 1_048_576
MAX_RESULT_BYTES: Final = 1_048_576


class Context:
    def __init__(
        self,
        *,
        execution_id: UUID,
        job_id: UUID,
        job_name: str,
        attempt: int,
        fire_at: datetime,
        fencing_token: int,
        checkpoint: str | None,
        say: Callable[[str], None],
        report: Callable[[float | None, str | None, str | None], None],
        is_cancelled: Callable[[], bool],
        transaction: Callable[[Any], AbstractAsyncContextManager[Opened]] | None = None,
    ) -> None:
        self.execution_id: Final = execution_id
        """Stable over all attempts: the idempotency key of what this function does elsewhere."""
        self.job_id: Final = job_id
        self.job_name: Final = job_name
        self.attempt: Final = attempt
        """From 1."""
        self.fire_at: Final = fire_at
        """The instant it was due: use it rather than now, and a late run does the same work."""
        self.fencing_token: Final = fencing_token
        """Grows with every attempt of one execution; who keeps the largest can refuse a stale one."""
        self._checkpoint: Any = None if checkpoint is None else msgspec.json.decode(checkpoint)
        self._say = say
        self._report = report
        self._is_cancelled = is_cancelled
        self._transaction = transaction
        self._opened: Opened | None = None

    @property
    def checkpoint(self) -> Any:
        """What the last `heartbeat(checkpoint=…)` kept, in this attempt or an earlier one; None if there is none."""
        return self._checkpoint

    @property
    def cancelled(self) -> bool:
        """It should end: somebody cancelled it, its time is over, or the worker stops.

        An async function hears of it by a CancelledError too; a plain one has nothing but this, so look at it at
        every step. Once it was seen to be True the attempt counts as cancelled, whatever it returns.
        """
        return self._is_cancelled()

    def heartbeat(self, checkpoint: Any = None) -> None:
        """Say that it lives, and keep a checkpoint (any JSON) from which a retry can go on."""
        if checkpoint is None:
            self._report(None, None, None)
            return
        encoded = msgspec.json.encode(checkpoint)
        if len(encoded) > MAX_CHECKPOINT_BYTES:
            raise ValueError(
                f"The checkpoint has {len(encoded):,} bytes, and at most {MAX_CHECKPOINT_BYTES:,} are kept; "
                "store it elsewhere and keep its address."
            )
        self._checkpoint = msgspec.json.decode(encoded)
        self._report(None, None, encoded.decode())

    def progress(self, fraction: float, message: str | None = None) -> None:
        """How far it is, from 0 to 1, and in words."""
        if isinstance(fraction, bool) or not 0 <= fraction <= 1:
            raise ValueError(f"progress takes a fraction from 0 to 1; {fraction!r} came.")
        self._report(float(fraction), message, None)

    def transaction(self, connection: Any = None) -> AbstractAsyncContextManager[Any]:
        """What the block does to the database and the success of this attempt are committed together, or neither is.

        `async with ctx.transaction() as connection:` gives an asyncpg connection of the worker's, in a transaction;
        with a connection of one's own to the same database, not in a transaction yet, that one is used. Raises
        `Stale`, with everything rolled back, if this attempt counts no more. An error in the block rolls back too.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("ctx.transaction() is for async functions: make this one `async def`.") from None
        if self._transaction is None:
            raise RuntimeError(
                "ctx.transaction() is not there: this attempt runs without ondot's database. "
                "Use ctx.execution_id as idempotency key instead."
            )
        return self._in_transaction(self._transaction(connection))

    @asynccontextmanager
    async def _in_transaction(self, transaction: AbstractAsyncContextManager[Opened]) -> AsyncIterator[Any]:
        async with transaction as opened:
            self._opened = opened
            try:
                yield opened.connection
            finally:
                self._opened = None

    def set_result(self, result: Any) -> None:
        """The result (any JSON) that is committed with the open `ctx.transaction()`; elsewhere, return it."""
        if self._opened is None:
            raise RuntimeError("ctx.set_result() is for the block of ctx.transaction(); elsewhere return the result.")
        encoded = msgspec.json.encode(result)
        if len(encoded) > MAX_RESULT_BYTES:
            raise ValueError(
                f"The result has {len(encoded):,} bytes, and at most {MAX_RESULT_BYTES:,} are committed with a "
                "transaction; store it elsewhere and keep its address."
            )
        self._opened.result = encoded.decode()

    def log(self, message: object, **fields: object) -> None:
        """One line in the execution's log: `ctx.log("sent", mails=3)` keeps `sent mails=3`."""
        words = [str(message).replace("\n", "\\n"), *(f"{name}={_shown(value)}" for name, value in fields.items())]
        self._say(" ".join(words))


def _shown(value: object) -> str:
    text = str(value)
    if isinstance(value, str) and (not text or any(c in text for c in ' "=\n')):
        return msgspec.json.encode(text.encode("utf-8", "replace").decode()).decode()
    return text.replace("\n", "\\n")
