"""The attempt that a function runs in: facts about it, progress, checkpoints, logs and transactions (E9, E11).

A function whose first parameter is named `ctx`, or annotated `Context`, receives one. It can be used from the function
itself, from its tasks and from its threads. Nothing here waits: the worker keeps what is reported, and writes it with
its next heartbeat.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from ondot.model.scrub import SecretValues
from ondot.model.workflow.step_results import Results, StepResults
from ondot.sdk.codecs import ANYTHING
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
        secrets: SecretValues | None = None,
        results: StepResults | None = None,
        run_id: UUID | None = None,
        step: str | None = None,
        item: int | None = None,
        hops: int | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """`deadline_s`: in seconds since 1970."""
        self.execution_id: Final = execution_id
        """The same for all attempts: use it as idempotency key for calls to other systems."""
        self.job_id: Final = job_id
        self.job_name: Final = job_name
        self.attempt: Final = attempt
        """From 1."""
        self.fire_at: Final = fire_at
        """The instant when it was due. Use it instead of now, so that a late run does the same work."""
        self.fencing_token: Final = fencing_token
        """Grows with every attempt of an execution. A system that remembers the largest can reject a stale attempt."""
        self.run_id: Final = run_id
        """The run of a workflow that it is a step of, or None."""
        self.step: Final = step
        """The name of that step, or None."""
        self.item: Final = item
        """Which item of a mapped step it is, from 0, or None."""
        self.hops: Final = hops
        """The `ondothops` of events that it sends, if an event started it, or None: `client.send_event(event, ctx)`."""
        self.traceparent: Final = traceparent
        """The W3C trace context of this attempt, to send along with calls to other systems, or None."""
        self.tracestate: Final = tracestate
        """The `tracestate` to send with it, or None."""
        self.results: Final = Results(results)
        """The results of the steps above this one, by name, if this attempt is a step of a workflow."""
        self._checkpoint: Any = None if checkpoint is None else msgspec.json.decode(checkpoint)
        self._say = say
        self._report = report
        self._is_cancelled = is_cancelled
        self._transaction = transaction
        self._secrets = secrets
        self._opened: Opened | None = None
        self._deadline_s = deadline_s

    @property
    def deadline_at(self) -> datetime | None:
        """When its timeout ends this attempt, by the worker's clock, or None: compare it with `datetime.now(UTC)`."""
        return None if self._deadline_s is None else datetime.fromtimestamp(self._deadline_s, UTC)

    @property
    def checkpoint(self) -> Any:
        """The checkpoint of the last `heartbeat(checkpoint=…)`, of this attempt or an earlier one, or None."""
        return self._checkpoint

    @property
    def cancelled(self) -> bool:
        """Whether it should stop: it was cancelled, it reached its timeout, or the worker stops.

        An async function also gets a CancelledError. A plain function has only this property, so it should read it at
        every step. After it was read as True, the attempt counts as cancelled, whatever the function returns.
        """
        return self._is_cancelled()

    def heartbeat(self, checkpoint: Any = None) -> None:
        """Report that the function is alive, and store a checkpoint (any JSON) from which a retry can continue."""
        if checkpoint is None:
            self._report(None, None, None)
            return
        encoded = msgspec.json.encode(checkpoint)
        if len(encoded) > MAX_CHECKPOINT_BYTES:
            raise ValueError(
                f"The checkpoint has {len(encoded):,} bytes, and the limit is {MAX_CHECKPOINT_BYTES:,}. "
                "Store it elsewhere, and use its address as the checkpoint."
            )
        self._checkpoint = msgspec.json.decode(encoded)
        self._report(None, None, encoded.decode())

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Report the progress, from 0 to 1, and a message."""
        if isinstance(fraction, bool) or not 0 <= fraction <= 1:
            raise ValueError(f"progress takes a fraction from 0 to 1, got {fraction!r}.")
        self._report(float(fraction), message, None)

    def transaction(self, connection: Any = None) -> AbstractAsyncContextManager[Any]:
        """Commit the changes of the block and the success of this attempt in one transaction.

        `async with ctx.transaction() as connection:` opens a transaction on an asyncpg connection of the worker. A
        connection of your own to the same database can be passed; it must not be in a transaction. If this attempt is
        no longer valid, everything is rolled back and `Stale` is raised. An error in the block rolls back, too.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("ctx.transaction() needs an async function: write `async def`.") from None
        if self._transaction is None:
            raise RuntimeError(
                "ctx.transaction() is not available: this attempt runs without ondot's database. "
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

    def secret(self, name: str) -> str:
        """The value of a secret, as it was when the attempt started. Never print or return it; ondot scrubs it from
        output and results if you do.

        The function names its secrets where it is registered: `@app.job(secrets=["stripe"])`.
        """
        value = None if self._secrets is None else self._secrets.get(name)
        if value is None:
            known = ", ".join(self._secrets.names) if self._secrets is not None else ""
            raise LookupError(
                f"This attempt has no secret {name!r}; it has: {known or 'none'}. Name it where the function is "
                f"registered: @app.job(secrets=[{name!r}])."
            )
        return value

    def set_result(self, result: Any) -> None:
        """Set the result (any JSON) that the open `ctx.transaction()` commits. Outside it, return the result."""
        if self._opened is None:
            raise RuntimeError(
                "ctx.set_result() works only in the block of ctx.transaction(). Outside it, return the result."
            )
        encoded = ANYTHING.encode_result(result)
        if len(encoded) > MAX_RESULT_BYTES:
            raise ValueError(
                f"The result has {len(encoded):,} bytes, and the limit in a transaction is {MAX_RESULT_BYTES:,}. "
                "Store it elsewhere, and use its address as the result."
            )
        result_text = encoded.decode()
        self._opened.result = result_text if self._secrets is None else self._secrets.scrubber.json(result_text)

    def log(self, message: object, **fields: object) -> None:
        """Write one line to the execution's log: `ctx.log("sent", mails=3)` writes `sent mails=3`."""
        words = [str(message).replace("\n", "\\n"), *(f"{name}={_log_value(value)}" for name, value in fields.items())]
        self._say(" ".join(words))


def _log_value(value: object) -> str:
    text = str(value)
    if isinstance(value, str) and (not text or any(c in text for c in ' "=\n')):
        return msgspec.json.encode(text.encode("utf-8", "replace").decode()).decode()
    return text.replace("\n", "\\n")
