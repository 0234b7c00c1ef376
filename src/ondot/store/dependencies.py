"""Jobs that wait for others (W1): `dependent`, one row for each, and `dependency`, one for each of its parents."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ondot.model.execution import State
from ondot.model.gates import encode_stages
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo, first_id_at, instant_of
from ondot.model.job import JobSpec, JobState
from ondot.model.workflow.dependencies import Parent, ParentFacts, Parents, ParentState
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("dependencies")


@dataclass(frozen=True, slots=True)
class NewDependent:
    """A new job that waits, with the ids of its parents."""

    id: JobId
    execution_id: ExecutionId
    spec: JobSpec
    pool_no: PoolNo
    fire_at: datetime
    ready_at: datetime
    parents: Sequence[JobId]


@dataclass(frozen=True, slots=True)
class Dependent:
    """`is_stuck`: one of its parents has ended without success."""

    child_id: JobId
    execution_id: ExecutionId
    is_stuck: bool


async def insert_blocked(connection: Connection, tenant_no: TenantNo, jobs: Sequence[NewDependent]) -> None:
    pairs = [(parent, job.id) for job in jobs for parent in job.parents]
    await connection.execute(
        _SQL["insert_blocked"].text,
        tenant_no,
        [job.id for job in jobs],
        [job.execution_id for job in jobs],
        [job.fire_at for job in jobs],
        [job.ready_at for job in jobs],
        [job.pool_no for job in jobs],
        [int(job.spec.priority_class) for job in jobs],
        [encode_stages(job.spec.limits, tenant_no, job.id) for job in jobs],
        [job.spec.start_deadline_s for job in jobs],
        [parent for parent, _ in pairs],
        [child for _, child in pairs],
    )


async def find_due_parents(connection: Connection, limit: int) -> list[JobId]:
    return [JobId(row["parent_id"]) for row in await connection.fetch(_SQL["find_due_parents"].text, limit)]


async def look_again(connection: Connection, parents: Collection[JobId]) -> None:
    """These jobs were changed, or run again: those that depend on them look at them soon."""
    await connection.execute(_SQL["look_again"].text, list(parents))


async def flag_parents(connection: Connection, parents: Sequence[JobId]) -> None:
    """The ends of these jobs are arrivals from here on."""
    await connection.execute(_SQL["flag_parents"].text, parents)


async def add_arrived(connection: Connection, parents: Sequence[JobId], limit: int) -> list[JobId]:
    """These jobs, and others that the same jobs wait for and whose ends have arrived."""
    return [JobId(row["parent_id"]) for row in await connection.fetch(_SQL["add_arrived"].text, parents, limit)]


async def take_arrivals(connection: Connection, parents: Sequence[JobId]) -> None:
    await connection.execute(_SQL["take_arrivals_of_parents"].text, parents)


async def lock_dependents(
    connection: Connection, parents: Sequence[JobId], *, after: UUID, limit: int
) -> list[Dependent]:
    """The next jobs that wait for these, locked."""
    rows = await connection.fetch(_SQL["lock_dependents"].text, parents, after, limit)
    return [_dependent(row) for row in rows]


async def lock_dependent(connection: Connection, tenant_no: TenantNo, child_id: JobId) -> Dependent | None:
    """A job if it still waits, locked."""
    row = await connection.fetchrow(_SQL["lock_dependent"].text, tenant_no, child_id)
    return _dependent(row) if row else None


def _dependent(row: Record) -> Dependent:
    return Dependent(JobId(row["child_id"]), ExecutionId(row["execution_id"]), row["stuck_at"] is not None)


async def look_at_parents(
    connection: Connection, children: Sequence[JobId], parents: Sequence[JobId]
) -> dict[JobId, ParentFacts]:
    """What is known of these parents of these jobs, without those that have succeeded before."""
    first_id = first_id_at(instant_of(min(parents)))
    rows = await connection.fetch(_SQL["look_at_parents"].text, children, parents, first_id)
    return {
        JobId(row["parent_id"]): ParentFacts(
            row["now"],
            row["is_live"],
            row["next_fire_at"],
            State(row["ended"]) if row["ended"] else None,
            JobState(row["job_state"]) if row["job_state"] else None,
        )
        for row in rows
    }


async def set_dependencies(
    connection: Connection, children: Sequence[JobId], judged: Mapping[JobId, tuple[ParentState, datetime]]
) -> None:
    states = [state.value for state, _ in judged.values()]
    instants = [look_at for _, look_at in judged.values()]
    await connection.execute(_SQL["set_dependencies"].text, children, list(judged), states, instants)


async def set_stuck(connection: Connection, children: Sequence[JobId]) -> None:
    """Record since when a parent of these locked jobs has ended without success, or that none has."""
    await connection.execute(_SQL["set_stuck"].text, children)


async def unblock(connection: Connection, children: Sequence[JobId]) -> list[tuple[JobId, PoolNo, datetime]]:
    """Put those of these locked jobs into the queue whose parents have all succeeded."""
    free = await connection.fetch(_SQL["find_free"].text, children)
    if not free:
        return []
    stages = [row["stages"] for row in free if row["stages"] is not None]
    if stages:
        await connection.execute(_SQL["lock_gates_of_free"].text, stages)
    rows = await connection.fetch(_SQL["unblock"].text, [row["child_id"] for row in free])
    return [(JobId(row["job_id"]), PoolNo(row["pool_no"]), row["ready_at"]) for row in rows]


async def end_blocked(
    connection: Connection, tenant_no: TenantNo | None, ids: Sequence[ExecutionId], reason: str
) -> list[ExecutionId]:
    """Cancel executions that wait for other jobs; returns those that ended. `tenant_no` None: of any."""
    rows = await connection.fetch(_SQL["end_blocked"].text, tenant_no, ids, reason)
    return [ExecutionId(row["id"]) for row in rows]


async def renew_blocked(
    connection: Connection,
    tenant_no: TenantNo,
    job_id: JobId,
    spec: JobSpec,
    *,
    version: int,
    pool_no: PoolNo,
    fire_at: datetime,
    ready_at: datetime,
    parents: Sequence[JobId],
) -> None:
    """Give a locked job that waits its new version."""
    await connection.execute(
        _SQL["renew_blocked"].text,
        tenant_no,
        job_id,
        version,
        pool_no,
        int(spec.priority_class),
        fire_at,
        ready_at,
        encode_stages(spec.limits, tenant_no, job_id),
        spec.start_deadline_s,
        parents,
    )


async def list_parents(connection: Connection, tenant_no: TenantNo, child_id: JobId, limit: int) -> Parents:
    rows = await connection.fetch(_SQL["list_parents"].text, tenant_no, child_id, limit)
    some = tuple(Parent(JobId(row["parent_id"]), ParentState(row["state"])) for row in rows)
    return Parents(some, rows[0]["total"] if rows else 0, rows[0]["succeeded"] if rows else 0)


async def find_stuck(connection: Connection, days: int, limit: int) -> list[ExecutionId]:
    """Executions whose parents failed this long ago, and for which nothing was done since."""
    return [ExecutionId(row["execution_id"]) for row in await connection.fetch(_SQL["find_stuck"].text, days, limit)]


async def find_jobs_of_keys(connection: Connection, tenant_no: TenantNo, keys: Sequence[str]) -> dict[str, JobId]:
    rows = await connection.fetch(_SQL["find_jobs_of_keys"].text, tenant_no, keys)
    return {row["key"]: JobId(row["id"]) for row in rows}
