"""The block of `app.transaction(…)` (E11, D3): which transaction is open in this context, and one statement at a time.

The block never begins, commits or rolls back: that is the caller's. Each context has its own blocks, so concurrent
requests do not mix. Tasks that are started in the block enqueue through it too, one after another. A task that outlives
it gets an error and writes nothing.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar, Token
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final

from msgspec import structs

from ondot.model.ids import EPOCH
from ondot.model.job import NO_PAYLOAD, encode_spec
from ondot.sdk.transaction.connections import Connection, Row, adapt
from ondot.sdk.transaction.refusals import translate
from ondot.sdk.transaction.specs import Answer, answer_of, spec_of, with_trace

# Instants come as microseconds: a caller's driver may have its own type for timestamptz.
_SUBMIT: Final = (
    "SELECT CAST(id AS text), CAST(extract(epoch FROM due_at) * 1000000 AS bigint),"
    " CAST(extract(epoch FROM created_at) * 1000000 AS bigint)"
    " FROM ondot.submit_spec(CAST(CAST($1 AS text) AS json),"
    " coalesce(CAST(CAST($2 AS text) AS timestamptz),"
    " ondot.clock() + make_interval(secs => CAST($3 AS double precision))), CAST($4 AS text))"
)
_SUBMIT_MANY: Final = (
    "SELECT CAST(id AS text), CAST(extract(epoch FROM created_at) * 1000000 AS bigint)"
    " FROM ondot.submit_specs(CAST(CAST($1 AS text[]) AS json[]), CAST(CAST($2 AS text[]) AS json[]), CAST($3 AS text))"
)
_SUBMIT_MANY_LATER: Final = (
    "SELECT CAST(s.id AS text), CAST(extract(epoch FROM s.due_at) * 1000000 AS bigint),"
    " CAST(extract(epoch FROM s.created_at) * 1000000 AS bigint)"
    " FROM unnest(CAST($1 AS text[]), CAST($2 AS text[]), CAST($3 AS double precision[]))"
    " WITH ORDINALITY AS n(spec, at, delay, position)"
    " CROSS JOIN LATERAL ondot.submit_spec(CAST(n.spec AS json), coalesce(CAST(n.at AS timestamptz),"
    " ondot.clock() + make_interval(secs => n.delay)), CAST($4 AS text)) AS s ORDER BY n.position"
)

_OVER: Final = (
    "The transaction is over: enqueue, and await what you enqueue, before the block of `app.transaction(…)` ends."
)


class CallersTransaction:
    """A transaction of the caller, through which jobs are enqueued."""

    def __init__(self, connection: Connection, tenant: str) -> None:
        self._connection = connection
        self._tenant = tenant
        self._is_over = False
        # A blocking connection may be handed to another thread, and a hook of its driver may enqueue while it holds the
        # turn; an async one belongs to its event loop.
        self._turn_of_threads = threading.RLock()
        self._turn_of_tasks = asyncio.Lock()
        self._loop = None if connection.is_blocking else asyncio.get_running_loop()

    @property
    def is_blocking(self) -> bool:
        """Its methods never suspend, so that a caller without an event loop can run them."""
        return self._connection.is_blocking

    @property
    def is_over(self) -> bool:
        return self._is_over

    def end(self) -> None:
        self._is_over = True

    async def submit(self, body: Mapping[str, Any]) -> Answer:
        """Store the job of a handler's body. Returns the API's answer, as far as it is known here."""
        spec = with_trace(spec_of(body))
        at, delay = _when(body)
        [row] = await self._fetch(_SUBMIT, encode_spec(spec), at, delay, self._tenant)
        return answer_of(spec, body, row[0], _instant(row[1]), _instant(row[2]))

    async def submit_many(self, bodies: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """The same for many jobs, with one statement."""
        specs = [with_trace(spec_of(body)) for body in bodies]
        if not specs:
            return []
        if any("schedule" in body for body in bodies):
            ats, delays = zip(*map(_when, bodies), strict=True)
            texts = [encode_spec(spec) for spec in specs]
            rows = await self._fetch(_SUBMIT_MANY_LATER, texts, list(ats), list(delays), self._tenant)
        else:
            texts = [encode_spec(structs.replace(spec, payload=NO_PAYLOAD)) for spec in specs]
            payloads = [bytes(spec.payload).decode() for spec in specs]
            rows = await self._fetch(_SUBMIT_MANY, texts, payloads, self._tenant)
        return [
            answer_of(spec, body, row[0], _instant(row[1]), _instant(row[-1]))
            for spec, body, row in zip(specs, bodies, rows, strict=True)
        ]

    async def _fetch(self, statement: str, *parameters: Any) -> Sequence[Row]:
        """One statement at a time, none after the transaction; errors of the database as those of the API."""
        async with self._in_turn():
            if self._is_over or not self._connection.is_in_transaction():
                raise RuntimeError(_OVER)
            try:
                return await self._connection.fetch(statement, *parameters)
            except Exception as error:
                raise translate(error) from error

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        if self._loop is None:
            with self._turn_of_threads:
                yield
            return
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "This connection belongs to the event loop that opened the block of `app.transaction(…)`. Write "
                "`await ….enqueue(…)` there, without `.sync`."
            )
        async with self._turn_of_tasks:
            yield


_OPEN: ContextVar[tuple[tuple[object, CallersTransaction], ...]] = ContextVar("ondot_open_transactions", default=())
"""The open transactions by app, innermost first."""


def open_transaction(app: object) -> CallersTransaction | None:
    """The transaction through which this app's handlers enqueue in this context; None: over HTTP."""
    return next((transaction for of, transaction in _OPEN.get() if of is app), None)


class Block:
    """In the block, the app's handlers enqueue through this connection: `with` or `async with`, by its kind."""

    def __init__(self, app: object, connection: Any, tenant: str) -> None:
        self._app = app
        self._connection = adapt(connection)
        self._tenant = tenant
        self._entered: tuple[CallersTransaction, Token[Any]] | None = None

    def __enter__(self) -> None:
        self._enter(is_blocking=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit()

    async def __aenter__(self) -> None:
        self._enter(is_blocking=False)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit()

    def _enter(self, *, is_blocking: bool) -> None:
        if self._connection.is_blocking is not is_blocking:
            right, wrong = ("async with", "with") if is_blocking else ("with", "async with")
            kind = "async" if is_blocking else "blocking"
            raise TypeError(f"This connection is {kind}: write `{right} app.transaction(…):`, not `{wrong}`.")
        if self._entered is not None:
            raise RuntimeError("This block was entered before. Call `app.transaction(…)` for each block.")
        if not self._connection.is_in_transaction():
            raise ValueError(
                f"app.transaction takes a connection that is in a transaction, and never commits. "
                f"{self._connection.advice}"
            )
        transaction = CallersTransaction(self._connection, self._tenant)
        self._entered = transaction, _OPEN.set(((self._app, transaction), *_OPEN.get()))

    def _exit(self) -> None:
        assert self._entered is not None
        transaction, token = self._entered
        transaction.end()
        try:
            _OPEN.reset(token)
        except ValueError:
            raise RuntimeError(
                "The block of `app.transaction(…)` ended in another context than it began, so what was enqueued in "
                "between may have been sent over HTTP. Open the block in the function that enqueues, not in a "
                "dependency or a fixture that runs in its own thread."
            ) from None


def _when(body: Mapping[str, Any]) -> tuple[str | None, float | None]:
    """When it is due: an instant, or seconds from now."""
    when = body.get("schedule", {})
    return when.get("at"), when.get("in")


def _instant(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)
