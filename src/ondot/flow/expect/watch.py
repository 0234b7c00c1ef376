"""One pass over the expectations that are due for a look (O11): records misses and forecasts, and clears them.

It costs nothing while no job has `expect`: the chores look for a due watch in the statement that they send anyway. All
facts come from stored instants, so misses of a time when ondot was down are found at its start; those of one job are
one row and one condition. Writes are fenced by the look that they answer, so two schedulers that both believe to be on
duty record a miss once. Backfills and replays are no fires: they neither miss nor make good.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from ondot.flow.alerts.conditions import clear_condition, report_condition
from ondot.flow.expect.words import explain_miss, explain_prediction
from ondot.flow.plan import compute_schedule
from ondot.model.expect import (
    LOOK_AGAIN,
    LOOK_ANYWAY,
    Expect,
    Fired,
    Verdict,
    Which,
    judge,
    not_met_in_words,
    p90,
    zone_of,
)
from ondot.model.ids import JobId, TenantNo
from ondot.model.job import JobState
from ondot.model.schedule import GivenUp, next_fire, start_delay
from ondot.store import expect as store
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.expect import NewMiss, OpenMiss, WatchRow
from ondot.store.jobs import JobRow, get_jobs
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import EXPECTATIONS_MISSED

AT_ONCE: Final = 200
CONDITION: Final = "expectation"
KEPT_DAYS: Final = 90
REMOVED_AT_ONCE: Final = 1_000

log = get_logger()

Key = tuple[JobId, Which]


@dataclass(slots=True)
class _Facts:
    """What the looks of one pass have read."""

    now: datetime
    jobs: dict[JobId, JobRow] = field(default_factory=dict)
    fires: dict[Key, list[Fired]] = field(default_factory=dict)
    executions: dict[tuple[JobId, datetime], UUID] = field(default_factory=dict)
    took_s: dict[JobId, float | None] = field(default_factory=dict)
    successes: dict[JobId, datetime] = field(default_factory=dict)
    open: dict[Key, OpenMiss] = field(default_factory=dict)


@dataclass(slots=True)
class _Look:
    """The answer to one watch: what is written."""

    row: WatchRow
    after_at: datetime
    look_at: datetime | None
    miss: NewMiss | None = None
    clears: OpenMiss | None = None


async def expect_pass(database: Database) -> int:
    """Look at the watches that are due; returns how many."""
    async with database.connection() as connection:
        rows = await store.find_due_watches(connection, AT_ONCE)
        if not rows:
            return 0
        facts = await _read(connection, rows)
    looks = [await _look(database, row, facts) for row in rows]
    await _write(database, looks, facts)
    return len(rows)


async def remove_misses_pass(database: Database) -> int:
    """Misses are kept for 90 days."""
    async with database.connection() as connection:
        return await store.remove_old_misses(connection, KEPT_DAYS, REMOVED_AT_ONCE)


async def _read(connection: Connection, rows: Sequence[WatchRow]) -> _Facts:
    facts = _Facts(rows[0].now)
    by_tenant: dict[TenantNo, list[JobId]] = defaultdict(list)
    for row in rows:
        by_tenant[row.tenant_no].append(row.job_id)
    for tenant_no, ids in by_tenant.items():
        facts.jobs |= await get_jobs(connection, tenant_no, sorted(set(ids)))
    jobs = sorted({(row.tenant_no, row.job_id) for row in rows})
    facts.open = {(miss.job_id, miss.which): miss for miss in await store.read_open_misses(connection, jobs, facts.now)}
    by_fire = [row for row in rows if row.which != "success_every"]
    if by_fire:
        await _read_fires(connection, by_fire, facts)
        ends = sorted({(row.tenant_no, row.job_id) for row in by_fire if row.which != "start_within"})
        if ends:
            for found in await store.read_durations(connection, ends, facts.now):
                facts.took_s[JobId(found["job_id"])] = p90(found["took_s"])
    facts.successes = await store.read_last_successes(connection, rows)
    return facts


async def _read_fires(connection: Connection, rows: Sequence[WatchRow], facts: _Facts) -> None:
    executed, skipped = await store.read_fires(connection, rows)
    seen: dict[JobId, dict[datetime, Fired]] = defaultdict(dict)
    for row in executed:
        job_id = JobId(row["job_id"])
        seen[job_id][row["fire_at"]] = Fired(
            row["fire_at"],
            _ready_at(facts.jobs.get(job_id), row["fire_at"], row["ready_at"], row["started_at"]),
            row["state"],
            row["started_at"],
            row["last_started_at"],
            row["ended_at"],
            row["reason"],
            row["ready_at"],
        )
        facts.executions[job_id, row["fire_at"]] = row["id"]
    for row in skipped:
        # A range counts as its last fire. One that has an execution is that.
        at = min(row["to_at"], facts.now)
        seen[JobId(row["job_id"])].setdefault(at, Fired(at, at, "MISSED", reason=row["reason"]))
    for watch in rows:
        fires = sorted(seen[watch.job_id].values(), key=lambda one: one.fire_at)
        ignored = () if watch.which == "end_by" else ("paused",)
        facts.fires[watch.job_id, watch.which] = [
            one for one in fires if one.fire_at > watch.after_at and one.reason not in ignored
        ]


def _ready_at(job: JobRow | None, fire_at: datetime, ready_at: datetime, started_at: datetime | None) -> datetime:
    """When its first attempt might start. The stored instant moves with each retry: a job that fails and is retried for
    hours would never be late."""
    if job is None or job.spec.starts_by_event:
        return ready_at if started_at is None else min(ready_at, started_at)
    return fire_at + _delay_of(job)


def _delay_of(job: JobRow) -> timedelta:
    return timedelta() if job.spec.schedule is None else start_delay(job.spec.schedule, job.id)


async def _look(database: Database, row: WatchRow, facts: _Facts) -> _Look:
    job, open_ = facts.jobs.get(row.job_id), facts.open.get((row.job_id, row.which))
    expect = None if job is None or job.state is JobState.DELETED else job.spec.expect
    if job is None or expect is None or row.which not in expect.given:
        return _Look(row, row.after_at, None, clears=open_)
    if row.which == "success_every":
        return _look_at_successes(database, row, job, expect, facts, open_)
    fires = facts.fires[row.job_id, row.which]
    if row.which == "end_by" and job.state is JobState.PAUSED:
        fires = [*fires, *await _fires_of_pause(job, row, fires, facts.now)]
    verdict = judge(
        row.which,
        expect,
        fires,
        zone=zone_of(job.spec.schedule),
        now=facts.now,
        after_at=row.after_at,
        next_fire=None if job.next_fire_at is None else (job.next_fire_at, job.next_fire_at + _delay_of(job)),
        by_event=job.spec.starts_by_event,
        took_s=facts.took_s.get(row.job_id),
    )
    return await _answer(database, row, job, verdict, facts, open_)


async def _fires_of_pause(job: JobRow, row: WatchRow, fires: Sequence[Fired], now: datetime) -> list[Fired]:
    """The first fire since the last settled one that the job would have had. A pause records its fires at its end."""
    after = max([row.after_at, now - store.LONGEST_BACK, *(one.fire_at for one in fires)])
    schedule = job.spec.schedule
    if schedule is None:
        return []
    try:
        at = await compute_schedule(schedule, lambda: next_fire(schedule, after))
    except GivenUp:
        return []
    return [] if at is None or at > now else [Fired(at, at, "MISSED", reason="paused")]


def _look_at_successes(
    database: Database, row: WatchRow, job: JobRow, expect: Expect, facts: _Facts, open_: OpenMiss | None
) -> _Look:
    """Since the last success, or the last change of the job. A job that a person paused is not expected to succeed."""
    every = timedelta(seconds=expect.success_every_s or 0)
    base = max(facts.successes.get(row.job_id, row.after_at), row.after_at, min(job.updated_at, facts.now))
    is_paused = job.state is JobState.PAUSED and job.state_reason is None
    if is_paused or job.state is JobState.ENDED or base + every > facts.now:
        look_at = facts.now + LOOK_ANYWAY if is_paused else base + every
        return _Look(row, base, max(look_at, facts.now + timedelta(seconds=1)), clears=open_)
    if open_ is not None:
        return _Look(row, row.after_at, facts.now + LOOK_AGAIN)
    reason = f"the last success, or change of the job, was at {base:%Y-%m-%d %H:%M:%S} UTC"
    return _Look(
        row,
        base,
        facts.now + LOOK_AGAIN,
        NewMiss(
            database.clock.new_id(),
            row.tenant_no,
            row.job_id,
            row.which,
            None,
            None,
            base + every,
            count=1,
            predicted=False,
            reason=reason,
        ),
    )


async def _answer(
    database: Database, row: WatchRow, job: JobRow, verdict: Verdict, facts: _Facts, open_: OpenMiss | None
) -> _Look:
    look = _Look(row, verdict.after_at, verdict.look_at)
    last = verdict.missed[-1] if verdict.missed else verdict.will_miss
    if last is not None and verdict.due_at is not None:
        execution_id = facts.executions.get((row.job_id, last.fire_at))
        is_predicted = not verdict.missed
        took_s = facts.took_s.get(row.job_id)
        reason = (
            explain_prediction(last, took_s, verdict.ends_at)
            if is_predicted and verdict.ends_at is not None
            else await explain_miss(database, row.tenant_no, row.which, last, verdict.due_at, execution_id)
        )
        look.miss = NewMiss(
            database.clock.new_id(),
            row.tenant_no,
            row.job_id,
            row.which,
            execution_id,
            last.fire_at,
            verdict.due_at,
            count=max(len(verdict.missed), 1),
            predicted=is_predicted,
            reason=reason,
        )
    if verdict.is_good and not verdict.will_miss:
        look.clears = open_
        look.miss = None if look.miss is None or look.miss.predicted else look.miss
    elif open_ is not None and look.miss is None and _is_over(row.which, open_, facts):
        look.clears = open_
    if (look.miss is not None or open_ is not None) and look.clears is None and look.look_at is not None:
        look.look_at = min(look.look_at, facts.now + LOOK_AGAIN)
    return look


def _is_over(which: Which, miss: OpenMiss, facts: _Facts) -> bool:
    """Whether what was missed has come good since, or the forecast was wrong."""
    if miss.predicted:
        return True
    if which == "start_within":
        return miss.started_at is not None
    succeeded_at = facts.successes.get(miss.job_id)
    return miss.state == "SUCCEEDED" or (succeeded_at is not None and succeeded_at > miss.seen_at)


async def _write(database: Database, looks: Sequence[_Look], facts: _Facts) -> None:
    """All in one transaction, without those looks that another process has answered meanwhile."""
    async with database.transaction() as connection:
        moved = await store.move_watches(connection, [(look.row, look.after_at, look.look_at) for look in looks])
        ours = [look for look in looks if (look.row.job_id, look.row.which) in moved]
        misses = [look.miss for look in ours if look.miss is not None]
        if misses:
            await store.put_misses(connection, misses)
        cleared = [(look.row.tenant_no, look.clears.id) for look in ours if look.clears is not None]
        if cleared:
            await store.clear_misses(connection, cleared)
        changed = sorted({(look.row.tenant_no, look.row.job_id) for look in ours if look.miss or look.clears})
        if changed:
            open_ = await store.read_open_misses(connection, changed, facts.now)
            for tenant_no, job_id in changed:
                mine = [miss for miss in open_ if miss.job_id == job_id]
                await _report(connection, tenant_no, job_id, facts.jobs.get(job_id), mine)
    for miss in misses:
        if not miss.predicted:
            EXPECTATIONS_MISSED.labels(miss.which).inc(miss.count)
        log.warning(
            "expectation.will_be_missed" if miss.predicted else "expectation.missed",
            job_id=str(miss.job_id),
            which=miss.which,
            due_at=miss.due_at.isoformat(),
            reason=miss.reason,
        )


async def _report(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, job: JobRow | None, misses: Sequence[OpenMiss]
) -> None:
    """One condition for each job, whatever it misses."""
    expect = None if job is None else job.spec.expect
    if not misses or job is None or expect is None:
        await clear_condition(connection, CONDITION, tenant_no, str(job_id))
        return
    zone = zone_of(job.spec.schedule)
    texts = [
        f"{not_met_in_words(miss.which, expect, zone, predicted=miss.predicted)}: {miss.reason}"
        for miss in sorted(misses, key=lambda miss: (miss.predicted, miss.due_at))
    ]
    details: dict[str, object] = {
        "predicted": all(miss.predicted for miss in misses),
        "misses": [_details(miss) for miss in misses],
    }
    since = min(miss.seen_at for miss in misses)
    message = f"{job.spec.name} {'; it '.join(texts)}"
    await report_condition(connection, CONDITION, tenant_no, str(job_id), message, details, job_id=job_id, since=since)


def _details(miss: OpenMiss) -> Mapping[str, object]:
    return {
        "which": miss.which,
        "due_at": miss.due_at.isoformat(),
        "fire_at": None if miss.fire_at is None else miss.fire_at.isoformat(),
        "execution_id": None if miss.execution_id is None else str(miss.execution_id),
        "predicted": miss.predicted,
        "count": miss.count,
    }
