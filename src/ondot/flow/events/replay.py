"""Past events again (S11): start a job with one, and try a filter on many."""

from collections.abc import Callable
from uuid import UUID

import msgspec

from ondot.flow.dispatch import Dispatcher
from ondot.flow.events.subscriptions import rule_of
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.work import begin
from ondot.model.errors import Conflict, NotFound
from ondot.model.event import read_event
from ondot.model.event_payload import make_payload
from ondot.model.gates import encode_stages
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.job import JobState
from ondot.store.audit import By, record_change
from ondot.store.database import Database
from ondot.store.events import get_event
from ondot.store.executions import insert_execution
from ondot.store.jobs import get_job, share_jobs
from ondot.store.traces import put_traces


async def replay_event(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    event_id: UUID,
    job_id: JobId,
    *,
    render: Callable[[ExecutionId], str],
    idempotency: Idempotency | None = None,
    by: By,
) -> str:
    """Start one execution of a job with a past event, whatever the job's filter says; returns the response. It starts
    now, alone: debounce and batch are for events that arrive. A paused job can be run by hand, a deleted one cannot."""
    execution_id = ExecutionId(database.clock.new_id())
    async with begin(database, tenant_no) as work:
        if (earlier := await find_response(work, idempotency)) is not None:
            return earlier
        event = await get_event(work.connection, tenant_no, event_id)
        if event is None:
            raise NotFound(f"There is no event {event_id}. Events are kept as long as history is.")
        await share_jobs(work.connection, [job_id])
        job = await get_job(work.connection, tenant_no, job_id)
        if job is None:
            raise NotFound(f"There is no job {job_id}.")
        if job.state is JobState.DELETED:
            raise Conflict(f"The job {job_id} is deleted: create it again to run it.")
        if not job.spec.starts_by_event:
            raise Conflict(f"The job {job_id} does not start by events. Run it with POST /v1/jobs/{job_id}/run.")
        rule = rule_of(job.spec)
        assert rule is not None
        sent = read_event(msgspec.json.decode(event.body), from_outside=False)
        payload = make_payload(job.spec.payload, sent)
        if payload is not None and rule.batch is not None:
            payload = f"[{payload}]"
        pool_no = await work.pool_no_of_job(job.spec.pool)
        ready_at = await insert_execution(
            work.connection,
            tenant_no,
            execution_id,
            job_id,
            job_version=job.version,
            pool_no=pool_no,
            priority_class=int(job.spec.priority_class),
            origin="event",
            payload=payload,
            stages=encode_stages(job.spec.limits, tenant_no, job_id),
            start_within_s=job.spec.start_deadline_s,
        )
        await put_traces(work.connection, tenant_no, [execution_id], by.trace)
        detail = {"event_id": event_id, "type": event.type, "execution_id": execution_id}
        await record_change(work.connection, tenant_no, by, "event.replay", job_id, detail)
        text = render(execution_id)
        await store_response(work, idempotency, text)
    dispatcher.wake([(pool_no, ready_at)])
    return text
