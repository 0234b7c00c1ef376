"""① Accept: idempotency, store the jobs and their first fires; acknowledged after COMMIT (S1, E11, P1, P2).

A fire inside the horizon is planned in the same transaction by the same function as any other, so that a job due in
three seconds waits for no pass. Ids are minted before the first try. A job whose `key` is taken is an update of the
job that has it (S12).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import Struct, structs

from ondot.flow.change import update_locked
from ondot.flow.claim import claim_keys
from ondot.flow.dispatch import Dispatcher
from ondot.flow.plan import FIRES_A_STATEMENT, Planning, plan_timers
from ondot.model.claims import claim_of
from ondot.model.errors import Conflict, NotFound
from ondot.model.gates import encoded_stages
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo, partition_of
from ondot.model.job import JobSpec, JobState, anchored_as, completed, same_spec
from ondot.model.planning import Timer
from ondot.model.schedule import Once, jitter_offset, next_fire
from ondot.store.connection import TAKEN, Connection
from ondot.store.database import Database
from ondot.store.executions import insert_execution
from ondot.store.idempotency import store_answer, take_key
from ondot.store.jobs import (
    LockedJob,
    NewJob,
    NewOnceJob,
    find_keys,
    get_job,
    get_jobs,
    insert_jobs,
    insert_once_jobs,
)

UPSERT_TRIES = 5


class Accepted(Struct, frozen=True):
    """A job as it was stored, with what the answer to its creator needs."""

    id: JobId
    spec: JobSpec
    state: JobState
    version: int
    next_fire_at: datetime | None
    created_at: datetime
    state_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Idempotency:
    """The caller's key for a request, and a hash of all that makes the request what it is."""

    key: str
    request_hash: bytes


Answer = Callable[[list[Accepted]], str]
"""Renders what was accepted as JSON: stored with the idempotency key, so that a repetition gets the same bytes."""


async def submit(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    *,
    answer: Answer,
    idempotency: Idempotency | None = None,
) -> str:
    """Store these jobs, all or none; gives the answer."""
    tries = UPSERT_TRIES if any(spec.key for spec in specs) else 1
    while True:
        tries -= 1
        try:
            return await _submit(database, dispatcher, tenant_no, specs, answer, idempotency)
        except TAKEN as error:
            # Two who create the same `key` at once: the second finds the first's job when it looks again.
            if tries == 0:
                raise Conflict("Others are creating jobs with the same key at the same time: try again.") from error


async def _submit(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    answer: Answer,
    idempotency: Idempotency | None,
) -> str:
    now = database.clock.now()
    async with database.transaction() as connection:
        if (earlier := await earlier_answer(connection, tenant_no, idempotency)) is not None:
            return earlier
        accepted, pools = await _store_all(connection, database, tenant_no, specs, now)
        text = answer(accepted)
        await keep_answer(connection, tenant_no, idempotency, text)
    dispatcher.wake(pools)
    return text


async def _store_all(
    connection: Connection, database: Database, tenant_no: TenantNo, specs: Sequence[JobSpec], now: datetime
) -> tuple[list[Accepted], list[tuple[PoolNo, datetime]]]:
    """Store a mixed batch and give the accepted ones in its order."""
    taken = await _existing(connection, tenant_no, specs)
    numbers_of_pools = await database.pools.numbers(connection, tenant_no, {spec.pool for spec in specs})
    once = [n for n, spec in enumerate(specs) if not spec.recurs and spec.key is None]
    new = [n for n, spec in enumerate(specs) if (spec.recurs or spec.key is not None) and spec.key not in taken]
    new.sort(key=lambda n: specs[n].key or "")  # two who create the same keys in another order would deadlock
    accepted: dict[int, Accepted] = {}
    pools: list[tuple[PoolNo, datetime]] = []
    for numbers, store in ((once, _store_once_jobs), (new, _store_jobs)):
        if numbers:
            stored, woken = await store(
                connection, database, tenant_no, [specs[n] for n in numbers], numbers_of_pools, now
            )
            accepted |= dict(zip(numbers, stored, strict=True))
            pools += woken
    known = sorted(set(range(len(specs))) - set(accepted), key=lambda n: specs[n].key or "")
    if known:
        updates = [(taken[specs[n].key or ""], specs[n]) for n in known]
        stored, woken = await _update_jobs(connection, database, tenant_no, updates, now)
        accepted |= dict(zip(known, stored, strict=True))
        pools += woken
    return [accepted[n] for n in range(len(specs))], pools


