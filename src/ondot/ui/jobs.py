"""`/jobs`: all jobs, by state and by a search, page by page (O5).

Values of the query that cannot be parsed, such as an unknown state, are ignored: a click should find jobs, not fail.
Pages have the same cursor as the API's list.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from ondot.model.errors import InvalidQuery
from ondot.model.ids import TenantNo
from ondot.model.job import JobState
from ondot.model.query import merge, parse
from ondot.model.query.query import term
from ondot.model.schedule import in_words
from ondot.store.database import Database
from ondot.store.jobs import JobRow, list_jobs
from ondot.store.search_jobs import search_jobs
from ondot.words.job import zone_of_job

PAGE_SIZE: Final = 50
LONGEST_SEARCH: Final = 2_100
"""A little more than a search may have: a longer one is rejected in words, not cut."""


@dataclass(frozen=True, slots=True)
class Query:
    """`cursor`: the last job of the page before."""

    state: JobState | None = None
    q: str = ""
    cursor: UUID | None = None

    def address(self, path: str, cursor: UUID | None = None) -> str:
        fields = {"state": self.state and self.state.value, "q": self.q, "cursor": cursor and str(cursor)}
        written = urlencode({name: value for name, value in fields.items() if value})
        return f"{path}?{written}" if written else path

    def as_file(self) -> str:
        """The address of all these jobs as CSV."""
        address = self.address("/v1/jobs")
        return f"{address}{'&' if '?' in address else '?'}format=csv"

    def as_search(self) -> str:
        """The same jobs as one search; empty if all are listed."""
        return " ".join(filter(None, (self.q, self.state and f"state:{self.state.value.lower()}")))


@dataclass(frozen=True, slots=True)
class JobLine:
    """`why`: why the job is in its state, unless a person set it."""

    id: UUID
    name: str
    state: JobState
    why: str | None
    schedule: str
    next_fire_at: datetime | None
    zone: str | None


@dataclass(frozen=True, slots=True)
class JobsView:
    now: datetime
    query: Query
    rows: tuple[JobLine, ...]
    older: str | None
    """The address of the next page."""
    fault: str | None = None
    """Why the search cannot be parsed."""
    searched_through: datetime | None = None
    """If the time of the search was up before the page was full: how far back it came."""


def parse_query(parameters: Mapping[str, str]) -> Query:
    return Query(
        state=next((state for state in JobState if state.value == parameters.get("state", "").upper()), None),
        q=parameters.get("q", "").replace("\0", "").strip()[:LONGEST_SEARCH],
        cursor=_uuid(parameters.get("cursor", "")),
    )


async def read_jobs(database: Database, tenant_no: TenantNo, query: Query) -> JobsView:
    if query.q:
        return await _search(database, tenant_no, query)
    async with database.reading(tenant_no) as connection:
        rows = await list_jobs(
            connection,
            tenant_no,
            before=query.cursor,
            limit=PAGE_SIZE + 1,
            state=query.state.value if query.state else None,
        )
    page = rows[:PAGE_SIZE]
    return JobsView(
        now=database.clock.now(),
        query=query,
        rows=tuple(_line(row) for row in page),
        older=query.address("/jobs", page[-1].id) if len(rows) > PAGE_SIZE else None,
    )


async def _search(database: Database, tenant_no: TenantNo, query: Query) -> JobsView:
    now = database.clock.now()
    try:
        wanted = parse(query.q, "jobs")
    except InvalidQuery as error:
        return JobsView(now, query, (), None, fault=error.message)
    wanted = merge(wanted, [term("state", query.state.value)] if query.state else [])
    async with database.reading(tenant_no) as connection:
        found = await search_jobs(connection, tenant_no, wanted, query.cursor, PAGE_SIZE)
    return JobsView(
        now=now,
        query=query,
        rows=tuple(_line(row) for row in found.rows),
        older=query.address("/jobs", found.next) if found.next else None,
        searched_through=found.searched_through,
    )


def _line(row: JobRow) -> JobLine:
    schedule = "Once, now" if row.spec.schedule is None else in_words(row.spec.schedule)
    return JobLine(
        row.id, row.spec.name, row.state, row.state_reason, schedule, row.next_fire_at, zone_of_job(row.spec)
    )


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
