"""What steps of a run left for those below them (W4, W7): results, counts and items of maps.

Only what a step names is read. A large result is in object storage and is read outside the transaction, because the
run's row is locked (`NeedsObjects`). A result that was cut cannot be used: the step that names it fails with a
sentence.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Raw

from ondot.document.rules import MAX_PAYLOAD_BYTES
from ondot.flow.output import open_result
from ondot.flow.workflows.attempts import StepAttempt
from ondot.flow.workflows.run_pass import RunPass, open_pass
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.target import GrpcTarget, HttpTarget, ShellTarget
from ondot.model.workflow.graph import Graph
from ondot.model.workflow.maps import PORTION
from ondot.model.workflow.spec import StepSpec
from ondot.model.workflow.states import StepState
from ondot.model.workflow.step_results import StepResults
from ondot.model.workflow.values import Reference, StepValue, Unresolved, find_references, may_refer
from ondot.ports.objects import Objects
from ondot.store.database import Database
from ondot.store.executions import find_payloads
from ondot.store.maps import MapRow, find_maps, list_items
from ondot.store.runs import read_run
from ondot.store.steps import StoredResult, find_results, find_results_of

MAX_VALUES: Final = 64 * 1024 * 1024
"""The results that a step names have at most this many bytes, all items of maps included."""
MAX_ABOVE: Final = 100
"""Steps whose results `ctx.results` has, nearest first."""
MAX_ABOVE_BYTES: Final = 16 * 1024 * 1024
_OBJECT: Final = '{"$object":'
_CUT: Final = '{"$cut":'

Value = Callable[[], StepValue]
"""Decodes what a step left, or raises Unresolved, when it is asked for."""


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


def find_wanted(payload: Raw | None) -> Mapping[str, bool]:
    """The steps that a payload names, and whether it needs more of them than their count."""
    return {} if payload is None or not may_refer(payload) else _find_wanted(bytes(payload))


@lru_cache(maxsize=4096)
def _find_wanted(payload: bytes) -> Mapping[str, bool]:
    wanted: dict[str, bool] = {}
    for _, reference in find_references(msgspec.json.decode(payload)):
        if isinstance(reference, Reference) and reference.step is not None:
            wanted[reference.step] = wanted.get(reference.step, False) or reference.part != "count"
    return wanted


def merge_wanted(payloads: Iterable[Raw | None]) -> dict[str, bool]:
    """The same for several payloads."""
    merged: dict[str, bool] = {}
    for payload in payloads:
        for name, needs_result in find_wanted(payload).items():
            merged[name] = merged.get(name, False) or needs_result
    return merged


def check_size(payload: bytes) -> str:
    """Raises Unresolved if it is larger than a payload may be."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise Unresolved(
            f"The payload has {len(payload):,} bytes once `$from` is filled in; at most {MAX_PAYLOAD_BYTES:,} are"
            " accepted. Refer to a part of the result, map over it, or read it from `ctx.results` in a function."
        )
    return payload.decode()


async def read_values(work: RunPass, wanted: Mapping[str, bool]) -> dict[str, Value]:
    """What these steps left. Raises NeedsObjects if some of it is in object storage and not read yet."""
    numbers = {work.graph.numbers[name]: name for name in wanted if name in work.graph.numbers}
    if not numbers:
        return {}
    run = work.run
    stored = await find_results(work.connection, run.id, list(numbers), work.database.clock.new_id(), run.results_from)
    mapped = [no for no in numbers if work.graph.steps[no].map is not None]
    maps = await find_maps(work.connection, run.tenant_no, run.id, mapped) if mapped else {}
    values: dict[str, Value] = {}
    large: list[ExecutionId] = []
    for entry in stored:
        name = numbers[entry.step_no]
        if entry.step_no in maps and not entry.is_own:
            try:
                texts, missing = await _read_items(work, maps[entry.step_no], name) if wanted[name] else ({}, [])
            except Unresolved as trouble:
                values[name] = partial(_refuse, trouble)
                continue
            values[name] = _value_of_map(work, entry, maps[entry.step_no], texts)
            large += missing
        else:
            values[name] = _value_of(work, entry, name)
            if (id_ := _find_object(work, entry)) is not None:
                large.append(id_)
    if large:
        raise NeedsObjects(run.tenant_no, large)
    return values


