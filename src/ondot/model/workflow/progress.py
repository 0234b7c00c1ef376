"""How a run goes on when steps have ended (W1, W3): which steps change, which are released, and which rows it must see.

A `Progress` is one pass over a run by the process that has its row locked. It is incremental: it asks for the steps
that ended and for their children only, so a chain of 10,000 steps never reads 10,000 rows for one end. Skips, blocks
and joins follow each other within the pass, and load the rows below them as they go.

    progress = Progress(graph)
    others = progress.apply(arrivals)              # items of maps, and children that are BLOCKED: the caller's
    while progress.has_work:
        if missing := progress.go_on():
            progress.load(await read_steps(run, missing))
        for no in progress.take_conditions():      # `if`: needs results, so the caller evaluates it
            progress.judge(no, is_met=…)
        for no in progress.take_releases():        # a step that cannot be released: progress.end(no, FAILED, "…")
            …
    write(progress.list_changed(), progress.counts)

`finally` steps stand apart: nothing counts for them until the run ends, when `consider_finals` starts them.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from ondot.model.workflow.graph import Graph
from ondot.model.workflow.rules import CONDITION, Block, Release, Skip, Tally, decide_step, describe_parent
from ondot.model.workflow.states import ENDED, StepState

_FAILURES: Final = frozenset({StepState.FAILED, StepState.BLOCKED, StepState.CANCELLED})


class Arrival(NamedTuple):
    """The end of an execution that a run waits for."""

    step_no: int
    item_no: int | None
    execution_id: UUID
    state: str


@dataclass(slots=True)
class StepRow:
    """A step as its row has it. The pass changes it in place."""

    step_no: int
    state: StepState = StepState.WAITING
    execution_id: UUID | None = None
    """The execution of its latest generation. Of a WAITING step: one that a repair stopped and that has not ended."""
    parents_succeeded: int = 0
    parents_failed: int = 0
    parents_skipped: int = 0
    reason: str | None = None
    """Why it is in its state. Of a WAITING step: a parent that did not succeed, so that a skip or block can name it."""
    own_payload: bool = False
    """A retry gave it a payload."""

    @property
    def parents_ended(self) -> int:
        return self.parents_succeeded + self.parents_failed + self.parents_skipped


@dataclass(slots=True)
class Progress:
    graph: Graph
    is_ending: bool = False
    """The run's verdict is decided, and its `finally` steps run."""
    rows: dict[int, StepRow] = field(default_factory=dict)
    counts: Counter[StepState] = field(default_factory=Counter)
    """How the number of steps in each state changed, without `finally` ones."""
    superseded: int = 0
    """Arrivals of executions that their step no longer names, or of a step that has ended."""
    _arrivals: deque[Arrival] = field(default_factory=deque)
    _considered: deque[int] = field(default_factory=deque)
    _ended: deque[int] = field(default_factory=deque)
    """Steps whose children have not heard of their end."""
    _changed: set[int] = field(default_factory=set)
    _releases: list[int] = field(default_factory=list)
    _conditions: list[int] = field(default_factory=list)
    _judged: set[int] = field(default_factory=set)
    """Steps whose `if` the caller was asked for."""

    def load(self, rows: Iterable[StepRow]) -> None:
        for row in rows:
            self.rows.setdefault(row.step_no, row)

    def apply(self, arrivals: Iterable[Arrival]) -> list[Arrival]:
        """Takes the ends of steps; returns the arrivals that are no end of a step."""
        others: list[Arrival] = []
        for arrival in arrivals:
            is_end = arrival.item_no is None and arrival.state in ENDED
            (self._arrivals if is_end else others).append(arrival)
        return others

    def consider(self, step_nos: Iterable[int]) -> None:
        """Decides these steps if they are WAITING and all their parents have ended: roots, or steps after a pause."""
        self._considered.extend(step_nos)

    def consider_finals(self, states: Mapping[int, StepState]) -> None:
        """Starts the `finally` steps, whose rows are loaded. `states` has their ordinary parents, which count as
        cancelled if they have not ended."""
        for no in self.graph.finals:
            row = self.rows[no]
            if row.state is not StepState.WAITING:
                continue
            row.parents_succeeded = row.parents_failed = row.parents_skipped = 0
            row.reason = None
            for parent in self.graph.parents[no]:
                if not self.graph.steps[parent].is_final:
                    state = states.get(parent, StepState.CANCELLED)
                    self._count(row, parent, state if state in ENDED or state in _FAILURES else StepState.CANCELLED)
            self._changed.add(no)
        self.consider(self.graph.finals)

    @property
    def has_work(self) -> bool:
        return bool(self._arrivals or self._considered or self._ended or self._releases or self._conditions)

    def go_on(self) -> set[int]:
        """Goes on as far as the loaded rows allow; returns the numbers of the rows that it lacks."""
        missing: set[int] = set()
        arrivals, considered, ended = deque[Arrival](), deque[int](), deque[int]()
        while self._arrivals or self._considered or self._ended:
            if self._arrivals:
                arrival = self._arrivals.popleft()
                if arrival.step_no in self.rows:
                    self._arrive(arrival)
                else:
                    missing.add(arrival.step_no)
                    arrivals.append(arrival)
            elif self._considered:
                no = self._considered.popleft()
                if lacked := self._lacking([no]):
                    missing.update(lacked)
                    considered.append(no)
                else:
                    self._decide_if_ready(self.rows[no])
            else:
                no = self._ended.popleft()
                if lacked := self._lacking(self._children_concerned(no)):
                    missing.update(lacked)
                    ended.append(no)
                else:
                    self._report_end(no)
        self._arrivals, self._considered, self._ended = arrivals, considered, ended
        return missing

    def take_conditions(self) -> list[int]:
        """Steps whose rule is met and whose `if` the caller evaluates, then calls `judge`."""
        taken, self._conditions = self._conditions, []
        return taken

    def judge(self, step_no: int, *, is_met: bool) -> None:
        if is_met:
            self._release(self.rows[step_no])
        else:
            self.end(step_no, StepState.SKIPPED, CONDITION)

    def take_releases(self) -> list[int]:
        """Steps that are RELEASED now and need an execution, or the id of their generation, from the caller."""
        taken, self._releases = self._releases, []
        return taken

    def postpone(self, step_no: int) -> None:
        """A step whose turn it is waits all the same, because its run is paused: `consider` decides it again."""
        self._move(self.rows[step_no], StepState.WAITING)

    def end(self, step_no: int, state: StepState, reason: str | None = None) -> None:
        """Ends a loaded step; its children hear of it when the pass goes on."""
        row = self.rows[step_no]
        self._move(row, state)
        row.reason = reason
        self._ended.append(step_no)

    def note(self, step_no: int, reason: str | None) -> None:
        """Says why a loaded step does not move; its state stays."""
        self.rows[step_no].reason = reason
        self._changed.add(step_no)

    def list_changed(self) -> list[StepRow]:
        return [self.rows[no] for no in sorted(self._changed)]

    def _arrive(self, arrival: Arrival) -> None:
        row = self.rows[arrival.step_no]
        if row.state is StepState.RELEASED and row.execution_id == arrival.execution_id:
            self.end(arrival.step_no, StepState(arrival.state))
            return
        self.superseded += 1
        if row.state is StepState.WAITING and row.execution_id == arrival.execution_id:
            # A repair stopped this generation of the step: the next one waited for its end.
            row.execution_id = None
            self._changed.add(row.step_no)
            self._decide_if_ready(row)

    def _children_concerned(self, no: int) -> Sequence[int]:
        """The children that hear of an end: `finally` steps hear only of each other, once the run ends."""
        steps = self.graph.steps
        if steps[no].is_final:
            return self.graph.children[no]
        if self.is_ending:
            return ()
        return [child for child in self.graph.children[no] if not steps[child].is_final]

    def _lacking(self, step_nos: Sequence[int]) -> set[int]:
        """The rows that are missing to decide these steps: their own, and those of steps whose items they follow."""
        lacking = {no for no in step_nos if no not in self.rows}
        if self.graph.mapped:
            each = {self.graph.find_each(no) for no in step_nos}
            lacking |= {no for no in each if no is not None and no not in self.rows}
        return lacking

    def _report_end(self, no: int) -> None:
        state = self.rows[no].state
        for child in self._children_concerned(no):
            row = self.rows[child]
            # A child that is not WAITING was decided before this parent was retried, and keeps its state.
            if row.state is StepState.WAITING:
                self._count(row, no, state)
                self._changed.add(child)
                self._decide_if_ready(row)

    def _count(self, row: StepRow, parent: int, state: StepState) -> None:
        if state in _FAILURES:
            if not row.parents_failed:
                row.reason = describe_parent(self.graph.names[parent], state)
            row.parents_failed += 1
        elif state is StepState.SKIPPED:
            row.reason = row.reason or describe_parent(self.graph.names[parent], state)
            row.parents_skipped += 1
        else:
            row.parents_succeeded += 1

    def _decide_if_ready(self, row: StepRow) -> None:
        no = row.step_no
        if row.state is not StepState.WAITING:
            return
        if row.parents_ended < len(self.graph.parents[no]) and not self._follows_items(row):
            return
        if row.execution_id is not None:
            return  # Its generation before has not ended.
        step = self.graph.steps[no]
        tally = Tally(row.parents_succeeded, row.parents_failed, row.parents_skipped)
        match decide_step(step.when, tally, row.reason):
            case Release() if step.condition is not None:
                if no not in self._judged:
                    self._judged.add(no)
                    self._conditions.append(no)
            case Release():
                self._release(row)
            case Skip(reason):
                self.end(no, StepState.SKIPPED, reason)
            case Block(reason):
                # Nobody repairs a run that ends: what a failure prevents there is skipped.
                self.end(no, StepState.SKIPPED if step.is_final else StepState.BLOCKED, reason)

    def _follows_items(self, row: StepRow) -> bool:
        """Whether it waits for nothing but items of a map that has started: it starts with the first of them."""
        each = self.graph.find_each(row.step_no) if self.graph.mapped else None
        if each is None or self.graph.steps[row.step_no].when not in {"success", "no_failure"}:
            return False
        is_last = row.parents_succeeded == row.parents_ended == len(self.graph.parents[row.step_no]) - 1
        return is_last and self.rows[each].state is StepState.RELEASED

    def _release(self, row: StepRow) -> None:
        if self.graph.steps[row.step_no].target is None:
            self.end(row.step_no, StepState.SUCCEEDED)
        else:
            self._move(row, StepState.RELEASED)
            row.reason = None
            self._releases.append(row.step_no)

    def _move(self, row: StepRow, state: StepState) -> None:
        if not self.graph.steps[row.step_no].is_final:
            self.counts[row.state] -= 1
            self.counts[state] += 1
        row.state = state
        self._changed.add(row.step_no)
