"""① Accept a request: store its jobs, all or none, and respond after the COMMIT (S1, E11, P1, P2).

Ids are minted before the first try. A job whose `key` is taken is an update of the job that has it (S12). A repeated
request gets the response that is stored with its idempotency key (`flow.idempotency`).

The first fires of ten thousand schedules, and the response, take seconds to compute. So both are drafted before the
transaction and off the event loop, as if no other job were in the way. Only if one is (a `key` that is taken, a unique
key, a debounce) the response is rendered again, from parts that are cached by then.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import Final, TypeVar
from uuid import UUID

from msgspec import structs

from ondot.flow.change.change import update_locked
from ondot.flow.dispatch import Dispatcher
from ondot.flow.events.subscriptions import lock_if_events
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.new_jobs import (
    Accepted,
    accept,
    accept_once,
    is_once,
    new_job,
    new_once_jobs,
    pools_to_wake,
    store_jobs,
    store_once_jobs,
)
from ondot.flow.secrets_in_jobs import record_uses
from ondot.flow.unique_keys import claim_keys
from ondot.flow.work import Work, begin
from ondot.flow.workflows.depends import block, link, settle_parents
from ondot.model.audit_values import show_spec
from ondot.model.errors import Conflict, Unavailable
from ondot.model.ids import JobId, PoolNo, TenantNo
from ondot.model.job import JobSpec, fill_in_schedule, is_same_spec, keep_anchors, keep_hidden, refuse_unchanged
from ondot.model.schedule.rule import is_quick
from ondot.model.unique_keys import claim_of
from ondot.store.audit import By, record_change
from ondot.store.clock import Moment
from ondot.store.connection import DATABASE_ERROR, TAKEN
from ondot.store.database import Database
from ondot.store.idempotency import has_key
from ondot.store.jobs import LockedJob, NewJob, NewOnceJob, find_keys, get_jobs
from ondot.telemetry.log import get_logger

UPSERT_TRIES = 5
RECORDED = 100
"""The ids of a batch that its entry in the audit log names."""
FEW: Final = 20
"""Jobs that are computed on the event loop: 10 ms, if each has a cron of its own."""

log = get_logger()

Result = TypeVar("Result")

Render = Callable[[list[Accepted]], str]
"""Renders the text of the response to a submit. A pure function, which may run in a thread and more than once: it is
called for the draft, and again if other jobs were stored. The text that is returned is the one stored with the key."""

OnCreated = Callable[[Sequence[Accepted]], None]
"""Called after the COMMIT with the jobs that are new: jobs that existed by their `key` are not."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """The jobs to store, and the response, if no other job is in the way."""

    jobs: Sequence[NewJob | NewOnceJob]
    accepted: list[Accepted]
    text: str | None
    """None: the jobs are few, and the response is rendered when they are stored."""


@dataclass(frozen=True, slots=True)
class _Stored:
    accepted: list[Accepted]
    new: list[Accepted]
    pools: list[tuple[PoolNo, datetime]]
    parents: list[JobId]
    """Jobs that others of these wait for."""


async def submit(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    *,
    render: Render,
    idempotency: Idempotency | None = None,
    on_created: OnCreated | None = None,
    moment: Moment | None = None,
    by: By | None = None,
    created_by: UUID | None = None,
) -> str:
    """Store these jobs, all or none; returns the response. `by`: recorded for jobs that recur or have a key.
    `created_by`: the key or user, recorded with all others.

    `moment`: the time that the instants of the specs were computed from; `ClockStepped` if the database contradicts it.
    """
    if moment is None:
        submit_at = partial(
            submit,
            database,
            dispatcher,
            tenant_no,
            specs,
            render=render,
            idempotency=idempotency,
            by=by,
            created_by=created_by,
        )
        return await database.by_clock(lambda moment: submit_at(on_created=on_created, moment=moment))
    draft = await _draft(database, tenant_no, specs, moment.at, render, idempotency, created_by)
    tries = UPSERT_TRIES if any(spec.key for spec in specs) else 1
    while True:
        tries -= 1
        try:
            text, stored = await _submit(database, tenant_no, specs, draft, moment, render, idempotency, by)
        except TAKEN as error:
            # Two requests that create the same `key` at once: the second finds the first's job when it looks again.
            if tries == 0:
                raise Conflict("Others are creating jobs with the same key at the same time: try again.") from error
        else:
            break
    if stored is not None:
        dispatcher.wake(stored.pools)
        if stored.parents:
            await _settle(database, dispatcher, stored.parents)
        if on_created is not None:
            on_created(stored.new)
    return text


async def _settle(database: Database, dispatcher: Dispatcher, parents: Sequence[JobId]) -> None:
    """Parents that have succeeded already let their jobs run at once. The jobs are stored: if this fails, housekeeping
    does it."""
    try:
        await settle_parents(database, dispatcher, parents)
    except (DATABASE_ERROR, Unavailable) as error:
        log.warning("parents.unsettled", count=len(parents), error=str(error))


async def _draft(
    database: Database,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    now: datetime,
    render: Render,
    idempotency: Idempotency | None,
    created_by: UUID | None,
) -> _Draft:
    is_rendered = len(specs) > FEW
    async with database.connection() as connection:
        numbers = await database.pools.numbers(connection, tenant_no, {spec.pool for spec in specs})
        if is_rendered and idempotency is not None:
            is_rendered = not await has_key(connection, tenant_no, idempotency.key)
    once = iter(new_once_jobs(database, [spec for spec in specs if is_once(spec)], numbers, now, repeat(created_by)))
    ids = iter(database.clock.new_ids(sum(not is_once(spec) for spec in specs)))

    def compute() -> _Draft:
        jobs = [next(once) if is_once(spec) else new_job(JobId(next(ids)), spec, numbers, now) for spec in specs]
        accepted = [accept(job, now) for job in jobs]
        return _Draft(jobs, accepted, render(accepted) if is_rendered else None)

    is_slow = any(spec.schedule is not None and not is_quick(spec.schedule) for spec in specs)
    return await asyncio.to_thread(compute) if is_slow else await _compute_for(len(specs), compute)


async def _compute_for(count: int, compute: Callable[[], Result]) -> Result:
    """In a thread if there are many jobs: other requests must not wait for it."""
    return await asyncio.to_thread(compute) if count > FEW else compute()


async def _submit(
    database: Database,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    draft: _Draft,
    moment: Moment,
    render: Render,
    idempotency: Idempotency | None,
    by: By | None,
) -> tuple[str, _Stored | None]:
    """The response, and what was stored for it; None: the response is that of an earlier request."""
    async with begin(database, tenant_no) as work:
        if (earlier := await find_response(work, idempotency)) is not None:
            return earlier, None
        stored = await _store_all(work, specs, draft.jobs, moment, by)
        text = draft.text
        if text is None or stored.accepted != draft.accepted:
            text = await _compute_for(len(specs), lambda: render(stored.accepted))
        await store_response(work, idempotency, text)
    return text, stored


async def _store_all(
    work: Work, specs: Sequence[JobSpec], drafts: Sequence[NewJob | NewOnceJob], moment: Moment, by: By | None
) -> _Stored:
    """Store a mixed batch and return the accepted jobs in its order."""
    now = moment.at
    taken = await _existing(work, specs)
    for job in taken.values():
        work.database.clock.check(moment, job.now)
    await lock_if_events(work, *specs, *(job.spec for job in taken.values()))
    once = {n: job for n, job in enumerate(drafts) if isinstance(job, NewOnceJob)}
    # By key: two requests that create the same keys in another order would deadlock.
    others = sorted(enumerate(drafts), key=lambda draft: draft[1].spec.key or "")
    new = {n: job for n, job in others if isinstance(job, NewJob) and job.spec.key not in taken}
    accepted: dict[int, Accepted] = {}
    pools: list[tuple[PoolNo, datetime]] = []
    if once:
        jobs = list(once.values())
        if any(claim_of(job.spec) for job in jobs):
            jobs = await claim_keys(work, jobs, now)
        await store_once_jobs(work.connection, work.database.clock, work.tenant_no, jobs, [moment])
        accepted |= zip(once, (accept_once(job, now) for job in jobs), strict=True)
        pools += pools_to_wake(jobs)
    parents: list[JobId] = []
    if any(spec.depends_on for spec in specs):
        ids = {draft.spec.key: draft.id for draft in drafts if draft.spec.key is not None}
        ids |= {key: job.id for key, job in taken.items()}
        specs = [link(spec, ids) for spec in specs]
        new = {n: replace(job, spec=link(job.spec, ids)) for n, job in new.items()}
    if new:
        for draft in new.values():
            refuse_unchanged(draft.spec)
        pools += await store_jobs(work, list(new.values()), moment)
        parents = await block(work, new.values())
        accepted |= ((n, accept(job, now)) for n, job in new.items())
        await _record_new(work, by, list(new.values()))
        await record_uses(work.connection, work.tenant_no, [(job.id, job.spec) for job in new.values()], are_new=True)
    created = list(accepted.values())
    known = sorted(set(range(len(specs))) - set(accepted), key=lambda n: specs[n].key or "")
    if known:
        updates = [(taken[specs[n].key or ""], specs[n]) for n in known]
        stored, woken = await _update_jobs(work, updates, now, by)
        accepted |= zip(known, stored, strict=True)
        pools += woken
    return _Stored([accepted[n] for n in range(len(specs))], created, pools, parents)


async def _record_new(work: Work, by: By | None, jobs: Sequence[NewJob]) -> None:
    """One entry for a request, however many jobs it creates. One-time jobs without a key have none: programs create
    thousands of them a second, and each is its own record."""
    if by is None:
        return
    if len(jobs) == 1:
        [job] = jobs
        detail, after = {"name": job.spec.name, "key": job.spec.key}, show_spec(job.spec)
        await record_change(work.connection, work.tenant_no, by, "job.create", job.id, detail, after=after)
    else:
        batch = {"jobs": len(jobs), "ids": [job.id for job in jobs[:RECORDED]]}
        await record_change(work.connection, work.tenant_no, by, "job.create", None, batch)


async def _existing(work: Work, specs: Sequence[JobSpec]) -> dict[str, LockedJob]:
    keys = [spec.key for spec in specs if spec.key is not None]
    if len(set(keys)) < len(keys):
        [(twice, _)] = Counter(keys).most_common(1)
        raise Conflict(f"The key {twice!r} is in the batch twice: a key names one job.")
    return await find_keys(work.connection, work.tenant_no, keys) if keys else {}


async def _update_jobs(
    work: Work, updates: Sequence[tuple[LockedJob, JobSpec]], now: datetime, by: By | None
) -> tuple[list[Accepted], list[tuple[PoolNo, datetime]]]:
    """Upserts of keys that are taken: the same spec again changes nothing, another becomes a new version."""
    pools: list[tuple[PoolNo, datetime]] = []
    for job, spec in updates:
        wanted = fill_in_schedule(spec, job.id, now)
        if spec.schedule is None and not job.spec.recurs:
            # "Now" is another instant each time, but asks for the same: a repetition finds the job that was created.
            wanted = structs.replace(spec, schedule=job.spec.schedule)
        wanted = keep_anchors(keep_hidden(wanted, job.spec), job.spec)
        if not is_same_spec(wanted, job.spec):
            pools += await update_locked(work, job, wanted, by=by)
    rows = await get_jobs(work.connection, work.tenant_no, [job.id for job, _ in updates])
    accepted = [
        Accepted(row.id, row.spec, row.state, row.version, row.next_fire_at, row.created_at, row.state_reason)
        for row in (rows[job.id] for job, _ in updates)
    ]
    return accepted, pools