async def read_payload(work: RunPass) -> object:
    """The payload of the run: its own, or that of its job."""
    if work.payload is None:
        raw = bytes(work.spec.payload)
        if work.run.own_payload:
            raw = (await find_payloads(work.connection, [work.run.id])).get(work.run.id, b"null")
        work.payload = msgspec.json.decode(raw)
    return work.payload


async def read_results_of(work: RunPass, step: StepSpec, name: str, ids: Mapping[int, ExecutionId]) -> dict[int, Any]:
    """The results of items of a step, by their numbers; those that were cut are `Unresolved`."""
    texts = await find_results_of(work.connection, work.run.tenant_no, list(ids.values()))
    if missing := [id_ for id_ in ids.values() if _is_object(texts.get(id_)) and id_ not in work.objects]:
        raise NeedsObjects(work.run.tenant_no, missing)
    results: dict[int, Any] = {}
    for item_no, id_ in ids.items():
        try:
            results[item_no] = _decode(step, f"{name}[{item_no}]", work.objects.get(id_, texts.get(id_)))
        except Unresolved as trouble:
            results[item_no] = trouble
    return results


async def _read_items(work: RunPass, row: MapRow, name: str) -> tuple[dict[int, str | None], list[ExecutionId]]:
    """The results of the items that have succeeded, as text, and those that are in object storage and not read yet."""
    texts: dict[int, str | None] = {}
    missing: list[ExecutionId] = []
    size, after = 0, -1
    while True:
        items = await list_items(
            work.connection, work.run.tenant_no, work.run.id, row.step_no, after=after, limit=PORTION
        )
        ids = [item.execution_id for item in items if item.state == "SUCCEEDED" and item.execution_id is not None]
        found = await find_results_of(work.connection, work.run.tenant_no, ids) if ids else {}
        for item in items:
            if item.execution_id is None or item.state != "SUCCEEDED":
                continue
            text = work.objects.get(item.execution_id, found.get(item.execution_id))
            if _is_object(text) and item.execution_id not in work.objects:
                missing.append(item.execution_id)
                size += _size_of(text)
            texts[item.item_no] = text
            size += len(text or "")
        if size > MAX_VALUES:
            raise Unresolved(
                f"The items of `{name}` have more than {MAX_VALUES // 1024**2} MiB together, which is too much for one"
                " step. Refer to `count`, or let each item store its result elsewhere and return its address."
            )
        if len(items) < PORTION:
            return texts, missing
        after = items[-1].item_no


def _refuse(trouble: Unresolved) -> StepValue:
    raise trouble


def _value_of_map(work: RunPass, entry: StoredResult, row: MapRow, texts: Mapping[int, str | None]) -> Value:
    state = _state_of(work, entry)
    step, name = work.graph.steps[entry.step_no], work.graph.names[entry.step_no]

    @lru_cache(maxsize=1)
    def get() -> StepValue:
        if state is StepState.SKIPPED:
            return _default_of(step)
        items = [_decode(step, f"{name}[{no}]", texts.get(no)) for no in range(row.counts.total)] if texts else []
        return StepValue(items or [None] * row.counts.total, count=row.counts.succeeded)

    return get


def _value_of(work: RunPass, entry: StoredResult, name: str) -> Value:
    state, step = _state_of(work, entry), work.graph.steps[entry.step_no]

    @lru_cache(maxsize=1)
    def get() -> StepValue:
        if state is StepState.SKIPPED:
            return _default_of(step)
        if state is not StepState.SUCCEEDED:
            return StepValue(has_result=False)
        if entry.is_own:
            return _with_count(step, None if entry.result is None else msgspec.json.decode(entry.result))
        text = entry.result if entry.execution_id is None else work.objects.get(entry.execution_id, entry.result)
        return StepValue(_decode(step, name, text))

    return get


