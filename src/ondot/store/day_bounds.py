"""Statements that read the tables of a few days, on connections whose plans are made once.

A plan that is made once for all parameters holds every day's table, and locks all of them at each use, though it reads
one (PostgreSQL 15 to 18: 371 locks for the spec of one job after a year). So the bounds are whole days and stand in the
text: the statement is planned once a day, with the tables of those days alone.
"""

from collections.abc import Collection
from typing import Final
from uuid import UUID

from ondot.store.queries import Query

DAY_BITS: Final = 86_400_000 << 80
"""A day, in an id: it begins with the milliseconds since 1970, above 80 bits."""
LAST_ID: Final = UUID(int=2**128 - 1)


def of_days(query: Query, ids: Collection[UUID], *, from_id: str, before_id: str) -> str:
    """The text of a statement with the days of these ids in place of its two bounds, e.g. `$2` and `$3`."""
    first = UUID(int=min(ids).int // DAY_BITS * DAY_BITS)
    last = UUID(int=min((max(ids).int // DAY_BITS + 1) * DAY_BITS, LAST_ID.int))
    return query.text.replace(f"{from_id}::uuid", f"'{first}'::uuid").replace(f"{before_id}::uuid", f"'{last}'::uuid")
