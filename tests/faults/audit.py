"""The audit of a run that has come to rest: does every execution, attempt, call, slot and effect add up?

Reads the database and the books of the receiver, and nothing that ondot reports: no API, no store, no model but the
specs of the jobs. Returns a list of violations; an empty one is the proof. Each check is one promise:

    lost, not_ended             every accepted job has an execution, and each has ended (P1, P3)
    without_job                 every execution that has ended has its job (O1)
    attempts, times, budgets    every attempt is on record with outcome and cause, numbered without a gap (E4, E6)
    calls, at_most_once         the receiver's books and the database agree, call by call (P5, P8)
    concurrency, overlap,       limits by job and by key were kept at every instant (E12, E13)
    order, unique, deadline,    as were order, uniqueness, start deadlines and rates (E13, E16)
    rate_tokens, rate_starts
    left_over                   executions that have ended hold nothing (E13)
    dead_letters, effects       FAILED has a dead letter, and a transaction its effect, exactly (E10, E11)
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import asyncpg

from ondot.model.gates import Rate
from ondot.model.job import JobSpec, decode_spec
from ondot.model.target import FunctionTarget, HttpTarget
from tests.faults.ledger import Call

TRANSACTIONAL = "transacts"
HELD = ("ready", "waiting", "gated", "slot", "lease")
APART = """
(SELECT id FROM ondot.job WHERE name LIKE ANY ('{"flow %", "event %", "alert %"}')
 UNION ALL SELECT id FROM ondot.job_once WHERE name LIKE ANY ('{"flow %", "event %", "alert %"}')
 UNION ALL SELECT id FROM ondot.run UNION ALL SELECT job_id FROM public.past)
"""
"""Workflows, their runs, whose ids are the jobs of their steps, jobs that events start or alerts watch, and those of
days before the run: `flow_checks`, `event_checks`, `alert_checks` and `retention_checks` judge them."""
STARTS_LATE = 3
"""How many starts may be closer together than their rate: a token is taken up to 250 ms before the start, and the
worker
that took one may be killed before it, so that the start waits for another worker and coincides with others."""
TOKEN_SLACK = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Violation:
    check: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.subject}: {self.message}"


@dataclass(frozen=True, slots=True)
class Attempt:
    no: int
    outcome: str
    started_at: datetime
    ended_at: datetime
    worker_id: UUID | None
    error: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution that has ended, with all its attempts: also the one that succeeded, which only history has."""

    row: asyncpg.Record
    spec: JobSpec
    attempts: Sequence[Attempt]

    @property
    def id(self) -> UUID:
        return UUID(str(self.row["id"]))

    @property
    def state(self) -> str:
        return str(self.row["state"])

    @property
    def life(self) -> tuple[datetime, datetime] | None:
        """From its first start to its end; None: it never ran."""
        return (self.attempts[0].started_at, self.row["ended_at"]) if self.attempts else None


@dataclass(slots=True)
class Run:
    executions: dict[UUID, Execution]
    calls: Sequence[Call]
    jobs: dict[UUID, JobSpec]
    not_ended: list[asyncpg.Record]
    left_over: dict[str, int]
    dead_letters: set[UUID]
    effects: Counter[UUID]
    skipped: Counter[UUID]
    live_jobs: set[UUID] = field(default_factory=set)
    closed_jobs: set[UUID] = field(default_factory=set)
    """Paused or deleted jobs: from here it is unknown how many of their fires were still to come."""
    accepted_at: Mapping[UUID, datetime] = field(default_factory=dict)
    """When a job was acknowledged, if that is known: from then on it lived, whatever its fire."""
    without_job: list[UUID] = field(default_factory=list)
    """Executions whose job, or its version, is not there."""

    def calling(self, kind: type) -> Iterator[Execution]:
        return (execution for execution in self.executions.values() if isinstance(execution.spec.target, kind))


async def audit(connection: asyncpg.Connection, calls: Sequence[Call]) -> list[Violation]:
    """Return everything that does not add up."""
    return violations_of(await read_run(connection, calls))


def violations_of(run: Run, off: Collection[UUID] = ()) -> list[Violation]:
    """`off` are executions with meaningless times: the database's clock was set while they lived."""
    timed = replace(run, executions={id_: one for id_, one in run.executions.items() if id_ not in off})
    found = [violation for check in CHECKS for violation in check(run)]
    return [*found, *(violation for check in TIMED for violation in check(timed))]


