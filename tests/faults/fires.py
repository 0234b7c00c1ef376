"""Every fire of a run by its end: executed once, skipped with a reason, or wrong (P3, P4, P9, P10).

A fire is (job, instant). The oracle lists the fires that must be and that may be; the database has executions and
skipped ranges. One recorded end is right, none is *lost*, two are *doubled*; an unexpected one is a *phantom*. By the
first start and by the receiver's books, no fire is *early*, starts after an acknowledged pause or delete, or runs a
version that was superseded before the start.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.faults.audit import Violation
from tests.faults.evidence import Evidence, Fired, JobRow, SkippedRange
from tests.faults.journal import Operation
from tests.faults.oracle import expect, expect_once, instants, seconds_of

CLOCKS_AGREE = timedelta(milliseconds=2)
"""Receiver, workload and database read the same clock, not at the same moment."""
REASONS = {"coalesced", "misfire", "paused", "deleted", "calendar"}
GRACE_S = 60.0


@dataclass(slots=True)
class Tally:
    """The counts and the violations."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    caught_up: set[tuple[object, datetime]] = field(default_factory=set)
    """Fires of a pause that has ended: they run behind live work, and are not late."""

    def found(self, check: str, subject: object, message: str) -> None:
        self.violations.append(Violation(check, str(subject), message))


class _Covered:
    """The instants that skipped ranges hold."""

    def __init__(self, ranges: Sequence[SkippedRange]) -> None:
        self.ranges = ranges

    def __contains__(self, instant: object) -> bool:
        return isinstance(instant, datetime) and bool(self.holding(instant))

    def holding(self, instant: datetime) -> list[SkippedRange]:
        return [entry for entry in self.ranges if entry.from_at <= instant <= entry.to_at]


def sort_fires(evidence: Evidence, ended_at: datetime) -> Tally:
    """All jobs of the journal."""
    tally = Tally()
    for name, operations in evidence.operations.items():
        for row in evidence.jobs.get(name, ()):
            fired = evidence.fired.get(row.id, ())
            if recurs(operations):
                _sort_recurring(evidence, row, operations, ended_at, tally)
            else:
                _sort_once(evidence, row, operations, ended_at, tally)
            tally.violations += _too_soon(evidence, name, fired)
            tally.violations += _after_the_end(evidence, name, operations, fired)
    tally.counts["early"] = sum(violation.check == "early" for violation in tally.violations)
    return tally


def recurs(operations: Sequence[Operation]) -> bool:
    schedule = (operations[0].body or {}).get("schedule") or {}
    return bool({"every", "cron", "rrule"} & schedule.keys())


# One end on record ---------------------------------------------------------------------------------------------------


def _sort_recurring(
    evidence: Evidence, row: JobRow, operations: Sequence[Operation], ended_at: datetime, tally: Tally
) -> None:
    name, covered = row.name, _Covered(evidence.ranges.get(row.id, ()))
    executions: defaultdict[datetime, list[Fired]] = defaultdict(list)
    for fired in evidence.fired.get(row.id, ()):
        if fired.is_fire:
            executions[fired.fire_at].append(fired)
    expected = expect(operations, ended_at, uncounted=covered, steps=evidence.steps)
    for instant in expected.must:
        _sort_one(name, instant, executions.pop(instant, []), covered.holding(instant), tally, must=True)
    for instant in expected.may:
        _sort_one(name, instant, executions.pop(instant, []), covered.holding(instant), tally, must=False)
    for instant in expected.paused:
        tally.caught_up.add((row.id, instant))
        _sort_one(name, instant, executions.pop(instant, []), covered.holding(instant), tally, must=True)
    for instant, phantoms in executions.items():
        message = f"{phantoms[0].id} is {phantoms[0].state}, but the schedule has no fire then"
        tally.found("phantom", f"{name} at {instant}", message)
    _look_at_pauses(evidence, row, operations, expected.paused, tally)
    _look_at_ranges(evidence, name, operations, covered.ranges, tally)


def _sort_one(
    name: str, instant: datetime, executions: list[Fired], ranges: list[SkippedRange], tally: Tally, *, must: bool
) -> None:
    ends = len(executions) + len(ranges)
    tally.counts["fires"] += bool(must or ends)
    if ends == 0 and must:
        tally.counts["lost"] += 1
        tally.found("lost_fire", f"{name} at {instant}", "has no execution and is in no skipped range")
    elif ends > 1:
        tally.counts["doubled"] += 1
        found = [f"{fired.id} {fired.state}" for fired in executions]
        found += [f"skipped ({entry.reason})" for entry in ranges]
        tally.found("doubled_fire", f"{name} at {instant}", f"has {ends} ends on record: {', '.join(found)}")
    elif executions:
        _count(executions[0], tally)
    elif ranges:
        tally.counts["skipped"] += 1
        tally.skipped[ranges[0].reason] += 1


def _count(fired: Fired, tally: Tally) -> None:
    if fired.state == "SKIPPED":
        tally.counts["skipped"] += 1
        tally.skipped[(fired.reason or "no reason").split(":")[0]] += 1
    elif fired.started_at is None:
        tally.counts["cancelled"] += fired.state == "CANCELLED"
    else:
        tally.counts["executed"] += 1


