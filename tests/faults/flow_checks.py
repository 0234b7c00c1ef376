"""The judgement of the workflows of a fault run (W1, W2, W3, P14): did every step run when its rule says, and once?

It knows the graph from the request that created it, and has rules of its own: nothing here is shared with ondot. It
reads the database's tables, the receiver's books and the journal of `flow_users`. For every run that was asked for:

    lost_ack, two_objects   an acknowledged workflow or run exists once
    stuck_run               it has ended, or it is BLOCKED: none moves for ever
    wrong_step              each step is in the state that follows from its direct parents
    double_release          no more executions of a step, or of an item, than it had generations
    phantom_step            no execution of a step that was not to run, no call that is not on record
    lost_step               a step that ran has its execution on record, in the same state; each item of a map has one
    early_step              no call before every parent was answered, by the receiver's clock
    wrong_run               the state of the run follows from its steps
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from tests.faults.audit import Violation
from tests.faults.journal import Operation, read_journal
from tests.faults.ledger import Call, read_books

BAD = {"FAILED", "CANCELLED", "BLOCKED"}
RAN = {"SUCCEEDED", "FAILED", "CANCELLED"}
AT_REST = {"SUCCEEDED", "FAILED", "CANCELLED", "BLOCKED"}
REPAIRS = {"retry", "cancel", "give-up"}
NAMED = "flow "
"""How the names of workflows begin."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A step as it was asked for; `items`: of a map; `calls`: it is no join."""

    parents: tuple[str, ...] = ()
    when: str = "success"
    is_final: bool = False
    handles: bool = False
    items: int | None = None
    calls: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """A step as it is in the end."""

    state: str
    execution_id: UUID | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Ran:
    """An execution of a step, with what the receiver wrote of it."""

    id: UUID
    step: str
    state: str
    item: int | None = None
    called_s: float | None = None
    answered_s: float | None = None
    statuses: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class RunSeen:
    id: UUID
    plan: Mapping[str, Planned]
    state: str
    """Of its execution."""
    row_state: str | None = None
    """Of the run; None: it never began."""
    steps: Mapping[str, Seen] = field(default_factory=dict)
    ran: Sequence[Ran] = ()
    retries: int = 0
    """How often it was asked to retry, whether that was answered or not."""
    may_end: bool = False
    """Somebody asked to cancel it or to give it up, or its workflow ends with the first failure."""


def read_plan(body: Mapping[str, Any]) -> dict[str, Planned]:
    """The steps of a workflow in their order, from the request that created it."""
    return {
        name: Planned(
            tuple(step.get("depends_on", ())),
            step.get("when", "success"),
            bool(step.get("finally")),
            bool(step.get("handles")),
            len(step["map"]["over"]) if "map" in step else None,
            "url" in step,
        )
        for name, step in body["steps"].items()
    }


def runs_once(body: Mapping[str, Any]) -> bool:
    return "schedule" not in body


# One run -------------------------------------------------------------------------------------------------------------


def judge_run(run: RunSeen) -> Iterator[Violation]:
    subject = f"run {run.id}"
    if run.row_state is None:
        if run.state != "CANCELLED" or not run.may_end:
            yield Violation("stuck_run", subject, f"is {run.state}, but never began")
        return
    if run.row_state not in AT_REST:
        yield Violation("stuck_run", subject, f"is still {run.row_state}: {_states(run)}")
        return
    if run.state != run.row_state:
        yield Violation("wrong_run", subject, f"is {run.row_state}, but its execution is {run.state}")
    if run.steps.keys() != run.plan.keys():
        yield Violation("lost_step", subject, f"has the steps {sorted(run.steps)}, not {sorted(run.plan)}")
        return
    by_step: defaultdict[str, list[Ran]] = defaultdict(list)
    for ran in run.ran:
        by_step[ran.step].append(ran)
    for name in run.plan:
        yield from _judge_state(run, name)
        yield from _judge_executions(run, name, by_step[name])
        yield from _judge_order(run, name, by_step)
    yield from _judge_end(run)


def _states(run: RunSeen) -> str:
    return ", ".join(f"{name} {seen.state}" for name, seen in run.steps.items())


