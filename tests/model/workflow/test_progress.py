"""How a run goes on: by hand for each rule, and random graphs against a model that is written differently.

The model works out the final state of each step from the final states of its parents. The pass works forward, by
tallies, in the random order in which steps end, with only the rows in memory that it asked for.
"""

import os
from random import Random
from uuid import UUID

import pytest
from msgspec import Raw

from ondot.model.target import FunctionTarget
from ondot.model.workflow.graph import Graph, compile_graph
from ondot.model.workflow.progress import Arrival, Progress, StepRow
from ondot.model.workflow.spec import MapSpec, OnFailure, StepSpec, WorkflowTarget
from ondot.model.workflow.states import RunState, StepState
from ondot.model.workflow.verdict import Counts, find_unhandled, judge_run
from tests.proves import proves

CASES = int(os.environ.get("ONDOT_TEST_GRAPHS", "3000"))
CALL = FunctionTarget(name="f")
IF = Raw(b"{}")


class Run:
    """The rows of a run, and the passes over them, as the engine makes them."""

    def __init__(self, steps: dict[str, StepSpec], conditions: dict[str, bool] | None = None) -> None:
        self.graph: Graph = compile_graph(WorkflowTarget(steps=steps))
        self.conditions = conditions or {}
        self.stored = {no: StepRow(no) for no in range(len(steps))}
        self.released: list[int] = []
        self.superseded = 0
        self.loads: list[int] = []
        self._ids = 0

    def start(self) -> None:
        progress = Progress(self.graph)
        progress.consider(self.graph.roots)
        self._pass(progress)

    def arrive(self, *arrivals: Arrival, is_ending: bool = False) -> None:
        progress = Progress(self.graph, is_ending=is_ending)
        progress.apply(arrivals)
        self._pass(progress)

    def end(self, name: str, state: StepState, *, is_ending: bool = False) -> None:
        self.arrive(self.arrival(self.graph.numbers[name], state), is_ending=is_ending)

    def end_run(self) -> None:
        progress = Progress(self.graph, is_ending=True)
        progress.load(self._read(set(self.graph.finals)))
        parents = {parent for no in self.graph.finals for parent in self.graph.parents[no]}
        progress.consider_finals({no: self.stored[no].state for no in parents})
        self._pass(progress)

    def arrival(self, no: int, state: StepState) -> Arrival:
        execution_id = self.stored[no].execution_id
        assert execution_id is not None
        return Arrival(no, None, execution_id, str(state))

    def _pass(self, progress: Progress) -> None:
        loaded = 0
        while progress.has_work:
            if missing := progress.go_on():
                loaded += len(missing)
                progress.load(self._read(missing))
            for no in progress.take_conditions():
                progress.judge(no, is_met=self.conditions[self.graph.names[no]])
            for no in progress.take_releases():
                self._ids += 1
                progress.rows[no].execution_id = UUID(int=self._ids)
                self.released.append(no)
        self.loads.append(loaded)
        self.superseded += progress.superseded
        for row in progress.list_changed():
            self.stored[row.step_no] = copy(row)

    def _read(self, numbers: set[int]) -> list[StepRow]:
        return [copy(self.stored[no]) for no in numbers]

    @property
    def states(self) -> dict[str, StepState]:
        return {name: self.stored[no].state for no, name in enumerate(self.graph.names)}

    def reason(self, name: str) -> str | None:
        return self.stored[self.graph.numbers[name]].reason

    def verdict(self, on_failure: OnFailure = "block") -> RunState:
        states = {no: row.state for no, row in self.stored.items() if not self.graph.steps[no].is_final}
        by_state = {state: sum(other is state for other in states.values()) for state in StepState}
        counts = Counts(
            waiting=by_state[StepState.WAITING],
            active=by_state[StepState.RELEASED],
            succeeded=by_state[StepState.SUCCEEDED],
            failed=by_state[StepState.FAILED] + by_state[StepState.CANCELLED],
            skipped=by_state[StepState.SKIPPED],
            blocked=by_state[StepState.BLOCKED],
        )
        return judge_run(self.graph, on_failure, counts, states)


def copy(row: StepRow) -> StepRow:
    return StepRow(
        row.step_no,
        row.state,
        row.execution_id,
        row.parents_succeeded,
        row.parents_failed,
        row.parents_skipped,
        row.reason,
    )


S, F, C = StepState.SUCCEEDED, StepState.FAILED, StepState.CANCELLED


def step(above: str = "", **fields: object) -> StepSpec:
    return StepSpec(**{"depends_on": tuple(above.split()), "target": CALL, **fields})  # type: ignore[arg-type]


