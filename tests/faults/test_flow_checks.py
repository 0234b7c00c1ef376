"""The checker of workflows, on histories that are written by hand: good ones pass, each kind of wrong one is found."""

from dataclasses import replace
from uuid import UUID

import pytest

from tests.faults.flow_checks import Planned, Ran, RunSeen, Seen, judge_run
from tests.proves import proves

ID = UUID(int=1)
PLAN = {
    "a": Planned(),
    "b": Planned(("a",)),
    "c": Planned(("a",), items=2),
    "join": Planned(("b", "c"), "no_failure", calls=False),
    "d": Planned(("join",)),
    "handler": Planned(("b",), "failure", handles=True),
    "last": Planned(("d",), "ended", is_final=True),
}


def execution(number: int, step: str, at_s: float, state: str = "SUCCEEDED", item: int | None = None) -> Ran:
    status = 200 if state == "SUCCEEDED" else 500
    return Ran(UUID(int=number), step, state, item, at_s, at_s + 0.5, (status,))


def seen(state: str, number: int | None = None) -> Seen:
    return Seen(state, None if number is None else UUID(int=number), 0 if state in {"SKIPPED", "BLOCKED"} else 1)


GOOD = RunSeen(
    ID,
    PLAN,
    "SUCCEEDED",
    "SUCCEEDED",
    {
        "a": seen("SUCCEEDED", 10),
        "b": seen("SUCCEEDED", 11),
        "c": seen("SUCCEEDED", 12),
        "join": seen("SUCCEEDED"),
        "d": seen("SUCCEEDED", 15),
        "handler": seen("SKIPPED"),
        "last": seen("SUCCEEDED", 16),
    },
    [
        execution(10, "a", 0),
        execution(11, "b", 1),
        execution(13, "c", 1, item=0),
        execution(14, "c", 2, item=1),
        execution(15, "d", 3),
        execution(16, "last", 4),
    ],
)
FAILED = RunSeen(
    ID,
    {name: PLAN[name] for name in ("a", "b", "last")} | {"last": Planned(("b",), "ended", is_final=True)},
    "BLOCKED",
    "BLOCKED",
    {"a": seen("FAILED", 10), "b": seen("BLOCKED"), "last": Seen("WAITING")},
    [execution(10, "a", 0, "FAILED")],
)
RETRIED = replace(
    FAILED,
    state="SUCCEEDED",
    row_state="SUCCEEDED",
    steps={
        "a": Seen("SUCCEEDED", UUID(int=20), 2),
        "b": seen("SUCCEEDED", 21),
        "last": seen("SUCCEEDED", 22),
    },
    ran=[*FAILED.ran, execution(20, "a", 5), execution(21, "b", 6), execution(22, "last", 7)],
    retries=1,
)
HANDLED = RunSeen(
    ID,
    {"a": Planned(), "handler": Planned(("a",), "failure", handles=True)},
    "SUCCEEDED",
    "SUCCEEDED",
    {"a": seen("FAILED", 10), "handler": seen("SUCCEEDED", 11)},
    [execution(10, "a", 0, "FAILED"), execution(11, "handler", 1)],
)
FAILED_MAP = RunSeen(
    ID,
    {"a": Planned(items=2)},
    "BLOCKED",
    "BLOCKED",
    {"a": seen("FAILED", 10)},
    [
        execution(11, "a", 0, item=0),
        execution(12, "a", 0, "FAILED", item=1),
        replace(execution(10, "a", 0, "FAILED"), called_s=None, answered_s=None, statuses=()),
    ],
)
GIVEN_UP = replace(
    FAILED,
    state="FAILED",
    row_state="FAILED",
    steps={**FAILED.steps, "last": seen("SUCCEEDED", 12)},
    ran=[*FAILED.ran, execution(12, "last", 1)],
    may_end=True,
)
CANCELLED = RunSeen(ID, {"a": Planned()}, "CANCELLED", None, may_end=True)


def with_step(run: RunSeen, name: str, step: Seen) -> RunSeen:
    return replace(run, steps={**run.steps, name: step})


