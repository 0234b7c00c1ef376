"""One-time jobs of closed days by their name (O1): what the names of days that are no longer written are indexed for.

The index is made once a day is closed (`flow.history.names`), so that submitting a job costs nothing more. A search for
a name that few jobs have reads the executions of these jobs alone, and not every row of history.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ondot.model.ids import TenantNo, first_id_at
from ondot.model.query.query import Term
from ondot.store.connection import TOO_LATE, Connection
from ondot.store.day_rewrite import LONGEST_S, day_of, start_of
from ondot.store.newest import Kept
from ondot.store.queries import load_queries
from ondot.store.search_conditions import name_patterns

_SQL = load_queries("once_names")
_DAYS = load_queries("days")
_REWRITE = load_queries("day_rewrite")

MOST_NAMED: Final = 5_000
"""If more jobs have the name, a walk finds some of them soon."""
MOST_BYTES: Final = 100 * 1024 * 1024
"""Of days without the index: about 300,000 jobs, which are read in 0.1 s."""
WITHIN_S: Final = 0.15
"""A server that has to read from its disk may take longer: then the search walks."""


@dataclass(frozen=True, slots=True)
class Named:
    """All one-time jobs with a name that were created before `before`, a day's first id; None: all there are."""

    ids: Sequence[UUID]
    before: UUID | None


async def find_days_without(connection: Connection) -> list[str]:
    """The tables of closed days that have no index of names, oldest first."""
    return [row["name"] for row in await connection.fetch(_SQL["find_days_without"].text)]


async def add_index(connection: Connection, name: str, *, wait_ms: int) -> None:
    """Raises LOCKED if the day is being written to. Nobody can write to it until the transaction ends."""
    await connection.execute(_DAYS["give_way"].text, wait_ms)
    await connection.execute(_REWRITE["allow_long"].text, int(LONGEST_S * 1000))
    index = f'CREATE INDEX {name}_name ON ondot.{name} (tenant_no, lower(name COLLATE "C"))'
    await connection.execute(index, timeout=LONGEST_S)


async def find_named(connection: Connection, tenant_no: TenantNo, term: Term, kept: Kept) -> Named | None:
    """None: they are too many, no index serves for the term, or it takes too long."""
    row = await connection.fetchrow(_SQL["read_first_without"].text)
    if row is None or (day := day_of(row["name"])) is None:
        return None
    before = first_id_at(start_of(day))
    ids = await find_by_index(connection, tenant_no, term, kept, before)
    if ids is None:
        return None
    since = await find_by_reading(connection, tenant_no, term, before) if row["bytes"] <= MOST_BYTES else None
    return Named(ids, before) if since is None else Named([*ids, *since], None)


async def find_by_index(
    connection: Connection, tenant_no: TenantNo, term: Term, kept: Kept, before: UUID
) -> list[UUID] | None:
    """Those of closed days, some days at a time: a statement for all would lock and plan each of them."""
    exact, first, after = _ranges(term)
    if len(exact) + len(first) < len(term.values):
        return None
    ids: list[UUID] = []
    for from_id, before_id in kept.windows(before=before):
        found = await _find(connection, "find_named", tenant_no, from_id, before_id, exact, first, after)
        if found is None or len(ids) + len(found) > MOST_NAMED:
            return None
        ids += found
    return ids


async def find_by_reading(connection: Connection, tenant_no: TenantNo, term: Term, since: UUID) -> list[UUID] | None:
    """Those of days without the index."""
    return await _find(connection, "find_named_since", tenant_no, since, name_patterns(term))


async def _find(connection: Connection, query: str, *arguments: object) -> list[UUID] | None:
    is_inside = connection.is_in_transaction()
    if is_inside:
        await connection.execute("SAVEPOINT named")
    try:
        rows = await connection.fetch(_SQL[query].text, *arguments, MOST_NAMED + 1, timeout=WITHIN_S)
    except TOO_LATE:
        # Until the server has cancelled it: asyncpg closes a connection that is not free by the next deadline.
        await connection.execute("ROLLBACK TO named" if is_inside else "SELECT")
        return None
    return None if len(rows) > MOST_NAMED else [row["id"] for row in rows]


def _ranges(term: Term) -> tuple[list[str], list[str], list[str]]:
    """Names, and ranges of names by their beginning in ASCII, that contain all that match."""
    exact, first, after = [], [], []
    for value in term.values:
        beginning = value.parts[0]
        if not value.has_stars and beginning.isascii():
            exact.append(beginning.lower())
            continue
        # Not lowered before it is cut: the Kelvin sign, for one, becomes a k.
        beginning = beginning[: next((n for n, char in enumerate(beginning) if not char.isascii()), None)].lower()
        if beginning:
            first.append(beginning)
            after.append(beginning[:-1] + chr(ord(beginning[-1]) + 1))
    return exact, first, after
