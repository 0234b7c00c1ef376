"""Executions: runs that are no fire are made here, and all are read here, live and ended."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from typing import Any
from uuid import UUID

import msgspec

from ondot.model.execution import Origin, Outcome, State
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo, first_id_at, instant_of
from ondot.model.job import JobSpec
from ondot.model.planning import first_execution_id
from ondot.model.trace import find_trace_id
from ondot.store.connection import Connection, Record
from ondot.store.day_bounds import DAY_BITS, LAST_ID, with_day_bounds
from ondot.store.newest import newest_first, read_kept
from ondot.store.queries import load_queries
from ondot.store.specs import Specs

_SQL = load_queries("executions")

LATEST_LOOKED_AT = 100
"""How many ended executions are searched for the one that started last: those after it were skipped."""


@dataclass(frozen=True, slots=True)
class AttemptRow:
    attempt_no: int
    outcome: Outcome
    worker_id: UUID | None
    started_at: datetime | None
    ended_at: datetime | None
    error: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class OriginRow:
    """What made an execution, and which version of which job it is of."""

    origin: Origin
    job_id: JobId
    job_version: int


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
    run_id: ExecutionId | None = None
    """Of a step: its run; `job_id` is that of the workflow. `step_no`, `item_no`: which step and which of its items."""
    step_no: int | None = None
    item_no: int | None = None
    trace: str | None = None
    """The traceparent that it belongs to, or its run, where that is not its job's."""

    def find_trace_id(self, spec: JobSpec | None) -> str | None:
        """The id of its trace. None if its definition is gone, which may have named the trace of its caller."""
        if spec is None and self.trace is None:
            return None
        of_job = None if spec is None or spec.recurs else spec.trace
        return find_trace_id(self.trace or of_job, self.run_id or self.id)


@dataclass(frozen=True, slots=True)
class SkippedRow:
    from_at: datetime
    to_at: datetime
    reason: str
    count: int | None


Position = tuple[datetime, JobId, datetime]
"""Where a page of missed ranges ends: when the last one was recorded, its job, its first fire."""


@dataclass(frozen=True, slots=True)
class MissedRow:
    """A range of fires that did not run; `count` None: more than were counted; `is_backfilled`: a backfill has them."""

    job_id: JobId
    job_name: str | None
    from_at: datetime
    to_at: datetime
    reason: str
    count: int | None
    recorded_at: datetime
    is_backfilled: bool
    job_version: int | None

    @property
    def position(self) -> Position:
        return self.recorded_at, self.job_id, self.from_at


@dataclass(frozen=True, slots=True)
class LatestRow:
    """The state of the latest execution; `last_run`: when one last started, maybe one before it."""

    state: State
    last_run: datetime | None
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
    """Make an execution that is no fire; returns its instant. `stages`: the gates it passes (`model.gates`)."""
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


async def read_executions(
    connection: Connection, tenant_no: TenantNo, ids: Sequence[ExecutionId]
) -> list[ExecutionRow]:
    """Those of these executions that exist, newest first by id."""
    rows = await connection.fetch(_SQL["read_executions"].text, tenant_no, ids) if ids else []
    return [_execution_row(row) for row in rows]


