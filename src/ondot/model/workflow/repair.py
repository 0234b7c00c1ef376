"""Which steps of a run a person's repair changes (W3, W8): retry, retry from a step, skip, a result set by hand.

A repair changes some steps and decides everything below them again, also steps that ran because of a failure: the run
then ends as if the last outcome of each step had been its first one. `finally` steps have not run yet in a run that can
be repaired, so none of them changes. A step that runs while it is to run again is stopped; its next generation starts
when it has ended. Until then its row is WAITING and still names that execution.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, assert_never

from ondot.model.workflow.graph import Graph
from ondot.model.workflow.progress import StepRow
from ondot.model.workflow.rules import describe_parent
from ondot.model.workflow.states import StepState

Change = Literal["retry", "from", "skip", "result"]
"""`retry`: steps that failed or run. `from`: any that ran, with everything below. `skip`, `result`: set by hand."""
Why = Literal["final", "succeeded", "running", "skipped", "blocked", "not_begun"]

ENDED_BADLY: Final = frozenset({StepState.FAILED, StepState.CANCELLED})
COUNTS_AS_FAILED: Final = ENDED_BADLY | {StepState.BLOCKED}


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair changes.

    `again`: these wait for their parents, and are decided again. `stopped`: those of them that run now. `set_by_hand`:
    these have ended, in this state.
    """

    again: tuple[int, ...]
    stopped: tuple[int, ...]
    set_by_hand: Mapping[int, StepState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotRepairable:
    """A step that this repair cannot start with; `failed_above`: failed ancestors that can be."""

    step_no: int
    why: Why
    failed_above: tuple[int, ...] = ()


def find_unrepairable(
    graph: Graph, rows: Mapping[int, StepRow], change: Change, steps: Iterable[int]
) -> tuple[NotRepairable, ...]:
    """Why a repair cannot start with these steps; empty: it can. `rows` has all steps, here and below."""
    refused = []
    for no in steps:
        why = "final" if graph.steps[no].is_final else _refuse(rows[no], change)
        if why is not None:
            above = _failed_above(graph, rows, no) if why in {"blocked", "not_begun", "skipped"} else ()
            refused.append(NotRepairable(no, why, above))
    return tuple(refused)


def plan_repair(graph: Graph, rows: Mapping[int, StepRow], change: Change, steps: Iterable[int]) -> Repair:
    """What follows from a repair that starts with these steps. They must be repairable."""
    start = tuple(dict.fromkeys(steps))
    below = graph.find_descendants(start).difference(graph.finals)
    by_hand: dict[int, StepState] = {}
    if change in {"skip", "result"}:
        # One of them may be below another: it has ended all the same.
        by_hand = dict.fromkeys(start, StepState.SKIPPED if change == "skip" else StepState.SUCCEEDED)
        again = below - by_hand.keys()
    else:
        again = below | set(start)
    return Repair(
        again=tuple(sorted(again)),
        stopped=tuple(sorted(no for no in again if runs(rows[no]))),
        set_by_hand=by_hand,
    )


def runs(row: StepRow) -> bool:
    """Whether an execution of it may not have ended yet: of this generation, or of one that was stopped."""
    return row.state is StepState.RELEASED or (row.state is StepState.WAITING and row.execution_id is not None)


def apply_repair(graph: Graph, rows: Mapping[int, StepRow], repair: Repair, reason: str) -> Counter[StepState]:
    """Changes the rows; returns how the number of steps in each state changed. `reason`: of steps set by hand.

    Afterwards every step of `again` must be considered (`Progress.consider`).
    """
    moved: Counter[StepState] = Counter()
    for no in repair.again:
        moved[rows[no].state] -= 1
        moved[StepState.WAITING] += 1
    for no, state in repair.set_by_hand.items():
        moved[rows[no].state] -= 1
        moved[state] += 1
    stopped = frozenset(repair.stopped)
    for no in repair.again:
        row = rows[no]
        row.state = StepState.WAITING
        if no not in stopped:
            row.execution_id = None
    for no, state in repair.set_by_hand.items():
        rows[no].state, rows[no].reason = state, reason
    for no in repair.again:
        count_parents(graph, rows, no)
    return moved


def count_parents(graph: Graph, rows: Mapping[int, StepRow], step_no: int) -> None:
    """Counts the ended parents of a WAITING step from scratch. One that waits or runs is not counted."""
    row = rows[step_no]
    row.parents_succeeded = row.parents_failed = row.parents_skipped = 0
    row.reason = None
    for parent in graph.parents[step_no]:
        state = rows[parent].state
        if state in COUNTS_AS_FAILED:
            row.reason = row.reason if row.parents_failed else describe_parent(graph.names[parent], state)
            row.parents_failed += 1
        elif state is StepState.SKIPPED:
            row.reason = row.reason or describe_parent(graph.names[parent], state)
            row.parents_skipped += 1
        elif state is StepState.SUCCEEDED:
            row.parents_succeeded += 1


def _refuse(row: StepRow, change: Change) -> Why | None:
    match row.state:
        case StepState.FAILED | StepState.CANCELLED:
            return None
        case StepState.RELEASED:
            return None if change in {"retry", "from"} else "running"
        case StepState.SUCCEEDED:
            return None if change == "from" else "succeeded"
        case StepState.SKIPPED:
            return None if change == "from" else "skipped"
        case StepState.BLOCKED:
            return "blocked"
        case StepState.WAITING:
            return "not_begun"
        case _:
            assert_never(row.state)


def _failed_above(graph: Graph, rows: Mapping[int, StepRow], step_no: int) -> tuple[int, ...]:
    """The nearest failures above a step, behind steps that are blocked or skipped because of them."""
    seen, failed, ahead = {step_no}, set(), [step_no]
    while ahead:
        for parent in graph.parents[ahead.pop()]:
            if parent in seen:
                continue
            seen.add(parent)
            if rows[parent].state in ENDED_BADLY:
                failed.add(parent)
            else:
                ahead.append(parent)
    return tuple(sorted(failed))
