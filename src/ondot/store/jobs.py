"""Jobs: recurring ones in `job` and `job_version`, one-time ones in `job_once`; read as one."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import Struct

from ondot.model.gates import encode_stages
from ondot.model.ids import JobId, PoolNo, TenantNo, instant_of, partition_of
from ondot.model.job import JobSpec, JobState, decode_spec, encode_spec
from ondot.store.clock import ANY_TIME
from ondot.store.columns import collapse_equal
from ondot.store.connection import Connection, Record
from ondot.store.newest import newest_first
from ondot.store.queries import load_queries

_SQL = load_queries("jobs")


class NewOnceJob(Struct, frozen=True):
    """A one-time job. `execution_id` None: it is due after the horizon and gets a timer.

    `refusal`: why it does not run after all; recorded under the id of its execution.
    """

    id: JobId
    spec: JobSpec
    pool_no: PoolNo
    fire_at: datetime
    ready_at: datetime
    execution_id: UUID | None
    refusal: str | None = None
    created_by: UUID | None = None
    """The key or user, if it is known."""

    @property
    def is_plain(self) -> bool:
        """It goes straight into the queue, as nearly all do."""
        spec = self.spec
        is_due = self.execution_id is not None and self.refusal is None
        return is_due and spec.limits is None and spec.start_deadline_s is None


@dataclass(frozen=True, slots=True)
class NewJob:
    id: JobId
    spec: JobSpec
    pool_no: PoolNo
    next_fire_at: datetime | None
    fired_through: datetime | None


@dataclass(frozen=True, slots=True)
class LockedJob:
    id: JobId
    state: JobState
    version: int
    spec: JobSpec
    now: datetime
    state_reason: str | None = None


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as it is shown. `next_fire_at` is the earliest not yet due, planned or not.

    `state_reason`: why it is in its state, if not by hand.
    """

    id: JobId
    state: JobState
    state_reason: str | None
    version: int
    spec: JobSpec
    next_fire_at: datetime | None
    created_at: datetime
    updated_at: datetime


async def insert_once_jobs(
    connection: Connection,
    tenant_no: TenantNo,
    jobs: Sequence[NewOnceJob],
    within: tuple[float, float] = ANY_TIME,
) -> datetime | None:
    """Returns the database's time. If that is not `within` (`store.clock`), stores nothing and returns None."""
    columns = (
        [job.id for job in jobs],
        collapse_equal([job.spec.name for job in jobs]),
        collapse_equal([job.pool_no for job in jobs]),
        _instants([job.fire_at for job in jobs]),
        collapse_equal([_json(job.spec.labels) if job.spec.labels else "{}" for job in jobs]),
        [encode_spec(job.spec) for job in jobs],
        [job.execution_id for job in jobs],
        collapse_equal([int(job.spec.priority_class) for job in jobs]),
        _instants([job.ready_at for job in jobs]),
    )
    creators = collapse_equal([job.created_by for job in jobs])
    if all(job.is_plain for job in jobs):
        return await _stored_at(connection, "insert_due_jobs", tenant_no, *columns, *within, creators)
    return await _stored_at(
        connection,
        "insert_once_jobs",
        tenant_no,
        *columns,
        [partition_of(job.id) for job in jobs],
        [encode_stages(job.spec.limits, tenant_no, job.id) for job in jobs],
        [job.spec.start_deadline_s for job in jobs],
        [job.refusal for job in jobs],
        *within,
        creators,
    )


def _instants(ats: list[datetime]) -> list[float]:
    """Seconds since 1970, exact to the microsecond: a datetime takes five times as long to send."""
    return [at.timestamp() for at in collapse_equal(ats)]


async def _stored_at(connection: Connection, block: str, *arguments: object) -> datetime | None:
    stored_at: datetime | None = await connection.fetchval(_SQL[block].text, *arguments)
    return stored_at


