"""`/executions`: all executions, by state, pool and time of the fire, page by page (O5).

As in `/jobs`, values of the query that cannot be parsed are ignored, and pages have the same cursor as the API's list.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from ondot.model.errors import InvalidQuery
from ondot.model.execution import State
from ondot.model.ids import TenantNo
from ondot.model.job import JobSpec
from ondot.model.query import merge, parse
from ondot.model.query.query import term
from ondot.store.database import Database
from ondot.store.executions import ExecutionRow, list_executions
from ondot.store.pools import find_pools
from ondot.store.search import search_executions
from ondot.ui.run_states import step_name
from ondot.words.job import ORIGINS, one_line, took, zone_of_job

PAGE_SIZE: Final = 50
LONGEST_POOL: Final = 63
LONGEST_SEARCH: Final = 2_100
"""A little more than a search may have: a longer one is rejected in words, not cut."""
DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)
WITHIN: Final = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
"""The periods to choose from, back from now."""


@dataclass(frozen=True, slots=True)
class Query:
    """`cursor`: the last execution of the page before."""

    state: State | None = None
    pool: str = ""
    within: str = ""
    cursor: UUID | None = None
    steps: bool = False
    """Only the steps of runs, which are left out otherwise."""
    q: str = ""
    """A search: see `model.query`."""

    def address(self, cursor: UUID | None = None) -> str:
        state, steps = self.state and self.state.value, "yes" if self.steps else ""
        fields = {"q": self.q, "state": state, "pool": self.pool, "within": self.within, "steps": steps}
        return _add_query("/executions", fields | {"cursor": cursor})

    def as_json(self, now: datetime) -> str:
        from_at = now - WITHIN[self.within] if self.within else None
        instant = from_at and f"{from_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        state = self.state and self.state.value
        origin = "step" if self.steps else ""
        fields = {"q": self.q, "state": state, "pool": self.pool, "from_at": instant, "origin": origin}
        return _add_query("/v1/executions", fields | {"cursor": self.cursor})

    def as_file(self, now: datetime) -> str:
        """The address of all these executions as CSV."""
        address = replace(self, cursor=None).as_json(now)
        return f"{address}{'&' if '?' in address else '?'}format=csv"

    def as_search(self) -> str:
        """The same executions as one search; empty if all are listed, or the fields say what no search can."""
        if self.within or self.steps:
            return ""
        state = self.state and f"state:{self.state.value.lower()}"
        return " ".join(filter(None, (self.q, state, self.pool and f'pool:"{self.pool}"')))

    @property
    def is_filtered(self) -> bool:
        return self != Query()


@dataclass(frozen=True, slots=True)
class ExecutionLine:
    id: UUID
    name: str
    state: State
    origin: str
    pool: str
    fire_at: datetime
    took: str | None
    attempts: int
    message: str
    zone: str | None


@dataclass(frozen=True, slots=True)
class ExecutionsView:
    now: datetime
    query: Query
    rows: tuple[ExecutionLine, ...]
    older: str | None
    """The address of the next page."""
    fault: str | None = None
    """Why the search cannot be parsed."""
    searched_through: datetime | None = None
    """If the time of the search was up before the page was full: how far back it came."""

    @property
    def mark(self) -> str:
        """A hash of the view, which stays the same while only the time changes."""
        return sha256(repr(replace(self, now=DATE, searched_through=None)).encode()).hexdigest()[:12]


def parse_query(parameters: Mapping[str, str]) -> Query:
    within = parameters.get("within", "")
    return Query(
        state=next((state for state in State if state.value == parameters.get("state", "").upper()), None),
        pool=parameters.get("pool", "").replace("\0", "").strip()[:LONGEST_POOL],
        within=within if within in WITHIN else "",
        cursor=_uuid(parameters.get("cursor", "")),
        steps=parameters.get("steps") == "yes",
        q=parameters.get("q", "").replace("\0", "").strip()[:LONGEST_SEARCH],
    )


async def read_executions(database: Database, tenant_no: TenantNo, query: Query) -> ExecutionsView:
    now = database.clock.now()
    if query.q:
        return await _search(database, tenant_no, query, now)
    async with database.reading(tenant_no) as connection:
        pools = await find_pools(connection, [query.pool]) if query.pool else {}
        rows: list[ExecutionRow] = []
        if not query.pool or query.pool in pools:
            rows = await list_executions(
                connection,
                tenant_no,
                before=query.cursor,
                limit=PAGE_SIZE + 1,
                horizon_s=database.settings.horizon_s,
                state=query.state.value if query.state else None,
                from_at=now - WITHIN[query.within] if query.within else None,
                pool_nos=list(pools.values()) if query.pool else None,
                origin="step" if query.steps else None,
            )
        page = rows[:PAGE_SIZE]
        specs = await database.specs.find(connection, {(row.job_id, row.job_version) for row in page})
    return ExecutionsView(
        now=now,
        query=query,
        rows=tuple(_line(row, specs.get((row.job_id, row.job_version))) for row in page),
        older=query.address(page[-1].id) if len(rows) > PAGE_SIZE else None,
    )


async def _search(database: Database, tenant_no: TenantNo, query: Query, now: datetime) -> ExecutionsView:
    try:
        wanted = parse(query.q, "executions")
    except InvalidQuery as error:
        return ExecutionsView(now, query, (), None, fault=error.message)
    terms = [
        query.state and term("state", query.state.value),
        query.pool and term("pool", query.pool),
        query.within and term("since", query.within),
        query.steps and term("origin", "step"),
    ]
    wanted = merge(wanted, [each for each in terms if each])
    async with database.reading(tenant_no) as connection:
        found = await search_executions(connection, tenant_no, wanted, query.cursor, PAGE_SIZE)
        specs = await database.specs.find(connection, {(row.job_id, row.job_version) for row in found.rows})
    return ExecutionsView(
        now=now,
        query=query,
        rows=tuple(_line(row, specs.get((row.job_id, row.job_version))) for row in found.rows),
        older=query.address(found.next) if found.next else None,
        searched_through=found.searched_through,
    )


def _line(row: ExecutionRow, spec: JobSpec | None) -> ExecutionLine:
    ran_s = (row.ended_at - row.started_at).total_seconds() if row.ended_at and row.started_at else None
    message = str((row.error or {}).get("message") or row.reason or "")
    return ExecutionLine(
        id=row.id,
        name=_name(row, spec),
        state=row.state,
        origin="" if row.origin == "fire" else ORIGINS.get(row.origin, row.origin),
        pool=row.pool,
        fire_at=row.fire_at,
        took=None if ran_s is None else took(ran_s),
        attempts=row.attempt_no,
        message="" if row.state is State.SUCCEEDED else one_line(message)[:300],
        zone=zone_of_job(spec),
    )


def _name(row: ExecutionRow, spec: JobSpec | None) -> str:
    name = spec.name if spec else f"job {row.job_id}"
    if row.step_no is None:
        return name
    item = "" if row.item_no is None else f" {row.item_no}"
    return f"{name}: {step_name(spec, row.step_no)}{item}"


def _add_query(path: str, fields: Mapping[str, object]) -> str:
    query = urlencode({name: str(value) for name, value in fields.items() if value})
    return f"{path}?{query}" if query else path


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
