"""Why a run or a step does not go on, in words."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from ondot.model.explain_run import RunFacts, StepFacts, explain_run, explain_step
from ondot.model.ids import ExecutionId
from ondot.model.target import FunctionTarget
from ondot.model.workflow.maps import MapCounts
from ondot.model.workflow.spec import Approve, StepSpec, SubWorkflow, Wait
from ondot.model.workflow.states import RunState, StepState
from tests.proves import proves

NOW = datetime(2031, 3, 3, 12, tzinfo=UTC)
RUN = ExecutionId(UUID(int=1))
CALL = StepSpec(target=FunctionTarget(name="f"))


def run(state: RunState = RunState.RUNNING, **facts: object) -> RunFacts:
    whole: dict[str, object] = {
        "verdict": None,
        "reason": None,
        "is_paused": False,
        "blocked_until": None,
        "ends_at": None,
        "total": 10,
        "ended": 3,
        "blocked": 0,
        "active_count": 0,
        "failed_count": 0,
        "active": (),
        "failed": (),
        "now": NOW,
        **facts,
    }
    return RunFacts(id=RUN, state=state, **whole)  # type: ignore[arg-type]


def step(name: str, state: StepState = StepState.RELEASED, spec: StepSpec = CALL, **facts: Any) -> StepFacts:
    return StepFacts(name, spec, state, **facts)


@proves("E17", "W3")
def test_a_step_that_waits_names_its_parent_and_the_items_that_are_left() -> None:
    process = step("process", items=MapCounts(total=50, succeeded=45, failed=2))
    upload = step("upload", StepState.WAITING)
    found = explain_step(run(), upload, 1, [process], 1)
    assert found.summary == "Step upload waits for process: 3 of 50 items left, 2 failed."
    assert found.reasons[0].code == "waits_for_steps"


@proves("E17")
def test_a_step_that_waits_for_several_names_some_of_them() -> None:
    parents = [step(f"p{i}") for i in range(4)] + [step("late", StepState.WAITING)]
    found = explain_step(run(), step("join", StepState.WAITING), 900, parents, 800)
    assert found.summary == (
        "Step join waits for 800 of 900 parents: p0, which runs, p1, which runs, p2, which runs, p3, which runs, "
        "late, which waits itself and 795 more."
    )


@proves("E17", "W3")
def test_a_blocked_step_names_the_step_that_failed_above_it() -> None:
    failed = step("load", StepState.FAILED, error="no such table")
    blocked = run(RunState.BLOCKED, blocked=2, failed=[failed], failed_count=1, blocked_until=NOW + timedelta(days=7))
    found = explain_step(blocked, step("report", StepState.BLOCKED, reason="parent load failed"), 1, [], 0)
    why = "Step load failed: no such table, and 2 steps cannot run because of it."
    assert found.summary.startswith(f"Step report is blocked: parent load failed. {why}")
    assert found.reasons[1].until == NOW + timedelta(days=7)
    assert f"ondot run retry {RUN}" in (found.reasons[1].what_to_do or "")
    whole = explain_run(blocked)
    assert whole.reasons[0].code == "step_failed"
    assert (whole.state, whole.may_start_at) == ("BLOCKED", None)


@proves("E17")
@pytest.mark.parametrize(
    ("spec", "facts", "code", "words"),
    [
        (StepSpec(target=Wait(for_s=9)), {"due_at": NOW}, "waits_for_time", "waits until 2031-03-03 12:00:00 UTC"),
        (
            StepSpec(target=Wait()),
            {"event": "paid", "due_at": NOW},
            "waits_for_event",
            "waits for the event paid, until 2031-03-03 12:00:00 UTC at most",
        ),
        (StepSpec(target=Approve(by="admin")), {}, "waits_for_approval", "approval by a person, at least admin"),
        (
            StepSpec(target=SubWorkflow(key="child")),
            {"child": (RUN, "BLOCKED")},
            "waits_for_run",
            "is a run of the workflow child, which is BLOCKED",
        ),
        (CALL, {}, "step_running", "runs"),
        (CALL, {"items": MapCounts(total=2)}, "waits_for_items", "2 of 2 items left"),
    ],
)
def test_a_released_step_says_what_it_waits_for(spec: StepSpec, facts: dict[str, Any], code: str, words: str) -> None:
    found = explain_step(run(), step("it", spec=spec, **facts), 0, [], 0)
    assert found.reasons[0].code == code
    assert words in found.summary
    running = explain_run(run(active=[step("it", spec=spec, **facts)], active_count=1))
    assert [reason.code for reason in running.reasons] == ["run_running", code]
    assert "3 of 10 steps have ended" in running.summary


@proves("E17")
def test_a_paused_run_and_its_waiting_steps_say_so() -> None:
    paused = run(is_paused=True)
    assert explain_run(paused).reasons[0].code == "run_paused"
    assert explain_step(paused, step("next", StepState.WAITING), 0, [], 0).reasons[0].code == "run_paused"


@proves("E17")
def test_a_final_step_waits_for_the_end_and_a_run_that_ends_names_it() -> None:
    clean = step("clean", StepState.WAITING, replace_final(CALL))
    assert explain_step(run(), clean, 0, [], 0).reasons[0].code == "waits_for_end"
    ending = run(RunState.ENDING, verdict="FAILED", active=[replace(clean, state=StepState.RELEASED)], active_count=1)
    assert explain_run(ending).summary.startswith("It ends FAILED; before, its `finally` steps run: clean.")


@proves("E17")
def test_an_ended_step_states_how_and_why() -> None:
    found = explain_step(run(), step("it", StepState.SKIPPED, reason="condition"), 0, [], 0)
    assert found.summary == "Step it ended SKIPPED: condition."


def replace_final(spec: StepSpec) -> StepSpec:
    return StepSpec(target=spec.target, is_final=True)
