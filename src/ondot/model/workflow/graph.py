"""The graph of a workflow's steps, by number (W1): compiled once for each version, then only read.

Edges live in the immutable version of a job and are never copied for each run. `find_faults` is the check at creation:
it takes a graph as people wrote it and names each fault with its place, a cycle in full.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Final

from ondot.model.workflow.spec import MAX_EDGES, MAX_STEPS, StepSpec, SubWorkflow, WorkflowTarget

_KEPT: Final = 64
_LONGEST_CYCLE_SHOWN: Final = 50
_MOST_FAULTS: Final = 20
_NAMES_SEARCHED: Final = 1_000
"""For a name that is near: to search 10,000 of them for each of 100,000 wrong parents would take hours."""

GraphFault = tuple[tuple[str, ...], str]
"""The path to a fault below `steps`, and a sentence."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Steps, parents and children by number; the number of a step is its place among the steps as they were written."""

    names: tuple[str, ...]
    numbers: Mapping[str, int]
    steps: tuple[StepSpec, ...]
    parents: tuple[tuple[int, ...], ...]
    children: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    """Every step after its parents."""
    roots: tuple[int, ...]
    """Ordinary steps without parents."""
    finals: tuple[int, ...]
    """`finally` steps."""
    handlers: tuple[int, ...]
    """Steps whose success handles the failures above them."""
    mapped: tuple[int, ...]
    """Mapped steps, every one after its parents."""
    sub_workflows: tuple[int, ...]
    """Steps that are runs of other workflows."""

    def find_each(self, no: int) -> int | None:
        """The mapped step whose items this one follows one by one."""
        spec = self.steps[no].map
        return None if spec is None or spec.each is None else self.numbers[spec.each]

    def find_followers(self, no: int) -> list[int]:
        """The steps that follow the items of this one."""
        return [child for child in self.children[no] if self.find_each(child) == no]

    def find_ancestors(self, of: Iterable[int]) -> set[int]:
        """All steps above these; one of these only if it is above another."""
        return _walk(self.parents, of)

    def find_descendants(self, of: Iterable[int]) -> set[int]:
        """All steps below these; one of these only if it is below another."""
        return _walk(self.children, of)


class _Identity:
    """A key of the cache: the very object, because hashing 10,000 steps costs more than compiling them."""

    __slots__ = ("target",)

    def __init__(self, target: WorkflowTarget) -> None:
        self.target = target

    def __hash__(self) -> int:
        return id(self.target)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.target is self.target


def compile_graph(target: WorkflowTarget) -> Graph:
    """The graph of a target that has passed `find_faults`, remembered for the very object of the target."""
    return _compile(_Identity(target))


@lru_cache(maxsize=_KEPT)
def _compile(key: _Identity) -> Graph:
    steps = tuple(key.target.steps.values())
    numbers = {name: no for no, name in enumerate(key.target.steps)}
    parents = tuple(tuple(numbers[name] for name in step.depends_on) for step in steps)
    children = _invert(parents)
    order = _sort(parents, children)
    assert len(order) == len(steps), "find_faults rejects cycles"
    return Graph(
        names=tuple(numbers),
        numbers=numbers,
        steps=steps,
        parents=parents,
        children=children,
        order=order,
        roots=tuple(no for no, step in enumerate(steps) if not parents[no] and not step.is_final),
        finals=tuple(no for no, step in enumerate(steps) if step.is_final),
        handlers=tuple(no for no, step in enumerate(steps) if step.handles),
        mapped=tuple(no for no in order if steps[no].map is not None),
        sub_workflows=tuple(no for no, step in enumerate(steps) if isinstance(step.target, SubWorkflow)),
    )


def find_faults(steps: Mapping[str, StepSpec]) -> list[GraphFault]:
    """What is wrong with the edges: too many of them, wrong parents, or a cycle."""
    if len(steps) > MAX_STEPS:
        return [((), f"A workflow has at most {MAX_STEPS:,} steps, got {len(steps):,}: split it into sub-workflows.")]
    edges = sum(len(step.depends_on) for step in steps.values())
    if edges > MAX_EDGES:
        advice = "put a step without a target, a join, between steps that all depend on the same ones"
        return [((), f"A workflow has at most {MAX_EDGES:,} dependencies, got {edges:,}: {advice}.")]
    wrong = (fault for name, step in steps.items() for fault in _find_wrong_parents(name, step, steps))
    return list(islice(wrong, _MOST_FAULTS)) or _find_cycle(steps)


