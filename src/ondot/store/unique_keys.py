"""Keys of unique, debounced and throttled jobs (E16): one row for each, locked by the transaction that decides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ondot.model.execution import SKIP
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.unique_keys import Claim, ClaimKey
from ondot.store.connection import Connection
from ondot.store.endings import end_queued
from ondot.store.queries import load_queries

_SQL = load_queries("unique_keys")


@dataclass(frozen=True, slots=True)
class Replaced:
    """A job that another one replaces. `execution_id`: its id in history if it was not planned yet.

    `fire_at`: of a job that was changed, and whose row is locked; None: it was not. `is_paused`: it has no next fire.
    """

    job_id: JobId
    execution_id: ExecutionId
    reason: str
    fire_at: datetime | None = None
    is_paused: bool = False


async def lock_claims(
    connection: Connection, tenant_no: TenantNo, firsts: Mapping[ClaimKey, JobId], now: datetime
) -> dict[ClaimKey, Claim]:
    """Lock these keys, each for a job; returns those that another job has. A key that was free belongs to the job now.

    In the order of the keys, so that two batches never wait for each other; a concurrent twin waits here for the end of
    the other's transaction.
    """
    keys = sorted(firsts)
    rows = await connection.fetch(
        _SQL["lock_claims"].text,
        tenant_no,
        [kind for kind, _ in keys],
        [key for _, key in keys],
        [firsts[key] for key in keys],
        now,
    )
    taken = [row for row in rows if row["job_id"] != firsts[row["kind"], row["key"]]]
    if not taken:
        return {}
    live = await connection.fetch(_SQL["is_live"].text, tenant_no, [row["job_id"] for row in taken])
    live_ids = {row["id"] for row in live}
    return {
        (row["kind"], row["key"]): Claim(
            JobId(row["job_id"]), row["since_at"], row["until_at"], row["count"], row["job_id"] in live_ids
        )
        for row in taken
    }


async def set_claims(connection: Connection, tenant_no: TenantNo, claims: Mapping[ClaimKey, Claim]) -> None:
    """Write which jobs have these keys, which are locked."""
    if not claims:
        return
    await connection.execute(
        _SQL["set_claims"].text,
        tenant_no,
        [kind for kind, _ in claims],
        [key for _, key in claims],
        [claim.job_id for claim in claims.values()],
        [claim.since_at for claim in claims.values()],
        [claim.until_at for claim in claims.values()],
        [claim.count for claim in claims.values()],
    )


async def release_claim(connection: Connection, tenant_no: TenantNo, key: ClaimKey, job_id: JobId) -> None:
    """Free the key, if the job has it."""
    await connection.execute(_SQL["release_claim"].text, tenant_no, *key, job_id)


async def find_changed(connection: Connection, tenant_no: TenantNo, ids: Sequence[JobId]) -> list[JobId]:
    """Which of these one-time jobs were changed since they were made, in the order of their ids."""
    return [JobId(row["id"]) for row in await connection.fetch(_SQL["find_changed"].text, tenant_no, ids)]


async def unplan_jobs(connection: Connection, tenant_no: TenantNo, jobs: Sequence[Replaced]) -> list[JobId]:
    """End one-time jobs that have only a timer, recorded as SKIPPED; returns those that ended."""
    rows = await connection.fetch(
        _SQL["unplan_jobs"].text,
        tenant_no,
        [job.job_id for job in jobs],
        [job.execution_id for job in jobs],
        [job.reason for job in jobs],
        [job.fire_at for job in jobs],
        [job.is_paused for job in jobs],
    )
    return [JobId(row["job_id"]) for row in rows]


async def unqueue_jobs(connection: Connection, tenant_no: TenantNo, jobs: Sequence[Replaced]) -> list[JobId]:
    """End one-time jobs that are planned and have not started, recorded as SKIPPED; returns those that ended."""
    rows = await connection.fetch(_SQL["waiting_of"].text, tenant_no, [job.job_id for job in jobs])
    waiting = [(ExecutionId(row["id"]), JobId(row["job_id"])) for row in rows]
    if not waiting:
        return []
    reasons = {job.job_id: job.reason for job in jobs}
    ended = await end_queued(connection, tenant_no, {id_: reasons[job_id] for id_, job_id in waiting}, SKIP)
    job_ids = dict(waiting)
    return [job_ids[id_] for id_ in ended]


async def forget_claims(connection: Connection, limit: int) -> int:
    """Look at one batch of keys; returns how many there were."""
    return int(await connection.fetchval(_SQL["forget_claims"].text, limit))
