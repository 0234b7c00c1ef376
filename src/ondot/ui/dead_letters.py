"""`/dead-letters`: failed executions that wait for a person, by what they failed with (E10, O5).

First the groups of open letters whose errors are alike, then the letters of a group; those that were replayed or
discarded can be looked at as well. Only reads: what a person does about letters goes through the API, counted first by
a dry run, and operations on many of them are read from the API too, by the page's script.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from ondot.model.fingerprint import UNKNOWN
from ondot.model.ids import EPOCH, JobId, TenantNo
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

GROUPS_SHOWN: Final = 100
JOBS_OF_A_GROUP: Final = 4
SHOWN: Final = 50
MESSAGE_CHARACTERS: Final = 400
DETAIL_CHARACTERS: Final = 20_000
STATES: Final[tuple[LetterState, ...]] = ("open", "replayed", "discarded")
MICROSECOND: Final = timedelta(microseconds=1)
CURSOR: Final = re.compile(r"(\d{1,16})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)
DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for: what cannot be read in it is passed over."""

    state: LetterState = "open"
    fingerprint: str = ""
    job_id: UUID | None = None
    q: str = ""
    cursor: str = ""

    def address(self, **changes: Any) -> str:
        wanted = replace(self, **({"cursor": ""} | changes))
        given = {
            "state": "" if wanted.state == "open" else wanted.state,
            "fingerprint": wanted.fingerprint,
            "job_id": wanted.job_id,
            "q": wanted.q,
            "cursor": wanted.cursor,
        }
        query = urlencode({name: str(value) for name, value in given.items() if value})
        return f"/dead-letters?{query}" if query else "/dead-letters"

    @property
    def filter(self) -> LetterFilter:
        return LetterFilter(job_id=self.job_id, fingerprint=self.fingerprint or None, q=self.q or None)

    @property
    def in_groups(self) -> bool:
        """Of open letters the groups, until one of them is asked for."""
        return self.state == "open" and not self.fingerprint

    def which(self, fingerprint: str | None = None) -> dict[str, Any]:
        """The letters of a group, or all that this address asks for, as the API is told."""
        given = {
            "fingerprint": fingerprint or self.fingerprint,
            "job_id": self.job_id and str(self.job_id),
            "q": self.q,
        }
        filter_ = {name: value for name, value in given.items() if value}
        return {"filter": filter_} if filter_ else {"all": True}


@dataclass(frozen=True, slots=True)
class JobName:
    id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class Group:
    """`detail`: of the newest of them, what its error says beside its message. `jobs`: one for each name, of some."""

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


@dataclass(frozen=True, slots=True)
class LettersView:
    """`total`: open letters that match. `job`: the one that is asked for. `group`: that whose letters are listed."""

    now: datetime
    asked: Asked
    total: int
    groups: tuple[Group, ...]
    group: Group | None
    rows: tuple[Letter, ...]
    older: str | None
    job: JobName | None

    @property
    def mark(self) -> str:
        """The same for as long as nothing but the time changes."""
        return sha256(repr(replace(self, now=DATE)).encode()).hexdigest()[:12]


def asked_of(query: Mapping[str, str]) -> Asked:
    return Asked(
        state=next((state for state in STATES if state == query.get("state")), "open"),
        fingerprint=_plain(query.get("fingerprint", ""), 64),
        job_id=_uuid(query.get("job_id", "")),
        q=_plain(query.get("q", ""), 200),
        cursor=query.get("cursor", ""),
    )


async def read_letters(database: Database, tenant_no: TenantNo, asked: Asked) -> LettersView:
    """By at most five bounded statements; the count of open letters reads an index that has no others."""
    async with database.connection() as connection:
        total, now = await count_letters(connection, tenant_no, asked.filter)
        found: list[LetterGroup] = []
        if asked.state == "open":
            found = await group_letters(connection, tenant_no, asked.filter, limit=GROUPS_SHOWN, jobs=JOBS_OF_A_GROUP)
        rows: list[LetterRow] = []
        if not asked.in_groups:
            rows = await list_letters(
                connection, tenant_no, asked.filter, state=asked.state, before=_place(asked.cursor), limit=SHOWN + 1
            )
        shown = rows[:SHOWN]
        ids = {*(row.job_id for row in shown), *(id_ for group in found for id_ in group.job_ids)}
        if asked.job_id:
            ids.add(JobId(asked.job_id))
        names = await find_job_names(connection, tenant_no, list(ids)) if ids else {}
    groups = tuple(_group(group, asked, names) for group in found)
    return LettersView(
        now=now,
        asked=asked,
        total=total,
        groups=groups if asked.in_groups else (),
        group=groups[0] if groups and asked.fingerprint else None,
        rows=tuple(_letter(row, names) for row in shown),
        older=asked.address(cursor=_cursor(shown[-1])) if len(rows) > SHOWN else None,
        job=JobName(asked.job_id, _name(JobId(asked.job_id), names)) if asked.job_id else None,
    )


async def count_open(database: Database, tenant_no: TenantNo) -> int:
    """How many letters wait for a person: the number beside the link to them."""
    async with database.connection() as connection:
        return (await count_letters(connection, tenant_no, LetterFilter()))[0]


async def open_letters_of(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, limit: int
) -> tuple[int, Sequence[Letter]]:
    """The open letters of a job: how many, and the newest of them."""
    wanted = LetterFilter(job_id=job_id)
    rows = await list_letters(connection, tenant_no, wanted, limit=limit)
    if len(rows) < limit:
        return len(rows), [_letter(row, {}) for row in rows]
    return (await count_letters(connection, tenant_no, wanted))[0], [_letter(row, {}) for row in rows]


def _group(group: LetterGroup, asked: Asked, names: Mapping[JobId, str]) -> Group:
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
        address=asked.address(fingerprint=group.fingerprint or UNKNOWN),
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
    )


def _message(error: Mapping[str, Any], otherwise: str | None) -> str:
    return one_line(str(error.get("message") or otherwise or "It gave no message."))[:MESSAGE_CHARACTERS]


def _name(job_id: JobId, names: Mapping[JobId, str]) -> str:
    """A one-time job's name goes with its day; its letter stays."""
    return names.get(job_id) or f"job {job_id}"


def _cursor(row: LetterRow) -> str:
    return f"{(row.failed_at - EPOCH) // MICROSECOND}.{row.execution_id}"


def _place(cursor: str) -> tuple[datetime, UUID] | None:
    found = CURSOR.fullmatch(cursor)
    return (EPOCH + int(found[1]) * MICROSECOND, UUID(found[2])) if found else None


def _plain(text: str, longest: int) -> str:
    return text.replace("\0", "").strip()[:longest]


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
