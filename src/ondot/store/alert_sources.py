"""What alerts look at (O4): letters, ends, waits, workers, misses, blocked runs, conditions. Read for all alerts of a
kind at once, over the tenants that have such alerts (None: all)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ondot.model.alerts.scope import JobFacts
from ondot.model.ids import JobId, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("alert_sources")

Tenants = Collection[TenantNo] | None


@dataclass(frozen=True, slots=True)
class Letters:
    """Open dead letters of one job."""

    tenant_no: TenantNo
    job_id: JobId
    count: int
    first_at: datetime
    failed_ats: list[datetime]
    """The latest, newest first."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures of one job within a time."""

    within_s: float
    tenant_no: TenantNo
    job_id: JobId
    count: int
    first_at: datetime


@dataclass(frozen=True, slots=True)
class LatestLetter:
    job_id: JobId
    execution_id: UUID
    fingerprint: str
    message: str


@dataclass(frozen=True, slots=True)
class Late:
    """Executions of one job that should have started."""

    tenant_no: TenantNo
    job_id: JobId
    due_at: datetime
    count: int
    is_held_back: bool
    execution_id: UUID


@dataclass(frozen=True, slots=True)
class Wait:
    """The oldest execution of a tenant that waits in a pool."""

    pool: str
    tenant_no: TenantNo
    is_held_back: bool
    since: datetime
    execution_id: UUID


@dataclass(frozen=True, slots=True)
class Missed:
    tenant_no: TenantNo
    job_id: JobId
    count: int
    from_at: datetime
    to_at: datetime
    ago_s: float


@dataclass(frozen=True, slots=True)
class Blocked:
    """A run (`id` is its id), or a job that waits for others (`id` is its execution's)."""

    tenant_no: TenantNo
    job_id: JobId
    id: UUID
    since: datetime
    reason: str
    is_run: bool


@dataclass(frozen=True, slots=True)
class Condition:
    kind: str
    tenant_no: TenantNo
    subject: str
    job_id: JobId | None
    since: datetime
    message: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HeldByQuota:
    """`per_s`: the length in seconds of a quota of starts; None: of running attempts."""

    tenant_no: TenantNo
    quota: str
    most: int
    per_s: float | None
    since: datetime


@dataclass(frozen=True, slots=True)
class FoundByCheck:
    kind: str
    count: int
    last_at: datetime
    example: Any


@dataclass(frozen=True, slots=True)
class KnownJob:
    id: JobId
    tenant_no: TenantNo
    tenant: str
    facts: JobFacts


async def open_letters_by_job(connection: Connection, tenants: Tenants, most: int, instants: int) -> list[Letters]:
    rows = await connection.fetch(_SQL["open_letters_by_job"].text, _list(tenants), most, instants)
    return [Letters(*row.values()) for row in rows]


async def open_letters_of_jobs(connection: Connection, job_ids: Collection[JobId], instants: int) -> list[Letters]:
    rows = await connection.fetch(_SQL["open_letters_of_jobs"].text, list(job_ids), instants)
    return [Letters(*row.values()) for row in rows]


async def failures_by_job(
    connection: Connection, tenants: Tenants, within_s: Collection[float], most: int
) -> list[Failures]:
    rows = await connection.fetch(_SQL["failures_by_job"].text, _list(tenants), list(within_s), most)
    return [Failures(*row.values()) for row in rows]


async def last_ends(
    connection: Connection, job_ids: Collection[JobId], from_id: UUID, most: int
) -> dict[JobId, list[str]]:
    """How the last executions of each job ended, newest first."""
    rows = await connection.fetch(_SQL["last_ends"].text, list(job_ids), from_id, most)
    return {row["job_id"]: row["states"] for row in rows}


async def latest_letters(connection: Connection, job_ids: Collection[JobId]) -> dict[JobId, LatestLetter]:
    rows = await connection.fetch(_SQL["latest_letters"].text, list(job_ids))
    return {row["job_id"]: LatestLetter(*row.values()) for row in rows}


async def late_executions(connection: Connection, over_s: float, most: int, lines: int) -> list[Late]:
    rows = await connection.fetch(_SQL["late_executions"].text, over_s, most, lines)
    return [Late(*row.values()) for row in rows]


async def oldest_waits(connection: Connection, over_s: float, lines: int, *, held_back: bool) -> list[Wait]:
    rows = await connection.fetch(_SQL["oldest_waits"].text, held_back, over_s, lines)
    return [Wait(*row.values()) for row in rows]


async def live_workers(
    connection: Connection, wanted: Sequence[tuple[str, TenantNo]]
) -> dict[tuple[str, TenantNo], int]:
    rows = await connection.fetch(
        _SQL["live_workers"].text, [pool for pool, _ in wanted], [tenant_no for _, tenant_no in wanted]
    )
    return {(row["pool"], TenantNo(row["tenant_no"])): row["count"] for row in rows}


async def recent_misses(connection: Connection, tenants: Tenants, within_s: float, most: int) -> list[Missed]:
    rows = await connection.fetch(_SQL["recent_misses"].text, _list(tenants), within_s, most)
    return [Missed(*row.values()) for row in rows]


async def blocked_now(connection: Connection, tenants: Tenants, most: int) -> list[Blocked]:
    rows = await connection.fetch(_SQL["blocked_now"].text, _list(tenants), most)
    return [Blocked(*row.values()) for row in rows]


async def conditions_now(
    connection: Connection, kinds: Collection[str], tenants: Tenants, most: int
) -> list[Condition]:
    rows = await connection.fetch(_SQL["conditions_now"].text, list(kinds), _list(tenants), most)
    return [Condition(**{**dict(row), "details": msgspec.json.decode(row["details"])}) for row in rows]


async def held_by_quotas(connection: Connection, tenants: Tenants) -> list[HeldByQuota]:
    rows = await connection.fetch(_SQL["held_by_quotas"].text, _list(tenants))
    return [HeldByQuota(*row.values()) for row in rows]


async def found_recently(connection: Connection, within_s: float) -> list[FoundByCheck]:
    rows = await connection.fetch(_SQL["found_recently"].text, within_s)
    return [FoundByCheck(**{**dict(row), "example": msgspec.json.decode(row["example"])}) for row in rows]


async def describe_jobs(connection: Connection, job_ids: Collection[JobId]) -> dict[JobId, KnownJob]:
    """Deleted jobs are left out."""
    rows = await connection.fetch(_SQL["describe_jobs"].text, list(job_ids))
    return {
        row["id"]: KnownJob(
            row["id"],
            TenantNo(row["tenant_no"]),
            row["tenant"],
            JobFacts(row["name"], row["pool"], msgspec.json.decode(row["labels"])),
        )
        for row in rows
    }


def _list(tenants: Tenants) -> list[TenantNo] | None:
    return None if tenants is None else list(tenants)
