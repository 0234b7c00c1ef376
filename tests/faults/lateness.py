"""How late every fire started, under which faults, and whether that was within the promised bound (L1 to L5).

Lateness is counted from when a fire was due, or from when its job was acknowledged if that was later. It ends at the
start of the first attempt in the database, and at the first call in the receiver's books. It is attributed to the
faults that overlap the time from two seconds before the fire was due to its start; else to those from which the fleet
was recovering; else to none.

The bound is one second; with a fault, until it is repaired or taken over. `_recovery_s` has the time for each role.
Faults in a row add up: the search for lost workers starts from scratch when its node was cut off or has just taken
over. So after a first bound, faults that began before it are considered once more. Not again, or a fault every few
seconds would excuse everything.

Executions that wait for something else than their time are not judged:
  - jobs with a limit, a rate, an order, a unique key, an overlap policy or a start deadline: they wait for others;
  - fires caught up after an outage or a pause, and suspects: they have their own classes, behind live work;
  - fires of a job with an operation that had no clear answer, and of a time in which the database's clock was off.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from tests.faults.evidence import Evidence, Fault, Fired
from tests.faults.fires import Tally, recurs
from tests.faults.journal import Operation
from tests.faults.oracle import seconds_of

HEALTHY = "healthy"
POLL_S = 1.0
HEALTHY_S = 1.0
BEFORE_S = 2.0
ROUNDS = 2
RECOVERED, CATCH_UP, SUSPECT = 0, 4, 5
WAITS = {"overlap", "concurrency", "concurrency_key", "rate", "order_key", "unique", "start_deadline"}
GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The settings of the fleet; `slack_s` is added for a loaded machine."""

    heartbeat_s: float
    lease_s: float
    workers: int
    slack_s: float = 1.0
    restart_s: float = 5.0
    """What the roles need after PostgreSQL is back, and a process to begin."""


@dataclass(frozen=True, slots=True)
class Lateness:
    worst_s: float
    p50_s: float
    count: int
    worst_call_s: float | None = None
    """By the receiver's books."""


def judge_lateness(evidence: Evidence, tally: Tally, bounds: Bounds) -> dict[str, Lateness]:
    """Return lateness by kind of fault; violations and their number go to the tally."""
    starts: defaultdict[str, list[float]] = defaultdict(list)
    calls: defaultdict[str, list[float]] = defaultdict(list)
    sky = _Sky(evidence.faults, bounds)
    for name, operations in evidence.operations.items():
        for row in evidence.jobs.get(name, ()):
            for fired, due_s in _judged(evidence, operations, evidence.fired.get(row.id, ()), tally):
                began_at = _began_at(fired)
                assert began_at is not None
                word = "started" if fired.started_at else f"was {fired.state} without a start,"
                seen = [(starts, word, began_at)]
                if fired.called_at is not None:
                    seen.append((calls, "called", fired.called_at))
                is_late = False
                for collected, word, instant in seen:
                    late_s = instant.timestamp() - due_s
                    for kind in sky.kinds(due_s, instant.timestamp()):
                        collected[kind].append(max(late_s, 0.0))
                    allowed_s = sky.allowed_s(due_s)
                    if late_s > allowed_s and not is_late:
                        is_late = True
                        under = ", ".join(sky.kinds(due_s, instant.timestamp()))
                        message = f"{fired.id} {word} {late_s:.2f} s late; the bound is {allowed_s:.2f} s ({under})"
                        tally.found("late", f"{name} at {fired.fire_at}", message)
                tally.counts["late"] += is_late
    return {kind: _summed(late, calls.get(kind)) for kind, late in sorted(starts.items())}


def _summed(starts: Sequence[float], calls: Sequence[float] | None) -> Lateness:
    return Lateness(max(starts), median(starts), len(starts), max(calls) if calls else None)


def _judged(
    evidence: Evidence, operations: Sequence[Operation], executions: Sequence[Fired], tally: Tally
) -> Iterator[tuple[Fired, float]]:
    """The fires with a start to judge, and when each was due."""
    body = operations[0].body or {}
    if WAITS & body.keys():
        return
    established = [operation for operation in operations if operation.op in {"create", "update", "upsert", "resume"}]
    if any(operation.outcome == "unclear" or _may_repeat(operation) for operation in operations):
        return
    for fired in executions:
        began_at = _began_at(fired)
        if fired.origin != "fire" or began_at is None or fired.class_no in {CATCH_UP, SUSPECT}:
            continue
        if (fired.job_id, fired.fire_at) in tally.caught_up or evidence.is_off(fired.fire_at, began_at):
            continue
        fire_s = fired.fire_at.timestamp()
        if fired.class_no == RECOVERED and began_at.timestamp() - fire_s > _grace_s(body):
            continue  # it may have been caught up before it was lost: the class no longer shows that
        before = established if not recurs(operations) else [one for one in established if one.asked_s <= fire_s]
        acked_s = [operation.acked_s for operation in before if operation.acked_s is not None]
        yield fired, max([fire_s + _jitter_s(body), *acked_s])


