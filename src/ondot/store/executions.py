"""Executions: written by complete and by change, read live and ended as one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from ondot.model.execution import Origin, Outcome, PriorityClass, State
from ondot.model.ids import ExecutionId, JobId, LeaseId, PoolNo, TenantNo, WorkerId
from ondot.store.columns import once
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("executions")

TRIES_TO_END = 5


class Waiting(StrEnum):
    """What a job has waiting: fires and backfilled ones that have not begun, only the latter, or all, retries too."""

    FIRES = "fires"
    BACKFILL = "backfill"
    ALL = "all"


class Completion(Struct, frozen=True):
    """One outcome to be written: where the execution goes, and what the attempt left behind (JSON as text).

    `pause_after`: failures in a row after which the job is paused. `gated`: it was leased with gates to give back.
    """

    execution_id: ExecutionId
    attempt_no: int
    state: State
    outcome: Outcome
    result: str | None = None
    error: str | None = None
    reason: str | None = None
    delay_s: float = 0.0
    priority_class: int = 0
    pause_after: int | None = None
    gated: bool = False

    @property
    def is_plain(self) -> bool:
        """A success with which nothing moves but the execution itself: nearly all are."""
        return self.state is State.SUCCEEDED and self.pause_after is None and not self.gated


class Written(Struct, frozen=True):
    """A completion that counted, and the state it led to.

    `pool_no`: which pool has something to do for it: at `ready_at`, or, if it has passed gates (`gated`), now.
    """

    execution_id: ExecutionId
    state: State
    pool_no: PoolNo | None = None
    ready_at: datetime | None = None
    gated: bool = False


class Unchanged(StrEnum):
    """Why an outcome changed nothing: it was recorded before, its worker is stale, or it met a cancel (write again)."""

    RECORDED = "recorded"
    STALE = "stale"
    HELD = "held"


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
    start_by: datetime | None = None,
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
        start_by,
    )
    assert row is not None
    fire_at: datetime = row["fire_at"]
    return fire_at


async def complete_executions(
    connection: Connection, worker_id: WorkerId, completions: Sequence[Completion], last_of: Sequence[LeaseId]
) -> list[Written]:
    """Write outcomes, fenced; those that are missing from the answer changed nothing."""
    ordered = sorted(completions, key=attrgetter("execution_id"))
    rows = await connection.fetch(
        _SQL["complete_executions"].text,
        worker_id,
        [completion.execution_id for completion in ordered],
        [completion.attempt_no for completion in ordered],
        [completion.state.value for completion in ordered],
        [completion.outcome.value for completion in ordered],
        [completion.result for completion in ordered],
        [completion.error for completion in ordered],
        [completion.reason for completion in ordered],
        [completion.delay_s for completion in ordered],
        [completion.priority_class for completion in ordered],
        last_of,
        [completion.pause_after for completion in ordered],
    )
    return [Written(id_, State(state), *wakes) for id_, state, *wakes in rows]


async def succeed_executions(
    connection: Connection, worker_id: WorkerId, completions: Sequence[Completion], last_of: Sequence[LeaseId]
) -> list[Written]:
    """Write plain successes, fenced; those that are missing from the answer changed nothing, or are plain no more."""
    ordered = sorted(completions, key=attrgetter("execution_id"))
    ids = [completion.execution_id for completion in ordered]
    counted: list[ExecutionId] | None = await connection.fetchval(
        _SQL["succeed_executions"].text,
        worker_id,
        ids,
        once([completion.attempt_no for completion in ordered]),
        once([completion.result for completion in ordered]),
        last_of,
    )
    return [Written(id_, State.SUCCEEDED) for id_ in (ids if counted is None else counted)]


async def find_outcomes(
    connection: Connection, worker_id: WorkerId, attempts: Sequence[tuple[ExecutionId, int]]
) -> dict[ExecutionId, Unchanged]:
    """Of outcomes that changed nothing, why."""
    rows = await connection.fetch(
        _SQL["find_outcomes"].text,
        worker_id,
        [id_ for id_, _ in attempts],
        [number for _, number in attempts],
    )
    return {
        row["id"]: Unchanged.RECORDED if row["recorded"] else Unchanged.HELD if row["is_held"] else Unchanged.STALE
        for row in rows
    }


async def find_payloads(connection: Connection, ids: Sequence[ExecutionId]) -> dict[ExecutionId, bytes]:
    rows = await connection.fetch(_SQL["find_payloads"].text, ids)
    return {row["id"]: row["payload"].encode() for row in rows if row["payload"] is not None}


async def newest_begun(connection: Connection, tenant_no: TenantNo, job_id: JobId, after: datetime) -> datetime | None:
    """The newest fire after an instant that has begun or ended."""
    fire_at: datetime | None = await connection.fetchval(_SQL["newest_begun"].text, tenant_no, job_id, after)
    return fire_at


async def cancelled_ahead(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, after: datetime
) -> tuple[datetime, datetime] | None:
    """The first and the last of a job's fires to come that were cancelled before they were due; None: none was."""
    row = await connection.fetchrow(_SQL["cancelled_ahead"].text, tenant_no, job_id, after)
    return (row["first_at"], row["last_at"]) if row and row["first_at"] else None


