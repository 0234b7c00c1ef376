"""`/dead-letters`: failed executions that wait for a person, grouped by their errors (E10, O5).

First the groups of open letters with similar errors, then the letters of a group, then replayed and discarded letters.
This module only reads. The page's script replays and discards through the API, after a dry run that counts the
letters, and reads the progress of bulk operations from the API too.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from ondot.model.errors import InvalidQuery
from ondot.model.fingerprint import UNKNOWN
from ondot.model.ids import EPOCH, JobId, TenantNo
from ondot.model.query import parse
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.dead_letters import (
    LetterFilter,
    LetterGroup,
    LetterRow,
    LetterState,
    count_letters,
    find_job_names,
    group_letters,
    list_letters,
)
from ondot.words.job import one_line

MOST_GROUPS: Final = 100
JOBS_PER_GROUP: Final = 4
PAGE_SIZE: Final = 50
LONGEST_SEARCH: Final = 2_100
"""A little more than a search may have: a longer one is rejected in words, not cut."""
MESSAGE_CHARACTERS: Final = 400
DETAIL_CHARACTERS: Final = 20_000
STATES: Final[tuple[LetterState, ...]] = ("open", "replayed", "discarded", "handled")
MICROSECOND: Final = timedelta(microseconds=1)
CURSOR: Final = re.compile(r"(\d{1,16})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)
DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Query:
    """The page's query. Values that cannot be parsed are ignored."""

    state: LetterState = "open"
    fingerprint: str = ""
    job_id: UUID | None = None
    q: str = ""
    cursor: str = ""

    def address(self, **changes: Any) -> str:
        query = replace(self, **({"cursor": ""} | changes))
        fields = {
            "state": "" if query.state == "open" else query.state,
            "fingerprint": query.fingerprint,
            "job_id": query.job_id,
            "q": query.q,
            "cursor": query.cursor,
        }
        written = urlencode({name: str(value) for name, value in fields.items() if value})
        return f"/dead-letters?{written}" if written else "/dead-letters"

    @property
    def filter(self) -> LetterFilter:
        return LetterFilter(job_id=self.job_id, fingerprint=self.fingerprint or None, q=self.q or None)

    @property
    def shows_groups(self) -> bool:
        """Open letters are shown in groups until one group is chosen, or the search asks for another state."""
        query = self.filter.query
        return self.state == "open" and not self.fingerprint and not (query and query.asks_for("state"))

    @property
    def fault(self) -> str | None:
        """Why the search cannot be parsed."""
        try:
            parse(self.q, "dead_letters")
        except InvalidQuery as error:
            return error.message
        return None

    def as_search(self) -> str:
        """The same letters as one search; empty if all open ones are listed."""
        state = f"state:{self.state}" if self.state != "open" else ""
        group = f"group:{self.fingerprint}" if self.fingerprint else ""
        job = f"job:{self.job_id}" if self.job_id else ""
        return " ".join(filter(None, (self.q, state, group, job)))

    def selection(self, fingerprint: str | None = None) -> dict[str, Any]:
        """The letters of a group, or all letters of this query, as a body of the API."""
        fields = {
            "fingerprint": fingerprint or self.fingerprint,
            "job_id": self.job_id and str(self.job_id),
            "q": self.q,
        }
        filter_ = {name: value for name, value in fields.items() if value}
        return {"filter": filter_} if filter_ else {"all": True}


@dataclass(frozen=True, slots=True)
class JobName:
    id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class Group:
    """`detail`: the detail of the newest letter's error. `jobs`: up to `JOBS_PER_GROUP` jobs, one for each name."""

    fingerprint: str
    count: int
    first_at: datetime
    last_at: datetime
    sample_id: UUID
    code: str
    message: str
    detail: str
    jobs: tuple[JobName, ...]
    job_count: int
    address: str


@dataclass(frozen=True, slots=True)
class Letter:
    id: UUID
    name: str
    job_id: UUID
    state: str
    failed_at: datetime
    message: str
    reason: str | None
    attempts: int | None
    resolved_at: datetime | None
    by: str | None
    why: str | None
    replay_id: UUID | None
    run_id: UUID | None
    """Of a step of a run: its run, in which a replay retries the step."""
    step_no: int | None


@dataclass(frozen=True, slots=True)
class LettersView:
    """`total`: open letters that match. `job`: the job of the query. `group`: the group whose letters are listed."""

    now: datetime
    query: Query
    total: int
    groups: tuple[Group, ...]
    group: Group | None
    rows: tuple[Letter, ...]
    older: str | None
    job: JobName | None
    fault: str | None = None
    """Why the search cannot be parsed."""

    @property
    def mark(self) -> str:
        """A hash of the view, which stays the same while only the time changes."""
        return sha256(repr(replace(self, now=DATE)).encode()).hexdigest()[:12]


