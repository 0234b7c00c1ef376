"""Parameters of paths and queries that several routes share: ids, cursors, limits, instants. Rejects unknown ones."""

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, get_args, get_origin
from uuid import UUID

from fastapi import Depends, Path, Query, Request

from ondot.api.dependencies import caller_of, services_of
from ondot.model.errors import InvalidParameters, NotFound
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.store.connection import Connection
from ondot.store.executions import get_execution
from ondot.store.jobs import get_job

FIRST_YEAR, LAST_YEAR = 1970, 2200
MAX_QUERY_BYTES = 8192


async def only_known_parameters(request: Request) -> None:
    """Reject unknown parameters: with a misspelt filter everything would be listed. Of a repeated one the last would
    count alone. PostgreSQL's text has no NUL."""
    if len(request.scope["query_string"]) > MAX_QUERY_BYTES:
        raise InvalidParameters(f"The query string has more than {MAX_QUERY_BYTES:,} bytes; send a shorter one.")
    route = request.scope["route"].dependant
    known = {parameter.alias: parameter for part in (route, *route.dependencies) for parameter in part.query_params}
    given = Counter(name for name, _ in request.query_params.multi_items())
    for name, value in request.query_params.multi_items():
        if "\x00" in value:
            raise InvalidParameters(f"{name} must not contain NUL.")
        if name not in known:
            close = get_close_matches(name[:64], known, n=1)
            known_here = f"Use one of: {', '.join(sorted(known))}." if known else "This path has none."
            advice = f"Did you mean {close[0]}?" if close else known_here
            raise InvalidParameters(f"Unknown parameter {name[:64]!r}. {advice}")
        if given[name] > 1 and not _takes_several(known[name].field_info.annotation):
            raise InvalidParameters(f"{name} is given {given[name]} times. Give it once.")


def _takes_several(annotation: object) -> bool:
    """Whether a parameter may be repeated: it is a list, or a list or nothing."""
    return any(get_origin(part) is list for part in (annotation, *get_args(annotation)))


FindPool = Callable[[Connection, TenantNo, UUID], Awaitable[str | None]]


def id_in_path(what: str, parameter: str = "id", pool_of: FindPool | None = None) -> Callable[..., Awaitable[UUID]]:
    """An id in a path. Text that is not a UUID names nothing, so it is not found. `pool_of`: for a key that is limited
    to pools, an id of another pool is not found either."""

    async def read(request: Request, written: Annotated[str, Path(alias=parameter)]) -> UUID:
        try:
            id_ = UUID(written)
        except ValueError:
            raise NotFound(
                f"There is no {what} {written[:64]!r}: ids look like 019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a."
            ) from None
        if pool_of is not None:
            caller = await caller_of(request)
            if caller.pools is not None:
                async with services_of(request).database.connection() as connection:
                    pool = await pool_of(connection, caller.tenant_no, id_)
                if pool is None or not caller.sees(pool):
                    raise NotFound(f"There is no {what} {id_}.")
        return id_

    return read


async def _pool_of_job(connection: Connection, tenant_no: TenantNo, id_: UUID) -> str | None:
    row = await get_job(connection, tenant_no, JobId(id_))
    return None if row is None else row.spec.pool


async def pool_of_execution(connection: Connection, tenant_no: TenantNo, id_: UUID) -> str | None:
    row = await get_execution(connection, tenant_no, ExecutionId(id_))
    return None if row is None else row.pool


JobPath = Annotated[UUID, Depends(id_in_path("job", pool_of=_pool_of_job))]
ExecutionPath = Annotated[UUID, Depends(id_in_path("execution", pool_of=pool_of_execution))]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many to list.")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]
Search = Annotated[
    str | None,
    Query(
        description="A query, for example `state:failed job:nightly* took>5m since:24h`: see Search in the documents."
    ),
]
Instant = Annotated[datetime | None, Query(description="RFC 3339, for example 2026-11-15T12:00:00Z")]


def parse_cursor(cursor: str | None) -> UUID | None:
    """The id after which a page starts."""
    if cursor is None:
        return None
    try:
        return UUID(cursor)
    except ValueError:
        raise invalid_cursor() from None


def invalid_cursor() -> InvalidParameters:
    return InvalidParameters("The cursor is not valid. Pass `next_cursor` of the page before.")


def check_instant(name: str, instant: datetime | None) -> datetime | None:
    """An instant of the query, in UTC."""
    if instant is None:
        return None
    if instant.tzinfo is None:
        raise InvalidParameters(f"{name} needs a zone: write 2026-11-15T12:00:00Z.")
    if not FIRST_YEAR <= instant.year <= LAST_YEAR:
        raise InvalidParameters(f"{name} must lie between {FIRST_YEAR} and {LAST_YEAR}.")
    return instant.astimezone(UTC)
