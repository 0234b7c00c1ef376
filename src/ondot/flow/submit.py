"""① Accept: idempotency, store the jobs and their first fires; acknowledged after COMMIT (S1, E11, P1, P2).

A fire inside the horizon is planned in the same transaction by the same function as any other, so that a job due in
three seconds waits for no pass. Ids are minted before the first try. A job whose `key` is taken is an update of the
job that has it (S12).

When ten thousand schedules fire first, and how they are told, takes seconds to find out: it is drafted before the
transaction and beside the event loop, as if nobody were in the way. Only if somebody is (a key that is taken, a unique
one, a debounce) the answer is rendered anew, from parts that are known by then.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from msgspec import Struct, structs

from ondot.flow.change.change import update_locked
from ondot.flow.dispatch import Dispatcher
from ondot.flow.plan import FIRES_A_STATEMENT, Planning, plan_timers
from ondot.flow.unique_keys import claim_keys
from ondot.model.errors import Conflict
from ondot.model.ids import JobId, PoolNo, TenantNo, instant_of, partition_of
from ondot.model.job import JobSpec, JobState, anchored_as, completed, same_spec
from ondot.model.planning import Timer
from ondot.model.schedule import Once, jitter_offset, next_fire
from ondot.model.schedule.rule import is_quick
from ondot.model.unique_keys import claim_of
from ondot.store.audit import By, record_change
from ondot.store.clock import DatabaseClock, Moment
from ondot.store.connection import TAKEN, Connection
from ondot.store.database import Database
from ondot.store.idempotency import has_key, store_answer, take_key
from ondot.store.jobs import (
    LockedJob,
    NewJob,
    NewOnceJob,
    find_keys,
    get_jobs,
    insert_jobs,
    insert_once_jobs,
)

UPSERT_TRIES = 5
RECORDED = 100
"""So many ids of a batch stand in its entry of the audit log."""
FEW: Final = 20
"""Jobs that are thought about in passing: 10 ms, if each has a cron of its own."""

Thought = TypeVar("Thought")


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
"""Renders what was accepted as JSON: stored with the idempotency key, so that a repetition gets the same bytes. It may
be called more than once, and in a thread; the last time is the truth."""

Made = Callable[[Sequence[Accepted]], None]
"""Is told after the COMMIT which jobs are new: those that were there by their `key` are not."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """What is stored, and answered, if nobody is in the way."""

    jobs: Sequence[NewJob | NewOnceJob]
    accepted: list[Accepted]
    text: str | None
    """None: they are few, and told when they are stored."""


@dataclass(frozen=True, slots=True)
class _Stored:
    accepted: list[Accepted]
    new: list[Accepted]
    pools: list[tuple[PoolNo, datetime]]


async def submit(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    *,
    answer: Answer,
    idempotency: Idempotency | None = None,
    made: Made | None = None,
    moment: Moment | None = None,
    by: By | None = None,
) -> str:
    """Store these jobs, all or none; gives the answer. `by`: recorded for jobs that recur or have a key (`_record`).

    `moment`: what the instants of the specs were computed from; `ClockStepped` if it is contradicted. None: from none.
    """
    if moment is None:
        return await database.by_clock(
            lambda moment: submit(
                database,
                dispatcher,
                tenant_no,
                specs,
                answer=answer,
                idempotency=idempotency,
                made=made,
                moment=moment,
                by=by,
            )
        )
    draft = await _drafted(database, tenant_no, specs, moment.at, answer, idempotency)
    tries = UPSERT_TRIES if any(spec.key for spec in specs) else 1
    while True:
        tries -= 1
        try:
            text, stored = await _submit(database, tenant_no, specs, draft, moment, answer, idempotency, by)
        except TAKEN as error:
            # Two who create the same `key` at once: the second finds the first's job when it looks again.
            if tries == 0:
                raise Conflict("Others are creating jobs with the same key at the same time: try again.") from error
        else:
            break
    if stored is not None:
        dispatcher.wake(stored.pools)
        if made is not None:
            made(stored.new)
    return text


async def apart(count: int, think: Callable[[], Thought]) -> Thought:
    """What is thought about so many jobs: in a thread if they are many, since other requests must not wait for it."""
    return await asyncio.to_thread(think) if count > FEW else think()


async def _drafted(
    database: Database,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    now: datetime,
    answer: Answer,
    idempotency: Idempotency | None,
) -> _Draft:
    is_told = len(specs) > FEW
    async with database.connection() as connection:
        numbers = await database.pools.numbers(connection, tenant_no, {spec.pool for spec in specs})
        if is_told and idempotency is not None:
            is_told = not await has_key(connection, tenant_no, idempotency.key)
    once = iter(new_once_jobs(database, [spec for spec in specs if _is_once(spec)], numbers, now))
    ids = iter(database.clock.new_ids(sum(not _is_once(spec) for spec in specs)))

    def think() -> _Draft:
        jobs = [next(once) if _is_once(spec) else _new_job(JobId(next(ids)), spec, numbers, now) for spec in specs]
        accepted = [_accepted(job, now) for job in jobs]
        return _Draft(jobs, accepted, answer(accepted) if is_told else None)

    is_long = any(spec.schedule is not None and not is_quick(spec.schedule) for spec in specs)
    return await asyncio.to_thread(think) if is_long else await apart(len(specs), think)


async def _submit(
    database: Database,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    draft: _Draft,
    moment: Moment,
    answer: Answer,
    idempotency: Idempotency | None,
    by: By | None,
) -> tuple[str, _Stored | None]:
    """The answer, and what was stored for it; None: it is that of an earlier time."""
    async with database.transaction() as connection:
        if (earlier := await earlier_answer(connection, tenant_no, idempotency)) is not None:
            return earlier, None
        stored = await _store_all(connection, database, tenant_no, specs, draft.jobs, moment, by)
        text = draft.text
        if text is None or stored.accepted != draft.accepted:
            text = await apart(len(specs), lambda: answer(stored.accepted))
        await keep_answer(connection, tenant_no, idempotency, text)
    return text, stored


async def _store_all(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    drafts: Sequence[NewJob | NewOnceJob],
    moment: Moment,
    by: By | None,
) -> _Stored:
    """Store a mixed batch and give the accepted ones in its order."""
    now = moment.at
    taken = await _existing(connection, tenant_no, specs)
    for job in taken.values():
        database.clock.check(moment, job.now)
    once = {n: job for n, job in enumerate(drafts) if isinstance(job, NewOnceJob)}
    # Two who create the same keys in another order would deadlock.
    others = sorted(enumerate(drafts), key=lambda draft: draft[1].spec.key or "")
    new = {n: job for n, job in others if isinstance(job, NewJob) and job.spec.key not in taken}
    accepted: dict[int, Accepted] = {}
    pools: list[tuple[PoolNo, datetime]] = []
    if once:
        jobs = await _store_once_jobs(connection, database, tenant_no, list(once.values()), moment)
        accepted |= zip(once, (accepted_of(job, now) for job in jobs), strict=True)
        pools += wakes_of(jobs)
    if new:
        pools += await _store_jobs(connection, database, tenant_no, list(new.values()), moment)
        accepted |= ((n, _accepted(job, now)) for n, job in new.items())
        await _record_new(connection, tenant_no, by, list(new.values()))
    made = list(accepted.values())
    known = sorted(set(range(len(specs))) - set(accepted), key=lambda n: specs[n].key or "")
    if known:
        updates = [(taken[specs[n].key or ""], specs[n]) for n in known]
        stored, woken = await _update_jobs(connection, database, tenant_no, updates, now, by)
        accepted |= zip(known, stored, strict=True)
        pools += woken
    return _Stored([accepted[n] for n in range(len(specs))], made, pools)


async def _record_new(connection: Connection, tenant_no: TenantNo, by: By | None, jobs: Sequence[NewJob]) -> None:
    """One entry for a request, however many jobs it makes. One-time jobs without a key have none: programs make them by
    the thousand a second, and each is its own record."""
    if len(jobs) == 1:
        [job] = jobs
        await record_change(
            connection, tenant_no, by, "job.create", job.id, {"name": job.spec.name, "key": job.spec.key}
        )
    else:
        ids = [job.id for job in jobs[:RECORDED]]
        await record_change(connection, tenant_no, by, "job.create", None, {"jobs": len(jobs), "ids": ids})


async def _existing(connection: Connection, tenant_no: TenantNo, specs: Sequence[JobSpec]) -> dict[str, LockedJob]:
    keys = [spec.key for spec in specs if spec.key is not None]
    if len(set(keys)) < len(keys):
        [(twice, _)] = Counter(keys).most_common(1)
        raise Conflict(f"The key {twice!r} stands twice in one batch: a key names one job.")
    return await find_keys(connection, tenant_no, keys) if keys else {}


async def _store_once_jobs(
    connection: Connection, database: Database, tenant_no: TenantNo, jobs: list[NewOnceJob], moment: Moment
) -> list[NewOnceJob]:
    """Gives them as they were stored."""
    if any(claim_of(job.spec) for job in jobs):
        jobs = await claim_keys(connection, database, tenant_no, jobs, moment.at)
    await store_once_jobs(connection, database.clock, tenant_no, jobs, [moment])
    return jobs


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
        return Accepted(job.id, job.spec, JobState.ENDED, 1, None, instant_of(job.id), job.refusal)
    next_fire_at = job.fire_at if job.fire_at > now else None
    return Accepted(job.id, job.spec, JobState.ACTIVE, 1, next_fire_at, instant_of(job.id))


def wakes_of(jobs: Sequence[NewOnceJob]) -> list[tuple[PoolNo, datetime]]:
    return [(job.pool_no, job.ready_at) for job in jobs if job.execution_id and job.refusal is None]


def _accepted(job: NewJob | NewOnceJob, now: datetime) -> Accepted:
    if isinstance(job, NewOnceJob):
        return accepted_of(job, now)
    return Accepted(job.id, job.spec, JobState.ACTIVE, 1, job.next_fire_at, instant_of(job.id))


def _is_once(spec: JobSpec) -> bool:
    """Without a row of its own among the jobs that may change: see `NewOnceJob`."""
    return not spec.recurs and spec.key is None


def is_simple(spec: JobSpec) -> bool:
    """Stored by one statement, and what is answered is known before it is: see `together`."""
    return _is_once(spec) and claim_of(spec) is None


def _new_job(job_id: JobId, given: JobSpec, numbers: dict[str, PoolNo], now: datetime) -> NewJob:
    spec = completed(given, job_id, now)
    return NewJob(job_id, spec, numbers[spec.pool], first_fire(spec, now), now if spec.recurs else None)


async def _store_jobs(
    connection: Connection, database: Database, tenant_no: TenantNo, jobs: Sequence[NewJob], moment: Moment
) -> list[tuple[PoolNo, datetime]]:
    """Gives what of them is due when."""
    clock, now, sent_s = database.clock, moment.at, time.monotonic()
    clock.confirm(await insert_jobs(connection, tenant_no, jobs, clock.bounds([moment])), sent_s)

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
            clock,
            near[start : start + FIRES_A_STATEMENT],
            now=now,
            horizon_at=horizon_at,
        )
        pools += planned.pools
    return pools


async def _update_jobs(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    updates: Sequence[tuple[LockedJob, JobSpec]],
    now: datetime,
    by: By | None,
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
            pools += await update_locked(connection, database, tenant_no, job, wanted, by=by)
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


def first_fire(spec: JobSpec, now: datetime) -> datetime | None:
    """The first fire of a new job: after now, or at once if it is a one-time job that is due (or a minute late)."""
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