def parse_query(parameters: Mapping[str, str]) -> Query:
    return Query(
        state=next((state for state in STATES if state == parameters.get("state")), "open"),
        fingerprint=_clean(parameters.get("fingerprint", ""), 64),
        job_id=_uuid(parameters.get("job_id", "")),
        q=_clean(parameters.get("q", ""), LONGEST_SEARCH),
        cursor=parameters.get("cursor", ""),
    )


async def read_letters(database: Database, tenant_no: TenantNo, query: Query) -> LettersView:
    """Reads with at most five bounded statements. The index of open letters holds no other letters."""
    if (fault := query.fault) is not None:
        return LettersView(database.clock.now(), query, 0, (), None, (), None, None, fault)
    async with database.reading(tenant_no) as connection:
        total, now = await count_letters(connection, tenant_no, query.filter)
        found: list[LetterGroup] = []
        if query.state == "open":
            found = await group_letters(connection, tenant_no, query.filter, limit=MOST_GROUPS, jobs=JOBS_PER_GROUP)
        rows: list[LetterRow] = []
        if not query.shows_groups:
            rows = await list_letters(
                connection, tenant_no, query.filter, state=query.state, before=_place(query.cursor), limit=PAGE_SIZE + 1
            )
        page = rows[:PAGE_SIZE]
        ids = {*(row.job_id for row in page), *(id_ for group in found for id_ in group.job_ids)}
        if query.job_id:
            ids.add(JobId(query.job_id))
        names = await find_job_names(connection, tenant_no, list(ids)) if ids else {}
    groups = tuple(_group(group, query, names) for group in found)
    return LettersView(
        now=now,
        query=query,
        total=total,
        groups=groups if query.shows_groups else (),
        group=groups[0] if groups and query.fingerprint else None,
        rows=tuple(_letter(row, names) for row in page),
        older=query.address(cursor=_cursor(page[-1])) if len(rows) > PAGE_SIZE else None,
        job=JobName(query.job_id, _name(JobId(query.job_id), names)) if query.job_id else None,
    )


async def count_open(database: Database, tenant_no: TenantNo) -> int:
    """How many letters wait for a person: the number on the link to this page."""
    async with database.reading(tenant_no) as connection:
        return (await count_letters(connection, tenant_no, LetterFilter()))[0]


async def list_open_letters(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, limit: int
) -> tuple[int, Sequence[Letter]]:
    """How many open letters a job has, and the newest of them."""
    filter_ = LetterFilter(job_id=job_id)
    rows = await list_letters(connection, tenant_no, filter_, limit=limit)
    if len(rows) < limit:
        return len(rows), [_letter(row, {}) for row in rows]
    return (await count_letters(connection, tenant_no, filter_))[0], [_letter(row, {}) for row in rows]


def _group(group: LetterGroup, query: Query, names: Mapping[JobId, str]) -> Group:
    error = group.sample_error or {}
    return Group(
        fingerprint=group.fingerprint,
        count=group.count,
        first_at=group.first_failed_at,
        last_at=group.last_failed_at,
        sample_id=group.sample_id,
        code=str(error.get("code") or ""),
        message=_message(error, None),
        detail=str(error.get("detail") or "")[:DETAIL_CHARACTERS],
        jobs=tuple(JobName(id_, name) for name, id_ in {_name(id_, names): id_ for id_ in group.job_ids}.items()),
        job_count=group.job_count,
        address=query.address(fingerprint=group.fingerprint or UNKNOWN),
    )


def _letter(row: LetterRow, names: Mapping[JobId, str]) -> Letter:
    return Letter(
        id=row.execution_id,
        name=_name(row.job_id, names),
        job_id=row.job_id,
        state=row.resolution or "open",
        failed_at=row.failed_at,
        message=_message(row.error or {}, row.reason),
        reason=row.reason,
        attempts=row.attempt_no,
        resolved_at=row.resolved_at,
        by=row.resolved_by,
        why=row.resolved_reason,
        replay_id=row.replay_id,
        run_id=row.run_id,
        step_no=row.step_no,
    )


def _message(error: Mapping[str, Any], reason: str | None) -> str:
    return one_line(str(error.get("message") or reason or "No message."))[:MESSAGE_CHARACTERS]


def _name(job_id: JobId, names: Mapping[JobId, str]) -> str:
    """A one-time job's name is dropped with its day; its letter stays."""
    return names.get(job_id) or f"job {job_id}"


def _cursor(row: LetterRow) -> str:
    return f"{(row.failed_at - EPOCH) // MICROSECOND}.{row.execution_id}"


def _place(cursor: str) -> tuple[datetime, UUID] | None:
    found = CURSOR.fullmatch(cursor)
    return (EPOCH + int(found[1]) * MICROSECOND, UUID(found[2])) if found else None


def _clean(text: str, longest: int) -> str:
    return text.replace("\0", "").strip()[:longest]


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