async def read_run(connection: asyncpg.Connection, calls: Sequence[Call], tenant_no: int = 1) -> Run:
    """The run of one tenant. Slots, leases and places in queues are counted over all of them."""
    of = "WHERE tenant_no = $1"
    specs: dict[tuple[UUID, int], JobSpec] = {}
    jobs: dict[UUID, JobSpec] = {}
    for row in await connection.fetch(f"SELECT id, spec FROM ondot.job_once {of} AND id NOT IN {APART}", tenant_no):
        specs[row["id"], 1] = jobs[row["id"]] = decode_spec(row["spec"])
    for row in await connection.fetch(
        f"SELECT job_id, version, spec FROM ondot.job_version {of} AND job_id NOT IN {APART} ORDER BY version",
        tenant_no,
    ):
        specs[row["job_id"], row["version"]] = jobs[row["job_id"]] = decode_spec(row["spec"])
    attempts: dict[UUID, list[Attempt]] = defaultdict(list)
    for row in await connection.fetch(
        f"SELECT *, error::text AS error_text FROM ondot.attempt {of} ORDER BY attempt_no", tenant_no
    ):
        attempts[row["execution_id"]].append(_attempt(row, row["outcome"]))
    executions, without_job = {}, []
    for row in await connection.fetch(
        f"SELECT *, error::text AS error_text FROM ondot.history {of} AND job_id NOT IN {APART}", tenant_no
    ):
        tried = attempts[row["id"]]
        if row["state"] == "SUCCEEDED":
            tried.append(_attempt(row, "SUCCEEDED"))
        spec = specs.get((row["job_id"], row["job_version"]))
        if spec is None:
            without_job.append(row["id"])
        else:
            executions[row["id"]] = Execution(row, spec, tried)
    held = {name: await connection.fetchval(f"SELECT count(*) FROM ondot.{name}") for name in HELD}
    skipped: Counter[UUID] = Counter()
    for row in await connection.fetch(
        f"SELECT job_id, sum(count) AS count FROM ondot.skipped {of} GROUP BY job_id", tenant_no
    ):
        skipped[row["job_id"]] = int(row["count"] or 0)
    live = await connection.fetch(f"SELECT job_id FROM ondot.timer {of} AND next_fire_at < 'infinity'", tenant_no)
    closed = await connection.fetch(f"SELECT id FROM ondot.job {of} AND state IN ('PAUSED', 'DELETED')", tenant_no)
    return Run(
        executions,
        calls,
        jobs,
        await connection.fetch(
            f"SELECT id, job_id, state, worker_id, origin FROM ondot.execution {of} AND job_id NOT IN {APART}",
            tenant_no,
        ),
        held,
        {
            row["execution_id"]
            for row in await connection.fetch(
                f"SELECT execution_id FROM ondot.dead_letter {of} AND job_id NOT IN {APART}", tenant_no
            )
        },
        Counter(row["execution_id"] for row in await connection.fetch("SELECT execution_id FROM public.effect")),
        skipped,
        {row["job_id"] for row in live},
        {row["id"] for row in closed},
        without_job=without_job,
    )


def _attempt(row: asyncpg.Record, outcome: str) -> Attempt:
    error = None if row["error_text"] is None else json.loads(row["error_text"])
    return Attempt(row["attempt_no"], outcome, row["started_at"], row["ended_at"], row["worker_id"], error)


# Ends ------------------------------------------------------------------------------------------------------------


def check_lost(run: Run) -> Iterator[Violation]:
    """Every job that was accepted has an execution for each of its fires, or a record that it was skipped."""
    rows = [*(execution.row for execution in run.executions.values()), *run.not_ended]
    fires = Counter(row["job_id"] for row in rows if row["origin"] == "fire")
    for job_id, spec in run.jobs.items():
        wanted = 1 if not spec.recurs else spec.schedule.max_fires if spec.schedule else None
        # Fires that a misfire policy skips do not count against `max_fires`.
        found = fires[job_id] + (0 if spec.recurs else run.skipped[job_id])
        if wanted is not None and found != wanted and job_id not in run.live_jobs | run.closed_jobs:
            yield Violation("lost", f"job {job_id}", f"{spec.name}: {found} of {wanted} fires have an end on record")


