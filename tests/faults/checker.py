"""The judgement of a fault run: did every promise hold, for every fire, every call and every acknowledged request?

It runs everything in `tests.faults.audit` (P5, P7, P8, P11), then compares every fire with an oracle (`fires`: P3, P4,
P9, P10) and judges how late it started under which faults (`lateness`: L1 to L5). Here it checks that acknowledged
requests took effect (P1), and that one key made one object (P2). It reads the database's tables, the receiver's books,
the client's journal and the log of faults, and nothing that ondot reports. Promises that only ondot could report (P6:
refused *and counted*) or that no run shows (P12) are not judged.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import asyncpg

from tests.faults.audit import Violation, violations_of
from tests.faults.evidence import Evidence, read_evidence
from tests.faults.fires import sort_fires
from tests.faults.journal import Operation
from tests.faults.lateness import Bounds, Lateness, judge_lateness
from tests.faults.oracle import Standing, spans

__all__ = ["Bounds", "Lateness", "Verdict", "judge"]

STATES: dict[Standing, str] = {"active": "ACTIVE", "paused": "PAUSED", "deleted": "DELETED"}
ENDS = {"SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED"}


@dataclass(slots=True)
class Verdict:
    counts: dict[str, int]
    skipped: dict[str, int]
    """By reason."""
    violations: list[Violation]
    lateness: dict[str, Lateness]
    """By kind of fault."""
    began_s: float
    ended_s: float

    @property
    def clean(self) -> bool:
        return not self.violations


async def judge(
    connection: asyncpg.Connection,
    books: Path,
    acks: Path,
    faults: Path,
    *,
    began_s: float,
    ended_s: float,
    bounds: Bounds,
) -> Verdict:
    """Judge a run that has come to rest."""
    evidence = await read_evidence(connection, books, acks, faults)
    ended_at = datetime.fromtimestamp(ended_s, UTC)
    accepted = _accepted(evidence)
    evidence.run.accepted_at = {id_: datetime.fromtimestamp(acked_s, UTC) for id_, acked_s in accepted.items()}
    tally = sort_fires(evidence, ended_at)
    lateness = judge_lateness(evidence, tally, bounds)
    lost = [violation for check in OF_OPERATIONS for violation in check(evidence, ended_at)]
    others = [violation for check in OF_RUN for violation in check(evidence)]
    acked = [operation for operations in evidence.operations.values() for operation in operations]
    outcomes = Counter(operation.outcome for operation in acked)
    counts = {
        "jobs": sum(map(len, evidence.jobs.values())),
        "calls": len(evidence.calls),
        "acked": outcomes["acked"],
        "unclear": outcomes["unclear"],
        "refused": outcomes["refused"],
        "acked_lost": len({violation.subject for violation in lost if violation.check == "lost_ack"}),
        **{name: tally.counts[name] for name in COUNTED},
    }
    violations = [*tally.violations, *lost, *others, *violations_of(evidence.run, _off(evidence))]
    return Verdict(counts, dict(tally.skipped), violations, lateness, began_s, ended_s)


COUNTED = ("fires", "executed", "skipped", "cancelled", "lost", "doubled", "early", "late")


def _accepted(evidence: Evidence) -> dict[UUID, float]:
    """When each job was acknowledged first."""
    return {
        UUID(operation.job_id): operation.acked_s
        for operations in evidence.operations.values()
        for operation in reversed(operations)
        if operation.op == "create" and operation.acked_s is not None and operation.job_id is not None
    }


def _off(evidence: Evidence) -> set[UUID]:
    """Executions that lived while the database's clock was set."""
    return {
        id_ for id_, one in evidence.run.executions.items() if evidence.is_off(one.row["fire_at"], one.row["ended_at"])
    }


# Requests (P1, P2) ---------------------------------------------------------------------------------------------------


