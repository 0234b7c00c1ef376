"""The transition table: what it must hold whatever is added to it."""

from ondot.model.execution import TERMINAL, TRANSITIONS, State, allows
from tests.proves import proves


@proves("E5", "P5")
def test_nothing_leaves_a_terminal_state() -> None:
    assert not [transition for transition in TRANSITIONS if transition.sources & TERMINAL]


@proves("E5")
def test_every_live_state_can_be_reached_and_can_come_to_an_end() -> None:
    reached: set[State] = set()
    ending = set(TERMINAL)
    for _ in State:
        for transition in TRANSITIONS:
            if transition.target and (not transition.sources or transition.sources & reached):
                reached.add(transition.target)
            if transition.target in ending:
                ending |= transition.sources
    assert reached == set(State)
    assert ending == set(State)


@proves("E5")
def test_every_transition_has_a_name_of_its_own_and_a_reason() -> None:
    assert len({transition.name for transition in TRANSITIONS}) == len(TRANSITIONS)
    assert all(transition.why for transition in TRANSITIONS)


@proves("E5", "P8")
def test_success_comes_from_running_only_and_a_start_from_what_waits() -> None:
    assert [source for source in (None, *State) if allows(source, State.SUCCEEDED)] == [State.RUNNING]
    assert [source for source in (None, *State) if allows(source, State.RUNNING)] == [State.PENDING, State.RETRYING]


@proves("E5", "P10")
def test_only_what_never_began_can_be_taken_back_without_a_trace() -> None:
    assert [source for source in (None, *State) if allows(source, None)] == [State.PENDING]


@proves("E5")
def test_executions_are_made_pending_or_blocked_or_are_refused_from_the_start() -> None:
    made = [State.PENDING, State.BLOCKED, State.FAILED, State.SKIPPED]
    assert [target for target in State if allows(None, target)] == made
