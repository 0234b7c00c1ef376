"""Jobs that wait for other jobs: `depends_on` of a one-time job (W1, W3).

Such a job is stored with an execution that is BLOCKED. Nothing is decided in that transaction. After its commit, and
whenever a parent may have changed, `settle_parents` looks at the parents. It flags their live executions, so that their
ends arrive, commits, and looks into history in a second transaction. A parent that completes before the flag is found
in history, and one that completes after it arrives, so none is missed. If this process dies in between, housekeeping
looks (`settle_due_pass`).

Only a transaction that has the row of the child in `dependent` locked judges its parents: of two last parents that
succeed at once, the second sees the first. A parent that ends without success leaves the child BLOCKED, and a replay
that succeeds frees it. Lock order: job → dependent → gate → ready → execution.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final
from uuid import UUID

from msgspec import structs

from ondot.flow.dispatch import Dispatcher
from ondot.flow.work import Work
from ondot.model.errors import Fault, InvalidBody, InvalidGraph
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo
from ondot.model.job import JobSpec
from ondot.model.schedule import Once, start_delay
from ondot.model.workflow.dependencies import ParentState, judge_parent
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.dependencies import (
    Dependent,
    NewDependent,
    add_arrived,
    end_blocked,
    find_due_parents,
    find_jobs_of_keys,
    flag_parents,
    insert_blocked,
    lock_dependent,
    lock_dependents,
    look_at_parents,
    renew_blocked,
    set_dependencies,
    set_stuck,
    take_arrivals,
    unblock,
)
from ondot.store.jobs import LockedJob, NewJob, get_jobs
from ondot.store.newest import NO_ID

AT_ONCE: Final = 1_000
A_WORKFLOW: Final = "make both steps of a workflow, or start this job by an event"

Wakes = list[tuple[PoolNo, datetime]]


async def resolve_parents(
    database: Database,
    tenant_no: TenantNo,
    specs: Sequence[JobSpec],
    *,
    is_batch: bool,
    sees: Callable[[str], bool] = lambda _: True,
) -> Sequence[JobSpec]:
    """The specs with ids for parents that exist; a `key` of the same batch stays. `sees`: whether the caller may see a
    pool.

    Raises InvalidGraph for parents that do not exist and for a cycle, InvalidBody for parents that recur.
    """
    in_batch = {spec.key: spec for spec in specs if spec.key is not None}
    named = {name for spec in specs for name in spec.depends_on} - in_batch.keys()
    if not named and not any(spec.depends_on for spec in specs):
        return specs
    async with database.connection() as connection:
        known = await find_jobs_of_keys(connection, tenant_no, [name for name in named if _as_id(name) is None])
        ids = {name: known.get(name) or _as_id(name) for name in named}
        rows = await get_jobs(connection, tenant_no, [id_ for id_ in ids.values() if id_ is not None])
    jobs = {id_: row.spec for id_, row in rows.items() if sees(row.spec.pool)}
    unknown: list[Fault] = []
    recurring: list[Fault] = []
    resolved: list[JobSpec] = []
    for no, spec in enumerate(specs):
        parents: list[str] = []
        for place, name in enumerate(spec.depends_on):
            pointer = f"/jobs/{no}/depends_on/{place}" if is_batch else f"/depends_on/{place}"
            id_ = ids.get(name)
            parent = in_batch.get(name) or (jobs.get(id_) if id_ else None)
            if parent is None:
                unknown.append(
                    Fault(pointer, f"There is no job {name!r}, or it is no longer kept. {_what_to_name(is_batch)}")
                )
            elif parent.recurs:
                recurring.append(Fault(pointer, f"The job {name!r} recurs, so it never is done: {A_WORKFLOW}."))
            else:
                parents.append(name if name in in_batch else str(id_))
        resolved.append(structs.replace(spec, depends_on=tuple(dict.fromkeys(parents))) if spec.depends_on else spec)
    if unknown:
        raise InvalidGraph(unknown[0].message, tuple(unknown + recurring))
    if recurring:
        raise InvalidBody(recurring[0].message, tuple(recurring))
    _refuse_cycle(specs, in_batch, is_batch=is_batch)
    return resolved


def _what_to_name(is_batch: bool) -> str:
    return "Name one-time jobs by id or `key`" + (
        ", or by the `key` that they have in this batch." if is_batch else "."
    )


def _as_id(name: str) -> JobId | None:
    try:
        return JobId(UUID(name))
    except ValueError:
        return None


def _refuse_cycle(specs: Sequence[JobSpec], in_batch: Mapping[str, JobSpec], *, is_batch: bool) -> None:
    """Jobs exist before those that depend on them, so only jobs of one batch can wait for each other."""
    left = {spec.key: [name for name in spec.depends_on if name in in_batch] for spec in specs if spec.key is not None}
    while free := [key for key, parents in left.items() if not any(parent in left for parent in parents)]:
        for key in free:
            del left[key]
    if not left:
        return
    path = [next(iter(left))]
    while path[-1] not in path[:-1]:
        path.append(next(parent for parent in left[path[-1]] if parent in left))
    cycle = path[path.index(path[-1]) :]
    words = " → ".join(reversed(cycle))
    faults = []
    for child, parent in pairwise(cycle):
        no = next(no for no, spec in enumerate(specs) if spec.key == child)
        place = specs[no].depends_on.index(parent)
        pointer = f"/jobs/{no}/depends_on/{place}" if is_batch else f"/depends_on/{place}"
        faults.append(Fault(pointer, f"These jobs wait for each other: {words}. Remove one of them from `depends_on`."))
    raise InvalidGraph(faults[0].message, tuple(faults))


def link(spec: JobSpec, ids: Mapping[str, JobId]) -> JobSpec:
    """A spec with ids instead of the keys of its own batch."""
    if not spec.depends_on:
        return spec
    return structs.replace(spec, depends_on=tuple(str(ids.get(name, name)) for name in spec.depends_on))


async def block(work: Work, jobs: Iterable[NewJob]) -> list[JobId]:
    """Make the executions of new jobs that depend on others; returns the parents to settle after the commit."""
    waiting = [job for job in jobs if job.spec.depends_on]
    if not waiting:
        return []
    ids = work.database.clock.new_ids(len(waiting))
    new = [
        NewDependent(
            job.id,
            ExecutionId(execution_id),
            job.spec,
            job.pool_no,
            *fire_of(job.id, job.spec),
            [JobId(UUID(parent)) for parent in job.spec.depends_on],
        )
        for job, execution_id in zip(waiting, ids, strict=True)
    ]
    await insert_blocked(work.connection, work.tenant_no, new)
    return list({parent for job in new for parent in job.parents})


def fire_of(job_id: JobId, spec: JobSpec) -> tuple[datetime, datetime]:
    """When the fire of a one-time job is, and when it may start at the earliest."""
    assert spec.schedule is not None
    assert isinstance(spec.schedule.when, Once)
    fire_at = spec.schedule.when.at
    return fire_at, fire_at + start_delay(spec.schedule, job_id)


async def settle_parents(database: Database, dispatcher: Dispatcher, parents: Sequence[JobId]) -> int:
    """Look at these jobs, and let those run that waited for nothing else; returns how many may run now."""
    async with database.connection() as connection:
        parents = await add_arrived(connection, parents, AT_ONCE)
        await flag_parents(connection, parents)
    after, freed = NO_ID, 0
    while True:
        async with database.transaction() as connection:
            if after == NO_ID:
                await take_arrivals(connection, parents)
            children = await lock_dependents(connection, parents, after=after, limit=AT_ONCE)
            wakes = await _settle(connection, children, parents)
        dispatcher.wake(wakes)
        freed += len(wakes)
        if len(children) < AT_ONCE:
            return freed
        after = children[-1].child_id


async def _settle(connection: Connection, children: Sequence[Dependent], parents: Sequence[JobId]) -> Wakes:
    """Judge parents of locked children, and free those whose last parent has succeeded."""
    if not children:
        return []
    ids = [child.child_id for child in children]
    facts = await look_at_parents(connection, ids, parents) if parents else {}
    if facts:
        judged = {id_: judge_parent(fact) for id_, fact in facts.items()}
        await set_dependencies(connection, ids, judged)
        is_stuck = any(state not in {ParentState.WAITING, ParentState.SUCCEEDED} for state, _ in judged.values())
        if is_stuck or any(child.is_stuck for child in children):
            await set_stuck(connection, ids)
    free = await unblock(connection, ids)
    return [(pool_no, ready_at) for _, pool_no, ready_at in free]


async def settle_due_pass(database: Database, dispatcher: Dispatcher) -> int:
    """Look at parents that are due for it: new, changed, not planned before, or watched for long."""
    async with database.connection() as connection:
        parents = await find_due_parents(connection, AT_ONCE)
    if parents:
        await settle_parents(database, dispatcher, parents)
    return len(parents)


async def lock_blocked(work: Work, job: LockedJob) -> Dependent | None:
    """A locked job if it still waits for others. Before its gates are locked."""
    if not job.spec.depends_on:
        return None
    return await lock_dependent(work.connection, work.tenant_no, job.id)


async def keep_parents(work: Work, job: LockedJob, spec: JobSpec) -> JobSpec:
    """The new spec of a job with the ids of its parents. A change may leave parents out, and adds none: two jobs could
    wait for each other."""
    if spec.depends_on == job.spec.depends_on:
        return spec
    keys = [name for name in spec.depends_on if _as_id(name) is None]
    known = await find_jobs_of_keys(work.connection, work.tenant_no, keys) if keys else {}
    parents = [str(known.get(name, name)) for name in spec.depends_on]
    for place, parent in enumerate(parents):
        if parent not in job.spec.depends_on:
            message = (
                f"The job does not depend on {spec.depends_on[place]!r}, and a change can only leave jobs out of"
                " `depends_on`: create another job."
            )
            raise InvalidBody(message, (Fault(f"/depends_on/{place}", message),))
    return structs.replace(spec, depends_on=tuple(parent for parent in job.spec.depends_on if parent in parents))


async def update_blocked(work: Work, job: LockedJob, waiting: Dependent, spec: JobSpec, pool_no: PoolNo) -> Wakes:
    """Give a job that waits its next version; it runs now if it waits for nothing any more."""
    fire_at, ready_at = fire_of(job.id, spec)
    await renew_blocked(
        work.connection,
        work.tenant_no,
        job.id,
        spec,
        version=job.version + 1,
        pool_no=pool_no,
        fire_at=fire_at,
        ready_at=ready_at,
        parents=[JobId(UUID(parent)) for parent in spec.depends_on],
    )
    return await _settle(work.connection, [waiting], [])


async def resume_blocked(work: Work, waiting: Dependent) -> Wakes:
    """A job that waited while it was paused runs now if its parents have succeeded meanwhile."""
    return await _settle(work.connection, [waiting], [])


async def cancel_blocked(work: Work, waiting: Dependent, reason: str) -> None:
    await end_blocked(work.connection, work.tenant_no, [waiting.execution_id], reason)
