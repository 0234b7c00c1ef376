"""Transactions that a program shares with ondot (E11): a job that it enqueues exists if and only if it commits.

    async with connection.transaction(), app.transaction(connection):
        await connection.execute("INSERT INTO invoice …")
        await send_invoice.enqueue(customer=7)

Inside the block, `enqueue`, `enqueue_many` and `schedule` of the app's handlers send no request. They write through the
caller's own connection, with the SQL functions `ondot.submit_spec` and, for many jobs in one statement,
`ondot.submit_specs`, which reject what the API would reject. Tasks that are started in the block write through it, too,
one after another. A task that outlives the block gets an error and writes nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from msgspec import structs

from ondot.model.duration import as_written
from ondot.model.errors import Fault, InvalidBody, Misconfigured
from ondot.model.ids import EPOCH
from ondot.model.job import NO_PAYLOAD, JobSpec, encode_spec
from ondot.model.text import MAX_NAME
from ondot.sdk.options import ENQUEUED_ONLY, KEYS
from ondot.telemetry.trace_context import current_trace

Answer = dict[str, Any]

_SUBMIT: Final = (
    "SELECT id, due_at, created_at FROM ondot.submit_spec($1::text::json,"
    " coalesce($2::timestamptz, ondot.clock() + make_interval(secs => $3::double precision)),"
    " $4::text)"
)
_SUBMIT_MANY: Final = "SELECT id, created_at FROM ondot.submit_specs($1::text[]::json[], $2::text[]::json[], $3::text)"

_REFUSED: Final = frozenset({"22023", "0A000"})
_NO_ONDOT: Final = frozenset({"3F000", "42883", "42P01"})


class Stale(Exception):
    """This attempt is no longer valid: it was recovered, cancelled or ended. Its transaction is rolled back."""


@dataclass(slots=True)
class Opened:
    """The open transaction of an attempt. `result`: JSON text, stored with the completion."""

    connection: Any
    result: str | None = None


class CallersTransaction:
    """A transaction of the caller, through which jobs are enqueued."""

    def __init__(self, connection: Any, tenant: str) -> None:
        self._connection = connection
        self._tenant = tenant
        self._turn = asyncio.Lock()
        self._is_over = False

    def end(self) -> None:
        self._is_over = True

    async def submit(self, body: Mapping[str, Any]) -> Answer:
        """Store the job of a handler's body. Returns the API's answer, as far as it is known here."""
        spec = _with_trace(spec_of(body))
        when = body.get("schedule", {})
        at = datetime.fromisoformat(when["at"]) if "at" in when else None
        arguments = (encode_spec(spec), at, when.get("in"), self._tenant)
        async with self._in_turn():
            row = await self._connection.fetchrow(_SUBMIT, *arguments)
        return _answer(spec, body, row["id"], row["created_at"], row["due_at"])

    async def submit_many(self, bodies: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """The same for many jobs that are due now, with one statement."""
        specs = [_with_trace(spec_of(body)) for body in bodies]
        if not specs:
            return []
        texts = [encode_spec(structs.replace(spec, payload=NO_PAYLOAD)) for spec in specs]
        payloads = [bytes(spec.payload).decode() for spec in specs]
        async with self._in_turn():
            rows = await self._connection.fetch(_SUBMIT_MANY, texts, payloads, self._tenant)
        return [
            _answer(spec, body, row["id"], row["created_at"], row["created_at"])
            for spec, body, row in zip(specs, bodies, rows, strict=True)
        ]

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """One statement at a time, none after the transaction; errors of the database as those of the API."""
        async with self._turn:
            if self._is_over or not self._connection.is_in_transaction():
                raise RuntimeError(
                    "The transaction is over: await every enqueue that is started in the block of "
                    "`app.transaction(connection)` before the block ends."
                )
            try:
                yield
            except Exception as error:
                raise _translate(error) from error


_OPEN: ContextVar[tuple[tuple[object, CallersTransaction], ...]] = ContextVar("ondot_open_transactions", default=())
"""The open transactions by app, innermost first. Each context has its own, so concurrent requests do not mix."""


@asynccontextmanager
async def enqueue_through(app: object, connection: Any, tenant: str) -> AsyncIterator[None]:
    """In the block, the app's handlers enqueue through this connection."""
    if not all(callable(getattr(connection, name, None)) for name in ("fetch", "fetchrow", "is_in_transaction")):
        raise TypeError(
            f"app.transaction takes an asyncpg connection, got {type(connection).__name__}. With another driver, "
            "run SELECT ondot.enqueue('function_name', '{\"argument\": 1}') in your transaction."
        )
    if not connection.is_in_transaction():
        raise ValueError(
            "app.transaction takes a connection that is in a transaction. Write "
            "`async with connection.transaction(), app.transaction(connection):`."
        )
    transaction = CallersTransaction(connection, tenant)
    token = _OPEN.set(((app, transaction), *_OPEN.get()))
    try:
        yield
    finally:
        transaction.end()
        _OPEN.reset(token)