def _began_at(fired: Fired) -> datetime | None:
    """When it started, or ended without a start: one that was due long before it was cancelled was late, too."""
    if fired.started_at is not None or fired.ended_at is None or fired.ended_at < fired.fire_at:
        return fired.started_at
    return fired.ended_at


def _may_repeat(operation: Operation) -> bool:
    """A try without an answer may take effect late and repeat the change, unless it has an idempotency key."""
    return operation.was_unclear and operation.key is None and operation.op != "cancel"


def _jitter_s(body: Mapping[str, object]) -> float:
    schedule = body.get("schedule")
    return seconds_of(schedule.get("jitter", 0)) if isinstance(schedule, dict) else 0.0


def _grace_s(body: Mapping[str, object]) -> float:
    schedule = body.get("schedule")
    misfire = schedule.get("misfire", {}) if isinstance(schedule, dict) else {}
    return seconds_of(misfire.get("grace", GRACE_S))


class _Sky:
    """The faults of a run, and how much lateness each allows."""

    def __init__(self, faults: Sequence[Fault], bounds: Bounds) -> None:
        self.faults = sorted(faults, key=lambda fault: fault.began_s)
        self.bounds = bounds

    def kinds(self, due_s: float, seen_s: float) -> list[str]:
        from_s, to_s = due_s - BEFORE_S, max(seen_s, due_s)
        near = {fault.kind for fault in self.faults if fault.began_s <= to_s and from_s <= fault.ended_s}
        if not near:
            near = {fault.kind for fault in self._overlapping(from_s, to_s) if self._recovery_s(fault) > 0}
        return sorted(near) or [HEALTHY]

    def allowed_s(self, due_s: float) -> float:
        """How late a fire may be, by the faults that it may have met."""
        until_s = due_s + HEALTHY_S + self.bounds.slack_s
        for _ in range(ROUNDS):
            until_s = max(until_s, self._repaired_by_s(due_s, until_s) + self.bounds.slack_s)
        return until_s - due_s

    def _repaired_by_s(self, due_s: float, until_s: float) -> float:
        met = self._overlapping(due_s - BEFORE_S, until_s)
        workers = {fault.target for fault in met if _role(fault) == "worker"}
        # While PostgreSQL was away nothing could be planned ahead: then the schedulers matter.
        with_others = bool(workers) or any(_role(fault) == "postgres" for fault in met)
        recoveries: dict[str, float] = {}
        base_s = due_s
        for fault in met:
            role = _role(fault)
            if (
                role in {"api", "tenant"}
                or (role in {"scheduler", "etcd"} and not with_others)
                or fault.kind.endswith(".unread")
            ):
                # An unread log excuses nothing, and neither does another tenant.
                continue
            if role == "broker":
                # Without hints workers poll: it may add a second, and no more, however long it lasts (L5).
                recoveries[role] = HEALTHY_S + POLL_S
                continue
            # One worker's work goes to the others at once; if all of them are hit, it waits until one is up again.
            is_awaited = role != "worker" or len(workers) >= self.bounds.workers
            base_s = max(base_s, self._over_s(fault) if is_awaited else fault.began_s)
            recoveries[role] = max(recoveries.get(role, 0.0), self._recovery_s(fault, with_others=with_others))
        return base_s + max(HEALTHY_S, sum(recoveries.values()))

    def _over_s(self, fault: Fault) -> float:
        """When a fault's target works again. A hung process restarts itself, however long the hang was to last."""
        if "hung" not in fault.kind:
            return fault.ended_s
        is_worker = _role(fault) == "worker"
        timeout_s = self.bounds.heartbeat_s if is_worker else 2 * self.bounds.lease_s
        return min(fault.ended_s, fault.began_s + timeout_s + self.bounds.restart_s)

    def _overlapping(self, from_s: float, to_s: float) -> list[Fault]:
        """The faults that overlap this time, each with its time to recover."""
        return [
            fault
            for fault in self.faults
            if fault.began_s <= to_s and from_s <= fault.ended_s + self._recovery_s(fault)
        ]

    def _recovery_s(self, fault: Fault, *, with_others: bool = False) -> float:
        match _role(fault):
            case "worker":
                return self.bounds.heartbeat_s + 2
            case "scheduler" | "etcd":
                return self.bounds.lease_s + 1 if with_others else 0.0
            case "api" | "tenant":
                return 0.0
            case "postgres":
                return self.bounds.restart_s
            case "broker":
                return POLL_S
            case _:
                return HEALTHY_S


def _role(fault: Fault) -> str:
    """The role that a fault hits: a network fault counts as one of its target, and so does a lost reply."""
    component = fault.kind.split(".")[0]
    is_of_target = component in {"network", "role"} or "reply_lost" in fault.kind
    return fault.target.split("-")[0] if is_of_target else component
