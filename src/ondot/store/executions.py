"""Executions: made when they are no fire, and read, live and ended as one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ondot.model.execution import Origin, Outcome, State
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo, instant_of
from ondot.model.planning import first_execution_id
from ondot.store.connection import Connection, Record
from ondot.store.newest import newest_first, read_kept
from ondot.store.queries import load_queries

_SQL = load_queries("executions")


@dataclass(frozen=True, slots=True)
class AttemptRow:
    attempt_no: int
    outcome: Outcome
    worker_id: UUID | None
    started_at: datetime | None
    ended_at: datetime | None
    error: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """An execution as it is shown."""

    id: ExecutionId
    job_id: JobId
    job_version: int
    worker_id: UUID | None
    fire_at: datetime
    ready_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    pool: str
    attempt_no: int
    failures: int
    losses: int
    priority_class: int
    state: State
    origin: Origin
    reason: str | None
    payload: Any
    result: Any
    error: dict[str, Any] | None
    progress: float | None = None
    progress_message: str | None = None
    checkpoint: Any = None
    cancel_at: datetime | None = None
    cancel_reason: str | None = None
    start_by: datetime | None = None
    replay_of: ExecutionId | None = None


@dataclass(frozen=True, slots=True)
class SkippedRow:
    from_at: datetime
    to_at: datetime
    reason: str
    count: int | None


@dataclass(frozen=True, slots=True)
class LatestRow:
    state: State
    started_at: datetime | None
    retry_count: int


async def insert_execution(
    connection: Connection,
    tenant_no: TenantNo,
    execution_id: ExecutionId,
    job_id: JobId,
    *,
    job_version: int,
    pool_no: PoolNo,
    priority_class: int,
    origin: Origin,
    payload: str | None,
    replay_of: ExecutionId | None = None,
    stages: str | None = None,
    start_within_s: float | None = None,
) -> datetime:
    """Make an execution that is no fire; gives its instant. `stages`: the gates it passes (`model.gates`)."""
    row = await connection.fetchrow(
        _SQL["insert_execution"].text,
        tenant_no,
        execution_id,
        job_id,
        job_version,
        pool_no,
        priority_class,
        origin,
        payload,
        replay_of,
        stages,
        start_within_s,
    )
    assert row is not None
    fire_at: datetime = row["fire_at"]
    return fire_at


async def find_payloads(connection: Connection, ids: Sequence[ExecutionId]) -> dict[ExecutionId, bytes]:
    rows = await connection.fetch(_SQL["find_payloads"].text, ids)
    return {row["id"]: row["payload"].encode() for row in rows if row["payload"] is not None}


async def get_execution(connection: Connection, tenant_no: TenantNo, id_: ExecutionId) -> ExecutionRow | None:
    row = await connection.fetchrow(_SQL["get_execution"].text, tenant_no, id_)
    return _execution_row(row) if row else None


async def list_executions(
    connection: Connection,
    tenant_no: TenantNo,
    *,
    before: UUID | None = None,
    limit: int,
    state: str | None = None,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
    pool_no: PoolNo | None = None,
) -> list[ExecutionRow]:
    async def read(from_id: UUID, to_id: UUID, most: int) -> list[Record]:
        return await connection.fetch(
            _SQL["list_executions"].text, tenant_no, from_id, most, state, from_at, to_at, pool_no, to_id
        )

    rows = await newest_first(connection, read, limit=limit, before=before)
    return [_execution_row(row) for row in rows]


async def list_job_executions(
    connection: Connection,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    before: UUID | None = None,
    limit: int,
    state: str | None = None,
) -> list[ExecutionRow]:
    async def read(from_id: UUID, to_id: UUID, most: int) -> list[Record]:
        return await connection.fetch(_SQL["list_job_executions"].text, tenant_no, from_id, most, state, job_id, to_id)

    rows = await newest_first(
        connection, read, limit=limit, before=before, down_to=first_execution_id(instant_of(job_id))
    )
    return [_execution_row(row) for row in rows]


async def latest_execution(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> LatestRow | None:
    latest: Record | None = None
    kept = await read_kept(connection)
    for from_id, to_id in kept.windows(down_to=first_execution_id(instant_of(job_id))):
        row = await connection.fetchrow(_SQL["latest_execution"].text, tenant_no, job_id, from_id, to_id)
        if row is not None and (latest is None or row["fire_at"] > latest["fire_at"]):
            latest = row
        # A backfill's have young ids and old fires: what is older by its id may still be later by its fire.
        if latest is not None and first_execution_id(latest["fire_at"]) >= from_id:
            break
    return LatestRow(State(latest["state"]), latest["started_at"], latest["retry_count"]) if latest else None


async def list_attempts(connection: Connection, tenant_no: TenantNo, id_: ExecutionId) -> list[AttemptRow]:
    """The attempts that did not succeed."""
    rows = await connection.fetch(_SQL["list_attempts"].text, tenant_no, id_)
    return [
        AttemptRow(
            row["attempt_no"],
            Outcome(row["outcome"]),
            row["worker_id"],
            row["started_at"],
            row["ended_at"],
            _decode(row["error"]),
        )
        for row in rows
    ]


async def list_skipped(connection: Connection, tenant_no: TenantNo, job_id: JobId, limit: int) -> list[SkippedRow]:
    rows = await connection.fetch(_SQL["list_skipped"].text, tenant_no, job_id, limit)
    return [SkippedRow(*row.values()) for row in rows]


def _execution_row(row: Record) -> ExecutionRow:
    return ExecutionRow(
        id=ExecutionId(row["id"]),
        job_id=JobId(row["job_id"]),
        job_version=row["job_version"],
        worker_id=row["worker_id"],
        fire_at=row["fire_at"],
        ready_at=row["ready_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        pool=row["pool"],
        attempt_no=row["attempt_no"],
        failures=row["failures"],
        losses=row["losses"],
        priority_class=row["class"],
        state=State(row["state"]),
        origin=row["origin"],
        reason=row["reason"],
        payload=_decode(row["payload"]),
        result=_decode(row["result"]),
        error=_decode(row["error"]),
        progress=row.get("progress"),
        progress_message=row.get("progress_message"),
        checkpoint=_decode(row.get("checkpoint")),
        cancel_at=row.get("cancel_at"),
        cancel_reason=row.get("cancel_reason"),
        start_by=row.get("start_by"),
        replay_of=row.get("replay_of"),
    )


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
