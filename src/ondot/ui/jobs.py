"""`/jobs`: the definitions, by state and by a search, page by page (O5).

A definition recurs or has a key. Jobs that run once and have none are found under `/executions`, or here by the search
`definition:no`. Values of the query that cannot be parsed, such as an unknown state, are ignored: a click should find
jobs, not fail. `mark` changes only if more than the time has changed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from ondot.flow.declared_jobs import Declaration, read_declarations
from ondot.model.errors import InvalidQuery
from ondot.model.ids import JobId, TenantNo
from ondot.model.job import JobState
from ondot.model.query import merge, parse
from ondot.model.query.query import Query as Search
from ondot.model.query.query import term
from ondot.model.schedule import in_words
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.definitions import Run, find_latest_runs, list_definitions, list_definitions_by_name
from ondot.store.jobs import JobRow, get_job
from ondot.store.newest import NO_ID
from ondot.store.search_jobs import search_jobs
from ondot.ui.spark import Spark, draw_spark
from ondot.words.job import target_in_words, took, zone_of_job

PAGE_SIZE: Final = 50
RUNS_DRAWN: Final = 20
LABELS_SHOWN: Final = 4
LONGEST_SEARCH: Final = 2_100
"""A little more than a search may have: a longer one is rejected in words, not cut."""
SORTS: Final = {"": "newest first", "name": "by name"}
DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)
_ASKS: Final = re.compile(r"(?:^|[\s-])definition\s*(?:!?=|:)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Query:
    """`cursor`: the last job of the page before."""

    state: JobState | None = None
    q: str = ""
    cursor: UUID | None = None
    sort: str = ""

    def address(self, path: str, cursor: UUID | None = None) -> str:
        state = self.state and self.state.value
        return _with_fields(path, {"state": state, "q": self.q, "sort": self.sort, "cursor": cursor})

    def as_json(self) -> str:
        """The address of these jobs in the API."""
        return _with_fields("/v1/jobs", {"q": self.whole_search, "cursor": self.cursor})

    def as_file(self) -> str:
        """The address of all these jobs as CSV."""
        return _with_fields("/v1/jobs", {"q": self.whole_search, "format": "csv"})

    @property
    def whole_search(self) -> str:
        """The same jobs as one search."""
        kind = "" if _ASKS.search(self.q) else "definition:yes"
        return " ".join(filter(None, (self.q, self.state and f"state:{self.state.value.lower()}", kind)))

    def as_search(self) -> str:
        """The same; empty if all are listed."""
        return self.whole_search if self.q or self.state else ""

    @property
    def is_filtered(self) -> bool:
        return bool(self.q or self.state or self.cursor)


@dataclass(frozen=True, slots=True)
class JobLine:
    """`why`: why the job is in its state, unless a person set it; `last`: its latest run that has ended."""

    id: UUID
    name: str
    key: str | None
    state: JobState
    why: str | None
    schedule: str
    next_fire_at: datetime | None
    zone: str | None
    target: str
    pool: str
    labels: tuple[tuple[str, str], ...]
    more_labels: int
    last: Run | None
    last_took: str | None
    spark: Spark
    off_code: str | None = None
    """How it differs from what an app's code declares."""


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

    @property
    def mark(self) -> str:
        """A hash of the view, which stays the same while only the time changes."""
        return sha256(repr(replace(self, now=DATE)).encode()).hexdigest()[:12]


def parse_query(parameters: Mapping[str, str]) -> Query:
    sort = parameters.get("sort", "")
    return Query(
        state=next((state for state in JobState if state.value == parameters.get("state", "").upper()), None),
        q=parameters.get("q", "").replace("\0", "").strip()[:LONGEST_SEARCH],
        cursor=_uuid(parameters.get("cursor", "")),
        sort=sort if sort in SORTS else "",
    )


async def read_jobs(database: Database, tenant_no: TenantNo, query: Query) -> JobsView:
    """Reads with a bounded number of statements."""
    view = JobsView(database.clock.now(), query, (), None)
    async with database.reading(tenant_no) as connection:
        if query.q:
            try:
                wanted = _search_of(query)
            except InvalidQuery as error:
                return replace(view, fault=error.message)
            found = await search_jobs(connection, tenant_no, wanted, query.cursor, PAGE_SIZE)
            page, next_id = found.rows, found.next
            view = replace(view, searched_through=found.searched_through)
        else:
            rows = await _list(connection, tenant_no, query)
            page = rows[:PAGE_SIZE]
            next_id = page[-1].id if len(rows) > PAGE_SIZE else None
        runs = await find_latest_runs(connection, tenant_no, page, RUNS_DRAWN)
        declared = await read_declarations(connection, tenant_no, page)
    return replace(
        view,
        rows=tuple(_line(row, runs.get(row.id, ()), declared.get(row.id)) for row in page),
        older=query.address("/jobs", next_id) if next_id else None,
    )


def _search_of(query: Query) -> Search:
    wanted = parse(query.q, "jobs")
    terms = [term("state", query.state.value)] if query.state else []
    if not any(wanted.named("definition")):
        terms.append(term("definition", "yes"))
    return merge(wanted, terms)


async def _list(connection: Connection, tenant_no: TenantNo, query: Query) -> list[JobRow]:
    state = query.state.value if query.state else None
    limit = PAGE_SIZE + 1
    if query.sort == "name":
        last = None if query.cursor is None else await get_job(connection, tenant_no, JobId(query.cursor))
        after = ("", NO_ID) if last is None else (last.spec.name, last.id)
        return await list_definitions_by_name(connection, tenant_no, after=after, limit=limit, state=state)
    return await list_definitions(connection, tenant_no, before=query.cursor, limit=limit, state=state)


def _line(row: JobRow, runs: Sequence[Run], declared: Declaration | None = None) -> JobLine:
    spec = row.spec
    last = next((run for run in runs if run.ended_at is not None), None)
    took_s = None if last is None else last.took_s
    return JobLine(
        id=row.id,
        name=spec.name,
        key=spec.key,
        state=row.state,
        why=row.state_reason,
        schedule="Once, now" if spec.schedule is None else in_words(spec.schedule),
        next_fire_at=row.next_fire_at,
        zone=zone_of_job(spec),
        target=target_in_words(spec.target),
        pool=spec.pool,
        labels=tuple(spec.labels.items())[:LABELS_SHOWN],
        more_labels=max(len(spec.labels) - LABELS_SHOWN, 0),
        last=last,
        last_took=None if took_s is None else took(took_s),
        spark=draw_spark(runs, RUNS_DRAWN),
        off_code=None if declared is None or not declared.is_off_the_code else declared.in_words,
    )


def _with_fields(path: str, fields: Mapping[str, object]) -> str:
    written = urlencode({name: str(value) for name, value in fields.items() if value})
    return f"{path}?{written}" if written else path


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
