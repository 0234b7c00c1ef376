"""①a Jobs that name a key of their own (E16): unique, throttled, debounced. Decided as they are submitted.

In the transaction that stores them: the key's row is locked, `model.claims` decides, and what does not run is on record
as an execution that was SKIPPED, with the reason. Keys are taken in their order, so that two batches never wait for
each other's.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from msgspec import structs

from ondot.model.claims import Claim, Refused, Runs, claim_of, decide_claim, kind_of
from ondot.model.execution import State
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.job import Debounce
from ondot.model.schedule import Once, Schedule
from ondot.store.claims import lock_claim, set_claim, unplan_once_job, waiting_of
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.executions import end_queued
from ondot.store.jobs import NewOnceJob
from ondot.telemetry.metrics import EXECUTIONS_SKIPPED


async def claim_keys(
    connection: Connection, database: Database, tenant_no: TenantNo, jobs: Sequence[NewOnceJob], now: datetime
) -> list[NewOnceJob]:
    """The jobs as they are to be stored: some refused, some at another instant, some in the place of others."""
    claimed = {job.id: job for job in jobs}
    wishes = [(claim_of(job.spec), job.id) for job in jobs]
    named = [(kind_of(wish), wish, job_id) for wish, job_id in wishes if wish is not None]
    for kind, wish, job_id in sorted(named, key=lambda entry: (entry[0], entry[1].key, entry[2])):
        first = Claim(job_id, now, now, 1, is_live=True)
        held = await lock_claim(connection, tenant_no, kind, wish.key, first)
        if held is not None and held.job_id in claimed:
            # Of this very batch: it is not stored yet, and lives if it is to run.
            held = replace(held, is_live=claimed[held.job_id].refusal is None)
        match decide_claim(wish, job_id, held, now):
            case Refused(reason):
                claimed[job_id] = _refused(database, claimed[job_id], reason)
            case Runs(claim, fire_at, replaces):
                if replaces is not None:
                    reason = f"debounce: the job {job_id} came after it with the key {wish.key!r}"
                    if replaces in claimed:
                        claimed[replaces] = _refused(database, claimed[replaces], reason)
                    elif not await _put_aside(connection, database, tenant_no, replaces, reason):
                        # It has begun in this moment: a new series begins.
                        assert isinstance(wish, Debounce)
                        claim = replace(claim, since_at=now, until_at=now + timedelta(seconds=wish.wait_s), count=1)
                        fire_at = claim.until_at
                await set_claim(connection, tenant_no, kind, wish.key, claim)
                if fire_at is not None:
                    claimed[job_id] = _at(database, claimed[job_id], fire_at, now)
    return [claimed[job.id] for job in jobs]


async def _put_aside(
    connection: Connection, database: Database, tenant_no: TenantNo, job_id: JobId, reason: str
) -> bool:
    """End a job that waits for its instant; False if it has begun."""
    if await unplan_once_job(connection, tenant_no, job_id, ExecutionId(database.clock.new_id()), reason):
        EXECUTIONS_SKIPPED.labels("debounce").inc()
        return True
    waiting = await waiting_of(connection, tenant_no, job_id)
    ended = await end_queued(connection, tenant_no, waiting, State.SKIPPED, reason)
    EXECUTIONS_SKIPPED.labels("debounce").inc(len(ended))
    return bool(ended)


def _refused(database: Database, job: NewOnceJob, reason: str) -> NewOnceJob:
    EXECUTIONS_SKIPPED.labels(reason.partition(":")[0]).inc()
    return replace(job, refusal=reason, execution_id=job.execution_id or database.clock.new_id())


def _at(database: Database, job: NewOnceJob, fire_at: datetime, now: datetime) -> NewOnceJob:
    near = fire_at <= now + timedelta(seconds=database.settings.horizon_s)
    spec = structs.replace(job.spec, schedule=Schedule(when=Once(at=fire_at)))
    execution_id = (job.execution_id or database.clock.new_id()) if near else None
    return replace(job, spec=spec, fire_at=fire_at, ready_at=fire_at, execution_id=execution_id)