def _may_be(plan: Planned, parents: Sequence[str]) -> set[str]:
    """The states that a step may be in once its parents are in these."""
    bad = any(state in BAD for state in parents)
    good, skipped = "SUCCEEDED" in parents, "SKIPPED" in parents
    ran, held = {"SUCCEEDED", "FAILED"}, {"SKIPPED" if plan.is_final else "BLOCKED"}
    if not plan.calls:
        ran = {"SUCCEEDED"}
    if any(state not in BAD | {"SUCCEEDED", "SKIPPED"} for state in parents):
        return {"WAITING"}
    match plan.when:
        case "success":
            return held if bad else {"SKIPPED"} if skipped else ran
        case "no_failure":
            return held if bad else ran if good or not parents else {"SKIPPED"}
        case "failure":
            return ran if bad else {"SKIPPED"}
        case "ended":
            return ran
    raise AssertionError(f"unknown rule {plan.when}")


def _judge_state(run: RunSeen, name: str) -> Iterator[Violation]:
    plan, seen = run.plan[name], run.steps[name]
    parents = [run.steps[parent].state for parent in plan.parents]
    allowed = _may_be(plan, parents)
    if plan.is_final:
        if run.row_state == "BLOCKED":
            allowed = {"WAITING"}
        elif run.may_end:
            allowed = allowed | {"CANCELLED"}
    elif run.may_end and run.row_state in {"FAILED", "CANCELLED"}:
        allowed = allowed | {"CANCELLED"}
    if seen.state not in allowed:
        rule = f"by '{plan.when}' after {parents or 'no parents'} it should be {' or '.join(sorted(allowed))}"
        yield Violation("wrong_step", f"{name} of run {run.id}", f"is {seen.state}, but {rule}")


def _judge_executions(run: RunSeen, name: str, found: Sequence[Ran]) -> Iterator[Violation]:
    plan, seen = run.plan[name], run.steps[name]
    subject = f"{name} of run {run.id}"
    generations = 1 + (0 if plan.is_final else run.retries)
    for item, count in Counter(ran.item for ran in found).items():
        if count > generations or (item is None and count > seen.generation):
            what = "executions" if item is None else f"executions of item {item}"
            message = f"{count} {what}, but {run.retries} retries and {seen.generation} generations"
            yield Violation("double_release", subject, message)
    if found and (not plan.calls or (seen.state not in RAN and not run.retries)):
        yield Violation("phantom_step", subject, f"is {seen.state}, but has {len(found)} executions")
    for ran in found:
        if ran.state == "SUCCEEDED" and not any(status and 200 <= status < 300 for status in ran.statuses):
            yield Violation("lost_step", subject, f"{ran.id} SUCCEEDED, but was answered {list(ran.statuses)}")
    if seen.state not in {"SUCCEEDED", "FAILED"} or not plan.calls:
        return
    if plan.items is None:
        named = [ran.state for ran in found if ran.id == seen.execution_id]
        if named != [seen.state]:
            yield Violation("lost_step", subject, f"is {seen.state}, but its execution {seen.execution_id} is {named}")
        return
    states: defaultdict[int | None, set[str]] = defaultdict(set)
    for ran in found:
        # A map that failed has an execution of its own, for its dead letter: it makes no call.
        if ran.item is not None or ran.state != "FAILED" or ran.statuses:
            states[ran.item].add(ran.state)
    if strange := [item for item in states if item is None or item >= plan.items]:
        yield Violation("phantom_step", subject, f"the map has {plan.items} items, but ran {strange}")
    missing = [item for item in range(plan.items) if not states[item]]
    if missing and (seen.state == "SUCCEEDED" or not any("FAILED" in each for each in states.values())):
        yield Violation("lost_step", subject, f"is {seen.state}, but its items {missing} never ran")
    failed = [item for item in range(plan.items) if "SUCCEEDED" not in states[item]]
    if seen.state == "SUCCEEDED" and failed:
        yield Violation("lost_step", subject, f"is SUCCEEDED, but its items {failed} are not")
    if seen.state == "FAILED" and not any({"FAILED", "CANCELLED"} & each for each in states.values()):
        yield Violation("wrong_step", subject, "is FAILED, but no item failed")