def check_creates(evidence: Evidence, _: datetime) -> Iterator[Violation]:
    """An acknowledged job exists once; an unclear one exists once or not at all."""
    for name, operations in evidence.operations.items():
        rows = evidence.jobs.get(name, ())
        creates = [operation for operation in operations if operation.op in {"create", "repeat"}]
        acked = [operation for operation in creates if operation.is_acked]
        ids = {operation.answer.get("id") for operation in acked}
        if len(rows) > 1:
            yield Violation("two_objects", name, f"one key made {len(rows)} jobs: {[str(row.id) for row in rows]}")
        if len(ids) > 1:
            yield Violation("two_objects", name, f"one key got different answers: {sorted(map(str, ids))}")
        for id_ in ids - {str(row.id) for row in rows}:
            yield Violation("lost_ack", f"create {name}", f"was acknowledged as {id_}, but does not exist")
        if rows and all(operation.outcome == "refused" for operation in creates):
            yield Violation("not_refused", name, "was refused, but exists")


def check_batches(evidence: Evidence, _: datetime) -> Iterator[Violation]:
    """A batch is stored as a whole or not at all."""
    batches: defaultdict[str, list[str]] = defaultdict(list)
    for name, operations in evidence.operations.items():
        if operations[0].key is not None and operations[0].key.startswith("batch "):
            batches[operations[0].key].append(name)
    for key, names in batches.items():
        there = sum(bool(evidence.jobs.get(name)) for name in names)
        if there not in {0, len(names)}:
            yield Violation("half_a_batch", key, f"{there} of its {len(names)} jobs exist")


def check_states(evidence: Evidence, ended_at: datetime) -> Iterator[Violation]:
    """The job is in the state of its last acknowledged operation, or in that of an unclear one."""
    for name, operations in evidence.operations.items():
        worlds = spans(operations, ended_at, evidence.steps)[-1].worlds
        allowed = {STATES[world.standing] for world in worlds if world.standing in STATES}
        for row in evidence.jobs.get(name, ()):
            last = [operation.op for operation in operations if operation.is_acked and operation.op in LASTING]
            if allowed and row.state not in allowed:
                message = f"the job is {row.state}, but should be {' or '.join(sorted(allowed))}"
                yield Violation("lost_ack", f"{last[-1] if last else 'create'} {name}", message)


LASTING = {"create", "pause", "resume", "delete"}


def check_versions(evidence: Evidence, _: datetime) -> Iterator[Violation]:
    for name, operations in evidence.operations.items():
        for operation in operations:
            if operation.op not in {"update", "upsert"} or not operation.is_acked or operation.job_id is None:
                continue
            version, wanted = operation.answer["version"], _mark_of(operation)
            marks = {
                number: mark
                for (id_, number), mark in evidence.marks.items()
                if id_ == UUID(operation.job_id) and number <= version
            }
            # The newest at that time: an upsert that changes nothing, or that was sent twice, makes no new version.
            if marks.get(version) != wanted:
                message = f"version {version} was acknowledged with {wanted!r}, but has {marks.get(version)!r}"
                yield Violation("lost_ack", f"{operation.op} {name}", message)


def _mark_of(operation: Operation) -> str | None:
    mark = ((operation.body or {}).get("payload") or {}).get("mark")
    return None if mark is None else str(mark)


def check_runs(evidence: Evidence, _: datetime) -> Iterator[Violation]:
    """A run-now makes one execution, however often it was sent."""
    by_hand = [fired for executions in evidence.fired.values() for fired in executions if fired.origin == "run"]
    marks = Counter(fired.mark for fired in by_hand)
    ids = {str(fired.id) for fired in by_hand}
    asked = set()
    for name, operation in _each(evidence.operations, "run"):
        asked.add(mark := _mark_of(operation))
        if marks[mark] > 1:
            yield Violation("two_objects", f"run {name}", f"one key made {marks[mark]} executions: {mark!r}")
        if operation.is_acked and operation.answer["execution_id"] not in ids:
            message = f"was acknowledged as {operation.answer['execution_id']}, but does not exist"
            yield Violation("lost_ack", f"run {name}", message)
    for fired in by_hand:
        if fired.mark not in asked:
            yield Violation("phantom", f"run {fired.id}", "no request asked for it")


