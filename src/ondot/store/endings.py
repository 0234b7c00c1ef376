"""Ends of executions that no worker writes (E8, E12, E16): a waiting execution leaves the queue or its line and ends at
once, a running one is asked to end."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from ondot.model.execution import Transition
from ondot.model.ids import ExecutionId, JobId, TenantNo, WorkerId
from ondot.store.connection import Connection
from ondot.store.planned import lock_gates_of_job
from ondot.store.queries import load_queries

_SQL = load_queries("endings")

TRIES_TO_END = 5


class Waiting(StrEnum):
    """Which waiting executions of a job: fires and backfilled ones that have not started, only the latter, or all,
    retries too."""

    FIRES = "fires"
    BACKFILL = "backfill"
    ALL = "all"


async def end_waiting(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, transition: Transition, reason: str, which: Waiting
) -> int:
    """End waiting executions of a job; returns how many.

    Repeated while any is left: a row that a sweep moves is gone when its lock is released, and at another place that
    the statement which waited for it does not see.
    """
    ended = 0
    await lock_gates_of_job(connection, tenant_no, job_id)
    for _ in range(TRIES_TO_END):
        ids: list[ExecutionId] = []
        for block in ("unline_job", "unqueue_job"):
            rows = await connection.fetch(_SQL[block].text, tenant_no, job_id, which.value)
            ids += [row["execution_id"] for row in rows]
        ended += len(await _end_executions(connection, tenant_no, dict.fromkeys(ids, reason), transition))
        if not await connection.fetchval(_SQL["has_waiting"].text, tenant_no, job_id, which.value):
            break
    return ended


async def end_queued(
    connection: Connection, tenant_no: TenantNo | None, reasons: Mapping[ExecutionId, str], transition: Transition
) -> list[ExecutionId]:
    """End executions that wait in the queue or before a gate, each with its reason; returns those that ended.

    `tenant_no` None: of any.
    """
    unqueued = {id_: reasons[id_] for id_ in await take_out(connection, tenant_no, list(reasons))}
    return await _end_executions(connection, tenant_no, unqueued, transition)


async def take_out(connection: Connection, tenant_no: TenantNo | None, ids: Sequence[ExecutionId]) -> set[ExecutionId]:
    """Take executions out of the queue and the lines before gates; returns those that were there. The caller ends them,
    or puts them back."""
    await connection.execute(_SQL["lock_gates_of_executions"].text, ids)
    rows = await connection.fetch(_SQL["unqueue_executions"].text, tenant_no, ids)
    return {ExecutionId(row["execution_id"]) for row in rows}


async def _end_executions(
    connection: Connection, tenant_no: TenantNo | None, reasons: Mapping[ExecutionId, str], transition: Transition
) -> list[ExecutionId]:
    """The one place that ends executions which no worker has. They have left the queue."""
    rows = await connection.fetch(
        _SQL["end_executions"].text,
        tenant_no,
        list(reasons),
        list(reasons.values()),
        transition.target,
        list(transition.sources),
    )
    return [ExecutionId(row["id"]) for row in rows]


async def request_cancels(
    connection: Connection, tenant_no: TenantNo | None, ids: Sequence[ExecutionId], reason: str
) -> list[ExecutionId]:
    """Ask running executions to end; returns those that run."""
    rows = await connection.fetch(_SQL["request_cancels"].text, tenant_no, ids, reason)
    return [ExecutionId(row["id"]) for row in rows]


async def find_cancels(connection: Connection, worker_id: WorkerId) -> list[tuple[ExecutionId, int]]:
    """The attempts of this worker that were asked to end."""
    rows = await connection.fetch(_SQL["find_cancels"].text, worker_id)
    return [(ExecutionId(row["id"]), row["attempt_no"]) for row in rows]


async def find_past_deadline(connection: Connection, limit: int) -> list[ExecutionId]:
    """Executions that were not started by their deadline."""
    return [ExecutionId(row["id"]) for row in await connection.fetch(_SQL["find_past_deadline"].text, limit)]
