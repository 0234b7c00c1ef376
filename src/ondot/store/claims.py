"""Keys of unique, debounced and throttled jobs (E16): one row for each, locked by who decides about it."""

from ondot.model.claims import Claim
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("claims")


async def lock_claim(connection: Connection, tenant_no: TenantNo, kind: str, key: str, claim: Claim) -> Claim | None:
    """Take a key that nobody has, and give None; or lock the row of who has it, and give that.

    A concurrent twin waits here for the end of the other's transaction.
    """
    row = await connection.fetchrow(
        _SQL["lock_claim"].text, tenant_no, kind, key, claim.job_id, claim.since_at, claim.until_at
    )
    assert row is not None
    if row["is_new"]:
        return None
    live = await connection.fetchval(_SQL["is_live"].text, row["job_id"])
    return Claim(JobId(row["job_id"]), row["since_at"], row["until_at"], row["count"], live)


async def set_claim(connection: Connection, tenant_no: TenantNo, kind: str, key: str, claim: Claim) -> None:
    await connection.execute(
        _SQL["set_claim"].text, tenant_no, kind, key, claim.job_id, claim.since_at, claim.until_at, claim.count
    )


async def release_claim(connection: Connection, tenant_no: TenantNo, kind: str, key: str, job_id: JobId) -> None:
    """The job has the key no more, if it had it."""
    await connection.execute(_SQL["release_claim"].text, tenant_no, kind, key, job_id)


async def unplan_once_job(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, execution_id: ExecutionId, reason: str
) -> bool:
    """End a one-time job that has only a timer: SKIPPED on record under this id; False if it has none (any more)."""
    return bool(await connection.fetchval(_SQL["unplan_once_job"].text, tenant_no, job_id, execution_id, reason))


async def waiting_of(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> list[ExecutionId]:
    """The executions of a one-time job that have not begun."""
    rows = await connection.fetch(_SQL["waiting_of"].text, tenant_no, job_id)
    return [ExecutionId(row["id"]) for row in rows]


async def forget_claims(connection: Connection, limit: int) -> None:
    await connection.execute(_SQL["forget_claims"].text, limit)
