"""The state machine of executions (E5): states, transitions and outcomes as data, in this one place.

Completions carry their transition (`model.completion`), executions that wait are ended by one (`store.endings`). SQL
headers (`-- transition: start`), the states that SQL spells, the diagram in docs/reference/state-machine.md and the
guard trigger of test databases are checked against this table.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal


class State(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    BLOCKED = "BLOCKED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED})


class Outcome(StrEnum):
    """How one attempt ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    WORKER_LOST = "WORKER_LOST"
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"


Origin = Literal["fire", "backfill", "run", "event", "replay", "step", "child"]
"""`step`: of a run, which is its `job_id`. `child`: a run that a step of another run made."""


class PriorityClass(IntEnum):
    """The classes of a pool's queue, in the order in which they are served."""

    RECOVERED = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    CATCH_UP = 4
    SUSPECT = 5


@dataclass(frozen=True, slots=True)
class Transition:
    """A named step of the machine. No source: it makes the execution. No target: it removes it without a record."""

    name: str
    sources: frozenset[State]
    target: State | None
    why: str


_NOTHING: frozenset[State] = frozenset()

PLAN = Transition("plan", _NOTHING, State.PENDING, "a fire, run-now, event or replay makes an execution")
BLOCK = Transition("block", _NOTHING, State.BLOCKED, "a one-time job waits for the jobs that it depends on")
REFUSE = Transition(
    "refuse",
    _NOTHING,
    State.SKIPPED,
    "unique, throttle or debounce: another job has its key, so it never waits",
)
UNBLOCK = Transition(
    "unblock", frozenset({State.BLOCKED}), State.PENDING, "its last parent succeeded, or a person retried its run"
)
REJECT = Transition("reject", _NOTHING, State.FAILED, "the payload of a step cannot be made, so it has no attempt")
TAKE_BACK = Transition(
    "take back",
    frozenset({State.PENDING}),
    None,
    "the job changed before the fire was due, so it does not happen",
)
START = Transition(
    "start", frozenset({State.PENDING, State.RETRYING}), State.RUNNING, "a worker leased it: attempt_no rises"
)
SUCCEED = Transition("succeed", frozenset({State.RUNNING}), State.SUCCEEDED, "the attempt succeeded")
RETRY = Transition("retry", frozenset({State.RUNNING}), State.RETRYING, "the attempt failed, and retries are left")
FAIL = Transition(
    "fail",
    frozenset({State.RUNNING}),
    State.FAILED,
    "the attempt failed, or its worker was lost, and nothing is left to try",
)
RECOVER = Transition("recover", frozenset({State.RUNNING}), State.RETRYING, "its worker was lost: costs one of losses")
RETURN = Transition("return", frozenset({State.RUNNING}), State.PENDING, "its call had not started: costs nothing")
STOP = Transition("stop", frozenset({State.RUNNING}), State.CANCELLED, "it was cancelled while it ran")
EXPIRE = Transition(
    "expire",
    frozenset({State.RUNNING}),
    State.SKIPPED,
    "it was leased after its start deadline, and its call has not started",
)
HOLD = Transition(
    "hold",
    frozenset({State.RUNNING}),
    State.BLOCKED,
    "a step of its run failed and no step handles it: the run waits for a person",
)
GIVE_UP = Transition(
    "give up", frozenset({State.BLOCKED}), State.FAILED, "a person gave up its run, or it was BLOCKED for too long"
)
CANCEL = Transition(
    "cancel",
    frozenset({State.PENDING, State.RETRYING, State.BLOCKED}),
    State.CANCELLED,
    "it was cancelled, or its job deleted, before it ran",
)
SKIP = Transition(
    "skip",
    frozenset({State.PENDING, State.RETRYING, State.BLOCKED}),
    State.SKIPPED,
    "its job was paused, it overlapped, or its start deadline passed",
)

TRANSITIONS = (
    PLAN,
    BLOCK,
    REFUSE,
    REJECT,
    UNBLOCK,
    TAKE_BACK,
    START,
    SUCCEED,
    RETRY,
    FAIL,
    RECOVER,
    RETURN,
    STOP,
    EXPIRE,
    HOLD,
    GIVE_UP,
    CANCEL,
    SKIP,
)


def allows(source: State | None, target: State | None) -> bool:
    """Whether a transition leads from `source` to `target` (None: the execution does not exist yet, or no longer)."""
    return any(
        transition.target == target and (source in transition.sources if source else not transition.sources)
        for transition in TRANSITIONS
    )
