"""① The rows of new jobs: what is stored for each, and what its creator gets back (S1, P1).

One-time jobs without a `key` have no row among the jobs that may change (`NewOnceJob`): thousands a second are stored
by one statement, and their executions with them. All others get a job, a version and a timer (`NewJob`), and their
fires inside the horizon are planned in the same transaction by the same function as any other.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import Final
from uuid import UUID

from msgspec import Struct, structs

from ondot.flow.events.subscriptions import add_subscriptions
from ondot.flow.plan import FIRES_A_STATEMENT, Planning, plan_timers
from ondot.flow.sinks.job_events import post_new_jobs
from ondot.flow.work import Work
from ondot.model.ids import JobId, PoolNo, TenantNo, instant_of, partition_of
from ondot.model.job import JobSpec, JobState, fill_in_schedule
from ondot.model.planning import Timer
from ondot.model.schedule import Once, jitter_offset, next_fire
from ondot.model.trace import Part, TraceContext, derive_span_id, parse_traceparent
from ondot.model.unique_keys import claim_of
from ondot.store.clock import DatabaseClock, Moment
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.expect import put_watches
from ondot.store.jobs import NewJob, NewOnceJob, insert_jobs, insert_once_jobs
from ondot.telemetry.trace import Tracer, active_tracer

NOBODY: Final[Iterable[UUID | None]] = repeat(None)
"""The creators of jobs whose creators are not known."""


class Accepted(Struct, frozen=True):
    """A job as it was stored, with everything that the response to its creator needs."""

    id: JobId
    spec: JobSpec
    state: JobState
    version: int
    next_fire_at: datetime | None
    created_at: datetime
    state_reason: str | None = None


def is_once(spec: JobSpec) -> bool:
    """Stored as a `NewOnceJob`."""
    return not spec.recurs and spec.key is None and not spec.depends_on


def is_simple(spec: JobSpec) -> bool:
    """Stored by one statement, and the response is known before: see `group_commit`."""
    return is_once(spec) and claim_of(spec) is None


def new_once_jobs(
    database: Database,
    specs: Sequence[JobSpec],
    numbers: dict[str, PoolNo],
    now: datetime,
    creators: Iterable[UUID | None] = NOBODY,
) -> list[NewOnceJob]:
    """The rows of these one-time jobs, with the ids of their executions where they are due before the horizon.

    `creators`: of each job, or more of them.
    """
    horizon_at = now + timedelta(seconds=database.settings.horizon_s)
    ids = database.clock.new_ids(2 * len(specs))
    if (tracer := active_tracer()) is not None:
        specs = [start_trace(tracer, spec, job_id) for spec, job_id in zip(specs, ids, strict=False)]
    jobs: list[NewOnceJob] = []
    for job_id, execution_id, given, creator in zip(
        ids[: len(specs)], ids[len(specs) :], specs, creators, strict=False
    ):
        spec = fill_in_schedule(given, JobId(job_id), now)
        assert spec.schedule is not None
        assert isinstance(spec.schedule.when, Once)
        fire_at = spec.schedule.when.at
        jitter_s = spec.schedule.jitter_s
        ready_at = fire_at + jitter_offset(job_id, jitter_s) if jitter_s else fire_at
        planned_id = execution_id if fire_at <= horizon_at else None
        jobs.append(NewOnceJob(JobId(job_id), spec, numbers[spec.pool], fire_at, ready_at, planned_id, None, creator))
    return jobs


def new_job(job_id: JobId, given: JobSpec, numbers: dict[str, PoolNo], now: datetime) -> NewJob:
    if (given.trace is not None or not given.recurs) and (tracer := active_tracer()) is not None:
        given = start_trace(tracer, given, job_id)
    spec = fill_in_schedule(given, job_id, now)
    if spec.depends_on:
        # Its one fire has an execution from the start, which waits: `workflows.depends`.
        return NewJob(job_id, spec, numbers[spec.pool], None, first_fire(spec, now))
    return NewJob(job_id, spec, numbers[spec.pool], first_fire(spec, now), now if spec.recurs else None)


def start_trace(tracer: Tracer, spec: JobSpec, job_id: UUID) -> JobSpec:
    """The spec with the traceparent of its submit, if its trace is recorded: by its caller's decision, else by its id,
    so that nothing is stored for the others."""
    caller = None if spec.trace is None else parse_traceparent(spec.trace, spec.tracestate)
    if not tracer.is_sampled(job_id, caller):
        return spec
    own = TraceContext(
        job_id.hex if caller is None else caller.trace_id, derive_span_id(job_id, Part.SUBMIT), is_sampled=True
    )
    return structs.replace(spec, trace=own.traceparent)


def first_fire(spec: JobSpec, now: datetime) -> datetime | None:
    """The first fire of a new job: after now, or at once for a one-time job that is due (or a minute late)."""
    assert spec.schedule is not None
    if isinstance(spec.schedule.when, Once):
        return spec.schedule.when.at
    return next_fire(spec.schedule, now)


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


def accept(job: NewJob | NewOnceJob, now: datetime) -> Accepted:
    if isinstance(job, NewOnceJob):
        return accept_once(job, now)
    next_fire_at = job.next_fire_at
    if job.spec.depends_on and job.fired_through is not None and job.fired_through > now:
        next_fire_at = job.fired_through
    return Accepted(job.id, job.spec, JobState.ACTIVE, 1, next_fire_at, instant_of(job.id))


def accept_once(job: NewOnceJob, now: datetime) -> Accepted:
    if job.refusal is not None:
        return Accepted(job.id, job.spec, JobState.ENDED, 1, None, instant_of(job.id), job.refusal)
    next_fire_at = job.fire_at if job.fire_at > now else None
    return Accepted(job.id, job.spec, JobState.ACTIVE, 1, next_fire_at, instant_of(job.id))


def pools_to_wake(jobs: Sequence[NewOnceJob]) -> list[tuple[PoolNo, datetime]]:
    return [(job.pool_no, job.ready_at) for job in jobs if job.execution_id and job.refusal is None]


async def store_once_jobs(
    connection: Connection,
    clock: DatabaseClock,
    tenant_no: TenantNo,
    jobs: Sequence[NewOnceJob],
    moments: Sequence[Moment],
) -> None:
    """Insert jobs whose instants come from these moments; `ClockStepped` if the database's clock contradicts them."""
    sent_s = time.monotonic()
    clock.confirm(await insert_once_jobs(connection, tenant_no, jobs, clock.bounds(moments)), sent_s)


