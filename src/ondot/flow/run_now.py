"""①c Run now: one execution of an existing job, started by hand (P2, P3). It is no fire: the schedule continues."""

from collections.abc import Callable

from ondot.flow.dispatch import Dispatcher
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.work import begin
from ondot.model.errors import Conflict, NotFound
from ondot.model.gates import encode_stages
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.job import JobState
from ondot.store.audit import By, record_change
from ondot.store.database import Database
from ondot.store.dependencies import look_again
from ondot.store.executions import insert_execution
from ondot.store.jobs import get_job, share_jobs
from ondot.store.traces import put_traces


async def run_now(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    job_id: JobId,
    payload: bytes | None,
    *,
    render: Callable[[ExecutionId], str],
    idempotency: Idempotency | None = None,
    by: By | None = None,
) -> str:
    """Start one execution now; returns the response. A paused job can be run, a deleted one cannot."""
    execution_id = ExecutionId(database.clock.new_id())
    async with begin(database, tenant_no) as work:
        if (earlier := await find_response(work, idempotency)) is not None:
            return earlier
        # Before it is read: a run that follows an acknowledged delete or update obeys it (P10).
        await share_jobs(work.connection, [job_id])
        job = await get_job(work.connection, tenant_no, job_id)
        if job is None:
            raise NotFound(f"There is no job {job_id}.")
        if job.state is JobState.DELETED:
            raise Conflict(f"The job {job_id} is deleted: create it again to run it.")
        pool_no = await work.pool_no_of_job(job.spec.pool)
        ready_at = await insert_execution(
            work.connection,
            tenant_no,
            execution_id,
            job_id,
            job_version=job.version,
            pool_no=pool_no,
            priority_class=int(job.spec.priority_class),
            origin="run",
            payload=payload.decode() if payload is not None else None,
            stages=encode_stages(job.spec.limits, tenant_no, job_id),
            start_within_s=job.spec.start_deadline_s,
        )
        await put_traces(work.connection, tenant_no, [execution_id], None if by is None else by.trace)
        if not job.spec.recurs:
            await look_again(work.connection, [job_id])
        detail = {"name": job.spec.name, "execution_id": execution_id, "own_payload": payload is not None or None}
        await record_change(work.connection, tenant_no, by, "job.run", job_id, detail)
        text = render(execution_id)
        await store_response(work, idempotency, text)
    dispatcher.wake([(pool_no, ready_at)])
    return text
