"""The walk of a search (O1): back from the newest id in chunks, a statement for each.

A chunk grows while it is fast, up to many days, and shrinks where rows are dense or a statement does not end within its
deadline. So no statement reads all days, and none takes long.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from uuid import UUID

from ondot.model.ids import DEFAULT_TENANT, EPOCH, TenantNo, first_id_at, instant_of
from ondot.model.query.query import Query, id_range, instant
from ondot.store.connection import TOO_LATE, Connection
from ondot.store.day_bounds import LAST_ID
from ondot.store.newest import NO_ID, Kept

BUDGET_S = 0.4
CHUNK_S = 0.04
"""A chunk is chosen so that it takes about this long."""
LEAST_S = 0.05
"""The deadline of a statement that starts when hardly any time is left."""
LARGEST = timedelta(days=64)
SMALLEST = timedelta(milliseconds=1)
GROWTH, SHRINKAGE = 8.0, 1 / 8

Bounds = Callable[[UUID, UUID, int], Sequence[object]]
"""The parameters of a statement for the ids from one up to another, and a limit."""


@dataclass(frozen=True, slots=True)
class Page:
    """Ids, newest first. `next`: after which the next page begins; None at the end. `searched_through`: set if the time
    was up before the page was full."""

    ids: list[UUID]
    next: UUID | None
    searched_through: datetime | None


class Walk:
    """`before`: everything at or above it was searched. `text`: a statement that returns ids, newest first; its
    parameters are `bounds`, then `parameters`."""

    def __init__(
        self,
        connection: Connection,
        kept: Kept,
        text: str,
        bounds: Bounds,
        parameters: Sequence[object],
        *,
        first: timedelta,
        before: UUID,
        down_to: UUID,
        then: "Walk | None" = None,
    ) -> None:
        """`then`: goes on from where this one ends."""
        self._connection = connection
        self._now = kept.now
        self._first_at = datetime.combine(kept.first_day, time_of_day(), UTC)
        self.text = text
        self.bounds = bounds
        self.parameters = parameters
        self._width = first
        self.before = before
        self._down_to = down_to
        self._then = then

    @property
    def is_at_end(self) -> bool:
        return self._has_ended and (self._then is None or self._then.is_at_end)

    @property
    def _has_ended(self) -> bool:
        return self.before <= self._down_to

    @property
    def _searched_to(self) -> UUID:
        return self._then._searched_to if self._then is not None and self._has_ended else self.before

    async def find(self, limit: int, until_s: float | None) -> list[UUID]:
        """Up to `limit` ids; fewer at the end, and when the time is up (`until_s`, by the monotonic clock)."""
        found: list[UUID] = []
        has_read = False
        # A cancelled statement ends the transaction that it is in, so inside one each chunk starts from this point.
        is_inside = self._connection.is_in_transaction()
        if is_inside:
            await self._connection.execute("SAVEPOINT chunk")
        while len(found) < limit and not self._has_ended:
            started_s = time.monotonic()
            left_s = None if until_s is None else until_s - started_s
            # One chunk at least, or the search would never go on.
            if has_read and left_s is not None and left_s <= 0:
                break
            from_id = self.chunk_start()
            try:
                ids = await self._read(from_id, limit - len(found), self._deadline(left_s))
            except TOO_LATE:
                # Until the server has cancelled it. The next chunk may have a deadline shorter than that, and asyncpg
                # closes a connection that is not free by then.
                await self._connection.execute("ROLLBACK TO chunk" if is_inside else "SELECT")
                self._width = max(self._width * SHRINKAGE, SMALLEST)
                continue
            has_read = True
            found += ids
            self.before = ids[-1] if len(found) >= limit else from_id
            took_s = max(time.monotonic() - started_s, 1e-4)
            self._width = min(max(self._width * min(CHUNK_S / took_s, GROWTH), SMALLEST), LARGEST)
        if self._then is not None and self._has_ended and len(found) < limit:
            found += await self._then.find(limit - len(found), until_s)
        return found

    async def find_page(self, limit: int, until_s: float) -> Page:
        ids = await self.find(limit + 1, until_s)
        if len(ids) > limit:
            return Page(ids[:limit], ids[limit - 1], None)
        if self.is_at_end:
            return Page(ids, None, None)
        return Page(ids, self._searched_to, instant_of(self._searched_to))

    def chunk_start(self) -> UUID:
        at = min(instant_of(self.before), self._now) - self._width
        if at <= self._first_at:
            return self._down_to
        return max(first_id_at(max(at, EPOCH)), self._down_to)

    def _deadline(self, left_s: float | None) -> float | None:
        """None: that of every statement. The smallest chunk always gets through, so that a search goes on."""
        return None if left_s is None or self._width <= SMALLEST else max(left_s, LEAST_S)

    async def _read(self, from_id: UUID, limit: int, timeout_s: float | None) -> list[UUID]:
        arguments = [*self.bounds(from_id, self.before, limit), *self.parameters]
        rows = await self._connection.fetch(self.text, *arguments, timeout=timeout_s)
        return [row["id"] for row in rows]


def of_others(alias: str, tenant_no: TenantNo) -> str:
    """A condition that holds for all rows of a tenant but the first. As a literal: the planner then knows that the
    index by tenant has every row, and the search reads none of another tenant."""
    return f"{alias}.tenant_no > {DEFAULT_TENANT}" if tenant_no > DEFAULT_TENANT else "true"


def id_bounds(query: Query, now: datetime, ahead: timedelta) -> tuple[UUID, UUID]:
    """The smallest id that can match, and one above the largest. `ahead`: how long before its instant an id is made."""
    lower, upper = NO_ID, LAST_ID
    for term in query.terms:
        if term.is_negated:
            continue
        match term.name:
            case "since":
                lower = max(lower, first_id_at(max(instant(term.values[0], now) - ahead, EPOCH)))
            case "until":
                upper = min(upper, first_id_at(instant(term.values[0], now)))
            case "id":
                ranges = [id_range(value) for value in term.values]
                lower = max(lower, min(first for first, _ in ranges))
                upper = min(upper, UUID(int=min(max(last for _, last in ranges).int + 1, LAST_ID.int)))
    return lower, upper
