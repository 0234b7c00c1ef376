"""What a job that depends on others knows of its parents (W1): what each is, and when to look at it again.

The end of a live parent arrives by itself. Everything else is found by looking: a parent that is not planned yet, that
was paused, deleted or run again, or whose worker is of a release that reports no ends.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from ondot.model.execution import State
from ondot.model.ids import JobId
from ondot.model.job import JobState

MAX_PARENTS: Final = 1_000
SOON: Final = timedelta(seconds=1)
BEFORE_PLAN: Final = timedelta(minutes=2)
"""A fire is planned up to a minute before it is due."""
LIVE: Final = timedelta(minutes=1)
RARELY: Final = timedelta(hours=1)


class ParentState(StrEnum):
    WAITING = "WAITING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"
    DELETED = "DELETED"
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class ParentFacts:
    """`ended`: SUCCEEDED if one of its executions has, else how the last one ended. `job_state` None: never changed."""

    now: datetime
    is_live: bool
    next_fire_at: datetime | None
    ended: State | None
    job_state: JobState | None


@dataclass(frozen=True, slots=True)
class Parent:
    id: JobId
    state: ParentState
    name: str | None = None
    """None: it is no longer kept."""


@dataclass(frozen=True, slots=True)
class Parents:
    """Those of a job that waits: some of them, those that hold it up first, and how many there are."""

    some: tuple[Parent, ...]
    total: int
    succeeded: int


def judge_parent(facts: ParentFacts) -> tuple[ParentState, datetime]:
    """The state of a parent, and when to look at it again."""
    if facts.ended is State.SUCCEEDED:
        return ParentState.SUCCEEDED, facts.now
    if facts.is_live:
        return ParentState.WAITING, facts.now + LIVE
    if facts.next_fire_at is not None:
        return ParentState.WAITING, max(facts.now + SOON, facts.next_fire_at - BEFORE_PLAN)
    if facts.job_state is JobState.PAUSED:
        return ParentState.WAITING, facts.now + RARELY
    if facts.job_state is JobState.DELETED:
        return ParentState.DELETED, facts.now + RARELY
    return ParentState(facts.ended) if facts.ended else ParentState.GONE, facts.now + RARELY
