"""Explain (E17): why an execution or a job is not running, and when it may. It only reads; the model decides.

The reads are several statements without a transaction, so an answer may mix two moments: it is for a person, and the
next one is right. Schedules are read in a thread, because one with many rules takes long.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import msgspec

from ondot.flow.explain_runs import explain_one_step, explain_started_run, find_run
from ondot.flow.history.gone import find_why_unknown, unknown_execution
from ondot.flow.known_functions import find_function
from ondot.flow.plan import compute_schedule
from ondot.flow.work import Work
from ondot.model.execution import State
from ondot.model.expect import not_met_in_words, zone_of
from ondot.model.explain import explain_execution as explained
from ondot.model.explain_event import EventFacts
from ondot.model.explain_facts import ExecutionFacts, Explanation, FunctionFacts, JobFacts, Range, Reason
from ondot.model.explain_fire import FireExplanation, Reading, explain_fire, read_schedule
from ondot.model.explain_job import explain_job as job_explained
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.job import JobSpec
from ondot.model.planning import fires_from
from ondot.model.schedule import GivenUp, Once, OnEvent, Schedule
from ondot.model.schedule.cost import measure_cost
from ondot.model.target import FunctionTarget
from ondot.store.database import Database
from ondot.store.dependencies import list_parents
from ondot.store.events import EventFilter, list_events
from ondot.store.executions import SkippedRow, find_latest_ended, list_skipped
from ondot.store.expect import list_misses
from ondot.store.explain import find_executions, find_oldest_live, read_executions, read_fire, read_job
from ondot.store.incidents import open_incidents_of_jobs
from ondot.store.jobs import JobRow, get_job, get_jobs

EXECUTIONS_EXPLAINED = 5
SKIPPED_SHOWN = 5
PARENTS_SHOWN = 5
MISSES_READ = 20
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """A job's reasons, those of its oldest live executions, its last skipped ranges, and the requested fire."""

    job: Explanation
    live: int
    executions: list[Explanation]
    skipped: list[SkippedRow]
    fire: FireExplanation | None


async def explain_execution(
    database: Database, tenant_no: TenantNo, id_: ExecutionId, *, names_others: bool = False
) -> Explanation:
    """`names_others`: the reader is an owner, and may see which other tenants hold slots."""
    async with database.connection() as connection:
        work = Work(connection, database, tenant_no)
        explanations = await _explain_executions(work, [id_], names_others=names_others)
        if not explanations:
            raise await unknown_execution(database, tenant_no, id_)
        [found] = await find_executions(connection, tenant_no, [id_])
        specs = await database.specs.find(connection, [found.version])
        missed: tuple[Reason, ...] = ()
        if (spec := specs.get(found.version)) is not None and spec.expect is not None:
            row = await get_job(connection, tenant_no, JobId(found.version[0]))
            missed = () if row is None else await _explain_misses(work, row, id_)
    return replace(explanations[0], reasons=(*explanations[0].reasons, *missed))


async def explain_job(
    database: Database, tenant_no: TenantNo, job_id: JobId, at: datetime | None = None, *, names_others: bool = False
) -> JobExplanation:
    """`at`: also explain what happened to the fire at this instant. `names_others`: see `explain_execution`."""
    async with database.connection() as connection:
        work = Work(connection, database, tenant_no)
        row = await get_job(connection, tenant_no, job_id)
        if row is None:
            raise await find_why_unknown(database, tenant_no, "job", job_id)
        facts = await read_job(connection, tenant_no, row)
        owed_by = await database.specs.find(connection, {(job_id, owed.schedule_version) for owed in facts.owed})
        live = await find_oldest_live(connection, tenant_no, job_id, EXECUTIONS_EXPLAINED)
        executions = await _explain_executions(work, live, names_others=names_others)
        last = None
        if (
            not live
            and facts.next_fire_at is None
            and not row.spec.starts_by_event
            and (ended := await find_latest_ended(connection, tenant_no, job_id))
        ):
            last = next(iter(await _explain_executions(work, [ended])), None)
        skipped = await list_skipped(connection, tenant_no, job_id, SKIPPED_SHOWN)
        fire = await _explain_fire(work, facts, at) if at is not None else None
        missed = await _explain_misses(work, row) if row.spec.expect is not None else ()
        event = await _last_event(work, facts.schedule)
        incidents = await _explain_incidents(work, job_id)
    facts = await _measure(facts, {version: spec for (_, version), spec in owed_by.items()})
    explanation = job_explained(facts, tuple(executions), last, event)
    explanation = replace(explanation, reasons=(*explanation.reasons, *missed, *incidents))
    return JobExplanation(explanation, facts.live, executions, skipped, fire)