def check_without_job(run: Run) -> Iterator[Violation]:
    for id_ in run.without_job:
        yield Violation("without_job", f"execution {id_}", "has ended, and its job or version is not there")


def check_not_ended(run: Run) -> Iterator[Violation]:
    for row in run.not_ended:
        if row["job_id"] not in run.live_jobs:
            yield Violation("not_ended", str(row["id"]), f"is still {row['state']}, worker {row['worker_id']}")


def check_attempts(run: Run) -> Iterator[Violation]:
    for execution in run.executions.values():
        numbers = [attempt.no for attempt in execution.attempts]
        last = execution.row["attempt_no"]
        if numbers != list(range(1, last + 1)):
            yield Violation("attempts", str(execution.id), f"recorded attempts are {numbers}, but attempt_no is {last}")
        for attempt in execution.attempts:
            causeless = attempt.outcome != "SUCCEEDED" and not (attempt.error or {}).get("code")
            if causeless and not (attempt.outcome == "CANCELLED" and execution.row["reason"]):
                yield Violation(
                    "attempts", str(execution.id), f"attempt {attempt.no} {attempt.outcome} without a cause"
                )
            if attempt.worker_id is None:
                yield Violation("attempts", str(execution.id), f"attempt {attempt.no} has no worker")
        if execution.state != "SUCCEEDED" and not execution.row["reason"]:
            yield Violation("attempts", str(execution.id), f"is {execution.state} without a reason")


def check_times(run: Run) -> Iterator[Violation]:
    """Attempts do not overlap; no call before its attempt, no success before its answer."""
    called = defaultdict(list)
    for call in run.calls:
        called[call.execution_id, call.attempt].append(call)
    for execution in run.executions.values():
        for attempt in execution.attempts:
            if not attempt.started_at <= attempt.ended_at:
                yield Violation("attempts", str(execution.id), f"attempt {attempt.no} has no duration")
            for call in called[execution.id, attempt.no]:
                if call.at_s < attempt.started_at.timestamp():
                    yield Violation("calls", str(execution.id), f"attempt {attempt.no} called before it started")
                if attempt.outcome == "SUCCEEDED" and (call.answered_s or 0.0) > attempt.ended_at.timestamp():
                    yield Violation(
                        "calls", str(execution.id), f"attempt {attempt.no} SUCCEEDED before it was answered"
                    )
        for before, after in pairwise(execution.attempts):
            if after.started_at < before.ended_at:
                yield Violation(
                    "attempts", str(execution.id), f"attempt {after.no} started before attempt {before.no} ended"
                )


def check_budgets(run: Run) -> Iterator[Violation]:
    for execution in run.executions.values():
        outcomes = Counter(attempt.outcome for attempt in execution.attempts)
        failures, losses = outcomes["FAILED"] + outcomes["TIMED_OUT"], outcomes["WORKER_LOST"]
        if (failures, losses) != (execution.row["failures"], execution.row["losses"]):
            counted = f"counted {execution.row['failures']} failures and {execution.row['losses']} losses"
            yield Violation("budgets", str(execution.id), f"{counted}, but {failures} and {losses} happened")
        retry = execution.spec.retry
        if failures > retry.max_retries + 1 or losses > retry.max_worker_losses + 1:
            yield Violation("budgets", str(execution.id), f"{failures} failures and {losses} losses are over budget")


# The receiver's books ------------------------------------------------------------------------------------------------


def check_calls(run: Run) -> Iterator[Violation]:
    made: dict[tuple[UUID, int], list[Call]] = defaultdict(list)
    for call in run.calls:
        made[call.execution_id, call.attempt].append(call)
        if call.token != call.attempt:
            yield Violation("calls", str(call.execution_id), f"attempt {call.attempt} sent the token {call.token}")
    for execution in run.calling(HttpTarget):
        for attempt in execution.attempts:
            calls = made.pop((execution.id, attempt.no), [])
            yield from _attempt_against_calls(execution, attempt, calls)
    for (execution_id, attempt_no), calls in made.items():
        message = f"{len(calls)} calls of attempt {attempt_no}, which is not on record"
        yield Violation("calls", str(execution_id), message)


