"""Which steps of an ended run a new run executes again, and whether another version of its workflow fits (W8).

A rerun takes over the outcomes of the steps that do not run again, by name. With a later version of the workflow that
is right only if the steps whose results it takes over are still the same: a step above one that runs again must not
differ, and a step that was added or removed must be below one that runs again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ondot.model.workflow.graph import Graph
from ondot.model.workflow.spec import StepSpec
from ondot.model.workflow.states import MOVING, StepState
from ondot.model.workflow.verdict import find_unhandled


@dataclass(frozen=True, slots=True)
class VersionFaults:
    """Names of steps for which another version does not fit."""

    differ: tuple[str, ...] = ()
    """Above a step that runs again, and not the same."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.differ or self.added or self.removed)


def find_default_start(graph: Graph, states: Mapping[int, StepState]) -> tuple[int, ...]:
    """What a rerun starts with if no step is named: what failed, or has not ended; else all roots."""
    return tuple(sorted({*find_unhandled(graph, states), *find_open(graph, states)})) or graph.roots


def find_open(graph: Graph, states: Mapping[int, StepState]) -> list[int]:
    """Steps that have no outcome, though their run has ended: its workflow was gone."""
    return [no for no, state in states.items() if state in MOVING and not graph.steps[no].is_final]


def find_again(old: Graph, new: Graph, start: Iterable[int]) -> set[int]:
    """The steps of `new` that run again, if these of `old` do. `finally` steps are not among them: they always run."""
    first = set(start)
    names = {old.names[no] for no in first | old.find_descendants(first)}
    again = {new.numbers[name] for name in names if name in new.numbers}
    return (again | new.find_descendants(again)).difference(new.finals)


def find_version_faults(old: Graph, new: Graph, start: Iterable[int], running: Iterable[int] = ()) -> VersionFaults:
    """Why steps of a run of `old` cannot go on as `new`. `running`: steps of `old` that run and go on."""
    if old is new:
        return VersionFaults()
    first = set(start)
    again = find_again(old, new, first)
    again_before = {old.names[no] for no in first | old.find_descendants(first)}
    kept = {name: no for name, no in new.numbers.items() if no not in again}
    above = {new.names[no] for no in new.find_ancestors(again)} | {old.names[no] for no in running}
    differ, added = [], []
    for name, no in kept.items():
        step = new.steps[no]
        if name not in old.numbers:
            if not step.is_final:
                added.append(name)
            continue
        before = old.steps[old.numbers[name]]
        if before.is_final != step.is_final or (name in above and not is_same(before, step)):
            differ.append(name)
    removed = [
        name
        for name, no in old.numbers.items()
        if name not in new.numbers and name not in again_before and not old.steps[no].is_final
    ]
    return VersionFaults(tuple(differ), tuple(added), tuple(removed))


def is_same(before: StepSpec, after: StepSpec) -> bool:
    """Whether both would have had the same result: not how often, where or when they are tried."""
    return (
        before.target == after.target
        and set(before.depends_on) == set(after.depends_on)
        and before.when == after.when
        and _text(before.condition) == _text(after.condition)
        and _text(before.payload) == _text(after.payload)
        and _text(before.default) == _text(after.default)
        and has_same_items(before, after)
    )


def has_same_items(before: StepSpec, after: StepSpec) -> bool:
    if before.map is None or after.map is None:
        return before.map is after.map
    return (_text(before.map.over), before.map.each) == (_text(after.map.over), after.map.each)


def _text(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload]
