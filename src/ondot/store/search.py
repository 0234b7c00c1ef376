"""Search of executions, live and ended, in one order: newest first by id (O1, P12).

History may have a hundred million rows, and no index has every field. So a search walks back (`store.search_walk`) and
stops when its page is full or its time is used up: the answer then says through which instant it has searched, and the
next page goes on there.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from ondot.model.ids import ExecutionId, PoolNo, TenantNo, first_id_at, instant_of
from ondot.model.planning import first_execution_id
from ondot.model.query.query import Query, whole_id
from ondot.store.connection import Connection
from ondot.store.day_bounds import LAST_ID
from ondot.store.executions import ExecutionRow, read_executions
from ondot.store.newest import Kept, read_kept
from ondot.store.once_names import Named, find_named
from ondot.store.queries import load_queries
from ondot.store.search_conditions import (
    ENDED,
    LIVE,
    Branch,
    Parameters,
    Recurring,
    excludes_successes,
    includes_steps,
    job_ids,
    name_patterns,
    needs_job,
)
from ondot.store.search_walk import BUDGET_S, Walk, id_bounds, of_others

_SQL = load_queries("search")

FIRST, FIRST_FAILED, FIRST_OF_JOB = timedelta(seconds=10), timedelta(minutes=10), timedelta(days=1)
"""The first chunk: of a plain walk, and where an index serves."""
PLANNED_AHEAD = timedelta(hours=1)
"""An execution is due at most this long after its id was made: the horizon, at most ten minutes, or more if crowded."""
ONCE_BEFORE = timedelta(days=1)
"""Most one-time jobs run within a day: these are read by a join, and the others one by one."""
CLOCKS_DIFFER = timedelta(minutes=1)
MOST_WORKERS = 1_000
MOST_RECURRING = 5_000
"""A tenant with more recurring jobs is searched by a lookup of each execution's job."""


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
    until_s = time.monotonic() + budget_s
    walk = await start_walk(connection, tenant_no, query, after, pool_nos)
    page = await walk.find_page(limit, until_s)
    rows = await read_executions(connection, tenant_no, [ExecutionId(id_) for id_ in page.ids])
    return Found(rows, page.next, page.searched_through)


async def match_executions(
    connection: Connection,
    tenant_no: TenantNo,
    query: Query,
    after_id: UUID | None = None,
    limit: int = 1_000,
    *,
    pool_nos: Collection[PoolNo] | None = None,
    now: datetime | None = None,
) -> list[ExecutionId]:
    """The ids of a page, newest first, however long it takes: empty only at the end. `after_id`: the last of the page
    before."""
    walk = await start_walk(connection, tenant_no, query, after_id, pool_nos, now)
    return [ExecutionId(id_) for id_ in await walk.find(limit, None)]


async def start_walk(
    connection: Connection,
    tenant_no: TenantNo,
    query: Query,
    after: UUID | None,
    pool_nos: Collection[PoolNo] | None,
    now: datetime | None = None,
) -> Walk:
    """`now`: from which durations count back; default: the database's time."""
    kept = await read_kept(connection)
    now = now or kept.now
    hosts = [value.as_like() for term in query.named("worker") for value in term.values]
    workers = await connection.fetch(_SQL["workers_on"].text, hosts, MOST_WORKERS) if hosts else []
    by_job = needs_job(query)
    recurring = await _read_recurring(connection, tenant_no, query)

    def bounds(from_id: UUID, before: UUID, limit: int) -> list[object]:
        of_chunk: list[object] = [tenant_no, from_id, before, limit]
        if not by_job:
            return of_chunk
        once_from = max(from_id.int - (ONCE_BEFORE // timedelta(milliseconds=1) << 80), 0)
        return [*of_chunk, UUID(int=once_from), before]

    def walk(
        first: timedelta,
        before: UUID,
        down_to: UUID,
        *,
        of_jobs: Sequence[UUID] | None = None,
        then: Walk | None = None,
    ) -> Walk:
        """`of_jobs`: executions of no other job can match."""
        parameters = Parameters(after=6 if by_job else 4)
        text = _SQL["search_chunk_by_job" if by_job else "search_chunk"].text
        for branch in (LIVE, ENDED):
            hosted = [row["id"] for row in workers]
            condition = Branch(branch, parameters, now, hosted, recurring).condition(query)
            if of_jobs is not None:
                condition = f"e.job_id = ANY ({parameters.add(of_jobs, 'uuid[]')}) AND {condition}"
            if pool_nos is not None:
                condition += f" AND e.pool_no = ANY ({parameters.add(list(pool_nos), 'integer[]')})"
            text = text.replace(f"true /* {branch} */", f"{of_others('e', tenant_no)} AND {condition}")
        return Walk(connection, kept, text, bounds, parameters, first=first, before=before, down_to=down_to, then=then)

    down_to, upper = id_bounds(query, now, PLANNED_AHEAD)
    before = min(upper, after or LAST_ID)
    jobs = job_ids(query)
    if jobs is not None:
        down_to = max(down_to, first_execution_id(instant_of(min(jobs, default=LAST_ID))))
        return walk(FIRST_OF_JOB, before, down_to)
    first = FIRST_FAILED if excludes_successes(query) else FIRST
    named = await _find_named(connection, tenant_no, query, recurring, kept)
    if named is None:
        return walk(first, before, down_to)
    if named.before is None:
        return walk(FIRST_OF_JOB, before, down_to, of_jobs=named.ids)
    # An execution is made after its job, but its id may be of another clock.
    known_before = max(first_id_at(instant_of(named.before) - CLOCKS_DIFFER), down_to)
    of_named = walk(FIRST_OF_JOB, min(before, known_before), down_to, of_jobs=named.ids)
    return walk(first, before, known_before, then=of_named)


async def _find_named(
    connection: Connection,
    tenant_no: TenantNo,
    query: Query,
    recurring: Mapping[tuple[str, ...], Recurring],
    kept: Kept,
) -> Named | None:
    """The jobs with the name that the query asks for, if they are few and all are known."""
    for term in query.named("job"):
        known = recurring.get(name_patterns(term))
        if term.is_negated or known is None:
            continue
        if (once := await find_named(connection, tenant_no, term, kept)) is not None:
            by_id = [id_ for value in term.values if (id_ := whole_id(value)) is not None]
            return Named([*once.ids, *known.named, *by_id], once.before)
    return None


async def _read_recurring(
    connection: Connection, tenant_no: TenantNo, query: Query
) -> dict[tuple[str, ...], Recurring]:
    """For each term on names, unless steps are searched, whose jobs are those of their runs."""
    if includes_steps(query):
        return {}
    known: dict[tuple[str, ...], Recurring] = {}
    for term in query.named("", "job"):
        patterns = name_patterns(term)
        rows = await connection.fetch(_SQL["recurring_jobs"].text, tenant_no, patterns, MOST_RECURRING + 1)
        if len(rows) > MOST_RECURRING:
            return {}
        known[patterns] = Recurring([row["id"] for row in rows], [row["id"] for row in rows if row["is_named"]])
    return known
