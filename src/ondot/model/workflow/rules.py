"""The rule of one step (W1, W3): what follows for it from how its direct parents ended.

It is asked once all parents have ended; a BLOCKED parent counts as ended and failed, because a failure above it
prevents it. Only direct parents count.
"""

from dataclasses import dataclass
from typing import Final, assert_never

from ondot.model.workflow.spec import When
from ondot.model.workflow.states import StepState

CONDITION: Final = "condition"
"""The reason of a step whose `if` was false."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many parents ended how."""

    succeeded: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Release:
    pass


@dataclass(frozen=True, slots=True)
class Skip:
    reason: str


@dataclass(frozen=True, slots=True)
class Block:
    reason: str


Decision = Release | Skip | Block


def decide_step(when: When, parents: Tally, note: str | None = None) -> Decision:
    """What happens to a step all of whose parents have ended.

    `note` names a parent that did not succeed, one that failed before one that was skipped (`describe_parent`).
    """
    match when:
        case "success" | "no_failure" if parents.failed:
            return Block(note or "a parent failed")
        case "success":
            return Skip(note or "a parent was skipped") if parents.skipped else Release()
        case "no_failure":
            return Skip("no parent succeeded") if parents.skipped and not parents.succeeded else Release()
        case "failure":
            return Release() if parents.failed else Skip("no parent failed")
        case "ended":
            return Release()
        case _:
            assert_never(when)


def describe_parent(name: str, state: StepState) -> str | None:
    """The note that a child keeps of a parent that did not succeed."""
    match state:
        case StepState.FAILED:
            return f"parent {name} failed"
        case StepState.BLOCKED:
            return f"parent {name} is blocked"
        case StepState.CANCELLED:
            return f"parent {name} was cancelled"
        case StepState.SKIPPED:
            return f"parent {name} was skipped"
        case StepState.SUCCEEDED | StepState.WAITING | StepState.RELEASED:
            return None
        case _:
            assert_never(state)
