"""What the page and the metrics show: counts and heads of lists, each read by an index and bounded.

The page repeats its reads every second while it is open, so none of them may grow with the tables: a count stops at a
ceiling, a list is cut before it is sorted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from ondot.model.execution import PriorityClass, State
from ondot.model.held_back import HeldBack, HeldLine, limit_in_words
from ondot.model.ids import ExecutionId, JobId, TenantNo, first_id_at
from ondot.model.job import JobSpec
from ondot.store.connection import Connection, Record
from ondot.store.newest import read_kept
from ondot.store.queries import load_queries
from ondot.store.specs import Specs, Version

_SQL = load_queries("overview")

CEILING = 10_000
"""Counts stop here."""
LOOKED_AT = 2_000
"""Number of newest rows that are searched for the latest executions of a tenant."""
LOOKED_AT_AMONG_TENANTS = 20_000
"""The same, if a tenant's executions may be hidden behind the newest of others."""
LATELY = timedelta(days=8)
"""The first page shows no execution that was created before."""
LINES_LOOKED_AT = 1_000
"""Number of lines that are read: with a key for each customer there may be a million."""
STANDING_STILL = 200
"""Timers without a fire that are read in each partition, to find jobs that ondot paused."""


@dataclass(frozen=True, slots=True)
class Depth:
    pool: str
    priority_class: PriorityClass
    count: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """`held_at`: since when this database starts nothing, and why (`store.lineage`)."""

    now: datetime
    nodes: int
    workers: int
    slots: int
    draining: int
    held_at: datetime | None = None
    held_why: str | None = None
    away: str | None = None
    """What keeps schedulers that run from a lease: etcd."""


@dataclass(frozen=True, slots=True)
class PoolAtWork:
    """`oldest_at`: since when the oldest due execution waits; catch-up work does not count; None: none waits."""

    name: str
    workers: int
    slots: int
    waiting: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunningRow:
    id: ExecutionId
    job_id: JobId
    job_version: int
    started_at: datetime
    attempt_no: int
    total: int
    host: str | None
    pid: int | None
    progress: float | None
    message: str | None
    step_no: int | None
    """Of a step of a run, whose workflow is the job."""


@dataclass(frozen=True, slots=True)
class BlockedRow:
    """A run that waits for a person."""

    id: ExecutionId
    job_id: JobId
    job_version: int
    blocked_at: datetime
    reason: str | None
    total: int


@dataclass(frozen=True, slots=True)
class ComingFire:
    """A coming fire; it is late if the instant of its timer has passed."""

    job_id: JobId
    job_version: int
    at: datetime
    is_planned: bool


@dataclass(frozen=True, slots=True)
class LatestRow:
    id: ExecutionId
    job_id: JobId
    job_version: int
    state: State
    fire_at: datetime
    ready_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    attempt_no: int
    reason: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    execution_id: ExecutionId
    job_id: JobId
    job_version: int
    failed_at: datetime
    reason: str | None
    message: str | None
    total: int


@dataclass(frozen=True, slots=True)
class RecentSkips:
    """Fires that did not run, for one reason. `is_least`: there were more than were counted."""

    reason: str
    count: int
    is_least: bool


@dataclass(frozen=True, slots=True)
class Missed:
    """Fires lost in an outage that no backfill has run since, and of how many jobs. `is_least`: there may be more."""

    count: int
    jobs: int
    is_least: bool


@dataclass(frozen=True, slots=True)
class PausedRow:
    """A job that ondot paused by itself, and why; `total`: how many there are."""

    id: JobId
    name: str
    reason: str
    paused_at: datetime
    total: int


@dataclass(frozen=True, slots=True)
class RecentStates:
    """Recent executions by state. `among`: only the latest were looked at, so many of all tenants; None: all were."""

    counts: dict[str, int]
    among: int | None


async def read_queue_depth(connection: Connection, ceiling: int | None = None) -> list[Depth]:
    rows = await connection.fetch(_SQL["read_queue_depth"].text, ceiling or CEILING)
    return [
        Depth(
            row["pool"],
            PriorityClass(row["class"]),
            row["count"],
            (row["now"] - row["oldest_at"]).total_seconds(),
        )
        for row in rows
    ]


async def count_fleet(connection: Connection, tenant_no: TenantNo | None = None) -> Fleet:
    """`tenant_no`: only the workers that serve a tenant."""
    row = await connection.fetchrow(_SQL["count_fleet"].text, tenant_no)
    assert row is not None
    return Fleet(*row.values())


async def list_pools_at_work(connection: Connection, tenant_no: TenantNo) -> Sequence[PoolAtWork]:
    """The pool whose work has waited longest is first."""
    rows = await connection.fetch(_SQL["pools_at_work"].text, tenant_no, CEILING)
    return [PoolAtWork(*row.values()) for row in rows]


async def read_held_back(
    connection: Connection, specs: Specs, tenant_no: TenantNo | None, *, lines: int, ceiling: int | None = None
) -> HeldBack:
    """Due executions that wait for a limit, of one tenant or of all, with the longest lines."""
    ceiling = ceiling or CEILING
    now = await connection.fetchval("SELECT ondot.clock()")
    rows = await connection.fetch(_SQL["held_back"].text, tenant_no, LINES_LOOKED_AT, ceiling)
    if not rows:
        return HeldBack(now)
    by_kind: dict[str, int] = {}
    for row in rows:
        by_kind[row["kind"]] = by_kind.get(row["kind"], 0) + row["count"]
    longest = sorted(rows, key=lambda row: (-row["count"], row["oldest_at"]))[:lines]
    ids, stages = [row["execution_id"] for row in longest], [row["stage"] for row in longest]
    found = {row["id"]: row for row in await connection.fetch(_SQL["held_back_for"].text, ids, stages, tenant_no)}
    named = await specs.find(connection, {(row["job_id"], row["job_version"]) for row in found.values()})
    return HeldBack(
        now,
        min(sum(by_kind.values()), ceiling),
        rows[0]["is_least"],
        min(row["oldest_at"] for row in rows),
        by_kind,
        # An execution that left its line between the two statements is left out.
        tuple(_held_line(row, found[row["execution_id"]], named) for row in longest if row["execution_id"] in found),
    )


