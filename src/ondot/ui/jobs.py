"""`/jobs`: all jobs, by state and by part of the name, page by page (O5).

Values of the query that cannot be parsed, such as an unknown state, are ignored: a click should find jobs, not fail.
Pages have the same cursor as the API's list.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from ondot.model.ids import TenantNo
from ondot.model.job import JobState
from ondot.model.schedule import in_words
from ondot.store.database import Database
from ondot.store.jobs import JobRow, list_jobs
from ondot.words.job import zone_of_job

PAGE_SIZE: Final = 50
LONGEST_NAME: Final = 200


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


def parse_query(parameters: Mapping[str, str]) -> Query:
    return Query(
        state=next((state for state in JobState if state.value == parameters.get("state", "").upper()), None),
        q=parameters.get("q", "").replace("\0", "").strip()[:LONGEST_NAME],
        cursor=_uuid(parameters.get("cursor", "")),
    )


async def read_jobs(database: Database, tenant_no: TenantNo, query: Query) -> JobsView:
    async with database.reading(tenant_no) as connection:
        rows = await list_jobs(
            connection,
            tenant_no,
            before=query.cursor,
            limit=PAGE_SIZE + 1,
            state=query.state.value if query.state else None,
            part=query.q or None,
        )
    page = rows[:PAGE_SIZE]
    return JobsView(
        now=database.clock.now(),
        query=query,
        rows=tuple(_line(row) for row in page),
        older=query.address("/jobs", page[-1].id) if len(rows) > PAGE_SIZE else None,
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