def _attempt_against_calls(execution: Execution, attempt: Attempt, calls: list[Call]) -> Iterator[Violation]:
    name = f"attempt {attempt.no} ({attempt.outcome})"
    if len(calls) > 1:
        yield Violation("calls", str(execution.id), f"{name} called {len(calls)} times")
    statuses = [call.status for call in calls]
    if attempt.outcome == "SUCCEEDED" and not any(status and 200 <= status < 300 for status in statuses):
        yield Violation("calls", str(execution.id), f"{name}, but the receiver answered {statuses}")
    if attempt.outcome == "PREEMPTED" and calls:
        yield Violation("calls", str(execution.id), f"{name} was recorded as not started, but made a call")
    error = attempt.error or {}
    if error.get("code") == "http_status" and error.get("status") not in statuses:
        yield Violation(
            "calls", str(execution.id), f"{name} with {error.get('status')}, but the receiver answered {statuses}"
        )


def check_at_most_once(run: Run) -> Iterator[Violation]:
    calls = Counter(call.execution_id for call in run.calls)
    for execution in run.calling(HttpTarget):
        retry = execution.spec.retry
        if retry.max_retries == retry.max_worker_losses == 0 and calls[execution.id] > 1:
            yield Violation("at_most_once", str(execution.id), f"was called {calls[execution.id]} times")


# Limits --------------------------------------------------------------------------------------------------------------


def most_at_once(spans: Sequence[tuple[datetime, datetime]]) -> int:
    """How many spans were open at the busiest instant; one that ends as another starts does not overlap it."""
    steps = sorted([(end, -1) for _, end in spans] + [(start, 1) for start, _ in spans])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def check_concurrency(run: Run) -> Iterator[Violation]:
    spans: dict[tuple[str, int], list[tuple[datetime, datetime]]] = defaultdict(list)
    for execution in run.executions.values():
        if (limits := execution.spec.limits) is None:
            continue
        tried = [(attempt.started_at, attempt.ended_at) for attempt in execution.attempts]
        if limits.concurrency is not None and limits.overlap == "allow":
            spans[f"job {execution.row['job_id']}", limits.concurrency] += tried
        if limits.key_concurrency is not None:
            spans[f"key {limits.key}", limits.key_concurrency] += tried
    for (name, limit), entries in spans.items():
        if (most := most_at_once(entries)) > limit:
            yield Violation("concurrency", name, f"{most} ran at once, the limit is {limit}")


def check_overlap(run: Run) -> Iterator[Violation]:
    """Lives, not attempts: no other execution starts between two attempts of one."""
    lives: dict[tuple[UUID, int], list[tuple[datetime, datetime]]] = defaultdict(list)
    for execution in run.executions.values():
        limits = execution.spec.limits
        if limits is not None and limits.overlap != "allow" and execution.life is not None:
            lives[execution.row["job_id"], limits.concurrency or 1].append(execution.life)
    for (job_id, limit), entries in lives.items():
        if (most := most_at_once(entries)) > limit:
            yield Violation("overlap", f"job {job_id}", f"{most} executions lived at once, the limit is {limit}")


def check_order(run: Run) -> Iterator[Violation]:
    """One after another, retries included, in the order of their due times."""
    by_key: dict[str, list[Execution]] = defaultdict(list)
    for execution in run.executions.values():
        if execution.spec.limits is not None and execution.spec.limits.order_key is not None and execution.attempts:
            by_key[execution.spec.limits.order_key].append(execution)
    for key, executions in by_key.items():
        executions.sort(key=lambda execution: (execution.row["fire_at"], execution.id))
        for before, after in pairwise(executions):
            if after.attempts[0].started_at < before.row["ended_at"]:
                yield Violation("order", f"key {key}", f"{after.id} started before {before.id} had ended")


