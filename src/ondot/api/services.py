"""What the routes need, handed to them by the app: no module-level state."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Depends, Path, Query, Request
from starlette.requests import ClientDisconnect

from ondot.api.auth import Auth
from ondot.api.backpressure import Backpressure
from ondot.api.bodies import read_json
from ondot.flow.dispatch import Dispatcher
from ondot.flow.submit import FEW, Idempotency
from ondot.flow.together import Together
from ondot.model.errors import InvalidParameters, InvalidRequest, NotFound, TooLarge
from ondot.model.ids import TenantNo
from ondot.ports.objects import Objects
from ondot.store.database import Database

BODY_WITHIN_S = 30.0
"""A client that stops in the middle of its body holds a connection for no longer than this."""

FIRST_YEAR, LAST_YEAR = 1970, 2200

_RULES = {"rrule", "include", "exclude"}


@dataclass(slots=True)
class Services:
    database: Database
    dispatcher: Dispatcher
    auth: Auth
    objects: Objects | None = None
    """None: only what is in the database is read."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process is to end: who waits for something answers then."""
    together: Together = field(init=False)
    backpressure: Backpressure | None = field(init=False)
    """None: no ceiling is set, and everything is taken."""

    def __post_init__(self) -> None:
        self.together = Together(self.database, self.dispatcher)
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
    raw = await read_bounded(request)
    request.state.raw = raw
    return read_json(raw, max_bytes=_max_bytes(request)) if raw else None


async def body_of(request: Request) -> object:
    """The body as JSON; without one the request means nothing."""
    raw = await read_bounded(request)
    request.state.raw = raw
    return read_json(raw, max_bytes=_max_bytes(request))


async def read_bounded(request: Request) -> bytes:
    """The raw body, in bounded space and time, whatever Content-Length claims."""
    limit = _max_bytes(request)
    claimed = request.headers.get("content-length", "")
    if claimed.isdecimal() and int(claimed) > limit:
        raise TooLarge(f"The body has {int(claimed):,} bytes; at most {limit:,} are taken.")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for chunk in request.stream():
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise TooLarge(f"The body has more than {limit:,} bytes: that many are taken at most.")
    except TimeoutError:
        raise InvalidRequest(f"The body did not end within {BODY_WITHIN_S:g} s: send all of it, or end it.") from None
    except ClientDisconnect:
        raise InvalidRequest("The connection ended before the body did.") from None
    return b"".join(chunks)


def _max_bytes(request: Request) -> int:
    return services_of(request).database.settings.max_body_bytes


Body = Annotated[object, Depends(body_of)]
OptionalBody = Annotated[object, Depends(optional_body_of)]


Read = TypeVar("Read")


async def considered(body: object, read: Callable[[], Read]) -> Read:
    """What a body says. One with rules upon rules, or of thousands of jobs, takes seconds at worst: others must not
    wait for it."""
    return await asyncio.to_thread(read) if _takes_long(body) else read()


def _takes_long(body: object) -> bool:
    if not isinstance(body, dict):
        return False
    schedules = [body.get("schedule")]
    if isinstance(jobs := body.get("jobs"), list):
        if len(jobs) > FEW:
            return True
        schedules += [job.get("schedule") for job in jobs if isinstance(job, dict)]
    return any(isinstance(schedule, dict) and schedule.keys() & _RULES for schedule in schedules)


async def only_known_parameters(request: Request) -> None:
    """A misspelt filter must not list everything; and PostgreSQL takes no NUL in text."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    for name, value in request.query_params.multi_items():
        if "\x00" in value:
            raise InvalidParameters(f"{name} must not contain NUL.")
        if name not in known:
            close = get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known)) or 'none'}."
            raise InvalidParameters(f"There is no parameter {name!r}: {advice}")


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
