"""`/runs`: runs of all workflows that have started, newest first, by state, time and a search (W8, W9, O1, O5).

Everything the page lists comes from the search of runs, which has a budget of time: it stays quick on a history of any
size, and says how far back it came. Values of the query that cannot be parsed are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from ondot.model.errors import InvalidQuery
from ondot.model.ids import TenantNo
from ondot.model.job import JobSpec
from ondot.model.query import merge, parse
from ondot.model.query.query import term
from ondot.model.workflow.states import ENDED_RUNS, RunState
from ondot.store.database import Database
from ondot.store.executions import OriginRow, find_origins
from ondot.store.run_reads import RunRow
from ondot.store.search_runs import search_runs
from ondot.words.job import ORIGINS, one_line, took, zone_of_job

PAGE_SIZE: Final = 50
LONGEST_SEARCH: Final = 2_100
"""A little more than a search may have: a longer one is rejected in words, not cut."""
WITHIN: Final = ("1h", "24h", "7d")
"""The periods to choose from, back from now."""
DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Query:
    """`cursor`: the last run of the page before."""

    state: RunState | None = None
    within: str = ""
    q: str = ""
    cursor: UUID | None = None

    def address(self, cursor: UUID | None = None) -> str:
        return _add_query("/runs", {"q": self.q, "state": self.state, "within": self.within, "cursor": cursor})

    def as_json(self, form: str = "") -> str:
        """These runs from the API; `form`: all of them as a file."""
        since = f"since:{self.within}" if self.within else ""
        q = " ".join(filter(None, (self.q, since)))
        cursor = None if form else self.cursor
        return _add_query("/v1/runs", {"q": q, "state": self.state, "cursor": cursor, "format": form})

    def as_search(self) -> str:
        """The same runs as one search; empty if all are listed."""
        state = self.state and f"state:{self.state.value.lower()}"
        return " ".join(filter(None, (self.q, state, self.within and f"since:{self.within}")))

    @property
    def is_filtered(self) -> bool:
        return self != Query()


@dataclass(frozen=True, slots=True)
class RunLine:
    """`done` of `total` steps; `trouble`: those that failed or are blocked, in words."""

    id: UUID
    job_id: UUID
    name: str
    state: RunState
    is_paused: bool
    origin: str
    parent: UUID | None
    started_at: datetime | None
    took: str | None
    done: int
    total: int
    trouble: str
    reason: str
    zone: str | None

    @property
    def is_live(self) -> bool:
        return self.state not in ENDED_RUNS


@dataclass(frozen=True, slots=True)
class RunsView:
    now: datetime
    query: Query
    rows: tuple[RunLine, ...] = ()
    older: str | None = None
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
    within = parameters.get("within", "")
    return Query(
        state=next((state for state in RunState if state.value == parameters.get("state", "").upper()), None),
        within=within if within in WITHIN else "",
        q=parameters.get("q", "").replace("\0", "").strip()[:LONGEST_SEARCH],
        cursor=_uuid(parameters.get("cursor", "")),
    )


async def read_runs(database: Database, tenant_no: TenantNo, query: Query) -> RunsView:
    now = database.clock.now()
    try:
        wanted = parse(query.q, "runs")
    except InvalidQuery as error:
        return RunsView(now, query, fault=error.message)
    terms = [query.state and term("state", query.state.value), query.within and term("since", query.within)]
    wanted = merge(wanted, [each for each in terms if each])
    async with database.reading(tenant_no) as connection:
        found = await search_runs(connection, tenant_no, wanted, query.cursor, PAGE_SIZE)
        specs = await database.specs.find(connection, {(row.job_id, row.job_version) for row in found.rows})
        origins = await find_origins(connection, tenant_no, [row.id for row in found.rows])
    return RunsView(
        now=now,
        query=query,
        rows=tuple(_line(row, origins.get(row.id), specs.get((row.job_id, row.job_version))) for row in found.rows),
        older=query.address(found.next) if found.next else None,
        searched_through=found.searched_through,
    )


def _line(row: RunRow, made: OriginRow | None, spec: JobSpec | None) -> RunLine:
    ran_s = (row.ended_at - row.started_at).total_seconds() if row.ended_at and row.started_at else None
    steps = (row.waiting, row.active, row.succeeded, row.failed, row.skipped, row.blocked)
    trouble = ((row.failed, "failed"), (row.blocked, "blocked"))
    return RunLine(
        id=row.id,
        job_id=row.job_id,
        name=spec.name if spec else f"workflow {row.job_id}",
        state=row.state,
        is_paused=row.is_paused,
        origin="" if made is None else ORIGINS.get(made.origin, made.origin),
        parent=row.parent_run_id,
        started_at=row.started_at,
        took=None if ran_s is None else took(ran_s),
        done=row.succeeded + row.skipped,
        total=sum(steps),
        trouble=", ".join(f"{count:,} {word}" for count, word in trouble if count),
        reason="" if row.state is RunState.SUCCEEDED else one_line(row.reason or "")[:300],
        zone=zone_of_job(spec),
    )


def _add_query(path: str, fields: Mapping[str, object]) -> str:
    query = urlencode({name: str(value) for name, value in fields.items() if value})
    return f"{path}?{query}" if query else path


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
