"""Search of executions, live and ended, in one order: newest first by id (O1, P12).

History may have a hundred million rows, and no index has every field. So a search walks back in chunks of ids, a
statement for each, and stops when its page is full or its time is used up: the answer then says through which instant
it has searched, and the next page goes on there. A chunk grows while it is fast, up to many days where an index serves,
and shrinks where history is dense. No statement reads all days, and each has a deadline of its own.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from uuid import UUID

from ondot.model.ids import EPOCH, ExecutionId, PoolNo, TenantNo, first_id_at, instant_of
from ondot.model.planning import first_execution_id
from ondot.model.query.query import Query, id_range, instant
from ondot.store.connection import TOO_LATE, Connection
from ondot.store.day_bounds import LAST_ID
from ondot.store.executions import ExecutionRow, read_executions
from ondot.store.newest import NO_ID, Kept, read_kept
from ondot.store.queries import load_queries
from ondot.store.search_conditions import (
    ENDED,
    LIVE,
    Branch,
    Parameters,
    excludes_successes,
    job_ids,
    needs_job,
)

_SQL = load_queries("search")

BUDGET_S = 0.4
CHUNK_S = 0.04
"""A chunk is chosen so that it takes about this long."""
LEAST_S = 0.05
"""The deadline of a statement that starts when hardly any time is left."""
FIRST, FIRST_FAILED, FIRST_OF_JOB = timedelta(seconds=10), timedelta(minutes=10), timedelta(days=1)
"""The first chunk: of a plain walk, and where an index serves."""
LARGEST = timedelta(days=64)
SMALLEST = timedelta(milliseconds=1)
GROWTH, SHRINKAGE = 8.0, 1 / 8
PLANNED_AHEAD = timedelta(hours=1)
"""An execution is due at most this long after its id was made: the horizon, at most ten minutes, or more if crowded."""
ONCE_BEFORE = timedelta(days=1)
"""Most one-time jobs run within a day: these are read by a join, and the others one by one."""
MOST_WORKERS = 1_000


@dataclass(frozen=True, slots=True)
class Found:
    """`next`: where the next page starts, None at the end. `searched_through`: if the time was up before the page was
    full, the instant down to which everything was searched."""

    rows: list[ExecutionRow]
    next: UUID | None
    searched_through: datetime | None


async def search_executions(
    connection: Connection,
    tenant_no: TenantNo,
    query: Query,
    after: UUID | None = None,
    limit: int = 50,
    budget_s: float = BUDGET_S,
    *,
    pool_nos: Collection[PoolNo] | None = None,
) -> Found:
    """One page; `after` is `next` of the page before. `pool_nos`: only of these pools, whatever the query asks for."""
    search = await _start(connection, tenant_no, query, after, pool_nos)
    ids = await search.find(limit + 1, time.monotonic() + budget_s)
    rows = await read_executions(connection, tenant_no, ids[:limit])
    if len(ids) > limit:
        return Found(rows, ids[limit - 1], None)
    if search.is_at_end:
        return Found(rows, None, None)
    return Found(rows, search.before, instant_of(search.before))


async def match_executions(
    connection: Connection,
    tenant_no: TenantNo,
    query: Query,
    after_id: UUID | None = None,
    limit: int = 1_000,
    *,
    pool_nos: Collection[PoolNo] | None = None,
) -> list[ExecutionId]:
    """The ids of a page, newest first, however long it takes: empty only at the end. `after_id`: the last of the page
    before."""
    search = await _start(connection, tenant_no, query, after_id, pool_nos)
    return await search.find(limit, None)


async def _start(
    connection: Connection,
    tenant_no: TenantNo,
    query: Query,
    after: UUID | None,
    pool_nos: Collection[PoolNo] | None,
) -> "_Search":
    kept = await read_kept(connection)
    hosts = [value.as_like() for term in query.named("worker") for value in term.values]
    rows = await connection.fetch(_SQL["workers_on"].text, hosts, MOST_WORKERS) if hosts else []
    return _Search(connection, tenant_no, query, kept, after, pool_nos, [row["id"] for row in rows])


class _Search:
    """A walk from the newest id down. `before`: everything at or above it was searched."""

    def __init__(
        self,
        connection: Connection,
        tenant_no: TenantNo,
        query: Query,
        kept: Kept,
        after: UUID | None,
        pool_nos: Collection[PoolNo] | None,
        workers: Sequence[UUID],
    ) -> None:
        self._connection = connection
        self._tenant_no = tenant_no
        self._kept = kept
        self._by_job = needs_job(query)
        self._first_at = datetime.combine(kept.first_day, time_of_day(), UTC)
        self.down_to, upper = _id_bounds(query, kept.now)
        self.before = min(upper, after or LAST_ID)
        jobs = job_ids(query)
        if jobs is not None:
            oldest = min(jobs, default=LAST_ID)
            self.down_to = max(self.down_to, first_execution_id(instant_of(oldest)))
        self._width = FIRST_OF_JOB if jobs is not None else FIRST_FAILED if excludes_successes(query) else FIRST
        name = "search_chunk_by_job" if self._by_job else "search_chunk"
        self._parameters = Parameters([None] * (6 if self._by_job else 4))
        text = _SQL[name].text
        for branch in (LIVE, ENDED):
            condition = Branch(branch, self._parameters, kept.now, workers).condition(query)
            if pool_nos is not None:
                condition += f" AND e.pool_no = ANY ({self._parameters.add(list(pool_nos), 'integer[]')})"
            text = text.replace(f"true /* {branch} */", condition)
        self._text = text

    @property
    def is_at_end(self) -> bool:
        return self.before <= self.down_to

    async def find(self, limit: int, until_s: float | None) -> list[ExecutionId]:
        """Up to `limit` ids; fewer at the end, and when the time is up (`until_s`, by the monotonic clock)."""
        found: list[ExecutionId] = []
        has_read = False
        while len(found) < limit and not self.is_at_end:
            started_s = time.monotonic()
            left_s = None if until_s is None else until_s - started_s
            # One chunk at least, or the search would never go on.
            if has_read and left_s is not None and left_s <= 0:
                break
            from_id = self._chunk_start()
            try:
                ids = await self._read(from_id, limit - len(found), self._deadline(left_s))
            except TOO_LATE:
                self._width = max(self._width * SHRINKAGE, SMALLEST)
                continue
            has_read = True
            found += ids
            self.before = ids[-1] if len(found) >= limit else from_id
            took_s = max(time.monotonic() - started_s, 1e-4)
            self._width = min(max(self._width * min(CHUNK_S / took_s, GROWTH), SMALLEST), LARGEST)
        return found

    def _chunk_start(self) -> UUID:
        at = min(instant_of(self.before), self._kept.now) - self._width
        if at <= self._first_at:
            return self.down_to
        return max(first_id_at(max(at, EPOCH)), self.down_to)

    def _deadline(self, left_s: float | None) -> float | None:
        """None: that of every statement. The smallest chunk always gets through, so that a search goes on."""
        return None if left_s is None or self._width <= SMALLEST else max(left_s, LEAST_S)

    async def _read(self, from_id: UUID, limit: int, timeout_s: float | None) -> list[ExecutionId]:
        bounds: list[object] = [self._tenant_no, from_id, self.before, limit]
        if self._by_job:
            once_from = max(from_id.int - (ONCE_BEFORE // timedelta(milliseconds=1) << 80), 0)
            bounds += [UUID(int=once_from), self.before]
        arguments = [*bounds, *self._parameters[len(bounds) :]]
        rows = await self._connection.fetch(self._text, *arguments, timeout=timeout_s)
        return [ExecutionId(row["id"]) for row in rows]


def _id_bounds(query: Query, now: datetime) -> tuple[UUID, UUID]:
    """The smallest id that can match, and one above the largest."""
    lower, upper = NO_ID, LAST_ID
    for term in query.terms:
        if term.is_negated:
            continue
        match term.name:
            case "since":
                lower = max(lower, first_id_at(max(instant(term.values[0], now) - PLANNED_AHEAD, EPOCH)))
            case "until":
                upper = min(upper, first_id_at(instant(term.values[0], now)))
            case "id":
                ranges = [id_range(value) for value in term.values]
                lower = max(lower, min(first for first, _ in ranges))
                upper = min(upper, UUID(int=min(max(last for _, last in ranges).int + 1, LAST_ID.int)))
    return lower, upper
