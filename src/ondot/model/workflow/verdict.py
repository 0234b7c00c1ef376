"""The state of a run, from its steps without `finally` ones (W3).

A failure is handled if a step with `handles` below it succeeded. A run whose failures are all handled succeeds, with
the steps that they blocked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ondot.model.workflow.graph import Graph
from ondot.model.workflow.spec import OnFailure
from ondot.model.workflow.states import MOVING, RunState, StepState


@dataclass(frozen=True, slots=True)
class Counts:
    """Steps of a run by state, without `finally` ones. CANCELLED ones count as failed."""

    waiting: int = 0
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    blocked: int = 0


def judge_run(
    graph: Graph,
    on_failure: OnFailure,
    counts: Counts,
    states: Mapping[int, StepState],
    *,
    blocked_children: int = 0,
) -> RunState:
    """RUNNING while anything moves, else SUCCEEDED, BLOCKED or FAILED.

    `states` holds at least the steps that are FAILED or CANCELLED, and `graph.handlers`; it may be empty while no step
    failed. `blocked_children`: active steps whose own run is BLOCKED, so that they do not move.
    """
    failed = [no for no, state in states.items() if state in _FAILURES] if counts.failed else []
    if on_failure == "fail" and failed and _find_unhandled(graph, failed, states, by=_MAY_HANDLE):
        return RunState.FAILED
    # Steps below a child that is BLOCKED wait, and do not move.
    if counts.active > blocked_children or (counts.waiting and not blocked_children):
        return RunState.RUNNING
    if blocked_children or (failed and _find_unhandled(graph, failed, states, by=_HANDLES)):
        return RunState.BLOCKED
    return RunState.SUCCEEDED


def find_unhandled(graph: Graph, states: Mapping[int, StepState]) -> list[int]:
    """The failed steps that no successful handler is below of, by number. `states` as for `judge_run`."""
    failed = [no for no, state in states.items() if state in _FAILURES and not graph.steps[no].is_final]
    return sorted(_find_unhandled(graph, failed, states, by=_HANDLES))


_FAILURES = frozenset({StepState.FAILED, StepState.CANCELLED})
_HANDLES = frozenset({StepState.SUCCEEDED})
_MAY_HANDLE = _HANDLES | MOVING


def _find_unhandled(
    graph: Graph, failed: Iterable[int], states: Mapping[int, StepState], *, by: frozenset[StepState]
) -> set[int]:
    handlers = [no for no in graph.handlers if states.get(no) in by]
    return set(failed) - graph.find_ancestors(handlers)