def check_cancels(evidence: Evidence, _: datetime) -> Iterator[Violation]:
    found = {str(fired.id): fired for executions in evidence.fired.values() for fired in executions}
    for name, operation in _each(evidence.operations, "cancel"):
        id_ = (operation.body or {})["execution_id"]
        if not operation.is_acked:
            continue
        if id_ not in found:
            yield Violation("lost_ack", f"cancel {name}", f"the execution {id_} no longer exists")
        elif operation.answer.get("state") == "CANCELLED" and found[id_].state != "CANCELLED":
            yield Violation("lost_ack", f"cancel {name}", f"{id_} was CANCELLED, but is {found[id_].state}")


def _each(operations: Mapping[str, Sequence[Operation]], op: str) -> Iterator[tuple[str, Operation]]:
    return ((name, one) for name, asked in operations.items() for one in asked if one.op == op)


OF_OPERATIONS: Sequence[Callable[[Evidence, datetime], Iterator[Violation]]] = (
    check_creates,
    check_batches,
    check_states,
    check_versions,
    check_runs,
    check_cancels,
)


# Stored rows (P3, P5, P7) ---------------------------------------------------------------------------------------------


def check_one_for_each_fire(evidence: Evidence) -> Iterator[Violation]:
    for job_id, executions in evidence.fired.items():
        fires = Counter(fired.fire_at for fired in executions if fired.is_fire)
        for fire_at, count in fires.items():
            if count > 1:
                yield Violation("two_executions", f"{job_id} at {fire_at}", f"{count} executions of one fire")


def check_ends(evidence: Evidence) -> Iterator[Violation]:
    ends = Counter(fired.id for executions in evidence.fired.values() for fired in executions)
    for executions in evidence.fired.values():
        for fired in executions:
            if ends[fired.id] > 1:
                yield Violation("ended_twice", str(fired.id), "is in history, but still lives")
            if fired.has_ended and fired.state not in ENDS:
                yield Violation("ended_twice", str(fired.id), f"is in history as {fired.state}")
    if evidence.owed:
        yield Violation("not_ended", "owed", f"{evidence.owed} ranges are still to be caught up")


def check_causes(evidence: Evidence) -> Iterator[Violation]:
    """A recorded cause is true: a worker that lost an execution was lost by then, and ondot itself does not fail."""
    for execution in evidence.run.executions.values():
        for attempt in execution.attempts:
            code = (attempt.error or {}).get("code")
            if code == "internal":
                yield Violation("internal", str(execution.id), f"attempt {attempt.no}: {attempt.error}")
            if code != "worker_lost" or attempt.worker_id is None or attempt.worker_id not in evidence.workers:
                continue
            over_at = evidence.workers[attempt.worker_id]
            if over_at is None or (over_at > attempt.ended_at and not evidence.is_off(attempt.ended_at, over_at)):
                message = f"attempt {attempt.no} was recovered at {attempt.ended_at}, but its worker was alive"
                yield Violation("false_loss", str(execution.id), message)


def check_calls_name_their_fire(evidence: Evidence) -> Iterator[Violation]:
    """Each call carries the job and the fire of its execution."""
    found = {fired.id: fired for executions in evidence.fired.values() for fired in executions}
    for call in evidence.calls:
        fired = found.get(call.execution_id)
        if (
            fired is not None
            and call.job_id is not None
            and (call.job_id, call.fire_at) != (fired.job_id, fired.fire_at)
        ):
            message = f"a call named {call.job_id} at {call.fire_at}, but belongs to {fired.job_id} at {fired.fire_at}"
            yield Violation("calls", str(call.execution_id), message)


def check_jobs_were_asked_for(evidence: Evidence) -> Iterator[Violation]:
    for name, rows in evidence.jobs.items():
        if name not in evidence.operations:
            yield Violation("phantom", f"job {name}", f"no request asked for {rows[0].id}")


OF_RUN: Sequence[Callable[[Evidence], Iterator[Violation]]] = (
    check_one_for_each_fire,
    check_ends,
    check_causes,
    check_calls_name_their_fire,
    check_jobs_were_asked_for,
)
