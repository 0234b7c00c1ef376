"""①a Jobs with a key of their own (E16): unique, throttled, debounced. Decided when they are submitted.

In the transaction that stores them, the rows of all keys of a batch are locked in their order, so that two batches
never wait for each other's. `model.unique_keys` decides about one job after the other, and a job that does not run is
recorded as a SKIPPED execution, with the reason. The number of statements does not grow with the batch.
Later, only a unique key can be released or taken, by a change of its job (`move_unique_key`). What a throttle has
counted stays counted. Whether a debounced job is still debounced is read under its lock, by the job that replaces it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from msgspec import structs

from ondot.flow.work import Work
from ondot.model.errors import Conflict
from ondot.model.ids import ExecutionId, JobId
from ondot.model.job import JobSpec, JobState
from ondot.model.schedule import Once, Schedule
from ondot.model.unique_keys import Claim, ClaimKey, Runs, Skipped, claim_of, decide_claim, is_put_off, key_of
from ondot.store.database import Database
from ondot.store.jobs import LockedJob, NewOnceJob, change_job, lock_job
from ondot.store.unique_keys import (
    Replaced,
    find_changed,
    lock_claims,
    release_claim,
    set_claims,
    unplan_jobs,
    unqueue_jobs,
)
from ondot.telemetry.metrics import EXECUTIONS_SKIPPED

TRIES = 3
"""To replace a debounced job: one that is being changed now is stored elsewhere when the wait for its lock is over."""


async def claim_keys(work: Work, jobs: Sequence[NewOnceJob], now: datetime) -> list[NewOnceJob]:
    """The jobs as they are to be stored: some refused, some at another instant, some replacing others."""
    connection, database, tenant_no = work.connection, work.database, work.tenant_no
    claimed = {job.id: job for job in jobs}
    wishes = {job.id: wish for job in jobs if (wish := claim_of(job.spec)) is not None}
    firsts: dict[ClaimKey, JobId] = {}
    for job_id, wish in wishes.items():
        firsts.setdefault(key_of(wish), job_id)
    stored = await lock_claims(connection, tenant_no, firsts, now)
    started = await _end_replaced(work, stored, firsts, now)
    claims = {key: claim for key, claim in stored.items() if key not in started}
    for job_id, wish in wishes.items():
        key = key_of(wish)
        verdict = decide_claim(wish, job_id, claims.get(key), now)
        claims[key] = verdict.claim
        match verdict:
            case Skipped(reason=reason):
                claimed[job_id] = _refuse(database, claimed[job_id], reason)
            case Runs(fire_at=fire_at, replaces=replaces):
                if replaces in claimed:
                    claimed[replaces] = _refuse(database, claimed[replaces], _replaced_by(job_id, wish.key))
                if fire_at is not None:
                    claimed[job_id] = _move_to(database, claimed[job_id], fire_at, now)
    taken = {key: Claim(job_id, now, now, 1, is_live=True) for key, job_id in firsts.items()} | stored
    await set_claims(connection, tenant_no, {key: claim for key, claim in claims.items() if claim != taken[key]})
    return [claimed[job.id] for job in jobs]


async def move_unique_key(work: Work, job: LockedJob, spec: JobSpec) -> None:
    """Give a locked job the unique key of its new spec, or none."""
    connection, tenant_no = work.connection, work.tenant_no
    old, new = job.spec.unique, spec.unique
    if (old and old.key) == (new and new.key):
        return
    claims = await lock_claims(connection, tenant_no, {key_of(wish): job.id for wish in (old, new) if wish}, job.now)
    if new is not None:
        verdict = decide_claim(new, job.id, claims.get(key_of(new)), job.now)
        if isinstance(verdict, Skipped):
            raise Conflict(
                f"The unique key {new.key!r} is taken by the job {verdict.claim.job_id}: "
                "choose another key, or try again when that job has ended and the key is free."
            )
        await set_claims(connection, tenant_no, {key_of(new): verdict.claim})
    if old is not None:
        await release_claim(connection, tenant_no, key_of(old), job.id)


async def _end_replaced(
    work: Work, stored: Mapping[ClaimKey, Claim], firsts: Mapping[ClaimKey, JobId], now: datetime
) -> set[ClaimKey]:
    """End the debounced jobs that are replaced; returns the keys of those that have started after all."""
    connection, tenant_no = work.connection, work.tenant_no
    put_off = {key: claim for key, claim in stored.items() if key[0] == "debounce" and is_put_off(claim, now)}
    left = {claim.job_id: key for key, claim in put_off.items()}
    for _ in range(TRIES):
        if not left:
            break
        jobs = {
            job_id: Replaced(job_id, ExecutionId(work.database.clock.new_id()), _replaced_by(firsts[key], key[1]))
            for job_id, key in left.items()
        }
        for job_id in await find_changed(connection, tenant_no, list(jobs)):
            changed = await _as_changed(work, jobs.pop(job_id), left[job_id])
            if changed is not None:
                jobs[job_id] = changed
        ended = set(await unplan_jobs(connection, tenant_no, list(jobs.values())))
        for job in (jobs[job_id] for job_id in ended if jobs[job_id].is_paused):
            # With no fire left it has ENDED, and there is nothing to resume.
            await _unpause(work, job)
        ended |= set(await unqueue_jobs(connection, tenant_no, [jobs[id_] for id_ in jobs if id_ not in ended]))
        EXECUTIONS_SKIPPED.labels("debounce").inc(len(ended))
        for job_id in ended:
            del left[job_id]
    return set(left.values())


async def _as_changed(work: Work, replaced: Replaced, key: ClaimKey) -> Replaced | None:
    """A job that was changed since it was created, locked; None: it no longer has this key."""
    job = await lock_job(work.connection, work.tenant_no, replaced.job_id)
    if job is None or job.spec.debounce is None or key_of(job.spec.debounce) != key or job.spec.schedule is None:
        return None
    when = job.spec.schedule.when
    if not isinstance(when, Once):
        return None
    return replace(replaced, fire_at=when.at, is_paused=job.state is JobState.PAUSED)


async def _unpause(work: Work, replaced: Replaced) -> None:
    job = await lock_job(work.connection, work.tenant_no, replaced.job_id)
    assert job is not None
    await change_job(
        work.connection,
        work.tenant_no,
        job.id,
        state=JobState.ACTIVE,
        version=job.version,
        state_reason=replaced.reason,
    )


def _replaced_by(job_id: JobId, key: str) -> str:
    return f"debounce: the job {job_id} replaced it, with the key {key!r}"


def _refuse(database: Database, job: NewOnceJob, reason: str) -> NewOnceJob:
    EXECUTIONS_SKIPPED.labels(reason.partition(":")[0]).inc()
    return structs.replace(job, refusal=reason, execution_id=job.execution_id or database.clock.new_id())


def _move_to(database: Database, job: NewOnceJob, fire_at: datetime, now: datetime) -> NewOnceJob:
    near = fire_at <= now + timedelta(seconds=database.settings.horizon_s)
    spec = structs.replace(job.spec, schedule=Schedule(when=Once(at=fire_at)))
    execution_id = (job.execution_id or database.clock.new_id()) if near else None
    return structs.replace(job, spec=spec, fire_at=fire_at, ready_at=fire_at, execution_id=execution_id)
