"""The body of a request: read within its limits, decoded, parsed beside the event loop if that is slow, and hashed for
its Idempotency-Key."""

import hashlib
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Request

from ondot.api.dependencies import check_again, services_of
from ondot.api.intake import LARGE
from ondot.document.json_text import read_batch, read_json
from ondot.flow.idempotency import Idempotency
from ondot.model.errors import InvalidParameters
from ondot.store.lookup import CACHED_S

MANY_OBJECTS = 20
_SLOW = (b"rrule", b"include", b"exclude", b"calendar", rb"\u")
"""Parts of a schedule that is slow to check; or an escape, which may hide one of them."""

Read = TypeVar("Read")


async def optional_body_of(request: Request) -> object:
    """The body as JSON; None if there is none."""
    return await _decode(request, await _read(request))


async def body_of(request: Request) -> object:
    """The body as JSON; raises if there is none."""
    raw = await _read(request)
    return await _decode(request, raw) if raw else read_json(raw, max_bytes=0)


async def large_body_of(request: Request) -> object:
    """The body as JSON, which may be as large as a batch."""
    intake = services_of(request).intake
    raw = await _raw(request, intake.max_batch_bytes)
    return await intake.parse(partial(read_json, raw, max_bytes=intake.max_batch_bytes), is_slow=len(raw) > LARGE)


async def batch_of(request: Request) -> object:
    """The body of a batch; its jobs are not decoded yet."""
    intake = services_of(request).intake
    raw = await _raw(request, intake.max_batch_bytes)
    parse = partial(read_batch, raw, max_bytes=intake.max_batch_bytes, items="jobs")
    return await intake.parse(parse, is_slow=len(raw) > LARGE)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The bytes of a body that is not read as JSON of ondot's own."""
    return await _raw(request, max_bytes)


async def _read(request: Request) -> bytes:
    return await _raw(request, services_of(request).intake.max_bytes)


async def _raw(request: Request, max_bytes: int) -> bytes:
    """The body. If it took long to arrive, the caller's rights are looked up again: its key may be revoked by now."""
    started_s = monotonic()
    raw: bytes = await services_of(request).intake.raw(request, max_bytes)
    request.state.raw = raw
    if monotonic() - started_s > CACHED_S:
        await check_again(request)
    return raw


async def _decode(request: Request, raw: bytes) -> object:
    if not raw:
        return None
    intake = services_of(request).intake
    return await intake.parse(partial(read_json, raw, max_bytes=intake.max_bytes), is_slow=len(raw) > LARGE)


JsonBody = Annotated[object, Depends(body_of)]
OptionalJsonBody = Annotated[object, Depends(optional_body_of)]


async def parse_body(request: Request, parse: Callable[[], Read]) -> Read:
    """Parse a body, in a thread if it is large, has many jobs or many rules: that takes up to two seconds, and other
    requests must not wait for it."""
    raw: bytes = request.state.raw
    is_slow = len(raw) > LARGE or raw.count(b"{") > MANY_OBJECTS or any(mark in raw for mark in _SLOW)
    return await services_of(request).intake.parse(parse, is_slow=is_slow)


Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A request with the same key and body returns the first response, for 7 days.",
    ),
]
"""Documents the header of a route; `idempotency_of` reads it."""


def idempotency_of(request: Request) -> Idempotency | None:
    """Call it after the body was read."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= 255 or not key.isprintable():
        raise InvalidParameters("The Idempotency-Key must be 1 to 255 printable characters, for example a UUID.")
    request_hash = hashlib.sha256(f"{request.method} {request.url.path}\n".encode() + request.state.raw).digest()
    return Idempotency(key, request_hash)