def without(run: RunSeen, *numbers: int) -> RunSeen:
    return replace(run, ran=[ran for ran in run.ran if ran.id.int not in numbers])


def with_execution(run: RunSeen, *ran: Ran) -> RunSeen:
    return replace(without(run, *(one.id.int for one in ran)), ran=[*without(run, *(o.id.int for o in ran)).ran, *ran])


@pytest.mark.parametrize("run", [GOOD, FAILED, RETRIED, HANDLED, FAILED_MAP, GIVEN_UP, CANCELLED])
def test_a_good_history_passes(run: RunSeen) -> None:
    assert [str(violation) for violation in judge_run(run)] == []


WRONG: dict[str, tuple[RunSeen, str]] = {
    "a run that moves for ever": (replace(GOOD, state="RUNNING", row_state="RUNNING"), "stuck_run"),
    "a run that never began": (replace(CANCELLED, may_end=False, state="PENDING"), "stuck_run"),
    "a run whose execution ended otherwise": (replace(GOOD, state="FAILED"), "wrong_run"),
    "a success with a failure that nobody handled": (replace(FAILED, state="SUCCEEDED", row_state="SUCCEEDED"),
                                                     "wrong_run"),
    "a run that nobody cancelled": (replace(GOOD, state="CANCELLED", row_state="CANCELLED"), "wrong_run"),
    "a handled failure that blocks": (replace(HANDLED, state="BLOCKED", row_state="BLOCKED"), "wrong_run"),
    "a step that waits for nothing": (with_step(without(GOOD, 15), "d", Seen("WAITING")), "wrong_step"),
    "a handler without a failure": (with_execution(with_step(GOOD, "handler", seen("SUCCEEDED", 17)),
                                                   execution(17, "handler", 2)), "wrong_step"),
    "a step below a failure that ran": (with_execution(with_step(FAILED, "b", seen("SUCCEEDED", 11)),
                                                       execution(11, "b", 1)), "wrong_step"),
    "a final step of a blocked run": (with_execution(with_step(FAILED, "last", seen("SUCCEEDED", 12)),
                                                     execution(12, "last", 1)), "wrong_step"),
    "a final step that is missing": (with_step(without(GOOD, 16), "last", seen("SKIPPED")), "wrong_step"),
    "a step that was released twice": (with_execution(GOOD, execution(18, "b", 1.2)), "double_release"),
    "an item that was released twice": (with_execution(GOOD, execution(18, "c", 1.2, item=1)), "double_release"),
    "a final step that ran twice": (with_execution(RETRIED, execution(23, "last", 8)), "double_release"),
    "an execution of a skipped step": (with_execution(GOOD, execution(18, "handler", 1.2)), "phantom_step"),
    "an item that is not in the list": (with_execution(GOOD, execution(18, "c", 1.2, item=2)), "phantom_step"),
    "a step whose execution is lost": (without(GOOD, 11), "lost_step"),
    "an item that is lost": (without(GOOD, 14), "lost_step"),
    "an item that failed in a success": (with_execution(GOOD, execution(14, "c", 2, "FAILED", item=1)), "lost_step"),
    "a step that ended by an old generation": (with_step(RETRIED, "a", Seen("SUCCEEDED", UUID(int=10), 2)),
                                               "lost_step"),
    "a success that the receiver refused": (with_execution(GOOD, replace(GOOD.ran[1], statuses=(500,))), "lost_step"),
    "a step that is missing": (replace(GOOD, steps={name: step for name, step in GOOD.steps.items() if name != "d"}),
                               "lost_step"),
    "a step before its parent": (with_execution(GOOD, execution(11, "b", 0.2)), "early_step"),
    "a step before an item above a join": (with_execution(GOOD, execution(15, "d", 2.2)), "early_step"),
    "a step before the second generation of its parent": (with_execution(RETRIED, execution(21, "b", 1)),
                                                          "early_step"),
}  # fmt: skip


@proves("W1", "W2")
@pytest.mark.parametrize(("run", "check"), WRONG.values(), ids=WRONG)
def test_a_wrong_history_is_found(run: RunSeen, check: str) -> None:
    assert check in {violation.check for violation in judge_run(run)}
