"""What is known of an execution or job that does not run, and the reasons that follow from it (E17): the words between
`store.explain`, which reads the facts, `model.explain` and `model.explain_job`, which decide, and the API."""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import UUID

from ondot.model.execution import Outcome, PriorityClass, State
from ondot.model.gates import GateKind, Overlap
from ondot.model.ids import ExecutionId, JobId
from ondot.model.job import JobState
from ondot.model.retry import Retry
from ondot.model.schedule import Schedule
from ondot.model.schedule.cost import Cost

COUNTED_AT_MOST: Final = 1_000
"""Those before it in a line are counted up to here, for each class of the queue."""
HOLDERS_TOLD: Final = 5
WHY_ENDED: Final = {
    "overlap": "an execution of its job had not ended, and the job is to skip fires that overlap",
    "expired": "it had not started by its start deadline",
    "paused": "its job was paused before it began",
}
"""The short reasons in history, told at length."""

ACCEPT: Final = (
    "What ran last may be missing in it, and would run again: look, then say `ondot doctor --accept-database`."
)

Code = Literal[
    "held",
    "running",
    "cancelling",
    "ended",
    "blocked",
    "not_due",
    "backoff",
    "order",
    "overlap",
    "concurrency",
    "rate",
    "pool_concurrency",
    "pool_rate",
    "no_worker",
    "no_function",
    "pool_full",
    "suspect",
    "next",
    "start_deadline",
    "paused",
    "deleted",
    "no_scheduler",
    "late_plan",
    "catching_up",
    "costly_schedule",
]


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that it waits for. `until`: when that is over, if it is known. `facts` go beside them as fields."""

    code: Code
    message: str
    until: datetime | None = None
    what_to_do: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    id: UUID
    state: str
    summary: str
    may_start_at: datetime | None
    reasons: tuple[Reason, ...]
    now: datetime


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a slot of a gate. `state` None: it ended a moment ago."""

    id: ExecutionId
    since: datetime
    state: State | None


@dataclass(frozen=True, slots=True)
class Held:
    """The slots of a gate: how many are taken, and who has had them longest."""

    count: int = 0
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """Before which gate it stands. `ahead`: how many stand before it, `first` the first of them; `beyond`: the kinds of
    gates still to come."""

    kind: GateKind
    name: str
    ahead: int = 0
    first: ExecutionId | None = None
    limit: int | None = None
    overlap: Overlap | None = None
    is_fire: bool = True
    every_s: float | None = None
    burst: int = 1
    token_at: datetime | None = None
    held: Held = Held()
    beyond: tuple[GateKind, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool, the workers that serve it, and its limits. `silent`: workers that should have beaten and have not.

    `suspect_slots`: how many suspects its workers run at once; `suspects`: how many they run, read for a suspect only.
    """

    name: str
    alive: int = 0
    draining: int = 0
    silent: int = 0
    slots: int = 0
    running: int = 0
    suspect_slots: int = 0
    suspects: int = 0
    seen_at: datetime | None = None
    concurrency: int | None = None
    held: Held = Held()
    every_s: float | None = None
    burst: int = 1
    token_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ExecutionFacts:
    """An execution at one instant, live or ended. `retry` None: its job's spec cannot be read any more."""

    id: ExecutionId
    job_id: JobId
    state: State
    ready_at: datetime
    now: datetime
    priority_class: PriorityClass
    pool: Pool
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker_id: UUID | None = None
    worker_host: str | None = None
    worker_beat_at: datetime | None = None
    heartbeat_s: float = math.inf
    """A worker that was not heard of for so long is declared lost."""
    attempt_no: int = 0
    failures: int = 0
    losses: int = 0
    reason: str | None = None
    error: dict[str, Any] | None = None
    cancel_at: datetime | None = None
    cancel_reason: str | None = None
    start_by: datetime | None = None
    progress: float | None = None
    progress_message: str | None = None
    last_outcome: Outcome | None = None
    last_error: dict[str, Any] | None = None
    retry: Retry | None = None
    line: Line | None = None
    queued: bool = True
    queue_ahead: dict[PriorityClass, int] = field(default_factory=dict)
    held_at: datetime | None = None
    held_why: str | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Fires from the one instant to the other: skipped for a reason, or still owed (`reason` is then their origin).

    Of what is owed: by which version's schedule, from which end, and why its fires cannot be found.
    """

    from_at: datetime
    to_at: datetime
    reason: str
    count: int | None
    schedule_version: int = 1
    newest_first: bool = False
    gave_up: str | None = None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job at one instant. `timer_at`: its next fire that is not planned; `next_fire_at`: the next, planned or not.

    `node`: the host whose scheduler owns the job's partition; None: no live one does. `cost`: of its coming fires.
    """

    id: JobId
    state: JobState
    schedule: Schedule
    created_at: datetime
    updated_at: datetime
    now: datetime
    state_reason: str | None = None
    next_fire_at: datetime | None = None
    timer_at: datetime | None = None
    fired_through: datetime | None = None
    fires_left: int | None = None
    node: str | None = None
    nodes: int = 0
    node_seen_at: datetime | None = None
    live: int = 0
    running: int = 0
    owed: tuple[Range, ...] = ()
    cost: Cost | None = None
    held_at: datetime | None = None
    held_why: str | None = None


def why_held(at: datetime | None, why: str | None) -> list[Reason]:
    """That nothing is begun on this database until a person has looked (`model.lineage`); none if it is not so."""
    if at is None:
        return []
    return [Reason("held", f"Everything is held since {told(at)}: {why}.", None, ACCEPT, {"since": at, "reason": why})]


def told(instant: datetime) -> str:
    """An instant in a sentence, without fractions that nobody asked about."""
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def counted(count: int, what: str) -> str:
    """ "1 worker", "3 workers"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
