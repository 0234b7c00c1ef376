"""Repairs of runs: whatever fails and is repaired in whatever order, the run ends as if the last outcomes had been the
first ones."""

import random
from dataclasses import dataclass, field

import pytest

from ondot.model.workflow.repair import (
    Change,
    NotRepairable,
    Repair,
    StepState,
    count_parents,
    find_unrepairable,
    list_failed,
    plan_repair,
)
from tests.proves import proves

NONE: frozenset[int] = frozenset()


@dataclass
class Shape:
    parents: list[list[int]]
    children: list[list[int]]


def link(*parents: list[int]) -> Shape:
    children: list[list[int]] = [[] for _ in parents]
    for no, above in enumerate(parents):
        for parent in above:
            children[parent].append(no)
    return Shape(list(parents), children)


@proves("W3")
def test_a_retry_of_a_failed_step_unblocks_what_waited_for_it() -> None:
    shape = link([], [0], [1], [0])
    states: list[StepState] = ["SUCCEEDED", "FAILED", "BLOCKED", "SUCCEEDED"]
    repair = plan_repair(shape, states, NONE, "retry", list_failed(states))
    assert (repair.again, repair.stopped) == ((1, 2), ())
    assert repair.counts[1].succeeded == 1
    assert repair.counts[2].failed == 0


@proves("W3")
def test_a_handler_of_a_failure_is_decided_again_with_the_step_that_failed() -> None:
    shape = link([], [0], [1])
    states: list[StepState] = ["FAILED", "SUCCEEDED", "SUCCEEDED"]
    assert plan_repair(shape, states, NONE, "retry", [0]).again == (0, 1, 2)


@proves("W3")
def test_only_the_counts_of_finally_steps_change() -> None:
    shape = link([], [0])
    states: list[StepState] = ["FAILED", "WAITING"]
    repair = plan_repair(shape, states, frozenset({1}), "retry", [0])
    assert repair.again == (0,)
    assert repair.counts[1].failed == 0


@proves("W3")
def test_a_retry_from_a_step_stops_what_runs_below_it() -> None:
    shape = link([], [0], [0], [1, 2])
    states: list[StepState] = ["SUCCEEDED", "RELEASED", "SUCCEEDED", "WAITING"]
    repair = plan_repair(shape, states, NONE, "from", [0])
    assert (repair.again, repair.stopped) == ((0, 1, 2, 3), (1,))


@proves("W8")
def test_a_skip_ends_the_step_and_decides_the_ones_below_again() -> None:
    shape = link([], [0], [1])
    states: list[StepState] = ["FAILED", "BLOCKED", "BLOCKED"]
    repair = plan_repair(shape, states, NONE, "skip", [0])
    assert repair.set_by_hand == {0: "SKIPPED"}
    assert repair.again == (1, 2)
    assert repair.counts[1].skipped == 1


@proves("W8")
def test_a_failure_that_a_step_has_handled_is_not_retried_by_default() -> None:
    assert list_failed(["FAILED", "SUCCEEDED", "CANCELLED"], handled=[0]) == (2,)


@proves("W3")
@pytest.mark.parametrize(
    ("change", "state", "why"),
    [
        ("retry", "SUCCEEDED", "succeeded"),
        ("retry", "SKIPPED", "skipped"),
        ("retry", "BLOCKED", "blocked"),
        ("from", "BLOCKED", "blocked"),
        ("from", "WAITING", "not_begun"),
        ("skip", "RELEASED", "running"),
        ("result", "SUCCEEDED", "succeeded"),
    ],
)
def test_a_step_that_cannot_be_repaired_is_named(change: Change, state: StepState, why: str) -> None:
    [refused] = find_unrepairable(link([], [0]), ["SUCCEEDED", state], NONE, change, [1])
    assert (refused.step_no, refused.why) == (1, why)


@proves("W3")
def test_a_blocked_step_leads_to_the_failures_above_it() -> None:
    shape = link([], [], [0], [1, 2])
    states: list[StepState] = ["FAILED", "SUCCEEDED", "BLOCKED", "BLOCKED"]
    assert find_unrepairable(shape, states, NONE, "retry", [3]) == (NotRepairable(3, "blocked", (0,)),)


@proves("W3")
def test_a_finally_step_is_not_repaired_before_the_run_ends() -> None:
    [refused] = find_unrepairable(link([], [0]), ["FAILED", "WAITING"], frozenset({1}), "from", [1])
    assert refused.why == "final"


# --- any sequence of failures and repairs, against a model that knows only the last outcomes ---