async def find_creator(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> UUID | None:
    """The key or user that created a one-time job, if it is known."""
    found: UUID | None = await connection.fetchval(_SQL["find_creator"].text, tenant_no, job_id)
    return found


async def insert_jobs(
    connection: Connection, tenant_no: TenantNo, jobs: Sequence[NewJob], within: tuple[float, float] = ANY_TIME
) -> datetime | None:
    """As `insert_once_jobs`."""
    return await _stored_at(
        connection,
        "insert_jobs",
        tenant_no,
        [job.id for job in jobs],
        [job.spec.key for job in jobs],
        [job.spec.name for job in jobs],
        [job.pool_no for job in jobs],
        [_json(job.spec.labels) for job in jobs],
        [encode_spec(job.spec) for job in jobs],
        [partition_of(job.id) for job in jobs],
        [job.next_fire_at for job in jobs],
        [job.spec.schedule.max_fires if job.spec.schedule else None for job in jobs],
        [job.fired_through for job in jobs],
        *within,
    )


async def find_keys(connection: Connection, tenant_no: TenantNo, keys: Sequence[str]) -> dict[str, LockedJob]:
    """The jobs with these keys, locked."""
    rows = await connection.fetch(_SQL["lock_keys"].text, tenant_no, sorted(keys))
    return {job.spec.key or "": job for job in await _read_locked(connection, tenant_no, [row["id"] for row in rows])}


async def lock_job(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> LockedJob | None:
    """Lock a job for a change, when no transaction shares it any more; a one-time job is moved to `job` first."""
    row = await connection.fetchrow(_SQL["lock_job"].text, tenant_no, job_id)
    if row is None:
        adopted = await connection.fetchrow(_SQL["adopt_once_job"].text, tenant_no, job_id, instant_of(job_id))
        row = await connection.fetchrow(_SQL["lock_job"].text, tenant_no, job_id)
        if adopted is not None:
            await connection.execute(_SQL["time_adopted_job"].text, tenant_no, job_id)
    if row is None:
        return None
    [job] = await _read_locked(connection, tenant_no, [job_id])
    return job


async def share_jobs(connection: Connection, job_ids: Collection[JobId]) -> None:
    """Keep these jobs unchanged until the end of the transaction: what it reads of them from here on stays true.

    Several transactions may share a job at once. A change waits for them, and later ones wait for the change.
    """
    await connection.execute(_SQL["share_jobs"].text, job_ids)


async def _read_locked(connection: Connection, tenant_no: TenantNo, job_ids: Sequence[JobId]) -> list[LockedJob]:
    rows = await connection.fetch(_SQL["read_locked"].text, tenant_no, job_ids)
    return [_locked(row) for row in rows]


async def change_job(
    connection: Connection,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    state: JobState,
    version: int,
    state_reason: str | None = None,
    spec: JobSpec | None = None,
    pool_no: PoolNo | None = None,
) -> None:
    """Write the state of a locked job and, with a spec, its new version."""
    await connection.execute(
        _SQL["change_job"].text,
        tenant_no,
        job_id,
        state.value,
        version,
        encode_spec(spec) if spec else None,
        spec.name if spec else None,
        pool_no,
        _json(spec.labels) if spec else None,
        state_reason,
    )


async def find_stopped_jobs(connection: Connection, job_ids: Sequence[JobId]) -> dict[JobId, str]:
    """Those of these jobs that are paused or deleted, with the reason."""
    rows = await connection.fetch(_SQL["find_stopped_jobs"].text, job_ids)
    return {JobId(row["id"]): f"job {row['state'].lower()}" for row in rows}


async def get_jobs(connection: Connection, tenant_no: TenantNo, job_ids: Sequence[JobId]) -> dict[JobId, JobRow]:
    """Those of these jobs that exist."""
    rows = await connection.fetch(_SQL["get_jobs"].text, tenant_no, job_ids)
    return {JobId(row["id"]): job_row(row) for row in rows}


async def get_job(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> JobRow | None:
    return (await get_jobs(connection, tenant_no, [job_id])).get(job_id)


async def find_pools_of_keys(connection: Connection, tenant_no: TenantNo, keys: Sequence[str]) -> dict[str, str]:
    """The pools of the jobs that have these keys."""
    rows = await connection.fetch(_SQL["find_pools_of_keys"].text, tenant_no, keys)
    return {row["key"]: row["pool"] for row in rows}


async def list_jobs(
    connection: Connection,
    tenant_no: TenantNo,
    *,
    before: UUID | None = None,
    limit: int,
    state: str | None = None,
    name: str | None = None,
    labels: dict[str, str] | None = None,
    pool_nos: Collection[PoolNo] | None = None,
    part: str | None = None,
    only_workflows: bool = False,
) -> list[JobRow]:
    with_labels = _json(labels) if labels else None

    async def read(from_id: UUID, to_id: UUID, most: int) -> list[Record]:
        return await connection.fetch(
            _SQL["list_jobs"].text,
            tenant_no,
            from_id,
            most,
            state,
            name,
            with_labels,
            pool_nos,
            part,
            to_id,
            only_workflows,
        )

    rows = await newest_first(connection, read, limit=limit, before=before)
    return [job_row(row) for row in rows]


def _locked(row: Record) -> LockedJob:
    return LockedJob(
        JobId(row["id"]),
        JobState(row["state"]),
        row["version"],
        decode_spec(row["spec"]),
        row["now"],
        row["state_reason"],
    )


def job_row(row: Record) -> JobRow:
    """From a row with the job, its timer and its live executions."""
    state = JobState(row["state"])
    spec = decode_spec(row["spec"])
    if state is JobState.ACTIVE and row["timer_at"] is None and not row["live"] and not spec.starts_by_event:
        state = JobState.ENDED
    fires = [at for at in (row["timer_at"], row["planned_at"]) if at is not None]
    created_at = instant_of(row["id"])
    return JobRow(
        id=JobId(row["id"]),
        state=state,
        state_reason=row["state_reason"],
        version=row["version"],
        spec=spec,
        next_fire_at=min(fires, default=None) if state is JobState.ACTIVE else None,
        created_at=created_at,
        updated_at=row["updated_at"] or created_at,
    )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
