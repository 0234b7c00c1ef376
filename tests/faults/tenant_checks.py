"""The judgement of the other tenants of a fault run (T1, T2, P11, P12, L6).

It reads the database's tables, the receiver's books and the journal of `tenant_users`, and nothing that ondot reports.
For each tenant that was not deleted it runs the whole audit, and besides:

    lost_ack, two_objects,      every acknowledged job exists once, a refused one does not
    not_refused
    lost_fire                   every fire of a recurring job has one end on record, also those of a suspension
    quota                       never more attempts at once than the quota in force
    leased_suspended            nothing starts while the tenant is suspended
    completed_deleted,          after a deletion nothing succeeds and no call is made,
    called_deleted, not_removed   and in the end no row is left
    revoked_key                 a key that was revoked, or whose tenant was deleted, works no more
    starved                     a tenant that is left alone waits much less than the one that floods

A change counts from its acknowledgement, and a second later everywhere. What ran when its tenant was deleted may end as
it would while a fault keeps its worker from hearing of it.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from uuid import UUID

import asyncpg

from tests.faults.audit import Attempt, Run, Violation, read_run, violations_of
from tests.faults.evidence import CLOCK_STEPS, Fault, is_clock_off, read_faults, step_of
from tests.faults.ledger import Call, read_books
from tests.faults.tenant_users import EVERY_S, Asked, read_asked

HOLDS_WITHIN_S = 1.0
RECOVERS_WITHIN_S = 15.0
STARVED_SHARE = 0.5
LEAST_FLOOD_S = 1.0
"""A backlog that is gone sooner delays nobody."""
MOST_SLACK_S = 3.0
QUIET = ("tenant.flood", "postgres.snapshot")
"""Faults that delay nobody: beside others it is not known who waits for what."""
CREATES = {"create", "flood", "recur"}
LOOK_EVERY_S = 0.25
ASK_AT_MOST_S = 2.0
TABLES = ("job", "job_version", "job_once", "execution", "history", "attempt", "timer", "skipped", "dead_letter", "key")

Span = tuple[float, float]


@dataclass(slots=True)
class Tenancy:
    """One tenant of the run, as its journal and the database have it."""

    no: int
    asked: Sequence[Asked]
    run: Run
    calls: Sequence[Call]
    jobs: Mapping[str, Sequence[UUID]]
    """The rows of its jobs, by name."""
    skipped: Sequence[asyncpg.Record]
    fired_through: Mapping[UUID, datetime]
    slack_s: float
    is_off: Callable[[datetime, datetime], bool] = field(default=lambda _from, _to: False)
    faults: Sequence[Fault] = ()

    def is_disturbed(self, from_s: float, to_s: float) -> bool:
        """Whether a fault of another kind hit the fleet in this time, or shortly before."""
        return any(
            fault.began_s <= to_s and from_s <= fault.ended_s + RECOVERS_WITHIN_S
            for fault in self.faults
            if not fault.kind.startswith("tenant.")
        )

    def of(self, *ops: str) -> list[Asked]:
        return [one for one in self.asked if one.op in ops]

    @property
    def deleted_s(self) -> float | None:
        """When its deletion was acknowledged."""
        return next((one.acked_s for one in self.of("tenant.delete") if one.acked_s is not None), None)

    @property
    def was_asked_to_go(self) -> bool:
        return bool(self.of("tenant.delete"))

    @property
    def holds_within_s(self) -> float:
        return HOLDS_WITHIN_S + self.slack_s

    def attempts(self) -> Iterator[Attempt]:
        for execution in self.run.executions.values():
            for attempt in execution.attempts:
                if not self.is_off(attempt.started_at, attempt.ended_at):
                    yield attempt


# Requests and fires --------------------------------------------------------------------------------------------------


def check_creates(tenancy: Tenancy) -> Iterator[Violation]:
    for asked in tenancy.of(*CREATES):
        assert asked.job is not None
        ids = [str(id_) for id_ in tenancy.jobs.get(asked.job, ())]
        name = f"tenant {tenancy.no}, {asked.job}"
        if len(ids) > 1:
            yield Violation("two_objects", name, f"one key made {len(ids)} jobs: {ids}")
        if asked.is_acked and asked.job_id not in ids:
            yield Violation("lost_ack", name, f"was acknowledged as {asked.job_id}, but does not exist")
        if asked.outcome == "refused" and ids:
            yield Violation("not_refused", name, f"was refused with {asked.status}, but exists")


def check_fires(tenancy: Tenancy) -> Iterator[Violation]:
    """From its acknowledgement until its timer stood still, every fire has one end on record."""
    for asked in tenancy.of("recur"):
        if asked.acked_s is None or asked.job_id is None:
            continue
        job_id = UUID(asked.job_id)
        schedule = tenancy.run.jobs[job_id].schedule
        assert schedule is not None
        through_at = tenancy.fired_through.get(job_id)
        if through_at is None:
            continue
        ends: Counter[datetime] = Counter(
            execution.row["fire_at"]
            for execution in tenancy.run.executions.values()
            if execution.row["job_id"] == job_id and execution.row["origin"] in {"fire", "backfill"}
        )
        ranges = [(row["from_at"], row["to_at"]) for row in tenancy.skipped if row["job_id"] == job_id]
        anchor_at: datetime = schedule.when.anchor_at  # type: ignore[union-attr]
        first_at = datetime.fromtimestamp(asked.acked_s, UTC)
        number = int((first_at - anchor_at).total_seconds() / EVERY_S) + 1
        while (fire_at := anchor_at + timedelta(seconds=number * EVERY_S)) <= through_at:
            found = ends[fire_at] + sum(from_at <= fire_at <= to_at for from_at, to_at in ranges)
            if found != 1:
                message = f"{fire_at} has {found} ends on record"
                yield Violation("lost_fire" if not found else "doubled_fire", f"tenant {tenancy.no}", message)
            number += 1


def check_audit(tenancy: Tenancy) -> Iterator[Violation]:
    off = {
        id_ for id_, one in tenancy.run.executions.items() if tenancy.is_off(one.row["fire_at"], one.row["ended_at"])
    }
    for found in violations_of(tenancy.run, off):
        yield replace(found, subject=f"tenant {tenancy.no}: {found.subject}")


# Quotas and states ---------------------------------------------------------------------------------------------------


def quotas_in_force(tenancy: Tenancy) -> list[tuple[Span, int | None]]:
    """Each quota, from when it was asked for to when the next one held everywhere."""
    changes = [one for one in tenancy.of("tenant.create", "tenant.quota") if one.outcome != "refused"]
    spans: list[tuple[Span, int | None]] = []
    for number, change in enumerate(changes):
        later = [one.acked_s for one in changes[number + 1 :] if one.acked_s is not None]
        until_s = later[0] + tenancy.holds_within_s if later else float("inf")
        spans.append(((change.asked_s, until_s), change.concurrent))
    return spans


def check_quota(tenancy: Tenancy) -> Iterator[Violation]:
    spans = quotas_in_force(tenancy)
    attempts = list(tenancy.attempts())
    ends = [(attempt.ended_at, 0, -1) for attempt in attempts]
    running = 0
    for at, _, step in sorted([*ends, *((attempt.started_at, 1, 1) for attempt in attempts)]):
        running += step
        if step < 0:
            continue
        allowed = [quota for (from_s, to_s), quota in spans if from_s <= at.timestamp() <= to_s]
        limits = [quota for quota in allowed if quota is not None]
        if allowed and len(limits) == len(allowed) and running > max(limits):
            message = f"an attempt started at {at} as number {running}, the quota was {max(limits)}"
            yield Violation("quota", f"tenant {tenancy.no}", message)
            return


def suspensions(tenancy: Tenancy) -> Iterator[Span]:
    """The times for certain: from when a suspension held everywhere until its end was asked for."""
    began_s: float | None = None
    for asked in tenancy.of("tenant.suspend", "tenant.resume"):
        if asked.op == "tenant.suspend":
            began_s = None if asked.acked_s is None else asked.acked_s + tenancy.holds_within_s
        elif began_s is not None:
            if asked.asked_s > began_s:
                yield began_s, asked.asked_s
            began_s = None


def check_suspended(tenancy: Tenancy) -> Iterator[Violation]:
    for from_s, to_s in suspensions(tenancy):
        for attempt in tenancy.attempts():
            if from_s < attempt.started_at.timestamp() < to_s:
                message = f"an attempt started {attempt.started_at.timestamp() - from_s:.1f} s after it held"
                yield Violation("leased_suspended", f"tenant {tenancy.no}", message)


def check_keys(tenancy: Tenancy) -> Iterator[Violation]:
    dead = {one.key_id: one.acked_s for one in tenancy.of("key.revoke") if one.acked_s is not None}
    for asked in tenancy.asked:
        if asked.op not in {"probe", "create"} or not asked.is_acked or asked.sent_s is None:
            continue
        ends_s = [one for one in (dead.get(asked.key_id), tenancy.deleted_s) if one is not None]
        if ends_s and asked.sent_s > min(ends_s) + tenancy.holds_within_s:
            message = f"the key {asked.key_id} worked {asked.sent_s - min(ends_s):.1f} s after its end"
            yield Violation("revoked_key", f"tenant {tenancy.no}", message)


# Deleted tenants -----------------------------------------------------------------------------------------------------


def check_calls_of_deleted(tenancy: Tenancy) -> Iterator[Violation]:
    assert tenancy.deleted_s is not None
    for call in tenancy.calls:
        is_late = call.at_s > tenancy.deleted_s + tenancy.holds_within_s
        if is_late and not tenancy.is_disturbed(tenancy.deleted_s, call.at_s):
            message = f"{call.execution_id} was called {call.at_s - tenancy.deleted_s:.1f} s after the deletion"
            yield Violation("called_deleted", f"tenant {tenancy.no}", message)


@dataclass(slots=True)
class Successes:
    """Successes of deleted tenants, read again and again: their rows are soon removed."""

    found: dict[UUID, tuple[int, datetime]] = field(default_factory=dict)

    async def watch(self, connect: Callable[[], Awaitable[asyncpg.Connection]]) -> None:
        """Look until cancelled, except while the database is away."""
        while True:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                async with asyncio.timeout(ASK_AT_MOST_S):
                    connection = await connect()
                try:
                    while True:
                        async with asyncio.timeout(ASK_AT_MOST_S):
                            await self.look(connection)
                        await asyncio.sleep(LOOK_EVERY_S)
                finally:
                    connection.terminate()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self, connection: asyncpg.Connection) -> None:
        rows = await connection.fetch(
            "SELECT h.id, h.tenant_no, h.ended_at FROM ondot.tenant t JOIN ondot.history h USING (tenant_no)"
            " WHERE t.state = 'DELETED' AND h.state = 'SUCCEEDED' AND h.ended_at > t.deleted_at"
        )
        self.found |= {row["id"]: (row["tenant_no"], row["ended_at"]) for row in rows}

    def violations(self, tenancy: Tenancy) -> Iterator[Violation]:
        assert tenancy.deleted_s is not None
        for id_, (tenant_no, ended_at) in self.found.items():
            late_s = ended_at.timestamp() - tenancy.deleted_s
            if tenant_no != tenancy.no or tenancy.is_disturbed(tenancy.deleted_s, ended_at.timestamp()):
                continue
            if late_s > tenancy.holds_within_s:
                yield Violation("completed_deleted", f"tenant {tenancy.no}", f"{id_} {late_s:.1f} s after the deletion")


async def count_left(connection: asyncpg.Connection) -> int:
    """The rows of deleted tenants that are still to be removed."""
    counts = [
        await connection.fetchval(
            f"SELECT count(*) FROM ondot.tenant t JOIN ondot.{table} USING (tenant_no) WHERE t.state = 'DELETED'"
        )
        for table in TABLES
    ]
    return sum(counts)


async def check_removed(connection: asyncpg.Connection, tenant_no: int) -> list[Violation]:
    left = {
        table: await connection.fetchval(f"SELECT count(*) FROM ondot.{table} WHERE tenant_no = $1", tenant_no)
        for table in TABLES
    }
    return [
        Violation("not_removed", f"tenant {tenant_no}", f"{count} rows of {table} are left")
        for table, count in left.items()
        if count
    ]


# Floods --------------------------------------------------------------------------------------------------------------


def waits_s(tenancy: Tenancy, *ops: str, from_s: float = 0.0, to_s: float = float("inf")) -> list[float]:
    """How long each job that was acknowledged in this time waited for its first attempt."""
    started: dict[UUID, float] = {}
    for execution in tenancy.run.executions.values():
        if execution.attempts:
            started[execution.row["job_id"]] = execution.attempts[0].started_at.timestamp()
    return [
        max(started[UUID(asked.job_id)] - asked.acked_s, 0.0)
        for asked in tenancy.of(*ops)
        if asked.acked_s is not None
        and asked.job_id is not None
        and from_s <= asked.acked_s <= to_s
        and UUID(asked.job_id) in started
    ]


def check_starved(alone: Tenancy, flooding: Tenancy) -> Iterator[Violation]:
    """While a flood waits, the tenant that is left alone waits much less than the flood does."""
    floods: defaultdict[str, list[Asked]] = defaultdict(list)
    for asked in flooding.of("flood"):
        if asked.acked_s is not None and asked.job is not None:
            floods[asked.job.split(".")[0]].append(asked)
    for name, jobs in floods.items():
        from_s, to_s = (limit(one.acked_s or 0.0 for one in jobs) for limit in (min, max))
        theirs = waits_s(flooding, "flood", from_s=from_s, to_s=to_s)
        if not theirs or max(theirs) < LEAST_FLOOD_S:
            continue
        ours = waits_s(alone, "create", from_s=from_s, to_s=from_s + max(theirs) / 2)
        if len(ours) >= 3 and median(ours) > STARVED_SHARE * median(theirs):
            message = f"it waited {median(ours):.2f} s beside {name}, which waited {median(theirs):.2f} s (medians)"
            yield Violation("starved", f"tenant {alone.no}", message)


# All of them ---------------------------------------------------------------------------------------------------------

OF_TENANT: Sequence[Callable[[Tenancy], Iterator[Violation]]] = (
    check_creates,
    check_fires,
    check_audit,
    check_quota,
    check_suspended,
    check_keys,
)


async def judge_tenants(
    connection: asyncpg.Connection,
    journal: Path,
    books: Path,
    faults: Path,
    successes: Successes,
    slack_s: float,
    counts: dict[str, int],
) -> list[Violation]:
    """Judge a run that has come to rest; what was counted is added to `counts`."""
    log = read_faults(faults)
    steps = [step_of(fault) for fault in log if fault.kind in CLOCK_STEPS]

    def is_off(from_at: datetime, to_at: datetime) -> bool:
        return is_clock_off(steps, from_at, to_at)

    slack_s = min(slack_s, MOST_SLACK_S)
    asked: defaultdict[int, list[Asked]] = defaultdict(list)
    for one in read_asked(journal):
        asked[one.tenant_no].append(one)
    calls: defaultdict[int, list[Call]] = defaultdict(list)
    for call in read_books(books):
        calls[int(call.tenant or 0)].append(call)
    await successes.look(connection)
    found: list[Violation] = []
    tenancies = []
    for no in sorted(asked):
        tenancy = await _read(connection, no, asked[no], calls[no], slack_s, is_off)
        tenancy.faults = log
        tenancies.append(tenancy)
        if tenancy.deleted_s is not None:
            found += [*check_keys(tenancy), *check_calls_of_deleted(tenancy), *successes.violations(tenancy)]
            found += await check_removed(connection, no)
        elif not tenancy.was_asked_to_go:  # else the answer was lost, and nobody knows
            found += [violation for check in OF_TENANT for violation in check(tenancy)]
    if all(fault.kind in QUIET for fault in log):
        found += check_starved(tenancies[0], tenancies[1])
    requests = [one for each in asked.values() for one in each]
    counts |= {
        "tenants": len(asked),
        "tenants_deleted": sum(tenancy.deleted_s is not None for tenancy in tenancies),
        "tenant_jobs": sum(one.op in CREATES and one.is_acked for one in requests),
        "tenant_calls": sum(map(len, calls.values())),
        "tenant_probes": sum(one.op == "probe" for one in requests),
    }
    return found


async def _read(
    connection: asyncpg.Connection,
    no: int,
    asked: Sequence[Asked],
    calls: Sequence[Call],
    slack_s: float,
    is_off: Callable[[datetime, datetime], bool],
) -> Tenancy:
    jobs: defaultdict[str, list[UUID]] = defaultdict(list)
    rows = await connection.fetch(
        "SELECT id, name FROM ondot.job WHERE tenant_no = $1 UNION SELECT id, name FROM ondot.job_once"
        " WHERE tenant_no = $1",
        no,
    )
    for row in rows:
        jobs[row["name"]].append(row["id"])
    skipped = await connection.fetch("SELECT job_id, from_at, to_at FROM ondot.skipped WHERE tenant_no = $1", no)
    timers = await connection.fetch("SELECT job_id, fired_through FROM ondot.timer WHERE tenant_no = $1", no)
    run = replace(await read_run(connection, calls, no), effects=Counter())
    through = {row["job_id"]: row["fired_through"] for row in timers if row["fired_through"] is not None}
    return Tenancy(no, sorted(asked, key=lambda one: one.asked_s), run, calls, jobs, skipped, through, slack_s, is_off)