def _judge_order(run: RunSeen, name: str, by_step: Mapping[str, Sequence[Ran]]) -> Iterator[Violation]:
    """The first call of its latest generation comes after the first answer to that of each parent."""
    own = _latest(run, name, by_step)
    began_s = min((ran.called_s for ran in own if ran.called_s is not None), default=None)
    if began_s is None:
        return
    for parent in _calling_parents(run.plan, name):
        if run.steps[parent].state not in {"SUCCEEDED", "FAILED"}:
            continue
        ended_s = [ran.answered_s for ran in _latest(run, parent, by_step) if ran.answered_s is not None]
        if ended_s and began_s < max(ended_s):
            message = f"was called {max(ended_s) - began_s:.3f} s before its parent {parent} was answered"
            yield Violation("early_step", f"{name} of run {run.id}", message)


def _latest(run: RunSeen, name: str, by_step: Mapping[str, Sequence[Ran]]) -> list[Ran]:
    found = by_step.get(name, ())
    if run.plan[name].items is None:
        return [ran for ran in found if ran.id == run.steps[name].execution_id]
    # Which generation an execution of an item belongs to is not on record.
    return list(found) if not run.retries else []


def _calling_parents(plan: Mapping[str, Planned], name: str) -> set[str]:
    """Through joins, which make no calls."""
    found: set[str] = set()
    for parent in plan[name].parents:
        found |= {parent} if plan[parent].calls else _calling_parents(plan, parent)
    return found


def _judge_end(run: RunSeen) -> Iterator[Violation]:
    ordinary = {name: run.steps[name].state for name, plan in run.plan.items() if not plan.is_final}
    handled: set[str] = set()
    for name, state in ordinary.items():
        if run.plan[name].handles and state == "SUCCEEDED":
            handled |= _above(run.plan, name)
    unhandled = {name for name, state in ordinary.items() if state in {"FAILED", "CANCELLED"}} - handled
    finals = [run.steps[name].state for name, plan in run.plan.items() if plan.is_final]
    allowed = {"BLOCKED"} if unhandled else {"FAILED"} if "FAILED" in finals else {"SUCCEEDED"}
    if run.may_end:
        allowed |= {"FAILED", "CANCELLED"}
    if run.row_state not in allowed:
        message = f"is {run.row_state}, but should be {' or '.join(sorted(allowed))}: {_states(run)}"
        yield Violation("wrong_run", f"run {run.id}", message)


def _above(plan: Mapping[str, Planned], name: str) -> set[str]:
    found: set[str] = set()
    open_ = list(plan[name].parents)
    while open_:
        if (parent := open_.pop()) not in found:
            found.add(parent)
            open_ += plan[parent].parents
    return found


# All of them ---------------------------------------------------------------------------------------------------------

_RUNS = f"""
SELECT e.id, e.state, e.origin, j.name, r.state AS row_state, e.payload::text AS payload
FROM (SELECT id, job_id, state, origin, payload FROM ondot.history WHERE origin <> 'step'
      UNION ALL SELECT id, job_id, state, origin, payload FROM ondot.execution WHERE origin <> 'step') e
JOIN (SELECT id, name FROM ondot.job UNION SELECT id, name FROM ondot.job_once) j ON j.id = e.job_id
LEFT JOIN ondot.run r ON r.id = e.id
WHERE j.name LIKE '{NAMED}%'
"""
_STEPS = """
SELECT id, job_id AS run_id, step_no, item_no, state FROM ondot.history WHERE origin = 'step'
UNION ALL SELECT id, job_id, step_no, item_no, state FROM ondot.execution WHERE origin = 'step'
"""


async def judge_flows(
    connection: asyncpg.Connection, journal: Path, books: Path, counts: dict[str, int]
) -> list[Violation]:
    """Judge the workflows of a run that has come to rest."""
    operations = read_journal(journal)
    seen, lost = await read_runs(connection, operations, read_books(books))
    found = [*lost, *(violation for run in seen for violation in judge_run(run))]
    counts |= {
        "workflow_runs": len(seen),
        "workflow_steps": sum(len(run.ran) for run in seen),
        "runs_retried": sum(run.retries > 0 for run in seen),
    }
    for state in sorted(AT_REST):
        counts[f"runs_{state.lower()}"] = sum(run.row_state == state for run in seen)
    return found


