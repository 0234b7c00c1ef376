"""Planned executions of a job that is being changed (S8, P10): coming fires are taken back, due ones get the new
version, and those that have started are left alone."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from ondot.model.execution import PriorityClass, State
from ondot.model.gates import Stage
from ondot.model.ids import JobId, PoolNo, TenantNo, instant_of
from ondot.model.planning import first_execution_id
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("planned")

PRIORITIES = (PriorityClass.HIGH, PriorityClass.NORMAL, PriorityClass.LOW)


async def lock_gates_of_job(
    connection: Connection,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    versions: Sequence[str | None] = (),
) -> None:
    """Lock the gates that a job's executions pass, and those that executions of some `versions` are to pass."""
    gates: list[UUID] = []
    for stages in versions:
        if stages is not None:
            await connection.execute(_SQL["make_gates"].text, tenant_no, stages)
            gates += [UUID(stage["gate"]) for stage in msgspec.json.decode(stages)]
    await connection.execute(_SQL["lock_gates_of_job"].text, tenant_no, job_id, gates)


async def carry_tokens(connection: Connection, tenant_no: TenantNo, rates: Sequence[tuple[Stage, Stage]]) -> None:
    """Tokens that a rate has used count for the one that replaces it: (old, new). Their gates are locked already."""
    paces = [(old, new, old.rate.every_s, new.rate.every_s) for old, new in rates if old.rate and new.rate]
    await connection.execute(
        _SQL["carry_tokens"].text,
        tenant_no,
        [old.gate for old, *_ in paces],
        [new.gate for _, new, *_ in paces],
        [every_s for *_, every_s, _ in paces],
        [every_s for *_, every_s in paces],
    )


async def take_back_fires(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, *, after: datetime, once_at: datetime | None
) -> list[datetime]:
    """Take back the planned fires of a job after an instant; returns them. Lines first, then ready, then executions.

    Its gates are locked already. `once_at`: the fire of a one-time job, which is taken back even when it is due.
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
    pool_no: PoolNo,
    priority_class: PriorityClass,
    stages: str | None,
    start_deadline_s: float | None,
) -> list[datetime]:
    """Due fires that have not started run another version, in its pool and priority; all live executions pass its
    gates, which are locked already. Returns when those that moved to another pool may start there.

    `start_deadline_s` with the jitter.
    """
    await connection.fetch(_SQL["lock_ready_of_job"].text, tenant_no, job_id)
    rows = await connection.fetch(
        _SQL["renew_due"].text,
        tenant_no,
        job_id,
        job_version,
        start_deadline_s,
        int(PriorityClass.CATCH_UP),
        pool_no,
        int(priority_class),
        [int(class_) for class_ in PRIORITIES],
    )
    kept = await connection.fetch(_SQL["gated_of_job"].text, tenant_no, job_id)
    ids = [row["id"] for row in (*rows, *kept)]
    running = [row["id"] for row in kept if row["state"] == State.RUNNING]
    if ids and stages is not None:
        await connection.execute(_SQL["regate_executions"].text, tenant_no, ids, stages, int(PriorityClass.CATCH_UP))
        await connection.execute(_SQL["slot_begun"].text, tenant_no, running)
    elif waiting := [id_ for id_ in ids if id_ not in running]:
        await connection.execute(_SQL["ungate_executions"].text, tenant_no, waiting)
    return [row["ready_at"] for row in rows if row["is_elsewhere"]]


async def find_newest_begun(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, after: datetime
) -> datetime | None:
    """The newest fire after an instant that has started or ended."""
    fire_at: datetime | None = await connection.fetchval(
        _SQL["find_newest_begun"].text, tenant_no, job_id, after, first_execution_id(after)
    )
    return fire_at


async def find_cancelled_ahead(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, after: datetime
) -> tuple[datetime, datetime] | None:
    """The first and the last of a job's coming fires that were cancelled before they were due; None: none was."""
    row = await connection.fetchrow(
        _SQL["find_cancelled_ahead"].text, tenant_no, job_id, after, first_execution_id(after)
    )
    return (row["first_at"], row["last_at"]) if row and row["first_at"] else None


async def has_begun(
    connection: Connection,
    tenant_no: TenantNo,
    job_id: JobId,
    once_at: datetime,
    *,
    waiting_too: bool = False,
    ended_too: bool = False,
) -> bool:
    """Whether the fire of a one-time job runs, waits for its next attempt, or has ended."""
    first_id = first_execution_id(min(instant_of(job_id), once_at)) if ended_too else None
    return bool(
        await connection.fetchval(_SQL["has_begun"].text, tenant_no, job_id, once_at, waiting_too, ended_too, first_id)
    )
