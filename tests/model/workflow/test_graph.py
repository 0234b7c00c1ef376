"""Graphs: compiled by number, and the faults of a new one."""

import pytest

from ondot.model.workflow.graph import Ancestry, compile_graph, find_faults
from ondot.model.workflow.spec import MAX_EDGES, MAX_STEPS, StepSpec, WorkflowTarget
from tests.proves import proves


def steps_of(**parents: str) -> dict[str, StepSpec]:
    return {name: StepSpec(depends_on=tuple(above.split())) for name, above in parents.items()}


@proves("W1")
def test_a_graph_knows_parents_children_roots_and_an_order() -> None:
    steps = {**steps_of(d="b c", b="a", c="a", a=""), "end": StepSpec(depends_on=("d",), is_final=True)}
    graph = compile_graph(WorkflowTarget(steps=steps))
    assert graph.names == ("d", "b", "c", "a", "end")
    assert graph.parents == ((1, 2), (3,), (3,), (), (0,))
    assert graph.children == ((4,), (0,), (0,), (1, 2), ())
    assert (graph.roots, graph.finals) == ((3,), (4,))
    assert [graph.names[no] for no in graph.order] == ["a", "b", "c", "d", "end"]
    assert graph.find_ancestors([0]) == {1, 2, 3}
    assert graph.find_descendants([3]) == {0, 1, 2, 4}


def test_a_graph_is_compiled_once_for_each_target() -> None:
    first, second = (WorkflowTarget(steps=steps_of(a="", b="a")) for _ in range(2))
    assert compile_graph(first) is compile_graph(first)
    assert compile_graph(first) is not compile_graph(second)


@proves("W2")
@pytest.mark.parametrize(
    ("parents", "path", "words"),
    [
        ({"a": "b", "b": "a"}, ("a", "depends_on", "0"), "a → b → a"),
        ({"a": "a"}, ("a", "depends_on", "0"), "a → a"),
        ({"x": "c", "a": "x c", "b": "a", "c": "b", "d": "c"}, ("x", "depends_on", "0"), "x → a → b → c → x"),
        ({"list": "", "b": "lst"}, ("b", "depends_on", "0"), "There is no step `lst`; did you mean `list`?"),
        ({"a": "", "b": "a a"}, ("b", "depends_on", "1"), "`a` is named twice"),
    ],
)
def test_wrong_parents_and_cycles_are_named_with_their_place(
    parents: dict[str, str], path: tuple[str, ...], words: str
) -> None:
    [(place, message)] = find_faults(steps_of(**parents))
    assert place == path
    assert words in message


@proves("W2")
def test_every_wrong_parent_is_reported() -> None:
    faults = find_faults(steps_of(a="zzz", b="a yyy"))
    assert [place for place, _ in faults] == [("a", "depends_on", "0"), ("b", "depends_on", "1")]


def test_an_ordinary_step_cannot_depend_on_one_that_runs_when_the_run_ends() -> None:
    steps = {"clean": StepSpec(is_final=True), "next": StepSpec(depends_on=("clean",))}
    [(place, message)] = find_faults(steps)
    assert place == ("next", "depends_on", "0")
    assert "`clean` is a `finally` step" in message


@proves("W5")
def test_more_steps_or_edges_than_a_run_can_hold_are_rejected() -> None:
    [(place, message)] = find_faults({f"s{i}": StepSpec() for i in range(MAX_STEPS + 1)})
    assert (place, "at most 10,000 steps, got 10,001" in message) == ((), True)
    wide = {f"s{i}": StepSpec() for i in range(1_000)}
    above = tuple(wide)
    wide |= {f"t{i}": StepSpec(depends_on=above) for i in range(MAX_EDGES // 1_000)}
    assert find_faults(wide) == []
    [(place, message)] = find_faults(wide | {"one": StepSpec(depends_on=("s0",))})
    assert (place, "at most 100,000 dependencies, got 100,001" in message) == ((), True)


def test_a_very_long_cycle_is_shown_in_part() -> None:
    steps = {f"s{i}": StepSpec(depends_on=(f"s{(i - 1) % MAX_STEPS}",)) for i in range(MAX_STEPS)}
    [(_, message)] = find_faults(steps)
    assert "s0 → s1 → s2" in message
    assert message.endswith("s9999 → s0. Remove one of these dependencies.")
    assert len(message) < 1_000


def test_ancestry_answers_for_parents_and_for_distant_steps() -> None:
    steps = steps_of(d="b c", b="a", c="", a="", e="d")
    ancestry = Ancestry(steps)
    above = {name: {other for other in steps if ancestry.is_above(other, name)} for name in steps}
    assert above == {"a": set(), "b": {"a"}, "c": set(), "d": {"a", "b", "c"}, "e": {"a", "b", "c", "d"}}