@proves("W1")
def test_a_step_is_released_once_when_its_last_parent_has_succeeded() -> None:
    run = Run({"a": step(), "b": step(), "c": step("a b")})
    run.start()
    assert run.released == [0, 1]
    run.end("b", S)
    assert run.states["c"] is StepState.WAITING
    run.end("a", S)
    assert run.released == [0, 1, 2]
    assert run.verdict() is RunState.RUNNING
    run.end("c", S)
    assert run.verdict() is RunState.SUCCEEDED


@proves("W7")
def test_a_step_that_follows_items_is_released_with_the_map_once_its_other_parents_have_succeeded() -> None:
    over, each = MapSpec(over=Raw(b"[1,2]")), MapSpec(each="process")
    run = Run({"process": step(map=over), "login": step(), "upload": step("process login", map=each)})
    run.start()
    assert run.released == [0, 1]
    run.end("login", S)
    assert run.released == [0, 1, 2]
    # The end of the map is no end of the step that follows its items.
    run.end("process", F)
    assert run.states["upload"] is StepState.RELEASED


@proves("W7")
def test_a_step_that_follows_items_of_a_map_that_never_started_follows_its_rule() -> None:
    run = Run(
        {
            "list": step(),
            "process": step("list", map=MapSpec(over=Raw(b"[1]"))),
            "upload": step("process", map=MapSpec(each="process")),
        }
    )
    run.start()
    run.end("list", F)
    assert run.states["upload"] is StepState.BLOCKED


@proves("W3")
def test_steps_below_a_failure_are_blocked_and_a_handler_at_the_end_of_the_chain_hears_of_it() -> None:
    run = Run({"a": step(), "b": step("a"), "c": step("b", when="no_failure"), "page": step("c", when="failure")})
    run.start()
    run.end("a", F)
    assert run.states == {
        "a": StepState.FAILED,
        "b": StepState.BLOCKED,
        "c": StepState.BLOCKED,
        "page": StepState.RELEASED,
    }
    assert run.reason("b") == "parent a failed"
    assert run.reason("c") == "parent b is blocked"
    run.end("page", S)
    assert run.verdict() is RunState.BLOCKED, "it does not handle the failure"


@proves("W3")
def test_a_failure_is_handled_by_a_successful_handler_below_it() -> None:
    steps = {"a": step(), "b": step("a"), "fix": step("b", when="failure", handles=True)}
    for state, verdict in ((S, RunState.SUCCEEDED), (F, RunState.BLOCKED)):
        run = Run(steps)
        run.start()
        run.end("a", F)
        assert run.verdict() is RunState.RUNNING
        run.end("fix", state)
        assert run.verdict() is verdict


@proves("W3")
def test_with_on_failure_fail_the_first_failure_that_nothing_can_handle_ends_the_run_at_once() -> None:
    run = Run({"a": step(), "long": step(), "b": step("a")})
    run.start()
    run.end("a", F)
    assert run.verdict("fail") is RunState.FAILED
    assert run.verdict("block") is RunState.RUNNING, "`long` still runs"


def test_with_on_failure_fail_a_handler_that_may_still_succeed_is_waited_for() -> None:
    run = Run({"a": step(), "fix": step("a", when="failure", handles=True), "long": step()})
    run.start()
    run.end("a", F)
    assert run.verdict("fail") is RunState.RUNNING
    run.end("fix", F)
    assert run.verdict("fail") is RunState.FAILED


@proves("W3")
def test_a_cancelled_step_counts_as_failed() -> None:
    run = Run({"a": step(), "b": step("a"), "page": step("a", when="failure")})
    run.start()
    run.end("a", C)
    assert run.states["b"] is StepState.BLOCKED
    assert run.reason("b") == "parent a was cancelled"
    assert run.states["page"] is StepState.RELEASED


def test_a_false_condition_skips_what_needs_its_success_and_names_it() -> None:
    run = Run(
        {"a": step(condition=IF), "b": step("a"), "c": step("b"), "join": StepSpec(depends_on=("c",))}, {"a": False}
    )
    run.start()
    assert set(run.states.values()) == {StepState.SKIPPED}
    assert [run.reason(name) for name in "abc"] == ["condition", "parent a was skipped", "parent b was skipped"]
    assert run.released == []
    assert run.verdict() is RunState.SUCCEEDED