def judge(when: str, above: list[str]) -> str:
    """What a rule says about ended parents, as the documents word it: RUN, SKIPPED or BLOCKED."""
    failed = sum(state in {"FAILED", "CANCELLED", "BLOCKED"} for state in above)
    match when:
        case "ended":
            return "RUN"
        case "failure":
            return "RUN" if failed else "SKIPPED"
        case "success":
            return "BLOCKED" if failed else "SKIPPED" if "SKIPPED" in above else "RUN"
        case _:
            return "BLOCKED" if failed else "RUN" if not above or "SUCCEEDED" in above else "SKIPPED"


@dataclass
class Sim:
    """A run, stepped by hand."""

    shape: Shape
    whens: list[str]
    states: list[StepState] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    """How many ends of parents each step has counted: a lost or doubled one shows at the end."""
    old: set[int] = field(default_factory=set)
    """Steps whose generation before still runs."""
    outcomes: dict[int, str] = field(default_factory=dict)
    generations: list[int] = field(default_factory=list)
    superseded: int = 0

    def start(self) -> None:
        self.states = ["WAITING"] * len(self.whens)
        self.seen = [0] * len(self.whens)
        self.generations = [0] * len(self.whens)
        for no in range(len(self.whens)):
            self.decide(no)

    def decide(self, no: int) -> None:
        above = self.shape.parents[no]
        if self.states[no] != "WAITING" or no in self.old or self.seen[no] < len(above):
            return
        match judge(self.whens[no], [self.states[parent] for parent in above]):
            case "RUN":
                self.states[no] = "RELEASED"
                self.generations[no] += 1
            case "SKIPPED":
                self.end(no, "SKIPPED")
            case "BLOCKED":
                self.end(no, "BLOCKED")

    def end(self, no: int, state: StepState) -> None:
        self.states[no] = state
        for child in self.shape.children[no]:
            self.seen[child] += 1
            self.decide(child)

    def report(self, no: int, outcome: StepState) -> None:
        """The execution of a step has ended."""
        if no in self.old:
            self.old.discard(no)
            self.superseded += 1
            self.decide(no)
            return
        self.outcomes[no] = outcome
        self.end(no, outcome)

    @property
    def running(self) -> list[int]:
        return sorted({no for no, state in enumerate(self.states) if state == "RELEASED"} | self.old)

    def apply(self, repair: Repair) -> None:
        self.old |= set(repair.stopped)
        for no in repair.again:
            self.states[no] = "WAITING"
        for no, state in repair.set_by_hand.items():
            self.states[no] = state
            self.outcomes[no] = state
        for no, counts in repair.counts.items():
            self.seen[no] = counts.succeeded + counts.failed + counts.skipped
        for no in repair.again:
            self.decide(no)


def expect(shape: Shape, whens: list[str], outcomes: dict[int, str]) -> list[str]:
    """The states of a run whose steps end at once as given. Parents have smaller numbers."""
    states: list[str] = []
    for no, when in enumerate(whens):
        verdict = judge(when, [states[parent] for parent in shape.parents[no]])
        states.append(outcomes[no] if verdict == "RUN" else verdict)
    return states


@proves("W3", "W8")
@pytest.mark.parametrize("seed", range(200))
def test_any_repairs_end_as_if_the_last_outcomes_had_been_the_first(seed: int) -> None:
    choose = random.Random(seed)
    size = choose.randint(1, 12)
    shape = link(*(sorted(choose.sample(range(no), choose.randint(0, min(no, 3)))) for no in range(size)))
    whens = [choose.choice(["success", "success", "no_failure", "failure", "ended"]) for _ in range(size)]
    sim = Sim(shape, whens)
    sim.start()
    repairs = choose.randint(0, 30)
    while True:
        if repairs and (choose.random() < 0.3 or not sim.running):
            repairs -= 1
            change: Change = choose.choice(["retry", "from", "skip", "result"])
            steps = choose.sample(range(size), choose.randint(1, min(size, 3)))
            good = [no for no in steps if not find_unrepairable(shape, sim.states, NONE, change, [no])]
            by_hand = change in {"skip", "result"}
            # Of two that are set by hand at once, one above the other changes nothing in the other.
            if good:
                sim.apply(plan_repair(shape, sim.states, NONE, change, good[:1] if by_hand else good))
            continue
        if not sim.running:
            break
        no = choose.choice(sim.running)
        sim.report(no, choose.choice(["SUCCEEDED", "SUCCEEDED", "FAILED", "CANCELLED"]))
        for step in range(size):
            counted = count_parents(shape, sim.states, step)
            assert sim.seen[step] == counted.succeeded + counted.failed + counted.skipped
    assert sim.states == expect(shape, whens, sim.outcomes)