async def lock_gates_of_job(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, *, stages: str | None = None
) -> None:
    """Lock the gates that a job's executions pass, and those of other `stages` that they are to pass."""
    gates: list[UUID] = []
    if stages is not None:
        await connection.execute(_SQL["make_gates"].text, tenant_no, stages)
        gates = [UUID(stage["gate"]) for stage in msgspec.json.decode(stages)]
    await connection.execute(_SQL["lock_gates_of_job"].text, tenant_no, job_id, gates)


async def take_back_fires(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, *, after: datetime, once_at: datetime | None
) -> list[datetime]:
    """Take back what is planned of a job after an instant; gives those fires. Lines first, then ready, then executions.

    Its gates are locked already. `once_at` is the fire of a one-time job, which is taken back also when it is due.
    """
    ids = []
    for block in ("take_back_waiting", "take_back_ready"):
        rows = await connection.fetch(_SQL[block].text, tenant_no, job_id, once_at, after, int(PriorityClass.CATCH_UP))
        ids += [row["execution_id"] for row in rows]
    taken = await connection.fetch(_SQL["take_back_executions"].text, tenant_no, ids)
    return sorted(row["fire_at"] for row in taken)


async def renew_due(
    connection: Connection,
    tenant_no: TenantNo,
    job_id: JobId,
    job_version: int,
    *,
    stages: str | None,
    start_deadline_s: float | None,
) -> int:
    """What is due and has not begun runs another version; all that lives passes its gates. They are locked already.

    `start_deadline_s` with the jitter.
    """
    await connection.fetch(_SQL["lock_ready_of_job"].text, tenant_no, job_id)
    rows = await connection.fetch(
        _SQL["renew_due"].text, tenant_no, job_id, job_version, start_deadline_s, int(PriorityClass.CATCH_UP)
    )
    begun = await connection.fetch(_SQL["gated_of_job"].text, tenant_no, job_id)
    ids = [row["id"] for row in (*rows, *begun)]
    running = [row["id"] for row in begun if row["state"] == State.RUNNING]
    if ids and stages is not None:
        await connection.execute(_SQL["regate_executions"].text, tenant_no, ids, stages, int(PriorityClass.CATCH_UP))
        await connection.execute(_SQL["slot_begun"].text, tenant_no, running)
    elif waiting := [id_ for id_ in ids if id_ not in running]:
        await connection.execute(_SQL["ungate_executions"].text, tenant_no, waiting)
    return len(rows)


async def end_waiting(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, state: State, reason: str, which: Waiting
) -> int:
    """End what a job has waiting in the queue.

    Tried again while anything is left: a row that is being swept is gone when its lock is, and stands elsewhere, where
    the statement that waited for it does not see it.
    """
    ended = 0
    await lock_gates_of_job(connection, tenant_no, job_id)
    for _ in range(TRIES_TO_END):
        ids = []
        for block in ("unline_job", "unqueue_job"):
            rows = await connection.fetch(_SQL[block].text, tenant_no, job_id, which.value)
            ids += [row["execution_id"] for row in rows]
        ended += len(await connection.fetch(_SQL["end_executions"].text, tenant_no, ids, state.value, reason))
        if not await connection.fetchval(_SQL["has_waiting"].text, tenant_no, job_id, which.value):
            break
    return ended


async def end_queued(
    connection: Connection, tenant_no: TenantNo | None, ids: Sequence[ExecutionId], state: State, reason: str
) -> list[ExecutionId]:
    """End executions that wait in the queue or before a gate; gives those that did. `tenant_no` None: of any."""
    await connection.execute(_SQL["lock_gates_of_executions"].text, ids)
    rows = await connection.fetch(_SQL["unqueue_executions"].text, tenant_no, ids)
    taken = [row["execution_id"] for row in rows]
    ended = await connection.fetch(_SQL["end_executions"].text, tenant_no, taken, state.value, reason)
    return [ExecutionId(row["id"]) for row in ended]


async def request_cancels(
    connection: Connection, tenant_no: TenantNo | None, ids: Sequence[ExecutionId], reason: str
) -> list[ExecutionId]:
    """Ask executions that run to end; gives those that do run."""
    rows = await connection.fetch(_SQL["request_cancels"].text, tenant_no, ids, reason)
    return [ExecutionId(row["id"]) for row in rows]


async def find_cancels(connection: Connection, worker_id: WorkerId) -> list[tuple[ExecutionId, int]]:
    """The attempts of this worker that were asked to end."""
    rows = await connection.fetch(_SQL["find_cancels"].text, worker_id)
    return [(ExecutionId(row["id"]), row["attempt_no"]) for row in rows]


async def past_deadline(connection: Connection, limit: int) -> list[ExecutionId]:
    """What was not started by its deadline."""
    return [ExecutionId(row["id"]) for row in await connection.fetch(_SQL["past_deadline"].text, limit)]


async def has_begun(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, once_at: datetime, *, waiting_too: bool
) -> bool:
    return bool(await connection.fetchval(_SQL["has_begun"].text, tenant_no, job_id, once_at, waiting_too))


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
    rows = await connection.fetch(
        _SQL["list_executions"].text, tenant_no, before, limit, state, from_at, to_at, pool_no
    )
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
    rows = await connection.fetch(_SQL["list_job_executions"].text, tenant_no, before, limit, state, job_id)
    return [_execution_row(row) for row in rows]


async def latest_execution(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> LatestRow | None:
    row = await connection.fetchrow(_SQL["latest_execution"].text, tenant_no, job_id)
    return LatestRow(State(row["state"]), row["started_at"], row["retry_count"]) if row else None


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
