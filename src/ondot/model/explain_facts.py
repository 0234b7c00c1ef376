"""Facts about an execution or job that does not run, and the reasons that follow from them (E17).

`store.explain` reads the facts; `model.explain` and `model.explain_job` decide the reasons; the API shows them.
"""

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
from ondot.model.workflow.dependencies import Parents

COUNTED_AT_MOST: Final = 1_000
"""Executions ahead in a line are counted up to this number, for each class of the queue."""
HOLDERS_SHOWN: Final = 5
WHY_ENDED: Final = {
    "overlap": "the previous execution of its job was still running, and the job skips overlapping fires",
    "expired": "it had not started by its start deadline",
    "paused": "its job was paused before it started",
}
"""The short reasons stored in history, as sentences."""

ACCEPT: Final = (
    "The latest runs may be missing from it and would run again: check, then run `ondot doctor --accept-database`."
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
    "tenant_suspended",
    "pool_not_granted",
    "tenant_concurrent",
    "tenant_starts",
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
    "waiting_for_event",
    "run_running",
    "run_paused",
    "run_ending",
    "step_failed",
    "step_running",
    "waits_to_start",
    "waits_for_steps",
    "waits_for_items",
    "waits_for_time",
    "waits_for_event",
    "waits_for_approval",
    "waits_for_run",
    "waits_for_end",
    "expectation",
    "incident",
]


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that it waits for. `until`: when the wait ends, if known. `facts`: the same as fields."""

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
    """An execution that holds a slot of a gate. `state` None: it ended a moment ago."""

    id: ExecutionId
    since: datetime
    state: State | None


@dataclass(frozen=True, slots=True)
class HeldSlots:
    """The slots of a gate that are taken: how many, and the executions that have held them longest."""

    count: int = 0
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """The gate that it waits at. `ahead`: how many wait before it, `first`: the first of them; `beyond`: the kinds of
    the gates after this one."""

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
    held: HeldSlots = HeldSlots()
    beyond: tuple[GateKind, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool, the workers that serve it, and its limits. `silent`: workers that missed a heartbeat.

    `suspect_slots`: how many suspects its workers run at once; `suspects`: how many run now, read for a suspect only.
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
    for_others: int = 0
    """Live workers that do not serve the tenant of the execution."""
    concurrency: int | None = None
    held: HeldSlots = HeldSlots()
    every_s: float | None = None
    burst: int = 1
    token_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TenantFacts:
    """The tenant of an execution: its quotas that are counted at the lease, and what others hold in the pool.

    `others`: the slots that other tenants hold on the pool's workers, largest first. `names_others`: the reader may see
    which tenants these are.
    """

    name: str
    is_stopped: bool = False
    concurrent: int | None = None
    running: int = 0
    every_s: float | None = None
    burst: int = 1
    token_at: datetime | None = None
    others_wait: bool = False
    others: tuple[tuple[str, int], ...] = ()
    names_others: bool = False


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """The function that an execution calls. `pools`: those in which live workers have it. `nearest`: a name that is
    known, if this one is not."""

    name: str
    is_known: bool
    pools: frozenset[str] = frozenset()
    nearest: str | None = None


@dataclass(frozen=True, slots=True)
class ExecutionFacts:
    """An execution at one instant, live or ended. `retry` None: its job's spec is no longer stored."""

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
    """A worker that sends no heartbeat for this long is marked lost."""
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
    parents: Parents | None = None
    """Of a job that waits for others."""
    tenant: TenantFacts | None = None
    """None: the only one, without quotas."""
    function: FunctionFacts | None = None
    """None: it calls something else, or does not wait."""


@dataclass(frozen=True, slots=True)
class Range:
    """Fires between two instants: skipped for a reason, or still owed (`reason` is then their origin).

    For owed fires: which version's schedule, from which end, and why they cannot be computed.
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

    `node`: the host of the scheduler that owns the job's partition; None: no live one does. `cost`: of its next fires.
    `is_suspended`: its tenant is. `lost_pool`: its pool, if its tenant may no longer name it.
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
    away: str | None = None
    """What keeps schedulers that run from a lease: etcd."""
    live: int = 0
    running: int = 0
    owed: tuple[Range, ...] = ()
    cost: Cost | None = None
    held_at: datetime | None = None
    held_why: str | None = None
    tenant: str = ""
    is_suspended: bool = False
    lost_pool: str | None = None


def why_held(at: datetime | None, why: str | None) -> list[Reason]:
    """The reason that nothing starts on this database until a person accepts it (`model.lineage`), if that is so."""
    if at is None:
        return []
    message = f"Nothing starts since {format_instant(at)}: {why}."
    return [Reason("held", message, None, ACCEPT, {"since": at, "reason": why})]


def format_instant(instant: datetime) -> str:
    """An instant for a sentence, without fractions of a second."""
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def pluralize(count: int, what: str) -> str:
    """ "1 worker", "3 workers"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