async def store_jobs(work: Work, jobs: Sequence[NewJob], moment: Moment) -> list[tuple[PoolNo, datetime]]:
    """Insert jobs and plan their fires inside the horizon; returns the pools to wake after the commit."""
    if any(job.spec.starts_by_event for job in jobs):
        await add_subscriptions(work, jobs)
    clock, now, sent_s = work.database.clock, moment.at, time.monotonic()
    clock.confirm(await insert_jobs(work.connection, work.tenant_no, jobs, clock.bounds([moment])), sent_s)
    await post_new_jobs(work.connection, work.tenant_no, jobs)
    for job in jobs:
        if job.spec.expect is not None:
            which, first_fire_at = job.spec.expect.given, job.next_fire_at
            await put_watches(work.connection, work.tenant_no, job.id, which, first_fire_at)
    horizon_at = now + timedelta(seconds=work.database.settings.horizon_s)
    near = [
        Planning(new_timer(work.tenant_no, job), job.spec, job.pool_no)
        for job in jobs
        if job.next_fire_at is not None and job.next_fire_at <= horizon_at
    ]
    pools: list[tuple[PoolNo, datetime]] = []
    for start in range(0, len(near), FIRES_A_STATEMENT):
        # Fires that do not fit into a statement are left to the next pass, which plans the earliest first.
        batch = near[start : start + FIRES_A_STATEMENT]
        planned = await plan_timers(work.connection, clock, batch, now=now, horizon_at=horizon_at)
        pools += planned.pools
    return pools
