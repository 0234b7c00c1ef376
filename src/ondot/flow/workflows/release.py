"""Release steps whose turn it is (W1, W4): judge `if`, fill in `{"$from": …}`, make their executions.

Results are read only for steps that name them. A large one is in object storage and is read outside the transaction,
because the run's row is locked (`NeedsObjects`). A step whose payload cannot be made fails with a sentence that names
the path and the step: it ends before it has an attempt, with a record in history and a dead letter.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from ondot.flow.output import open_result
from ondot.flow.workflows.run_pass import RunPass
from ondot.model.completion import encode_error
from ondot.model.execution import PriorityClass
from ondot.model.gates import Limits, encode_stages
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.outcome import AttemptError
from ondot.model.patterns import Pattern, compile_pattern
from ondot.model.target import FunctionTarget, HttpTarget, ShellTarget
from ondot.model.workflow.spec import StepSpec
from ondot.model.workflow.states import StepState
from ondot.model.workflow.step_spec import step_job_spec
from ondot.model.workflow.values import StepValue, Unresolved, find_steps_named, may_refer, resolve
from ondot.ports.objects import Objects
from ondot.store.database import Database
from ondot.store.executions import find_payloads
from ondot.store.steps import NewExecution, Rejected, StoredResult, find_results, reject_steps, release_steps
from ondot.telemetry.log import get_logger

BATCH: Final = 1_000
"""Executions made by one statement."""
_OBJECT: Final = '{"$object":'
_CUT: Final = '{"$cut":'

_Value = Callable[[], StepValue]
"""Decodes what a step left when it is asked for; raises Unresolved if it cannot be used."""

log = get_logger()


class NeedsObjects(Exception):
    """The pass needs results that are in object storage: it is rolled back and starts again with them."""

    def __init__(self, tenant_no: TenantNo, ids: Iterable[ExecutionId]) -> None:
        super().__init__()
        self.tenant_no = tenant_no
        self.ids = list(ids)


async def read_objects(database: Database, objects: Objects | None, needs: NeedsObjects) -> dict[ExecutionId, str]:
    """The whole results, as JSON text; raises Unavailable if storage does not answer."""
    found = {}
    for id_ in needs.ids:
        stored = await open_result(database, objects, needs.tenant_no, id_)
        found[id_] = b"".join([chunk async for chunk in stored.chunks]).decode()
    return found


async def judge_conditions(work: RunPass, step_nos: Sequence[int]) -> None:
    """Decide the `if` of steps whose rule is met."""
    for portion in _portions(step_nos):
        patterns = {no: _compile_condition(bytes(work.graph.steps[no].condition or b"{}")) for no in portion}
        named = {no: _names_of_condition(bytes(work.graph.steps[no].condition or b"{}")) for no in portion}
        values = await _read_values(work, {name for names in named.values() for name in names})
        payload = await _read_payload(work)
        for no, pattern in patterns.items():
            try:
                found = {name: {"result": values[name]().result} for name in named[no] if name in values}
            except Unresolved as trouble:
                await _reject(work, [(no, str(trouble))])
            else:
                work.progress.judge(no, is_met=pattern.matches({"payload": payload, "steps": found}))


async def release(work: RunPass, step_nos: Sequence[int]) -> None:
    """Make the executions of steps that are RELEASED now."""
    for portion in _portions([no for no in step_nos if is_call(work.graph.steps[no])]):
        await _release(work, portion)
    others = [no for no in step_nos if not is_call(work.graph.steps[no])]
    if others:
        await _reject(work, [(no, "This release of ondot cannot run steps of this kind.") for no in others])


async def _release(work: RunPass, step_nos: Sequence[int]) -> None:
    run = work.run
    specs = {no: step_job_spec(work.spec, no) for no in step_nos}
    pools = await work.database.pools.register(work.connection, {spec.pool for spec in specs.values()})
    values = await _read_values(
        work, {name for no in step_nos for name in find_steps_named(work.graph.steps[no].payload)}
    )
    new, rejected = [], []
    for no, id_ in zip(step_nos, work.database.clock.new_ids(len(step_nos)), strict=True):
        spec = specs[no]
        try:
            payload = await _make_payload(work, work.graph.steps[no], values)
        except Unresolved as trouble:
            rejected.append((no, str(trouble)))
            continue
        work.progress.rows[no].execution_id = id_
        work.released.add(no)
        new.append(
            NewExecution(
                ExecutionId(id_),
                no,
                pools[spec.pool],
                class_of_step(run.priority_class, spec.priority_class),
                stages_of_step(spec.limits, run.tenant_no, run.job_id, work.graph.names[no]),
                payload,
            )
        )
    if new:
        for pool_no, ready_at in (await release_steps(work.connection, run, new)).items():
            work.effects.wake(pool_no, ready_at)
    if rejected:
        await _reject(work, rejected)


async def _reject(work: RunPass, rejected: Sequence[tuple[int, str]]) -> None:
    """End steps that cannot be released."""
    run = work.run
    pools = await work.database.pools.register(work.connection, {work.spec.pool})
    entries = []
    for (no, message), id_ in zip(rejected, work.database.clock.new_ids(len(rejected)), strict=True):
        work.progress.rows[no].execution_id = id_
        work.released.add(no)
        work.progress.end(no, StepState.FAILED, message)
        error = encode_error(AttemptError("unresolved", message))
        entries.append(Rejected(ExecutionId(id_), no, pools[work.spec.pool], run.priority_class, error))
        log.warning("step.rejected", run_id=str(run.id), step=work.graph.names[no], error=message)
    await reject_steps(work.connection, run, entries)


def _portions(step_nos: Sequence[int]) -> Iterator[Sequence[int]]:
    return (step_nos[first : first + BATCH] for first in range(0, len(step_nos), BATCH))


def class_of_step(of_run: int, own: PriorityClass) -> int:
    """Work of a run that catches up does not come before work that is due now."""
    return int(PriorityClass.CATCH_UP if of_run == PriorityClass.CATCH_UP else own)


def stages_of_step(limits: Limits | None, tenant_no: TenantNo, job_id: JobId, name: str) -> str | None:
    """The gates of a step's executions: over all runs of the workflow, and separate from those of its runs."""
    return encode_stages(limits, tenant_no, f"{job_id}/{name}")


