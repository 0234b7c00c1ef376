"""The rule of one step, row by row."""

import pytest

from ondot.model.workflow.rules import Block, Release, Skip, Tally, decide_step, describe_parent
from ondot.model.workflow.spec import When
from ondot.model.workflow.states import StepState
from tests.proves import proves

NOTE = "parent load failed"
NOTHING, GOOD, BAD, LEFT_OUT = Tally(), Tally(succeeded=2), Tally(failed=2), Tally(skipped=2)
GOOD_AND_BAD = Tally(succeeded=1, failed=1)
GOOD_AND_LEFT_OUT = Tally(succeeded=1, skipped=1)
BAD_AND_LEFT_OUT = Tally(failed=1, skipped=1)
ALL = Tally(succeeded=1, failed=1, skipped=1)


@proves("W1", "W3")
@pytest.mark.parametrize(
    ("when", "released", "skipped", "blocked"),
    [
        ("success", [NOTHING, GOOD], [LEFT_OUT, GOOD_AND_LEFT_OUT], [BAD, GOOD_AND_BAD, BAD_AND_LEFT_OUT, ALL]),
        ("no_failure", [NOTHING, GOOD, GOOD_AND_LEFT_OUT], [LEFT_OUT], [BAD, GOOD_AND_BAD, BAD_AND_LEFT_OUT, ALL]),
        ("failure", [BAD, GOOD_AND_BAD, BAD_AND_LEFT_OUT, ALL], [NOTHING, GOOD, LEFT_OUT, GOOD_AND_LEFT_OUT], []),
        (
            "ended",
            [NOTHING, GOOD, BAD, LEFT_OUT, GOOD_AND_BAD, GOOD_AND_LEFT_OUT, BAD_AND_LEFT_OUT, ALL],
            [],
            [],
        ),
    ],
)
def test_a_rule_looks_at_how_the_parents_ended(
    when: When, released: list[Tally], skipped: list[Tally], blocked: list[Tally]
) -> None:
    assert [decide_step(when, tally, NOTE) for tally in released] == [Release()] * len(released)
    assert all(isinstance(decide_step(when, tally, NOTE), Skip) for tally in skipped)
    assert [decide_step(when, tally, NOTE) for tally in blocked] == [Block(NOTE)] * len(blocked)
    assert len(released) + len(skipped) + len(blocked) == 8, "every combination of parents is in the table"


def test_a_skip_names_the_parent_or_the_success_or_failure_that_lacks() -> None:
    assert decide_step("success", LEFT_OUT, "parent list was skipped") == Skip("parent list was skipped")
    assert decide_step("no_failure", LEFT_OUT, "parent list was skipped") == Skip("no parent succeeded")
    assert decide_step("failure", GOOD) == Skip("no parent failed")


def test_every_parent_that_did_not_succeed_can_be_named() -> None:
    named = {state: describe_parent("load", state) for state in StepState}
    assert named == {
        StepState.WAITING: None,
        StepState.RELEASED: None,
        StepState.SUCCEEDED: None,
        StepState.FAILED: "parent load failed",
        StepState.SKIPPED: "parent load was skipped",
        StepState.BLOCKED: "parent load is blocked",
        StepState.CANCELLED: "parent load was cancelled",
    }