def _sort_once(
    evidence: Evidence, row: JobRow, operations: Sequence[Operation], ended_at: datetime, tally: Tally
) -> None:
    executions = [fired for fired in evidence.fired.get(row.id, ()) if fired.is_fire]
    expected = expect_once(operations, ended_at, evidence.steps)
    # A stored job must fire unless it was deleted, also if its client got no answer.
    was_unclear = not any(operation.is_acked for operation in operations if operation.op == "create")
    must = expected.must or (was_unclear and len(operations) == 1)
    ranges = list(evidence.ranges.get(row.id, ()))
    for fired in executions:
        if not any(from_at <= fired.fire_at <= to_at for from_at, to_at in expected.windows):
            message = f"{fired.id} fired at {fired.fire_at}, expected at {expected.windows}"
            tally.found("phantom", row.name, message)
    instant = executions[0].fire_at if executions else expected.windows[0][0]
    _sort_one(row.name, instant, executions, ranges, tally, must=must)


def _look_at_pauses(
    evidence: Evidence, row: JobRow, operations: Sequence[Operation], paused: Sequence[datetime], tally: Tally
) -> None:
    """Of the fires of a pause none ran, unless the resume asked for the latest or for all."""
    asked = {(operation.body or {}).get("missed", "skip") for operation in operations if operation.op == "resume"}
    ran = [
        fired
        for fired in evidence.fired.get(row.id, ())
        if fired.is_fire and fired.fire_at in set(paused) and fired.started_at is not None
    ]
    most = None if "all" in asked else 1 if "once" in asked else 0
    if most is not None and len(ran) > most:
        ids = [f"{fired.id}" for fired in ran]
        tally.found("paused_fire", row.name, f"{len(ran)} fires of a pause ran, the resume asked for {most}: {ids}")


def _look_at_ranges(
    evidence: Evidence, name: str, operations: Sequence[Operation], ranges: Sequence[SkippedRange], tally: Tally
) -> None:
    """Skipped ranges have a known reason and the right count, and no misfire is recorded before its grace is over."""
    schedules = [
        operation.body["schedule"]
        for operation in operations
        if operation.body and operation.op in {"create", "update", "upsert"} and operation.outcome != "refused"
    ]
    for entry in ranges:
        if entry.reason not in REASONS:
            tally.found("skipped", name, f"was skipped for an unknown reason, {entry.reason!r}")
        if evidence.is_off(entry.from_at, entry.recorded_at):
            continue
        grace_s = min(seconds_of(schedule.get("misfire", {}).get("grace", GRACE_S)) for schedule in schedules)
        due_s = (entry.recorded_at - entry.to_at).total_seconds()
        if entry.reason in {"coalesced", "misfire"} and due_s < grace_s - 0.1:
            tally.found("skipped", name, f"{entry.to_at} was skipped ({entry.reason}) {due_s:.1f} s after it was due")
        if len(schedules) == 1 and entry.count is not None:
            inside = instants(schedules[0], entry.from_at - timedelta(microseconds=1), entry.to_at)
            if len(inside) != entry.count:
                message = f"{entry.from_at} to {entry.to_at} records {entry.count} fires, but has {len(inside)}"
                tally.found("skipped", name, message)


# Never early, never after the end ------------------------------------------------------------------------------------


def _too_soon(evidence: Evidence, name: str, executions: Sequence[Fired]) -> Iterator[Violation]:
    for fired in executions:
        if not fired.is_fire:
            continue
        for clock, instant in (("the database's clock", fired.started_at), ("its receiver's books", fired.called_at)):
            if instant is not None and instant < fired.fire_at - CLOCKS_AGREE:
                if evidence.is_off(instant, fired.fire_at):
                    continue
                early_s = (fired.fire_at - instant).total_seconds()
                yield Violation(
                    "early", f"{name} at {fired.fire_at}", f"{fired.id} was {early_s:.3f} s early by {clock}"
                )


def _after_the_end(
    evidence: Evidence, name: str, operations: Sequence[Operation], executions: Sequence[Fired]
) -> Iterator[Violation]:
    """No execution starts in a pause, after a delete, or with a superseded version."""
    changes = [operation for operation in operations if operation.outcome != "refused"]
    for number, operation in enumerate(changes):
        if operation.acked_s is None:
            continue
        acked_at = datetime.fromtimestamp(operation.acked_s, UTC) + CLOCKS_AGREE
        later = [after.asked_s for after in changes[number + 1 :] if after.op == "resume"]
        until = datetime.fromtimestamp(min(later), UTC) if later else datetime.max.replace(tzinfo=UTC)
        version = operation.answer.get("version", 0)
        for fired in executions:
            if not fired.is_fire or fired.started_at is None or fired.started_at <= acked_at:
                continue
            if evidence.is_off(acked_at, fired.started_at):
                continue
            after_s = (fired.started_at - acked_at).total_seconds()
            if operation.op in {"pause", "delete"} and fired.started_at < until:
                message = f"{fired.id} of {fired.fire_at} started {after_s:.3f} s after the acknowledged {operation.op}"
                yield Violation(f"after_{operation.op}", name, message)
            if operation.op in {"update", "upsert"} and fired.version < version:
                message = f"{fired.id} of {fired.fire_at} started with version {fired.version}, {after_s:.3f} s after"
                yield Violation("superseded", name, f"{message} version {version} was acknowledged")