async def _explain_misses(work: Work, row: JobRow, execution_id: ExecutionId | None = None) -> tuple[Reason, ...]:
    """What is expected of the job and was missed, or will be; or only what this execution misses."""
    expect = row.spec.expect
    if expect is None:
        return ()
    zone = zone_of(row.spec.schedule)
    return tuple(
        Reason(
            "expectation",
            f"It {not_met_in_words(miss.which, expect, zone, predicted=miss.predicted)}: {miss.reason}.",
            facts={"which": miss.which, "due_at": miss.due_at, "predicted": miss.predicted, "count": miss.count},
        )
        for miss in await list_misses(work.connection, work.tenant_no, row.id, MISSES_READ)
        if miss.cleared_at is None and (execution_id is None or miss.execution_id == execution_id)
    )


async def _explain_incidents(work: Work, job_id: JobId) -> tuple[Reason, ...]:
    """The open incidents that it is a cause of."""
    return tuple(
        Reason(
            "incident",
            f"It is a cause of an open incident, since {incident.opened_at:%Y-%m-%d %H:%M:%S} UTC: {incident.title}.",
            facts={"incident_id": str(incident.id), "acknowledged_by": incident.acknowledged_by},
        )
        for incident in await open_incidents_of_jobs(work.connection, work.tenant_no, [job_id])
    )


async def _last_event(work: Work, schedule: Schedule) -> EventFacts | None:
    """Of a job that events start: the last event of its type, and whether it matches."""
    rule = schedule.when
    if not isinstance(rule, OnEvent):
        return None
    rows = await list_events(work.connection, work.tenant_no, EventFilter(type=rule.type), limit=1)
    if not rows:
        return EventFacts(rule)
    mismatch = None if rule.pattern is None else rule.pattern.why_not(msgspec.json.decode(rows[0].body))
    return EventFacts(rule, rows[0].id, rows[0].received_at, None if mismatch is None else str(mismatch))


async def _measure(facts: JobFacts, specs: Mapping[int, JobSpec]) -> JobFacts:
    """Add the cost of the schedule, and why owed fires cannot be found. Takes up to 0.2 s for each, so it holds no
    connection. `specs`: of the owed ranges, by version."""
    cost = None
    if facts.timer_at is not None:
        find = partial(measure_cost, facts.schedule, facts.timer_at - _MICROSECOND)
        cost = await compute_schedule(facts.schedule, find)
    owed = []
    for entry in facts.owed:
        spec, gave_up = specs.get(entry.schedule_version), None
        if spec is not None and spec.schedule is not None:
            gave_up = await compute_schedule(spec.schedule, partial(_why_not_found, spec.schedule, entry))
        owed.append(replace(entry, gave_up=gave_up))
    return replace(facts, cost=cost, owed=tuple(owed))


def _why_not_found(schedule: Schedule, owed: Range) -> str | None:
    """Searches as the catch-up does, for the first fire only."""
    try:
        fires_from(schedule, owed.from_at, owed.to_at, newest_first=owed.newest_first, at_most=1)
    except GivenUp as search:
        return search.message
    return None