def test_a_join_after_a_branch_runs_with_no_failure_and_is_skipped_without_a_success() -> None:
    for met in (True, False):
        steps = {"left": step(condition=IF), "right": step(condition=IF), "join": step("left right", when="no_failure")}
        run = Run(steps, {"left": met, "right": False})
        run.start()
        if met:
            run.end("left", S)
        assert run.states["join"] is (StepState.RELEASED if met else StepState.SKIPPED)


def test_failed_and_skipped_parents_together_block() -> None:
    for first in ("a", "b"):
        run = Run({"a": step(condition=IF), "b": step(), "c": step("a b" if first == "a" else "b a")}, {"a": False})
        run.start()
        run.end("b", F)
        assert run.states["c"] is StepState.BLOCKED
        assert run.reason("c") == "parent b failed", "the failure is named, whichever ended first"


def test_joins_succeed_at_once() -> None:
    run = Run({"a": StepSpec(), "b": StepSpec(depends_on=("a",)), "c": step("b")})
    run.start()
    assert run.released == [2]
    assert run.states["b"] is StepState.SUCCEEDED


@proves("W3")
def test_finally_steps_start_when_the_run_ends_and_judge_their_parents_then() -> None:
    steps = {
        "a": step(),
        "b": step("a"),
        "clean": step("b", when="ended", is_final=True),
        "notify": step("clean", is_final=True),
        "only_if_good": step("b", is_final=True),
        "sorry": step("b", when="failure", is_final=True),
        "always": step(is_final=True),
    }
    run = Run(steps)
    run.start()
    run.end("a", F)
    assert run.verdict() is RunState.BLOCKED
    assert {run.states[name] for name in ("clean", "notify", "sorry", "always")} == {StepState.WAITING}
    run.end_run()
    assert run.states["only_if_good"] is StepState.SKIPPED, "nobody repairs a run that ends"
    assert {run.states[name] for name in ("clean", "sorry", "always")} == {StepState.RELEASED}
    run.end("clean", S, is_ending=True)
    assert run.states["notify"] is StepState.RELEASED


def test_a_parent_that_never_ended_counts_as_cancelled_for_finally_steps() -> None:
    run = Run({"a": step(), "b": step("a"), "sorry": step("b", when="failure", is_final=True)})
    run.start()
    run.end_run()
    assert run.states["sorry"] is StepState.RELEASED
    run.end("a", C, is_ending=True)
    assert run.states["b"] is StepState.WAITING, "an ordinary step is never released while the run ends"
    assert run.released == [0, 2]


def test_items_of_maps_and_blocked_children_are_the_callers() -> None:
    progress = Progress(compile_graph(WorkflowTarget(steps={"a": step()})))
    item = Arrival(0, 7, UUID(int=1), "SUCCEEDED")
    child = Arrival(0, None, UUID(int=2), "BLOCKED")
    assert progress.apply([item, child, Arrival(0, None, UUID(int=3), "FAILED")]) == [item, child]


def test_a_run_is_blocked_if_only_blocked_children_are_active() -> None:
    graph = compile_graph(WorkflowTarget(steps={"a": step(), "b": step("a"), "c": step()}))
    assert judge_run(graph, "block", Counts(waiting=1, active=2), {}, blocked_children=1) is RunState.RUNNING
    assert judge_run(graph, "block", Counts(waiting=1, active=1), {}, blocked_children=1) is RunState.BLOCKED


@proves("W5")
def test_a_chain_reads_two_rows_for_each_end_however_long_it_is() -> None:
    steps = {"s0": step(), **{f"s{i}": step(f"s{i - 1}") for i in range(1, 2_000)}}
    run = Run(steps)
    run.start()
    for i in range(2_000):
        run.end(f"s{i}", S)
    assert run.verdict() is RunState.SUCCEEDED
    assert max(run.loads) == 2


@proves("W5")
def test_a_skip_at_the_top_of_a_chain_of_ten_thousand_reaches_its_end_in_one_pass() -> None:
    steps = {"s0": step(condition=IF), **{f"s{i}": step(f"s{i - 1}") for i in range(1, 10_000)}}
    run = Run(steps, {"s0": False})
    run.start()
    assert run.states["s9999"] is StepState.SKIPPED


# The model: final states, from the top down, by sets of parents' states.