def open_transaction(app: object) -> CallersTransaction | None:
    """The transaction through which this app's handlers enqueue in this context; None: over HTTP."""
    return next((transaction for of, transaction in _OPEN.get() if of is app), None)


def spec_of(body: Mapping[str, Any]) -> JobSpec:
    """The job that a handler's body asks for, without its schedule. Raises InvalidBody or TooLarge, as the API does.

    `document` remembers the bodies that it has read, whatever their payloads are (3 microseconds instead of 50). Keys
    that were filled from arguments differ too, so a plain one is put into the spec of a body that has another.
    """
    from ondot.document.parse import new_job_spec  # here: a program without transactions need not load pydantic

    for option in (*ENQUEUED_ONLY, "depends_on"):
        if option in body:
            message = (
                f"A job with `{option}` cannot be enqueued in a transaction. Enqueue it outside the block of "
                "`app.transaction(connection)`."
            )
            raise InvalidBody(message, faults=(Fault(f"/{option}", message),))
    whole = body if "schedule" not in body else {name: value for name, value in body.items() if name != "schedule"}
    keys = {name: body[name] for name in KEYS if name in body}
    if not keys or not all(map(_is_plain, keys.values())):
        return new_job_spec(whole, EPOCH)
    spec = new_job_spec({**whole, **dict.fromkeys(keys, "key")}, EPOCH)
    assert spec.limits is not None
    limits = structs.replace(spec.limits, key=keys.get("concurrency_key"), order_key=keys.get("order_key"))
    return structs.replace(spec, limits=limits)


def _with_trace(spec: JobSpec) -> JobSpec:
    """In the trace of the caller, as a request would be."""
    trace = current_trace()
    return spec if trace is None else structs.replace(spec, trace=trace.traceparent, tracestate=trace.state)


def _is_plain(key: object) -> bool:
    """Whether it surely is a key; any other is `document`'s to judge."""
    return isinstance(key, str) and len(key) <= MAX_NAME and key.isascii() and key.isprintable() and bool(key.strip())


def _answer(spec: JobSpec, body: Mapping[str, Any], id_: UUID, created_at: datetime, due_at: datetime) -> Answer:
    return {
        "id": str(id_),
        "state": "ACTIVE",
        "version": 1,
        "next_fire_at": _rfc_3339(due_at) if due_at > created_at else None,
        "name": spec.name,
        "target": body["target"],
        "payload": body.get("payload"),
        "pool": spec.pool,
        "priority": spec.priority,
        "labels": spec.labels,
        "timeout": None if spec.timeout_s is None else as_written(spec.timeout_s),
        "created_at": _rfc_3339(created_at),
    }


def _translate(error: Exception) -> Exception:
    """An error of the database as the API's error. By SQLSTATE, because the SDK imports no driver."""
    state = getattr(error, "sqlstate", None)
    if state in _REFUSED:
        # The text of the error repeats the hint on a line of its own.
        return InvalidBody(" ".join(str(part) for part in (*error.args[:1], getattr(error, "hint", None)) if part))
    if state in _NO_ONDOT:
        return Misconfigured(
            "The database of this connection has no ondot schema, or an older one. Use a connection to the database of "
            f"ONDOT_DATABASE_URL, and run `ondot migrate up` there. PostgreSQL reported: {error}"
        )
    return error


def _rfc_3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
