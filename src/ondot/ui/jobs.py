"""`/jobs`: all jobs, by state and by a part of their names, page by page (O5). Read through the store, like the API's.

What cannot be read in the address, a state that there is none of or a cursor of nothing, is passed over: somebody who
clicks should find jobs, not a refusal. A page is cut where the API cuts it, by the same cursor.
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

SHOWN: Final = 50
LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for; `cursor` is the last job of the page before."""

    state: JobState | None = None
    q: str = ""
    cursor: UUID | None = None

    def address(self, path: str, cursor: UUID | None = None) -> str:
        given = {"state": self.state and self.state.value, "q": self.q, "cursor": cursor and str(cursor)}
        query = urlencode({name: value for name, value in given.items() if value})
        return f"{path}?{query}" if query else path


@dataclass(frozen=True, slots=True)
class JobLine:
    """`why`: the reason of its state, where nobody asked for it by hand."""

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
    asked: Asked
    rows: tuple[JobLine, ...]
    older: str | None
    """The address of the page that follows."""


def asked_of(query: Mapping[str, str]) -> Asked:
    return Asked(
        state=next((state for state in JobState if state.value == query.get("state", "").upper()), None),
        q=query.get("q", "").replace("\0", "").strip()[:LONGEST_NAME],
        cursor=_uuid(query.get("cursor", "")),
    )


async def read_jobs(database: Database, tenant_no: TenantNo, asked: Asked) -> JobsView:
    async with database.connection() as connection:
        rows = await list_jobs(
            connection,
            tenant_no,
            before=asked.cursor,
            limit=SHOWN + 1,
            state=asked.state.value if asked.state else None,
            part=asked.q or None,
        )
    shown = rows[:SHOWN]
    return JobsView(
        now=database.clock.now(),
        asked=asked,
        rows=tuple(_line(row) for row in shown),
        older=asked.address("/jobs", shown[-1].id) if len(rows) > SHOWN else None,
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
