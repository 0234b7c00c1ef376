"""Which steps of a run a person's repair changes (W3, W8): retry, retry from a step, skip, a result set by hand.

A repair changes some steps and decides everything below them again, also steps that ran because of a failure: the run
then ends as if the last outcome of each step had been its first one. `finally` steps have not run yet in a run that can
be repaired, so that only their counts of parents change. A step that runs while it is to run again is stopped; its next
generation starts when it has ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

StepState = Literal["WAITING", "RELEASED", "SUCCEEDED", "FAILED", "SKIPPED", "BLOCKED", "CANCELLED"]
Change = Literal["retry", "from", "skip", "result"]

ENDED_BADLY: Final = frozenset({"FAILED", "CANCELLED"})
COUNTS_AS_FAILED: Final = ENDED_BADLY | {"BLOCKED"}


class Links(Protocol):
    """The edges of a workflow, by the numbers of its steps."""

    @property
    def parents(self) -> Sequence[Sequence[int]]: ...
    @property
    def children(self) -> Sequence[Sequence[int]]: ...


@dataclass(frozen=True, slots=True)
class Counts:
    """How many parents of a step have ended, and how."""

    succeeded: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair changes.

    `again`: these wait for their parents, and are decided again. `stopped`: those of them that run now. `set_by_hand`:
    these have ended, in this state. `counts`: of all steps whose parents change, also of `finally` steps.
    """

    again: tuple[int, ...]
    stopped: tuple[int, ...]
    set_by_hand: Mapping[int, StepState] = field(default_factory=dict)
    counts: Mapping[int, Counts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotRepairable:
    """A step that this repair cannot start with; `failed_above`: its failed ancestors, which can be repaired."""

    step_no: int
    why: Literal["final", "succeeded", "running", "skipped", "blocked", "not_begun"]
    failed_above: tuple[int, ...] = ()


def list_failed(states: Sequence[StepState], handled: Iterable[int] = ()) -> tuple[int, ...]:
    """The steps that a retry starts with if none is named: those that failed, and that no step has handled."""
    known = frozenset(handled)
    return tuple(no for no, state in enumerate(states) if state in ENDED_BADLY and no not in known)


def find_unrepairable(
    links: Links, states: Sequence[StepState], final: frozenset[int], change: Change, steps: Iterable[int]
) -> tuple[NotRepairable, ...]:
    """Why a repair cannot start with these steps; empty: it can."""
    refused = []
    for no in steps:
        why = _refuse(states[no], change) if no not in final else "final"
        if why is not None:
            above = _failed_above(links, states, no) if why in {"blocked", "not_begun", "skipped"} else ()
            refused.append(NotRepairable(no, why, above))
    return tuple(refused)


def plan_repair(
    links: Links, states: Sequence[StepState], final: frozenset[int], change: Change, steps: Iterable[int]
) -> Repair:
    """What follows from a repair that starts with these steps. They must be repairable."""
    start = tuple(dict.fromkeys(steps))
    below = _list_below(links, start) - final
    by_hand: dict[int, StepState] = {}
    if change in {"skip", "result"}:
        # One of them may be below another: it has ended all the same.
        by_hand = dict.fromkeys(start, "SKIPPED" if change == "skip" else "SUCCEEDED")
        again = below - by_hand.keys()
    else:
        again = below | set(start)
    after = list(states)
    for no in again:
        after[no] = "WAITING"
    for no, state in by_hand.items():
        after[no] = state
    touched = again.union(*(links.children[no] for no in (*again, *by_hand))) - by_hand.keys()
    return Repair(
        again=tuple(sorted(again)),
        stopped=tuple(sorted(no for no in again if states[no] == "RELEASED")),
        set_by_hand=by_hand,
        counts={no: count_parents(links, after, no) for no in sorted(touched)},
    )


def count_parents(links: Links, states: Sequence[StepState], step_no: int) -> Counts:
    """A step that waits or runs is not counted."""
    found = [states[parent] for parent in links.parents[step_no]]
    return Counts(
        succeeded=sum(state == "SUCCEEDED" for state in found),
        failed=sum(state in COUNTS_AS_FAILED for state in found),
        skipped=sum(state == "SKIPPED" for state in found),
    )


def _refuse(
    state: StepState, change: Change
) -> Literal["succeeded", "running", "skipped", "blocked", "not_begun"] | None:
    match state:
        case "FAILED" | "CANCELLED":
            return None
        case "RELEASED":
            return None if change in {"retry", "from"} else "running"
        case "SUCCEEDED":
            return None if change == "from" else "succeeded"
        case "SKIPPED":
            return None if change == "from" else "skipped"
        case "BLOCKED":
            return "blocked"
        case "WAITING":
            return "not_begun"


def _list_below(links: Links, start: Iterable[int]) -> set[int]:
    """The descendants of these steps; one of them only if it is below another."""
    below: set[int] = set()
    look = list(start)
    while look:
        for child in links.children[look.pop()]:
            if child not in below:
                below.add(child)
                look.append(child)
    return below


def _failed_above(links: Links, states: Sequence[StepState], step_no: int) -> tuple[int, ...]:
    """The nearest failures above a step, behind steps that are blocked or skipped because of them."""
    seen, failed, look = {step_no}, set(), [step_no]
    while look:
        for parent in links.parents[look.pop()]:
            if parent in seen:
                continue
            seen.add(parent)
            if states[parent] in ENDED_BADLY:
                failed.add(parent)
            else:
                look.append(parent)
    return tuple(sorted(failed))