async def find_origins(connection: Connection, tenant_no: TenantNo, ids: Collection[UUID]) -> dict[UUID, OriginRow]:
    """What made these executions, without what they carry: payloads and results may be large.

    A day at a time: a page of rare runs spans months, and one statement would lock the tables of all their days.
    """
    found: dict[UUID, OriginRow] = {}
    for _, group in groupby(sorted(ids), key=lambda id_: id_.int // DAY_BITS):
        day = list(group)
        text = with_day_bounds(_SQL["find_origins"], day, from_id="$3", before_id="$4")
        for row in await connection.fetch(text, tenant_no, day):
            found[row["id"]] = OriginRow(row["origin"], JobId(row["job_id"]), row["job_version"])
    return found


async def list_executions(
    connection: Connection,
    tenant_no: TenantNo,
    *,
    before: ExecutionId | UUID | None = None,
    limit: int,
    horizon_s: float,
    state: str | None = None,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
    pool_nos: Collection[PoolNo] | None = None,
    origin: Origin | None = None,
) -> list[ExecutionRow]:
    """By when they were due, latest first; `before` is the last of the page before. Without `origin`: all but steps.

    No index has that instant, and none is needed: an execution is due at most the horizon after it was made. The newest
    by id are all due after the oldest of them was made, so executions of the page were made at most the horizon before
    that.
    """

    async def read(statement: str, from_id: UUID, to_id: UUID, most: int) -> list[Record]:
        return await connection.fetch(
            _SQL[statement].text, tenant_no, from_id, most, state, from_at, to_at, pool_nos, to_id, *position, origin
        )

    position, to_id = await _position(connection, tenant_no, before)
    newest = await newest_first(connection, partial(read, "newest_executions"), limit=limit, before=to_id)
    if not newest:
        return []
    rows = await read("list_executions", _looked_at_from(newest, horizon_s), to_id or LAST_ID, limit)
    return [_execution_row(row) for row in rows]


async def list_job_executions(
    connection: Connection,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    before: ExecutionId | UUID | None = None,
    limit: int,
    horizon_s: float,
    state: str | None = None,
) -> list[ExecutionRow]:
    """The same for one job."""

    async def read(from_id: UUID, to_id: UUID, most: int, *, by_due: bool = False) -> list[Record]:
        return await connection.fetch(
            _SQL["list_job_executions"].text, tenant_no, from_id, most, state, job_id, to_id, *position, by_due
        )

    position, to_id = await _position(connection, tenant_no, before)
    down_to = first_execution_id(instant_of(job_id))
    newest = await newest_first(connection, read, limit=limit, before=to_id, down_to=down_to)
    if not newest:
        return []
    rows = await read(_looked_at_from(newest, horizon_s), to_id or LAST_ID, limit, by_due=True)
    return [_execution_row(row) for row in rows]


async def _position(
    connection: Connection, tenant_no: TenantNo, before: UUID | None
) -> tuple[tuple[datetime | None, UUID | None], UUID | None]:
    """When the last of the page before was due, with its id; and an id above those of all that follow it."""
    if before is None:
        return (None, None), None
    fire_at: datetime | None = await connection.fetchval(_SQL["fire_of"].text, tenant_no, before)
    made_at = instant_of(before)
    due_at = made_at if fire_at is None else max(fire_at, made_at)
    return (due_at, before), first_id_at(due_at + timedelta(milliseconds=1))


def _looked_at_from(newest: Sequence[Record], horizon_s: float) -> UUID:
    return first_id_at(instant_of(newest[-1]["id"]) - timedelta(seconds=horizon_s))


async def find_latest_execution(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> LatestRow | None:
    latest: Record | None = None
    last_run: datetime | None = None
    kept = await read_kept(connection)
    for from_id, to_id in kept.windows(down_to=first_execution_id(instant_of(job_id))):
        row = await connection.fetchrow(
            _SQL["find_latest_execution"].text, tenant_no, job_id, from_id, to_id, LATEST_LOOKED_AT
        )
        if row is not None and row["last_run"] is not None:
            last_run = row["last_run"] if last_run is None else max(last_run, row["last_run"])
        if row is not None and (latest is None or row["fire_at"] > latest["fire_at"]):
            latest = row
        # Executions of a backfill have young ids and old fires: one that is older by id may still be later by its fire.
        if latest is not None and last_run is not None and first_execution_id(latest["fire_at"]) >= from_id:
            break
    return LatestRow(State(latest["state"]), last_run, latest["retry_count"]) if latest else None


async def find_latest_ended(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> ExecutionId | None:
    """The execution of a job that ended last, by its fire."""
    kept = await read_kept(connection)
    for from_id, to_id in kept.windows(down_to=first_execution_id(instant_of(job_id))):
        id_ = await connection.fetchval(_SQL["find_latest_ended"].text, tenant_no, job_id, from_id, to_id)
        if id_ is not None:
            return ExecutionId(id_)
    return None


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


async def list_missed(
    connection: Connection,
    specs: Specs,
    tenant_no: TenantNo,
    *,
    limit: int,
    since: datetime | None = None,
    before: Position | None = None,
    reasons: Sequence[str] | None = None,
    job_id: JobId | None = None,
) -> list[MissedRow]:
    """Ranges of fires that were recorded as skipped since an instant, or in the last 7 days; latest first."""
    position = before or (None, None, None)
    rows = await connection.fetch(_SQL["list_missed"].text, tenant_no, since, *position, limit, reasons, job_id)
    missed = [MissedRow(*row.values()) for row in rows]
    nameless = {(row.job_id, row.job_version) for row in missed if row.job_name is None and row.job_version is not None}
    found = await specs.find(connection, nameless) if nameless else {}
    names = {job_id: spec.name for (job_id, _), spec in found.items()}
    return [replace(row, job_name=row.job_name or names.get(row.job_id)) for row in missed]


def _execution_row(row: Record) -> ExecutionRow:
    is_step = row["origin"] == "step"
    return ExecutionRow(
        id=ExecutionId(row["id"]),
        job_id=JobId((row.get("workflow_id") if is_step else None) or row["job_id"]),
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
        run_id=ExecutionId(row["job_id"]) if is_step else None,
        step_no=row.get("step_no") if is_step else None,
        item_no=row.get("item_no") if is_step else None,
        trace=row["trace"],
    )


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
