"""Events of jobs for sinks (E3): written to the outbox in the transaction of the change, if a sink wants them.

One-time jobs without a key have none when they are created: programs create thousands of them a second, and the events
of their executions say the same.
"""

from collections.abc import Iterable
from typing import Any

from ondot.model.ids import JobId, TenantNo
from ondot.model.job import JobSpec
from ondot.store.audit import Action
from ondot.store.connection import Connection
from ondot.store.jobs import LockedJob, NewJob
from ondot.store.sinks import post_job_events

_TYPES: dict[Action, str] = {
    "job.update": "ondot.job.updated",
    "job.pause": "ondot.job.paused",
    "job.resume": "ondot.job.resumed",
    "job.delete": "ondot.job.deleted",
}


async def post_new_jobs(connection: Connection, tenant_no: TenantNo, jobs: Iterable[NewJob]) -> None:
    details = {job.id: _about(job.spec, 1) for job in jobs}
    await post_job_events(connection, tenant_no, "ondot.job.created", details)


async def post_changed_job(
    connection: Connection, tenant_no: TenantNo, action: Action, job: LockedJob, reason: str | None
) -> None:
    """`job`: as the change leaves it."""
    detail = _about(job.spec, job.version) | {"state": job.state.value, "reason": job.state_reason or reason}
    await post_job_events(connection, tenant_no, _TYPES[action], {JobId(job.id): detail})


def _about(spec: JobSpec, version: int) -> dict[str, Any]:
    return {"job": spec.name, "key": spec.key, "labels": dict(spec.labels), "pool": spec.pool, "version": version}