async def _make_payload(work: RunPass, step: StepSpec, values: Mapping[str, _Value]) -> str | None:
    """None: the payload that the spec has. Raises Unresolved."""
    if step.payload is None:
        if not work.run.own_payload:
            return None
        return msgspec.json.encode(await _read_payload(work)).decode()
    if not may_refer(step.payload):
        return None
    template = msgspec.json.decode(step.payload)
    named = find_steps_named(step.payload)
    found = {name: values[name]() for name in named if name in values}
    return msgspec.json.encode(resolve(template, found, await _read_payload(work))).decode()


async def _read_payload(work: RunPass) -> object:
    """The payload of the run: its own, or that of its job."""
    if work.payload is None:
        raw = bytes(work.spec.payload)
        if work.run.own_payload:
            raw = (await find_payloads(work.connection, [work.run.id])).get(work.run.id, b"null")
        work.payload = msgspec.json.decode(raw)
    return work.payload


async def _read_values(work: RunPass, names: Iterable[str]) -> dict[str, _Value]:
    """What these steps left. Raises NeedsObjects if some of it is in object storage and not read yet."""
    numbers = {work.graph.numbers[name]: name for name in names if name in work.graph.numbers}
    if not numbers:
        return {}
    # Not only from the table: a step may have ended in this pass.
    stored = await find_results(work.connection, work.run.id, list(numbers), work.database.clock.new_id())
    large = [
        entry.execution_id
        for entry in stored
        if not entry.is_own
        and entry.execution_id is not None
        and (entry.result or "").startswith(_OBJECT)
        and entry.execution_id not in work.objects
    ]
    if large:
        raise NeedsObjects(work.run.tenant_no, large)
    return {numbers[entry.step_no]: _value_of(work, entry, numbers[entry.step_no]) for entry in stored}


def _value_of(work: RunPass, entry: StoredResult, name: str) -> _Value:
    row = work.progress.rows.get(entry.step_no)
    state = entry.state if row is None else row.state

    @lru_cache(maxsize=1)
    def get() -> StepValue:
        if state is StepState.SKIPPED:
            default = work.graph.steps[entry.step_no].default
            return StepValue(msgspec.json.decode(default)) if default is not None else StepValue(has_result=False)
        if state is not StepState.SUCCEEDED:
            return StepValue(has_result=False)
        text = entry.result
        if not entry.is_own and text is not None and text.startswith(_CUT):
            raise Unresolved(f"The result of `{name}` was cut, because it could not be stored, and cannot be used.")
        if not entry.is_own and entry.execution_id is not None:
            text = work.objects.get(entry.execution_id, text)
        return StepValue(None if text is None else msgspec.json.decode(text))

    return get


@lru_cache(maxsize=1024)
def _compile_condition(condition: bytes) -> Pattern:
    return compile_pattern(msgspec.json.decode(condition))


@lru_cache(maxsize=1024)
def _names_of_condition(condition: bytes) -> frozenset[str]:
    """The steps whose results a condition looks at."""
    return frozenset(path[1] for path in _compile_condition(condition).paths() if path[0] == "steps" and len(path) > 1)


def is_call(step: StepSpec) -> bool:
    """Whether the step is one execution that calls a target."""
    return step.map is None and isinstance(step.target, HttpTarget | FunctionTarget | ShellTarget)