def _find_wrong_parents(name: str, step: StepSpec, steps: Mapping[str, StepSpec]) -> Iterable[GraphFault]:
    seen: set[str] = set()
    for place, parent in enumerate(step.depends_on):
        path = (name, "depends_on", str(place))
        if parent == name:
            yield path, f"The steps form a cycle: {name} → {name}. A step cannot depend on itself."
        elif parent not in steps:
            close = get_close_matches(parent[:64], islice(steps, _NAMES_SEARCHED), n=1)
            advice = f"did you mean `{close[0]}`?" if close else "name a step of this workflow."
            yield path, f"There is no step `{parent[:64]}`; {advice}"
        elif parent in seen:
            yield path, f"`{parent}` is named twice; name each parent once."
        elif steps[parent].is_final and not step.is_final:
            yield (
                path,
                f"`{parent}` is a `finally` step, which runs when the run ends; only `finally` steps can depend on it.",
            )
        seen.add(parent)


def _find_cycle(steps: Mapping[str, StepSpec]) -> list[GraphFault]:
    names = tuple(steps)
    numbers = {name: no for no, name in enumerate(names)}
    parents = tuple(tuple(numbers[name] for name in step.depends_on) for step in steps.values())
    order = _sort(parents, _invert(parents))
    if len(order) == len(steps):
        return []
    # Each step that is left has a parent that is left: going up must meet a step again.
    left = set(range(len(steps))) - set(order)
    no = min(left)
    at: dict[int, int] = {}
    path: list[int] = []
    while no not in at:
        at[no] = len(path)
        path.append(no)
        no = next(parent for parent in parents[no] if parent in left)
    cycle = path[at[no] :]
    first = cycle.index(min(cycle))
    ahead = list(reversed(cycle[first + 1 :] + cycle[: first + 1]))
    written = [names[no] for no in (*ahead, ahead[0])]
    if len(written) > _LONGEST_CYCLE_SHOWN:
        half = _LONGEST_CYCLE_SHOWN // 2
        written = [*written[:half], f"… {len(written) - 2 * half} more …", *written[-half:]]
    place = parents[ahead[0]].index(ahead[-1])
    message = f"The steps form a cycle: {' → '.join(written)}. Remove one of these dependencies."
    return [((names[ahead[0]], "depends_on", str(place)), message)]


class Ancestry:
    """Answers which steps are above which, for all steps of a workflow at once.

    One bit for each pair of steps: at most 12.5 MB for 10,000 steps, computed only if a question goes beyond parents.
    """

    def __init__(self, steps: Mapping[str, StepSpec]) -> None:
        self._steps = steps
        self._numbers: dict[str, int] | None = None
        self._above: list[int] = []

    def is_above(self, ancestor: str, name: str) -> bool:
        if ancestor in self._steps[name].depends_on:
            return True
        if self._numbers is None:
            self._numbers = {name: no for no, name in enumerate(self._steps)}
            self._above = self._find_all(self._numbers)
        return bool(self._above[self._numbers[name]] >> self._numbers[ancestor] & 1)

    def _find_all(self, numbers: Mapping[str, int]) -> list[int]:
        parents = tuple(tuple(numbers[name] for name in step.depends_on) for step in self._steps.values())
        above = [0] * len(parents)
        for no in _sort(parents, _invert(parents)):
            bits = 0
            for parent in parents[no]:
                bits |= above[parent] | 1 << parent
            above[no] = bits
        return above


def _invert(parents: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    children: list[list[int]] = [[] for _ in parents]
    for no, above in enumerate(parents):
        for parent in above:
            children[parent].append(no)
    return tuple(map(tuple, children))


def _sort(parents: Sequence[Sequence[int]], children: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The steps, parents first; those on and below a cycle are left out."""
    left = [len(above) for above in parents]
    ready = deque(no for no, count in enumerate(left) if count == 0)
    order: list[int] = []
    while ready:
        no = ready.popleft()
        order.append(no)
        for child in children[no]:
            left[child] -= 1
            if left[child] == 0:
                ready.append(child)
    return tuple(order)


def _walk(edges: Sequence[Sequence[int]], of: Iterable[int]) -> set[int]:
    found: set[int] = set()
    ahead = list(of)
    while ahead:
        for no in edges[ahead.pop()]:
            if no not in found:
                found.add(no)
                ahead.append(no)
    return found