def check_rate(run: Run) -> Iterator[Violation]:
    starts: dict[tuple[str, Rate], list[datetime]] = defaultdict(list)
    tokens: dict[tuple[str, Rate], list[datetime]] = defaultdict(list)
    for execution in run.executions.values():
        if (limits := execution.spec.limits) is None:
            continue
        for name, rate in ((f"job {execution.row['job_id']}", limits.rate), (f"key {limits.key}", limits.key_rate)):
            if rate is not None:
                starts[name, rate] += [attempt.started_at for attempt in execution.attempts]
                if execution.state in {"SUCCEEDED", "FAILED"}:
                    tokens[name, rate].append(execution.row["ready_at"])
    for (name, rate), instants in starts.items():
        yield from _rate_of("rate_starts", name, rate, instants, rate.burst + STARTS_LATE)
    for (name, rate), instants in tokens.items():
        yield from _rate_of("rate_tokens", name, rate, instants, rate.burst)


def _rate_of(check: str, name: str, rate: Rate, instants: list[datetime], at_once: int) -> Iterator[Violation]:
    """In any sequence, the time from first to last is at least what a full bucket allows."""
    instants.sort()
    every = timedelta(seconds=rate.every_s)
    for number, instant in enumerate(instants):
        for ahead in range(at_once, min(at_once + 20, len(instants) - number)):
            least = every * (ahead + 1 - at_once) - TOKEN_SLACK
            if (span := instants[number + ahead] - instant) < least:
                message = f"{ahead + 1} within {span.total_seconds():.3f} s from {instant} on, the rate is {rate}"
                yield Violation(check, name, message)
                return


def check_unique(run: Run) -> Iterator[Violation]:
    lives: dict[str, list[tuple[datetime, datetime]]] = defaultdict(list)
    for execution in run.executions.values():
        unique, row = execution.spec.unique, execution.row
        refused = execution.state == "SKIPPED" and str(row["reason"]).startswith("unique")
        if unique is not None and not refused:
            begun_at = run.accepted_at.get(row["job_id"], row["fire_at"])
            lives[unique.key].append((min(begun_at, row["ended_at"]), row["ended_at"]))
    for key, entries in lives.items():
        if (most := most_at_once(entries)) > 1:
            yield Violation("unique", f"key {key}", f"{most} lived at once")


def check_deadline(run: Run) -> Iterator[Violation]:
    for execution in run.executions.values():
        if execution.spec.start_deadline_s is None:
            continue
        # A job without a schedule counts from when it was stored: PostgreSQL may have kept its client waiting.
        from_at = max(execution.row["fire_at"], run.accepted_at.get(execution.row["job_id"], execution.row["fire_at"]))
        start_by = from_at + timedelta(seconds=execution.spec.start_deadline_s)
        begun = [attempt for attempt in execution.attempts if attempt.outcome != "PREEMPTED"]
        if begun and begun[0].started_at > start_by:
            yield Violation(
                "deadline", str(execution.id), f"started at {begun[0].started_at}, the deadline was {start_by}"
            )


# Rows left over ------------------------------------------------------------------------------------------------------


def check_left_over(run: Run) -> Iterator[Violation]:
    if not run.live_jobs:
        for table, count in run.left_over.items():
            if count:
                yield Violation("left_over", table, f"{count} rows are left, but nothing runs")


def check_dead_letters(run: Run) -> Iterator[Violation]:
    failed = {execution.id for execution in run.executions.values() if execution.state == "FAILED"}
    for id_ in failed ^ run.dead_letters:
        yield Violation("dead_letters", str(id_), "FAILED without a dead letter" if id_ in failed else "is not FAILED")


def check_effects(run: Run) -> Iterator[Violation]:
    wanted = Counter(
        execution.id
        for execution in run.calling(FunctionTarget)
        if execution.spec.target == FunctionTarget(name=TRANSACTIONAL) and execution.state == "SUCCEEDED"
    )
    for id_ in wanted.keys() | run.effects.keys():
        if wanted[id_] != run.effects[id_]:
            yield Violation("effects", str(id_), f"{run.effects[id_]} effects, {wanted[id_]} successes")


Check = Callable[[Run], Iterator[Violation]]
CHECKS: Sequence[Check] = (check_lost, check_without_job, check_not_ended, check_attempts, check_budgets, check_calls,
                           check_at_most_once, check_left_over, check_dead_letters, check_effects)  # fmt: skip
TIMED: Sequence[Check] = (check_times, check_concurrency, check_overlap, check_order, check_rate, check_unique,
                          check_deadline)  # fmt: skip
"""Checks that compare instants of the database's clock."""