def _with_count(step: StepSpec, result: Any) -> StepValue:
    """A result that was set by hand: of a mapped step it is the list of its items."""
    if step.map is None or not isinstance(result, list):
        return StepValue(result)
    return StepValue(result, count=sum(item is not None for item in result))


def _default_of(step: StepSpec) -> StepValue:
    if step.default is None:
        return StepValue(has_result=False)
    return _with_count(step, msgspec.json.decode(step.default))


def _state_of(work: RunPass, entry: StoredResult) -> StepState:
    # Not only from the table: a step may have ended in this pass.
    row = work.progress.rows.get(entry.step_no)
    return entry.state if row is None else row.state


def _find_object(work: RunPass, entry: StoredResult) -> ExecutionId | None:
    """The execution whose result is in object storage and not read yet."""
    if entry.is_own or entry.execution_id is None or entry.execution_id in work.objects:
        return None
    return entry.execution_id if _is_object(entry.result) else None


def _is_object(text: str | None) -> bool:
    return text is not None and text.startswith(_OBJECT)


def _size_of(text: str | None) -> int:
    return int(msgspec.json.decode(text or "{}").get("$object", {}).get("bytes", 0))


def _decode(step: StepSpec, name: str, text: str | None) -> Any:
    """Raises Unresolved if the result was cut."""
    if text is None:
        return None
    value = msgspec.json.decode(text)
    if text.startswith(_CUT):
        raise Unresolved(f"The result of `{name}` was cut, because it could not be stored, and cannot be used.")
    if isinstance(step.target, HttpTarget | ShellTarget) and isinstance(value, dict) and "cut" in value:
        raise Unresolved(f"The result of `{name}` was cut ({value['cut']}), and cannot be used.")
    if isinstance(step.target, GrpcTarget) and isinstance(value, dict) and value.keys() == {"cut", "body"}:
        raise Unresolved(f"The result of `{name}` was cut ({value['cut']}), and cannot be used.")
    return value


async def read_for_attempt(
    database: Database, objects: Objects | None, step: StepAttempt, tenant_no: TenantNo
) -> StepResults:
    """The results of the steps above a step, nearest first, as `ctx.results` has them."""
    read: dict[ExecutionId, str] = {}
    while True:
        try:
            async with database.connection() as connection:
                run = await read_run(connection, tenant_no, step.run_id)
                work = None if run is None else await open_pass(database, connection, run, read)
                if work is None:
                    return StepResults()
                return await _results_above(work, step.step)
        except NeedsObjects as needs:
            read |= await read_objects(database, objects, needs)


async def _results_above(work: RunPass, step: str) -> StepResults:
    names, are_all = _nearest_above(work.graph, work.graph.numbers[step])
    values = await read_values(work, dict.fromkeys(names, True))
    texts: dict[str, str] = {}
    refused: dict[str, str] = {}
    left = MAX_ABOVE_BYTES
    for name, value in values.items():
        try:
            text = msgspec.json.encode(value().result).decode()
        except Unresolved as trouble:
            refused[name] = str(trouble)
            continue
        if len(text) > left:
            refused[name] = (
                f"The result of `{name}` has {len(text):,} characters, and those of all steps above may have "
                f"{MAX_ABOVE_BYTES:,}. Refer to the part that is needed in the payload of the step."
            )
            continue
        left -= len(text)
        texts[name] = text
    return StepResults(texts, refused, 0 if are_all else MAX_ABOVE)


def _nearest_above(graph: Graph, no: int) -> tuple[list[str], bool]:
    """The steps above one, nearest first and not more than are read, and whether these are all: the last step of ten
    thousand must not take longer than the first."""
    found = dict.fromkeys(graph.parents[no])
    ahead = deque(found)
    while ahead and len(found) <= MAX_ABOVE:
        for parent in graph.parents[ahead.popleft()]:
            if parent not in found:
                found[parent] = None
                ahead.append(parent)
    return [graph.names[parent] for parent in islice(found, MAX_ABOVE)], len(found) <= MAX_ABOVE
