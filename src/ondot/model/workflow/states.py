"""States of a step and of a run (W1), as rows and documents spell them."""

from enum import StrEnum
from typing import Final


class StepState(StrEnum):
    WAITING = "WAITING"
    RELEASED = "RELEASED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    BLOCKED = "BLOCKED"
    """Its rule asks for a success that a failure above it prevents. It waits for a person."""
    CANCELLED = "CANCELLED"


ENDED: Final = frozenset({StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED})
MOVING: Final = frozenset({StepState.WAITING, StepState.RELEASED})


class RunState(StrEnum):
    PENDING = "PENDING"
    """A child that no worker has leased, or a retried run that waits for its slot."""
    RUNNING = "RUNNING"
    BLOCKED = "BLOCKED"
    ENDING = "ENDING"
    """Its verdict is decided, and its `finally` steps run."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


ENDED_RUNS: Final = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED})
