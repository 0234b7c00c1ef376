"""Parameters of paths and queries that several routes share: ids, cursors, limits, instants. Rejects unknown ones."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Path, Query, Request

from ondot.model.errors import InvalidParameters, NotFound

FIRST_YEAR, LAST_YEAR = 1970, 2200
MAX_QUERY_BYTES = 8192


async def only_known_parameters(request: Request) -> None:
    """Reject unknown parameters: with a misspelt filter everything would be listed. PostgreSQL's text has no NUL."""
    if len(request.scope["query_string"]) > MAX_QUERY_BYTES:
        raise InvalidParameters(f"The query string has more than {MAX_QUERY_BYTES:,} bytes; send a shorter one.")
    route = request.scope["route"].dependant
    known = {parameter.alias for part in (route, *route.dependencies) for parameter in part.query_params}
    for name, value in request.query_params.multi_items():
        if "\x00" in value:
            raise InvalidParameters(f"{name} must not contain NUL.")
        if name not in known:
            close = get_close_matches(name[:64], known, n=1)
            known_here = f"Use one of: {', '.join(sorted(known))}." if known else "This path has none."
            advice = f"Did you mean {close[0]}?" if close else known_here
            raise InvalidParameters(f"Unknown parameter {name[:64]!r}. {advice}")


def id_in_path(what: str, parameter: str = "id") -> Callable[[str], Awaitable[UUID]]:
    """An id in a path. Text that is not a UUID names nothing, so it is not found."""

    async def read(written: Annotated[str, Path(alias=parameter)]) -> UUID:
        try:
            return UUID(written)
        except ValueError:
            raise NotFound(
                f"There is no {what} {written[:64]!r}: ids look like 019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a."
            ) from None

    return read


JobPath = Annotated[UUID, Depends(id_in_path("job"))]
ExecutionPath = Annotated[UUID, Depends(id_in_path("execution"))]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many to list.")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]
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