def expected_states(
    steps: dict[str, StepSpec], outcomes: dict[str, StepState], conditions: dict[str, bool]
) -> dict[str, StepState]:
    final: dict[str, StepState] = {}
    while len(final) < len(steps):
        for name, spec in steps.items():
            if name in final or not all(parent in final for parent in spec.depends_on):
                continue
            above = {"bad" if final[p] in {F, C, StepState.BLOCKED} else str(final[p]) for p in spec.depends_on}
            if spec.when == "failure":
                state = None if "bad" in above else StepState.SKIPPED
            elif spec.when == "ended":
                state = None
            elif "bad" in above:
                state = StepState.BLOCKED
            elif spec.when == "success":
                state = StepState.SKIPPED if "SKIPPED" in above else None
            else:
                state = StepState.SKIPPED if above == {"SKIPPED"} else None
            if state is None:
                goes = spec.condition is None or conditions[name]
                state = (S if spec.target is None else outcomes[name]) if goes else StepState.SKIPPED
            final[name] = state
    return final


def expected_verdict(steps: dict[str, StepSpec], final: dict[str, StepState]) -> RunState:
    def is_handled(name: str) -> bool:
        below = [other for other, spec in steps.items() if name in spec.depends_on]
        return any((steps[other].handles and final[other] is S) or is_handled(other) for other in below)

    failed = [name for name, state in final.items() if state in {F, C}]
    return RunState.SUCCEEDED if all(map(is_handled, failed)) else RunState.BLOCKED


def random_graph(random: Random) -> tuple[dict[str, StepSpec], dict[str, StepState], dict[str, bool]]:
    count = random.randint(1, 14)
    density = random.random() * 0.6
    steps, outcomes, conditions = {}, {}, {}
    for i in range(count):
        name = f"s{i}"
        steps[name] = StepSpec(
            depends_on=tuple(f"s{j}" for j in range(i) if random.random() < density),
            target=None if random.random() < 0.15 else CALL,
            when=random.choices(("success", "no_failure", "failure", "ended"), (5, 3, 2, 2))[0],
            condition=IF if random.random() < 0.2 else None,
            handles=random.random() < 0.15,
        )
        outcomes[name] = random.choices((S, F, C, StepState.SKIPPED), (6, 2, 1, 0.5))[0]
        conditions[name] = random.random() < 0.6
    names = list(steps)
    random.shuffle(names)
    return {name: steps[name] for name in names}, outcomes, conditions


@proves("W1", "W3")
@pytest.mark.parametrize("part", range(10))
def test_random_graphs_end_as_an_independent_model_says_in_any_order_of_arrivals(part: int) -> None:
    for seed in range(part * CASES // 10, (part + 1) * CASES // 10):
        random = Random(seed)
        steps, outcomes, conditions = random_graph(random)
        run = Run(steps, conditions)
        run.start()
        old: list[Arrival] = []
        sent = 0
        while moving := [no for no, row in run.stored.items() if row.state is StepState.RELEASED]:
            assert run.verdict() is RunState.RUNNING, seed
            chosen = random.sample(moving, random.randint(1, len(moving)))
            arrivals = [run.arrival(no, outcomes[run.graph.names[no]]) for no in chosen]
            noise = random.sample(old, min(len(old), random.randint(0, 2)))
            noise += [Arrival(no, None, UUID(int=10**9 + no), "FAILED") for no in random.sample(moving, 1)]
            doubled = [arrival for arrival in arrivals if random.random() < 0.2]
            old += arrivals
            sent += len(noise) + len(doubled)
            batch = [*arrivals, *noise, *doubled]
            random.shuffle(batch)
            run.arrive(*batch)
        expected = expected_states(steps, outcomes, conditions)
        assert run.states == expected, seed
        assert len(run.released) == len(set(run.released)), f"{seed}: released twice"
        assert run.superseded == sent, f"{seed}: every stale or doubled arrival is counted, and no other"
        assert run.verdict() is expected_verdict(steps, expected), seed
        unhandled = find_unhandled(run.graph, {no: row.state for no, row in run.stored.items()})
        assert bool(unhandled) is (run.verdict() is RunState.BLOCKED), seed


def test_the_changed_counts_of_a_pass_are_those_of_its_steps_without_finally_ones() -> None:
    graph = compile_graph(WorkflowTarget(steps={"a": step(), "b": step("a"), "z": step(is_final=True)}))
    progress = Progress(graph)
    progress.load([StepRow(0, StepState.RELEASED, UUID(int=1)), StepRow(1), StepRow(2)])
    progress.apply([Arrival(0, None, UUID(int=1), "FAILED")])
    assert progress.go_on() == set()
    assert {state: count for state, count in progress.counts.items() if count} == {
        StepState.RELEASED: -1,
        StepState.FAILED: 1,
        StepState.WAITING: -1,
        StepState.BLOCKED: 1,
    }
    assert [row.step_no for row in progress.list_changed()] == [0, 1]