def _held_line(row: Record, first: Record, named: Mapping[Version, JobSpec]) -> HeldLine:
    spec = named.get((first["job_id"], first["job_version"]))
    return HeldLine(
        JobId(first["job_id"]),
        spec.name if spec else f"job {first['job_id']}",
        first["pool"],
        limit_in_words(msgspec.json.decode(first["limit_"])),
        row["count"],
        row["oldest_at"],
    )


async def list_running(connection: Connection, tenant_no: TenantNo, limit: int) -> Sequence[RunningRow]:
    rows = await connection.fetch(_SQL["running_now"].text, tenant_no, limit, CEILING)
    return [RunningRow(*row.values()) for row in rows]


async def list_blocked_runs(connection: Connection, tenant_no: TenantNo, limit: int) -> Sequence[BlockedRow]:
    rows = await connection.fetch(_SQL["blocked_runs"].text, tenant_no, limit, CEILING)
    return [BlockedRow(*row.values()) for row in rows]


async def list_coming_fires(
    connection: Connection, tenant_no: TenantNo, *, planned: int, timers: int
) -> Sequence[ComingFire]:
    rows = await connection.fetch(_SQL["coming_fires"].text, tenant_no, planned, timers)
    return [ComingFire(*row.values()) for row in rows]


async def list_latest_executions(
    connection: Connection, tenant_no: TenantNo, limit: int, *, is_one_of_several: bool = False
) -> Sequence[LatestRow]:
    """`is_one_of_several`: a flood of another tenant does not empty the list."""
    kept = await read_kept(connection)
    from_id = first_id_at(kept.now - LATELY)
    rows = await connection.fetch(_SQL["latest_executions"].text, tenant_no, limit, LOOKED_AT, from_id)
    if is_one_of_several and len(rows) < limit:
        rows = await connection.fetch(
            _SQL["latest_among_tenants"].text, tenant_no, limit, LOOKED_AT_AMONG_TENANTS, from_id
        )
    return [
        LatestRow(
            ExecutionId(row["id"]),
            JobId(row["job_id"]),
            row["job_version"],
            State(row["state"]),
            row["fire_at"],
            row["ready_at"],
            row["started_at"],
            row["ended_at"],
            row["attempt_no"],
            row["reason"],
            row["message"],
        )
        for row in rows
    ]


async def count_recent_states(
    connection: Connection, tenant_no: TenantNo, first_id: UUID, *, is_one_of_several: bool = False
) -> RecentStates:
    """`is_one_of_several`: what did not succeed is counted even in a flood of another tenant."""
    rows = await connection.fetch(_SQL["recent_states"].text, tenant_no, first_id, CEILING)
    most = CEILING
    if is_one_of_several and any(row["looked_at"] == CEILING for row in rows):
        most = LOOKED_AT_AMONG_TENANTS
        rows = await connection.fetch(_SQL["states_among_tenants"].text, tenant_no, first_id, most, CEILING)
    is_cut = any(row["looked_at"] == most for row in rows)
    return RecentStates({row["state"]: row["count"] for row in rows}, most if is_cut else None)


async def count_recent_skips(connection: Connection, tenant_no: TenantNo, window: timedelta) -> Sequence[RecentSkips]:
    """Recently skipped fires by reason, except for those that a calendar leaves out."""
    rows = await connection.fetch(_SQL["recent_skips"].text, tenant_no, window.total_seconds())
    return [RecentSkips(*row.values()) for row in rows]


async def count_missed_fires(connection: Connection, tenant_no: TenantNo, within: timedelta) -> Missed:
    row = await connection.fetchrow(_SQL["missed_fires"].text, tenant_no, within.total_seconds(), LOOKED_AT)
    assert row is not None
    return Missed(*row.values())


async def list_paused_by_itself(connection: Connection, tenant_no: TenantNo, limit: int) -> Sequence[PausedRow]:
    rows = await connection.fetch(_SQL["paused_by_itself"].text, tenant_no, limit, STANDING_STILL)
    return [PausedRow(*row.values()) for row in rows]


async def find_version_created_at(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, version: int
) -> datetime | None:
    """When a version of a job was created; `updated_at` changes with a pause too."""
    made_at: datetime | None = await connection.fetchval(_SQL["version_made_at"].text, tenant_no, job_id, version)
    return made_at


async def list_latest_dead_letters(connection: Connection, tenant_no: TenantNo, limit: int) -> Sequence[DeadLetterRow]:
    rows = await connection.fetch(_SQL["latest_dead_letters"].text, tenant_no, limit, CEILING)
    return [DeadLetterRow(*row.values()) for row in rows]


async def count_jobs(connection: Connection) -> tuple[int, int]:
    """How many recurring jobs are active, and how many are paused, of all tenants."""
    row = await connection.fetchrow(_SQL["count_jobs"].text)
    assert row is not None
    return row["active"], row["paused"]


async def count_dead_letters(connection: Connection) -> int:
    """How many wait for a person, of all tenants."""
    return int(await connection.fetchval(_SQL["count_dead_letters"].text))
