"""Release steps whose turn it is (W1, W4): judge `if`, fill in `{"$from": …}`, make their executions.

A step whose payload cannot be made fails with a sentence that names the path and the step: it ends before it has an
attempt, with a record in history and a dead letter (`fail`). Steps that are mapped, wait, or are runs of another
workflow start in modules of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from ondot.flow.workflows.children import start_child
from ondot.flow.workflows.fail import Rejection, fail_steps
from ondot.flow.workflows.maps import start_map
from ondot.flow.workflows.results import Value, check_size, find_wanted, merge_wanted, read_payload, read_values
from ondot.flow.workflows.run_pass import BATCH, RunPass
from ondot.flow.workflows.waits import start_wait
from ondot.model.ids import ExecutionId
from ondot.model.patterns import Pattern, compile_pattern
from ondot.model.workflow.spec import Approve, StepSpec, SubWorkflow, Wait
from ondot.model.workflow.step_spec import step_job_spec
from ondot.model.workflow.values import Unresolved, find_steps_named, may_refer, resolve
from ondot.store.passes import NewExecution
from ondot.store.repairs import find_step_payloads


async def judge_conditions(work: RunPass, step_nos: Sequence[int]) -> None:
    """Decide the `if` of steps whose rule is met."""
    for portion in _portions(step_nos):
        patterns = {no: _compile_condition(bytes(work.graph.steps[no].condition or b"{}")) for no in portion}
        named = {no: _names_of_condition(bytes(work.graph.steps[no].condition or b"{}")) for no in portion}
        values = await read_values(work, {name: True for names in named.values() for name in names})
        payload = await read_payload(work)
        for no, pattern in patterns.items():
            try:
                found = {name: _shown(values[name]) for name in named[no] if name in values}
            except Unresolved as trouble:
                await fail_steps(work, [Rejection(no, str(trouble))])
            else:
                work.progress.judge(no, is_met=pattern.matches({"payload": payload, "steps": found}))


async def release(work: RunPass, step_nos: Sequence[int]) -> None:
    """Start steps that are RELEASED now."""
    calls = []
    for no in step_nos:
        step = work.graph.steps[no]
        match step.target:
            case _ if step.map is not None:
                await start_map(work, no)
            case Wait() | Approve():
                await start_wait(work, no, step.target)
            case SubWorkflow():
                await _release_child(work, no, step.target)
            case _:
                calls.append(no)
    for portion in _portions(calls):
        await _release(work, portion)


async def _release_child(work: RunPass, no: int, target: SubWorkflow) -> None:
    step = work.graph.steps[no]
    try:
        payload = await _make_payload(work, step, await read_values(work, find_wanted(step.payload)))
    except Unresolved as trouble:
        await fail_steps(work, [Rejection(no, str(trouble))])
    else:
        await start_child(work, no, target, payload)


async def _release(work: RunPass, step_nos: Sequence[int]) -> None:
    specs = {no: step_job_spec(work.spec, no) for no in step_nos}
    pools = await work.database.pools.register(work.connection, {spec.pool for spec in specs.values()})
    values = await read_values(work, merge_wanted(work.graph.steps[no].payload for no in step_nos))
    given = await _read_given_payloads(work, step_nos)
    rejected = []
    for no, id_ in zip(step_nos, work.database.clock.new_ids(len(step_nos)), strict=True):
        spec = specs[no]
        try:
            payload = given[no] if no in given else await _make_payload(work, work.graph.steps[no], values)
        except Unresolved as trouble:
            rejected.append(Rejection(no, str(trouble)))
            continue
        work.progress.rows[no].execution_id = id_
        work.released.add(no)
        work.new.append(
            NewExecution(
                ExecutionId(id_),
                no,
                pools[spec.pool],
                work.class_of(spec.priority_class),
                work.stages_of(no, spec.limits),
                payload,
            )
        )
    if len(work.new) >= BATCH:
        await work.make_executions()
    if rejected:
        await fail_steps(work, rejected)


async def _read_given_payloads(work: RunPass, step_nos: Sequence[int]) -> dict[int, str]:
    """Payloads that retries gave to these steps; they are taken as they are."""
    given = [no for no in step_nos if work.progress.rows[no].own_payload]
    if not given:
        return {}
    return await find_step_payloads(work.connection, work.run.tenant_no, work.run.id, given)


async def _make_payload(work: RunPass, step: StepSpec, values: Mapping[str, Value]) -> str | None:
    """None: the payload that the spec has. Raises Unresolved."""
    if step.payload is None:
        if not work.run.own_payload:
            return None
        return msgspec.json.encode(await read_payload(work)).decode()
    if not may_refer(step.payload):
        return None
    template = msgspec.json.decode(step.payload)
    named = find_steps_named(step.payload)
    found = {name: values[name]() for name in named if name in values}
    return check_size(msgspec.json.encode(resolve(template, found, await read_payload(work))))


def _portions(step_nos: Sequence[int]) -> Iterator[Sequence[int]]:
    return (step_nos[first : first + BATCH] for first in range(0, len(step_nos), BATCH))


def _shown(value: Value) -> dict[str, object]:
    """A step as a condition sees it."""
    found = value()
    return {"result": found.result} if found.count is None else {"result": found.result, "count": found.count}


@lru_cache(maxsize=1024)
def _compile_condition(condition: bytes) -> Pattern:
    return compile_pattern(msgspec.json.decode(condition))


@lru_cache(maxsize=1024)
def _names_of_condition(condition: bytes) -> frozenset[str]:
    """The steps whose results a condition looks at."""
    return frozenset(path[1] for path in _compile_condition(condition).paths() if path[0] == "steps" and len(path) > 1)