async def _explain_executions(
    work: Work, ids: Sequence[ExecutionId], *, names_others: bool = False
) -> list[Explanation]:
    if not ids:
        return []
    found = await find_executions(work.connection, work.tenant_no, ids)
    specs = await work.database.specs.find(work.connection, {one.version for one in found})
    heartbeat_s = work.database.settings.heartbeat_s
    facts = await read_executions(
        work.connection, work.tenant_no, found, specs, heartbeat_s=heartbeat_s, names_others=names_others
    )
    functions = await _find_functions(work, [specs.get(one.version) for one in found], facts)
    return [
        await _explain_run(work, entry) or explained(await _add_parents(work, replace(entry, function=function)))
        for entry, function in zip(facts, functions, strict=True)
    ]


async def _find_functions(
    work: Work, specs: Sequence[JobSpec | None], facts: Sequence[ExecutionFacts]
) -> list[FunctionFacts | None]:
    """The functions that those of them call which wait; each is looked up once."""
    names = [
        spec.target.name
        if spec is not None
        and isinstance(spec.target, FunctionTarget)
        and entry.state in {State.PENDING, State.RETRYING}
        else None
        for spec, entry in zip(specs, facts, strict=True)
    ]
    found = {name: await find_function(work.connection, work.tenant_no, name) for name in set(names) - {None} if name}
    return [None if name is None else found[name] for name in names]


async def _explain_run(work: Work, facts: ExecutionFacts) -> Explanation | None:
    """Of a run of a workflow that has started; None for any other execution."""
    if facts.state not in {State.RUNNING, State.BLOCKED} or facts.worker_id is not None:
        return None
    reader = await find_run(
        work.database, work.connection, work.tenant_no, facts.id, partial(_explain_executions, work)
    )
    return None if reader is None else await explain_started_run(reader)


async def explain_step(database: Database, tenant_no: TenantNo, run_id: ExecutionId, name: str) -> Explanation:
    async with database.connection() as connection:
        work = Work(connection, database, tenant_no)
        reader = await find_run(database, connection, tenant_no, run_id, partial(_explain_executions, work))
        if reader is None:
            raise await find_why_unknown(database, tenant_no, "run", run_id)
        return await explain_one_step(reader, name)


async def _add_parents(work: Work, facts: ExecutionFacts) -> ExecutionFacts:
    """The jobs that a blocked one waits for, with their names."""
    if facts.state is not State.BLOCKED:
        return facts
    parents = await list_parents(work.connection, work.tenant_no, facts.job_id, PARENTS_SHOWN)
    if not parents.total:
        return facts
    jobs = await get_jobs(work.connection, work.tenant_no, [parent.id for parent in parents.some])
    named = tuple(
        replace(parent, name=jobs[parent.id].spec.name) if parent.id in jobs else parent for parent in parents.some
    )
    return replace(facts, parents=replace(parents, some=named))


async def _explain_fire(work: Work, facts: JobFacts, at: datetime) -> FireExplanation:
    connection, tenant_no = work.connection, work.tenant_no
    recurs = not isinstance(facts.schedule.when, Once)
    found, version = await read_fire(connection, tenant_no, facts.id, at, recurs=recurs)
    reading: Reading | None = None
    nearest = None
    if found.execution is None and (version is not None or at >= facts.created_at):
        schedule = facts.schedule
        specs = await work.database.specs.find(connection, [(facts.id, version)]) if version is not None else {}
        if version is not None and (spec := specs.get((facts.id, version))) is not None and spec.schedule is not None:
            schedule = spec.schedule
        reading = await asyncio.to_thread(read_schedule, schedule, at)
        if reading.fire_at is None and (nearest_at := reading.nearest(at)) is not None:
            nearest, _ = await read_fire(connection, tenant_no, facts.id, nearest_at, recurs=recurs)
    return explain_fire(facts, at, reading, found, nearest)
