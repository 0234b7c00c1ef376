"""Completions: each constructor carries its transition, and every transition of an attempt has one."""

import ast
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

import ondot
from ondot.model import completion
from ondot.model.completion import Completion, LeasedAttempt, decide
from ondot.model.execution import HOLD, START, SUCCEED, TRANSITIONS, Outcome, PriorityClass, State, allows
from ondot.model.ids import ExecutionId, first_id_at
from ondot.model.job import JobSpec
from ondot.model.outcome import AttemptError, Cancelled, Failed, Interrupted, NotBegun, Report, Succeeded
from ondot.model.retry import Retry
from ondot.model.target import FunctionTarget
from ondot.store.queries import load_queries
from tests.proves import proves

NOON = datetime(2031, 3, 3, 12, tzinfo=UTC)
ERROR = AttemptError("broken", "it broke")
SPEC = JobSpec(name="report", target=FunctionTarget(name="report"), retry=Retry(max_retries=1, max_worker_losses=1))


class Attempt(NamedTuple):
    id: ExecutionId = ExecutionId(first_id_at(NOON))
    attempt_no: int = 3
    failures: int = 0
    losses: int = 0
    has_more_at_end: bool = False


ATTEMPT: LeasedAttempt = Attempt()
CONSTRUCTED = [
    completion.succeed(ATTEMPT),
    completion.retry(ATTEMPT, Outcome.FAILED, ERROR, delay_s=1.0, priority_class=PriorityClass.NORMAL),
    completion.fail(ATTEMPT, Outcome.FAILED, ERROR, reason="no retries left"),
    completion.recover(ATTEMPT, ERROR, priority_class=PriorityClass.RECOVERED),
    completion.give_back(ATTEMPT, ERROR, priority_class=PriorityClass.RECOVERED),
    completion.stop(ATTEMPT, reason="cancelled"),
    completion.expire(ATTEMPT, NOON),
]


@proves("E5")
def test_every_transition_of_a_running_execution_has_one_constructor() -> None:
    # A run is held by the run itself: no attempt leads to it.
    from_running = {transition for transition in TRANSITIONS if State.RUNNING in transition.sources} - {HOLD}
    assert [made.transition for made in CONSTRUCTED if made.transition not in from_running] == []
    assert {made.transition for made in CONSTRUCTED} == from_running
    assert len(CONSTRUCTED) == len(from_running)
    assert all(made.transition.sources == {START.target} for made in CONSTRUCTED)


@proves("E5")
@pytest.mark.parametrize("made", CONSTRUCTED, ids=lambda made: made.transition.name)
def test_a_completion_writes_the_state_that_its_transition_leads_to(made: Completion) -> None:
    assert made.state is made.transition.target
    assert allows(State.RUNNING, made.state)
    assert (made.execution_id, made.attempt_no) == (ATTEMPT.id, ATTEMPT.attempt_no)


@proves("E5", "E11")
def test_the_statement_of_completions_names_the_transitions_that_completions_carry() -> None:
    outcomes = load_queries("outcomes")
    named = outcomes["complete_executions"].header["transition"].split(", ")
    assert sorted(named) == sorted(made.transition.name for made in CONSTRUCTED)
    assert outcomes["succeed_executions"].header["transition"] == SUCCEED.name


@proves("E5")
def test_completions_are_made_in_the_model_only() -> None:
    """Elsewhere nobody spells the state that an attempt leads to."""
    root = Path(ondot.__file__).parent
    makers = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and (
            getattr(call.func, "id", getattr(call.func, "attr", None)) == "Completion"
            or any(keyword.arg == "transition" for keyword in call.keywords)
        )
    }
    assert makers == {"model/completion.py"}


@proves("E4", "E6", "E8")
@pytest.mark.parametrize(
    ("attempt", "report", "name"),
    [
        (Attempt(), Succeeded('"x"'), "succeed"),
        (Attempt(), Failed(ERROR), "retry"),
        (Attempt(), Failed(ERROR, retryable=False), "fail"),
        (Attempt(failures=1), Failed(ERROR), "fail"),
        (Attempt(), Cancelled("it was cancelled"), "stop"),
        (Attempt(), Interrupted("the worker stopped"), "recover"),
        (Attempt(losses=1), Interrupted("the worker stopped"), "fail"),
        (Attempt(failures=1, losses=1), NotBegun("the worker stops"), "return"),
    ],
)
def test_what_follows_from_a_report(attempt: LeasedAttempt, report: Report, name: str) -> None:
    assert decide(attempt, SPEC, report, lambda: 0.5).transition.name == name


@proves("E4")
def test_the_random_number_spreads_the_retry() -> None:
    random = iter([0.0, 0.5, 0.75]).__next__
    delays = [decide(ATTEMPT, SPEC, Failed(ERROR), random).delay_s for _ in range(3)]
    assert delays == [0.0, 0.5, 0.75]
