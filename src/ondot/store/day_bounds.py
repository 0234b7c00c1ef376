"""Statements that read the partitions of a few days, on connections that plan each statement once.

A plan for all parameters includes every day's partition, and locks all of them at each use, though it reads one
(PostgreSQL 15 to 18: 371 locks for the spec of one job after a year). So the bounds are whole days and part of the
text: the statement is planned once a day, with the partitions of those days only.
"""

from collections.abc import Collection
from typing import Final
from uuid import UUID

from ondot.store.queries import Query

DAY_BITS: Final = 86_400_000 << 80
"""A day in an id, which has the milliseconds since 1970 above its lowest 80 bits."""
LAST_ID: Final = UUID(int=2**128 - 1)


def with_day_bounds(query: Query, ids: Collection[UUID], *, from_id: str, before_id: str) -> str:
    """The text of a statement with the days of these ids instead of its two bounds, e.g. `$2` and `$3`."""
    first = UUID(int=min(ids).int // DAY_BITS * DAY_BITS)
    last = UUID(int=min((max(ids).int // DAY_BITS + 1) * DAY_BITS, LAST_ID.int))
    return query.text.replace(f"{from_id}::uuid", f"'{first}'::uuid").replace(f"{before_id}::uuid", f"'{last}'::uuid")