async def _existing(connection: Connection, tenant_no: TenantNo, specs: Sequence[JobSpec]) -> dict[str, LockedJob]:
    keys = [spec.key for spec in specs if spec.key is not None]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Conflict(f"The key {twice!r} stands twice in one batch: a key names one job.")
    return await find_keys(connection, tenant_no, keys) if keys else {}


async def _store_once_jobs(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    numbers: dict[str, PoolNo],
    now: datetime,
) -> tuple[list[Accepted], list[tuple[PoolNo, datetime]]]:
    jobs = new_once_jobs(database, specs, numbers, now)
    if any(claim_of(spec) for spec in specs):
        jobs = await claim_keys(connection, database, tenant_no, jobs, now)
    await insert_once_jobs(connection, tenant_no, jobs)
    return [accepted_of(job, now) for job in jobs], wakes_of(jobs)


def new_once_jobs(
    database: Database, specs: Sequence[JobSpec], numbers: dict[str, PoolNo], now: datetime
) -> list[NewOnceJob]:
    """The rows of these one-time jobs, with the ids of their executions where they are due before the horizon."""
    horizon_at = now + timedelta(seconds=database.settings.horizon_s)
    ids = database.clock.new_ids(2 * len(specs))
    jobs: list[NewOnceJob] = []
    for job_id, execution_id, given in zip(ids[: len(specs)], ids[len(specs) :], specs, strict=True):
        spec = completed(given, JobId(job_id), now)
        assert spec.schedule is not None
        assert isinstance(spec.schedule.when, Once)
        fire_at = spec.schedule.when.at
        jitter_s = spec.schedule.jitter_s
        ready_at = fire_at + jitter_offset(job_id, jitter_s) if jitter_s else fire_at
        planned_id = execution_id if fire_at <= horizon_at else None
        jobs.append(NewOnceJob(JobId(job_id), spec, numbers[spec.pool], fire_at, ready_at, planned_id))
    return jobs


def accepted_of(job: NewOnceJob, now: datetime) -> Accepted:
    if job.refusal is not None:
        return Accepted(job.id, job.spec, JobState.ENDED, 1, None, now, job.refusal)
    return Accepted(job.id, job.spec, JobState.ACTIVE, 1, job.fire_at if job.fire_at > now else None, now)


def wakes_of(jobs: Sequence[NewOnceJob]) -> list[tuple[PoolNo, datetime]]:
    return [(job.pool_no, job.ready_at) for job in jobs if job.execution_id and job.refusal is None]


def is_simple(spec: JobSpec) -> bool:
    """Stored by one statement, and what is answered is known before it is: see `together`."""
    return not spec.recurs and spec.key is None and claim_of(spec) is None


async def _store_jobs(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    numbers: dict[str, PoolNo],
    now: datetime,
) -> tuple[list[Accepted], list[tuple[PoolNo, datetime]]]:
    jobs = []
    for job_id, given in zip(database.clock.new_ids(len(specs)), specs, strict=True):
        spec = completed(given, JobId(job_id), now)
        fired_through = now if spec.recurs else None
        jobs.append(NewJob(JobId(job_id), spec, numbers[spec.pool], first_fire(spec, now), fired_through))
    await insert_jobs(connection, tenant_no, jobs)

    horizon_at = now + timedelta(seconds=database.settings.horizon_s)
    near = [
        Planning(new_timer(tenant_no, job), job.spec, job.pool_no)
        for job in jobs
        if job.next_fire_at is not None and job.next_fire_at <= horizon_at
    ]
    pools: list[tuple[PoolNo, datetime]] = []
    for start in range(0, len(near), FIRES_A_STATEMENT):
        # What does not fit a statement is left to the next pass: it is due before the horizon and comes first there.
        planned = await plan_timers(
            connection,
            database.clock,
            near[start : start + FIRES_A_STATEMENT],
            now=now,
            horizon_at=horizon_at,
        )
        pools += planned.pools
    return [Accepted(job.id, job.spec, JobState.ACTIVE, 1, job.next_fire_at, now) for job in jobs], pools