async def read_runs(
    connection: asyncpg.Connection, operations: Sequence[Operation], calls: Iterable[Call]
) -> tuple[list[RunSeen], list[Violation]]:
    """Every run of a workflow, and what is wrong before any of them is judged."""
    bodies = {operation.job: operation.body or {} for operation in operations if operation.op == "create"}
    made = [one for one in operations if one.outcome != "refused"]
    repairs = [(one.op, str(one.body["run_id"])) for one in made if one.body is not None and one.op in REPAIRS]
    of_run = Counter(run_id for op, run_id in repairs if op == "retry")
    ended = {run_id for op, run_id in repairs if op != "retry"}
    asked = {str(one.body["payload"]["mark"]) for one in operations if one.op == "run" and one.body is not None}
    asked |= {f"fire {name}" for name, body in bodies.items() if runs_once(body)}
    steps: defaultdict[UUID, dict[int, Seen]] = defaultdict(dict)
    for row in await connection.fetch("SELECT run_id, step_no, state, execution_id, generation FROM ondot.step"):
        steps[row["run_id"]][row["step_no"]] = Seen(row["state"], row["execution_id"], row["generation"])
    called: defaultdict[UUID, list[Call]] = defaultdict(list)
    for call in calls:
        called[call.execution_id].append(call)
    executions: defaultdict[UUID, list[asyncpg.Record]] = defaultdict(list)
    for row in await connection.fetch(_STEPS):
        executions[row["run_id"]].append(row)
    found: list[RunSeen] = []
    lost: list[Violation] = []
    marks: Counter[str] = Counter()
    for row in await connection.fetch(_RUNS):
        if row["name"] not in bodies:
            lost.append(Violation("phantom", f"workflow {row['name']}", "no request asked for it"))
            continue
        mark = _mark_of(row)
        marks[mark] += 1
        if mark not in asked:
            lost.append(Violation("phantom", f"run {row['id']}", f"no request asked for it: {mark!r}"))
        body = bodies[row["name"]]
        plan = read_plan(body)
        names = list(plan)
        found.append(
            RunSeen(
                row["id"],
                plan,
                row["state"],
                row["row_state"],
                {names[no]: step for no, step in sorted(steps[row["id"]].items()) if no < len(names)},
                [_ran(step, names, called.pop(step["id"], [])) for step in executions[row["id"]]],
                of_run[str(row["id"])],
                str(row["id"]) in ended or body.get("on_failure") == "fail",
            )
        )
    lost += [Violation("two_objects", f"run {mark}", f"one key made {count}") for mark, count in marks.items()
             if count > 1]  # fmt: skip
    ids = {str(run.id) for run in found}
    for one in operations:
        if one.op == "run" and one.is_acked and one.answer["execution_id"] not in ids:
            lost.append(Violation("lost_ack", f"run {one.job}", f"{one.answer['execution_id']} does not exist"))
        if one.op == "create" and one.is_acked and runs_once(one.body or {}) and not marks[f"fire {one.job}"]:
            lost.append(Violation("lost_ack", f"create {one.job}", "was acknowledged, but has no run"))
    lost += [Violation("phantom_step", str(id_), f"{len(of_it)} calls of no execution of a run")
             for id_, of_it in called.items()]  # fmt: skip
    return found, lost


def _mark_of(row: asyncpg.Record) -> str:
    """What was asked for: a run by hand has a mark in its payload, a fire has its job's."""
    payload = json.loads(row["payload"]) if row["payload"] else None
    return str(payload["mark"]) if payload and row["origin"] == "run" else f"fire {row['name']}"


def _ran(row: asyncpg.Record, names: Sequence[str], calls: Sequence[Call]) -> Ran:
    answered = [call.answered_s for call in calls if call.answered_s is not None]
    return Ran(
        row["id"],
        names[row["step_no"]],
        row["state"],
        row["item_no"],
        min((call.at_s for call in calls), default=None),
        min(answered, default=None),
        tuple(call.status for call in calls),
    )
