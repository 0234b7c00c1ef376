"""What the routes need, handed to them by the app: no module-level state."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Request

from ondot.api.auth import Auth
from ondot.api.bodies import read_json
from ondot.flow.dispatch import Dispatcher
from ondot.model.errors import InvalidBody, NotFound
from ondot.model.ids import TenantNo
from ondot.store.database import Database


@dataclass(slots=True)
class Services:
    database: Database
    dispatcher: Dispatcher
    auth: Auth


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def tenant_of(request: Request) -> TenantNo:
    return await services_of(request).auth.tenant(request)


Asked = Annotated[Services, Depends(services_of)]
Tenant = Annotated[TenantNo, Depends(tenant_of)]


async def body_of(request: Request) -> object:
    """The body as JSON; None if there is none."""
    raw = await read_bounded(request)
    request.state.raw = raw
    return read_json(raw, max_bytes=services_of(request).database.settings.max_body_bytes) if raw else None


async def read_bounded(request: Request) -> bytes:
    """The raw body; reading stops at the limit, whatever Content-Length claims."""
    limit = services_of(request).database.settings.max_body_bytes
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            break
    return b"".join(chunks)


Body = Annotated[object, Depends(body_of)]


def id_in_path(what: str) -> Callable[[str], Awaitable[UUID]]:
    """An id in a path; what is no UUID names nothing."""

    async def read(id: str) -> UUID:  # noqa: A002 - the name in the path
        try:
            return UUID(id)
        except ValueError:
            raise NotFound(
                f"There is no {what} {id[:64]!r}: ids look like 019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a."
            ) from None

    return read


def cursor_of(cursor: str | None) -> UUID | None:
    """The position a page begins after."""
    if cursor is None:
        return None
    try:
        return UUID(cursor)
    except ValueError:
        raise InvalidBody("The cursor is not one that a list gave: take `next_cursor` of the page before.") from None