async def _update_jobs(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    updates: Sequence[tuple[LockedJob, JobSpec]],
    now: datetime,
) -> tuple[list[Accepted], list[tuple[PoolNo, datetime]]]:
    """Upserts of keys that are taken: the same spec again changes nothing, another becomes a new version."""
    pools: list[tuple[PoolNo, datetime]] = []
    for job, spec in updates:
        wanted = completed(spec, job.id, now)
        if spec.schedule is None and not job.spec.recurs:
            # "Now" is another instant each time, but the same wish: a repetition finds the job that was made.
            wanted = structs.replace(spec, schedule=job.spec.schedule)
        wanted = anchored_as(wanted, job.spec)
        if not same_spec(wanted, job.spec):
            pools += await update_locked(connection, database, tenant_no, job, wanted)
    rows = await get_jobs(connection, tenant_no, [job.id for job, _ in updates])
    accepted = [
        Accepted(row.id, row.spec, row.state, row.version, row.next_fire_at, row.created_at, row.state_reason)
        for row in (rows[job.id] for job, _ in updates)
    ]
    return accepted, pools


async def earlier_answer(connection: Connection, tenant_no: TenantNo, idempotency: Idempotency | None) -> str | None:
    """What the same request was answered before; None: it is new, and its key is ours in this transaction."""
    if idempotency is None:
        return None
    return await take_key(connection, tenant_no, idempotency.key, idempotency.request_hash)


async def keep_answer(connection: Connection, tenant_no: TenantNo, idempotency: Idempotency | None, text: str) -> None:
    if idempotency is not None:
        await store_answer(connection, tenant_no, idempotency.key, text)


async def run_now(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    job_id: JobId,
    payload: bytes | None,
    *,
    answer: Callable[[ExecutionId], str],
    idempotency: Idempotency | None = None,
) -> str:
    """Start one execution now; it is no fire. A paused job may be run so, a deleted one not."""
    execution_id = ExecutionId(database.clock.new_id())
    async with database.transaction() as connection:
        if (earlier := await earlier_answer(connection, tenant_no, idempotency)) is not None:
            return earlier
        job = await get_job(connection, tenant_no, job_id)
        if job is None:
            raise NotFound(f"There is no job {job_id}.")
        if job.state is JobState.DELETED:
            raise Conflict(f"The job {job_id} is deleted: create it anew to run it.")
        pools = await database.pools.numbers(connection, tenant_no, [job.spec.pool])
        pool_no = pools[job.spec.pool]
        ready_at = await insert_execution(
            connection,
            tenant_no,
            execution_id,
            job_id,
            job_version=job.version,
            pool_no=pool_no,
            priority_class=int(job.spec.priority_class),
            origin="run",
            payload=payload.decode() if payload is not None else None,
            stages=encoded_stages(job.spec.limits, tenant_no, job_id),
            start_by=_deadline(job.spec, database.clock.now()),
        )
        text = answer(execution_id)
        await keep_answer(connection, tenant_no, idempotency, text)
    dispatcher.wake([(pool_no, ready_at)])
    return text


def first_fire(spec: JobSpec, now: datetime) -> datetime | None:
    """The first fire of a new job: after now, or at once if it is a one-time job that is due (or a minute late)."""
    assert spec.schedule is not None
    if isinstance(spec.schedule.when, Once):
        return spec.schedule.when.at
    return next_fire(spec.schedule, now)


def _deadline(spec: JobSpec, now: datetime) -> datetime | None:
    return None if spec.start_deadline_s is None else now + timedelta(seconds=spec.start_deadline_s)


def new_timer(tenant_no: TenantNo, job: NewJob) -> Timer:
    assert job.spec.schedule is not None
    return Timer(
        job.id,
        tenant_no,
        partition_of(job.id),
        1,
        1,
        job.next_fire_at,
        fired_through=job.fired_through,
        fires_left=job.spec.schedule.max_fires,
    )
