"""What the routes need, handed to them by the app: no module-level state."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Depends, Path, Query, Request

from ondot.api.auth import Auth
from ondot.api.backpressure import Backpressure
from ondot.api.intake import LARGE, Intake
from ondot.document.json_text import read_batch, read_json
from ondot.flow.dispatch import Dispatcher
from ondot.flow.group_commit import GroupCommit
from ondot.flow.idempotency import Idempotency
from ondot.model.errors import InvalidParameters, NotFound
from ondot.model.ids import TenantNo
from ondot.ports.objects import Objects
from ondot.store.database import Database

FIRST_YEAR, LAST_YEAR = 1970, 2200
MAX_QUERY_BYTES = 8192

MANY_OBJECTS = 20
_LONG = (b"rrule", b"include", b"exclude", b"calendar", rb"\u")
"""What stands in a body whose schedules take long; or an escape, behind which it may stand."""


@dataclass(slots=True)
class Services:
    database: Database
    dispatcher: Dispatcher
    auth: Auth
    objects: Objects | None = None
    """None: only what is in the database is read."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process is to end: who waits for something answers then."""
    group_commit: GroupCommit = field(init=False)
    intake: Intake = field(init=False)
    backpressure: Backpressure | None = field(init=False)
    """None: no ceiling is set, and everything is taken."""

    def __post_init__(self) -> None:
        self.group_commit = GroupCommit(self.database, self.dispatcher)
        self.intake = Intake(self.database.settings)
        ceiling = self.database.settings.queue_ceiling
        self.backpressure = None if ceiling is None else Backpressure(self.database, ceiling)

    @asynccontextmanager
    async def room_now(
        self,
        tenant_no: TenantNo,
        pools: Callable[[], Awaitable[Mapping[str, int]]],
        idempotency: Idempotency | None,
    ) -> AsyncIterator[None]:
        """While executions that start now are made; `pools`, how many in which, is asked only if there is a ceiling."""
        if self.backpressure is None:
            yield
            return
        async with self.backpressure.room_now(tenant_no, await pools(), idempotency):
            yield


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def tenant_of(request: Request) -> TenantNo:
    return await services_of(request).auth.tenant(request)


async def asked_of(request: Request) -> Services:
    """As a dependency: FastAPI would run one that is not async in a thread, which takes longer than all the rest."""
    return services_of(request)


Asked = Annotated[Services, Depends(asked_of)]
Tenant = Annotated[TenantNo, Depends(tenant_of)]


async def optional_body_of(request: Request) -> object:
    """The body as JSON; None if there is none."""
    return await _json_of(request, await _raw_of(request))


async def body_of(request: Request) -> object:
    """The body as JSON; without one the request means nothing."""
    raw = await _raw_of(request)
    return await _json_of(request, raw) if raw else read_json(raw, max_bytes=0)


async def batch_of(request: Request) -> object:
    """The body of a batch, its jobs not decoded yet."""
    intake = services_of(request).intake
    raw = request.state.raw = await intake.raw(request, intake.max_batch_bytes)
    parse = partial(read_batch, raw, max_bytes=intake.max_batch_bytes, items="jobs")
    return await intake.parse(parse, is_slow=len(raw) > LARGE)


async def _raw_of(request: Request) -> bytes:
    intake = services_of(request).intake
    raw: bytes = await intake.raw(request, intake.max_bytes)
    request.state.raw = raw
    return raw


async def _json_of(request: Request, raw: bytes) -> object:
    if not raw:
        return None
    intake = services_of(request).intake
    return await intake.parse(partial(read_json, raw, max_bytes=intake.max_bytes), is_slow=len(raw) > LARGE)


Body = Annotated[object, Depends(body_of)]
OptionalBody = Annotated[object, Depends(optional_body_of)]


Read = TypeVar("Read")


async def parse_body(request: Request, parse: Callable[[], Read]) -> Read:
    """Parse a body, in a thread if it is large, has many jobs or many rules: that takes up to two seconds, and other
    requests must not wait for it."""
    raw: bytes = request.state.raw
    is_slow = len(raw) > LARGE or raw.count(b"{") > MANY_OBJECTS or any(mark in raw for mark in _LONG)
    return await services_of(request).intake.parse(parse, is_slow=is_slow)


async def only_known_parameters(request: Request) -> None:
    """A misspelt filter must not list everything; and PostgreSQL takes no NUL in text."""
    if len(request.scope["query_string"]) > MAX_QUERY_BYTES:
        raise InvalidParameters(f"The query string has more than {MAX_QUERY_BYTES:,} bytes; ask for less at once.")
    route = request.scope["route"].dependant
    known = {parameter.alias for part in (route, *route.dependencies) for parameter in part.query_params}
    for name, value in request.query_params.multi_items():
        if "\x00" in value:
            raise InvalidParameters(f"{name} must not contain NUL.")
        if name not in known:
            close = get_close_matches(name[:64], known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known)) or 'none'}."
            raise InvalidParameters(f"There is no parameter {name[:64]!r}: {advice}")


def id_in_path(what: str, parameter: str = "id") -> Callable[[str], Awaitable[UUID]]:
    """An id in a path; what is no UUID names nothing."""

    async def read(written: Annotated[str, Path(alias=parameter)]) -> UUID:
        try:
            return UUID(written)
        except ValueError:
            raise NotFound(
                f"There is no {what} {written[:64]!r}: ids look like 019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a."
            ) from None

    return read


def cursor_of(cursor: str | None) -> UUID | None:
    """The position a page begins after."""
    if cursor is None:
        return None
    try:
        return UUID(cursor)
    except ValueError:
        raise InvalidParameters(
            "The cursor is not one that a list gave: take `next_cursor` of the page before."
        ) from None


Instant = Annotated[datetime | None, Query(description="RFC 3339, for example 2026-11-15T12:00:00Z")]


def checked_instant(name: str, instant: datetime | None) -> datetime | None:
    """An instant of the query, in UTC."""
    if instant is None:
        return None
    if instant.tzinfo is None:
        raise InvalidParameters(f"{name} needs a zone: write 2026-11-15T12:00:00Z.")
    if not FIRST_YEAR <= instant.year <= LAST_YEAR:
        raise InvalidParameters(f"{name} must lie between {FIRST_YEAR} and {LAST_YEAR}.")
    return instant.astimezone(UTC)
