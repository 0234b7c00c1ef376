"""The critical path: the chain of steps that decided how long a run took."""

from datetime import UTC, datetime, timedelta

from ondot.model.workflow.critical_path import Times, find_critical_path
from tests.proves import proves

START = datetime(2030, 1, 1, tzinfo=UTC)


def at(released_s: float | None, ended_s: float | None) -> Times:
    released, ended = (None if s is None else START + timedelta(seconds=s) for s in (released_s, ended_s))
    return released, ended


@proves("W9")
def test_it_goes_back_to_the_parent_that_ended_last() -> None:
    parents = [[], [0], [0], [1, 2], []]
    times = {0: at(0, 1), 1: at(1, 5), 2: at(1, 2), 3: at(5, 6), 4: at(0, 3)}
    assert find_critical_path(parents, times) == [0, 1, 3]


@proves("W9")
def test_a_join_is_part_of_it() -> None:
    assert find_critical_path([[], [0], [1]], {0: at(0, 1), 1: at(None, 1), 2: at(1, 2)}) == [0, 1, 2]


@proves("W9")
def test_while_a_step_runs_it_leads_to_the_one_that_runs_longest() -> None:
    parents = [[], [0], [0]]
    assert find_critical_path(parents, {0: at(0, 1), 1: at(1, 9), 2: at(1, None)}) == [0, 2]


@proves("W9")
def test_a_run_that_has_not_started_has_none() -> None:
    assert find_critical_path([[], [0]], {}) == []


@proves("W9")
def test_it_leads_through_steps_that_a_failure_blocked_to_the_failure() -> None:
    """0 failed, 1 and 2 are BLOCKED, 3 runs `when: failure`."""
    assert find_critical_path([[], [0], [1], [2]], {0: at(0, 1), 3: at(1, 2)}) == [0, 3]


@proves("W9")
def test_a_finally_step_follows_everything_else() -> None:
    parents = [[], [0], [], [0], [3]]
    times = {0: at(0, 1), 1: at(1, 5), 2: at(5, 6), 3: at(5, 7), 4: at(7, 8)}
    assert find_critical_path(parents, times, {2, 3, 4}) == [0, 1, 3, 4]
