"""The checker of retention, on ends that are written by hand: a good one passes, each kind of wrong one is found."""

from dataclasses import replace
from uuid import UUID

import pytest

from tests.faults.retention_checks import Found, OldRow, judge_rows
from tests.proves import proves

DUE, LIVE, OVER, LETTER = (UUID(int=number) for number in range(1, 5))
LISTED = [
    OldRow("job_once", DUE, "due", stays=True),
    OldRow("job_once", LIVE, "live", stays=True),
    OldRow("history", OVER, "over", stays=False),
    OldRow("object", OVER, "over", stays=False, key="over"),
    OldRow("history", LETTER, "letter", stays=True),
    OldRow("object", LETTER, "letter", stays=True, key="letter"),
]
RIGHT = Found(
    rows={"job_once": {DUE, LIVE}, "history": {LETTER}, "object": {LETTER}},
    files={"letter"},
    ends={DUE: ["SUCCEEDED"], LIVE: ["SUCCEEDED"]},
    called={DUE, LIVE},
)
WRONG = {
    "a job that is not over is gone": (replace(RIGHT, rows={**RIGHT.rows, "job_once": {LIVE}}), "lost_row"),
    "an open dead letter has lost its execution": (replace(RIGHT, rows={**RIGHT.rows, "history": set()}), "lost_row"),
    "an old execution is there": (replace(RIGHT, rows={**RIGHT.rows, "history": {LETTER, OVER}}), "kept_row"),
    "the object of a kept row is gone": (replace(RIGHT, files=set()), "lost_object"),
    "the object of a row that went is there": (replace(RIGHT, files={"letter", "over"}), "left_object"),
    "a job did not run": (replace(RIGHT, ends={LIVE: ["SUCCEEDED"]}, called={LIVE}), "lost_old_job"),
    "a job ran twice": (replace(RIGHT, ends={**RIGHT.ends, DUE: ["SUCCEEDED"] * 2}), "lost_old_job"),
    "an execution that was called has no end": (replace(RIGHT, ends={DUE: ["SUCCEEDED"]}), "lost_end"),
    "an execution that was called still lives": (
        replace(RIGHT, ends={DUE: ["SUCCEEDED"]}, live={LIVE}),
        "lost_old_job",
    ),
    "a copy is left": (replace(RIGHT, left_over=["history_copy"]), "left_over"),
}


@proves("O1")
def test_what_stayed_and_what_went_passes() -> None:
    assert list(judge_rows(LISTED, RIGHT)) == []


@proves("O1")
@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_end_is_found(name: str) -> None:
    found, check = WRONG[name]
    assert {violation.check for violation in judge_rows(LISTED, found)} == {check}
