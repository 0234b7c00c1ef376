"""Mapped steps of a run (W7): one execution for each item, made in a moving window.

`start_map` stores the list in portions and makes the first items; `fold_items` counts items that have ended, and
`go_on_with_maps` makes the next ones and ends maps that are done. The cursor moves in the transaction that makes the
executions, so that a crash makes no item twice and leaves none out. A pass reads only the portions of its window.

A step with `each` is released as soon as the step that it names has started and its other parents have succeeded. Its
items wait for those of that step, one by one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw

from ondot.flow.workflows.children import insert_children
from ondot.flow.workflows.fail import Rejection, fail_items, fail_steps
from ondot.flow.workflows.results import check_size, find_wanted, read_payload, read_results_of, read_values
from ondot.flow.workflows.run_pass import RunPass
from ondot.model.ids import ExecutionId
from ondot.model.workflow.maps import (
    PORTION,
    MapCounts,
    NotMappable,
    describe_failures,
    judge,
    judge_each,
    read_list,
    room,
    split,
)
from ondot.model.workflow.progress import Arrival
from ondot.model.workflow.repair import Change, Repair
from ondot.model.workflow.spec import MapSpec, StepSpec, SubWorkflow
from ondot.model.workflow.states import StepState
from ondot.model.workflow.step_spec import step_job_spec
from ondot.model.workflow.values import Item, StepValue, Unresolved, may_refer, resolve
from ondot.store.maps import (
    Added,
    MapRow,
    change_counts,
    end_items,
    find_item_executions,
    find_maps,
    find_waiting_items,
    forget_maps,
    insert_maps,
    insert_portions,
    make_items,
    offer_items,
    open_map,
    read_portions,
    reset_failed_items,
)
from ondot.store.passes import NewExecution, write_pass


async def start_map(work: RunPass, no: int) -> None:
    """Start a mapped step that is RELEASED now, or go on with it after a retry."""
    run, step = work.run, work.graph.steps[no]
    work.progress.rows[no].execution_id = work.database.clock.new_id()
    work.released.add(no)
    known = await find_maps(work.connection, run.tenant_no, run.id, [no])
    if no not in known:
        try:
            items = read_list(work.graph.names[no], await _read_over(work, step))
        except (NotMappable, Unresolved) as trouble:
            await fail_steps(work, [Rejection(no, str(trouble))])
            return
        await _insert_list(work, no, items)
    await open_map(work.connection, run.tenant_no, run.id, no)
    await go_on_with_maps(work, [no])
    work.progress.consider(work.graph.find_followers(no))


async def fold_items(work: RunPass, arrivals: Iterable[Arrival]) -> None:
    """Count items that have ended, and offer them to the steps that follow item by item."""
    run = work.run
    items = [
        (arrival.step_no, arrival.item_no, ExecutionId(arrival.execution_id), _item_state(arrival.state))
        for arrival in arrivals
        if arrival.item_no is not None
    ]
    if not items:
        return
    ends = await end_items(work.connection, run.tenant_no, run.id, items)
    work.progress.superseded += len(items) - len(ends)
    added: dict[int, Added] = {}
    succeeded: dict[int, list[int]] = {}
    for end in ends:
        added[end.step_no] = _add(added.get(end.step_no, Added()), end.before, end.after)
        if end.after == "SUCCEEDED":
            succeeded.setdefault(end.step_no, []).append(end.item_no)
    for no, item_nos in succeeded.items():
        for child in work.graph.find_followers(no):
            count = await offer_items(work.connection, run.tenant_no, run.id, child, sorted(item_nos))
            before = added.get(child, Added())
            added[child] = replace(before, waiting=before.waiting + count)
    if added:
        await change_counts(work.connection, run.tenant_no, run.id, added)


async def go_on_with_maps(work: RunPass, step_nos: Iterable[int] | None = None) -> None:
    """Make items where there is room, and end maps that are done: of these steps, or of all."""
    numbers = work.graph.mapped if step_nos is None else sorted(step_nos)
    if not numbers:
        return
    wanted = {no for no in numbers if work.graph.steps[no].map is not None}
    before = {parent for no in wanted if (parent := work.graph.find_each(no)) is not None}
    run = work.run
    maps = await find_maps(work.connection, run.tenant_no, run.id, sorted(wanted | before))
    await work.load((wanted | before) & maps.keys())
    for no in (no for no in work.graph.order if no in wanted and no in maps):
        if work.progress.rows[no].state is not StepState.RELEASED or not maps[no].is_open:
            continue
        if work.progress.is_ending and not work.graph.steps[no].is_final:
            # Its run ends: what runs was asked to end, and nothing more is made.
            if not maps[no].counts.active:
                work.progress.end(no, StepState.CANCELLED, run.reason)
            continue
        if work.may_release:
            maps[no] = await _fill(work, maps[no])
        await _end_if_done(work, no, maps)


async def reset_maps(work: RunPass, plan: Repair, start: Iterable[int], change: Change) -> None:
    """Before a repair. A retry runs the failed items of the steps that it starts with, and of those that follow them
    item by item; other maps that are decided again start from scratch."""
    run, graph = work.run, work.graph
    kept: set[int] = set()
    if change == "retry":
        for no in graph.mapped:
            if no in plan.again and (no in start or graph.find_each(no) in kept):
                kept.add(no)
    changed = [no for no in graph.mapped if no in plan.again or no in plan.set_by_hand]
    if again := sorted(kept):
        await reset_failed_items(work.connection, run.tenant_no, run.id, again)
    if forgotten := [no for no in changed if no not in kept]:
        await forget_maps(work.connection, run.tenant_no, run.id, forgotten)


async def _end_if_done(work: RunPass, no: int, maps: Mapping[int, MapRow]) -> None:
    row, parent = maps[no], work.graph.find_each(no)
    spec = _map_of(work, no)
    tolerate = row.tolerate or spec.tolerate
    if parent is not None and parent in maps:
        state = work.progress.rows[parent].state
        ended = None if state in {StepState.WAITING, StepState.RELEASED} else state
        end = judge_each(row.counts, tolerate, maps[parent].counts, ended)
    else:
        end = judge(row.counts, tolerate)
    match end:
        case "SUCCEEDED":
            work.progress.end(no, StepState.SUCCEEDED)
        case "FAILED":
            message = describe_failures(work.graph.names[no], row.counts, tolerate)
            await fail_steps(work, [Rejection(no, message, "items_failed")])
        case "BLOCKED":
            work.progress.end(no, StepState.BLOCKED, f"items of `{spec.each}` failed")
        case None:
            pass


async def _fill(work: RunPass, row: MapRow) -> MapRow:
    """Make items until the window is full; returns the map as it is then."""
    run, no = work.run, row.step_no
    counts = row.counts
    left = room(counts, _concurrency(work, row))
    while left > 0:
        waiting: Sequence[int] = ()
        if counts.waiting:
            waiting = await find_waiting_items(work.connection, run.tenant_no, run.id, no, min(left, PORTION))
        # Within one portion of the list.
        fresh = range(counts.cursor, min(counts.total, counts.cursor + min(left, PORTION - counts.cursor % PORTION)))
        item_nos = waiting or list(fresh)
        if not item_nos:
            break
        made, failed = await _make(work, no, item_nos)
        added = Added(
            cursor=0 if waiting else len(item_nos),
            waiting=-len(item_nos) if waiting else 0,
            active=made,
            failed=failed,
        )
        await change_counts(work.connection, run.tenant_no, run.id, {no: added})
        counts = _plus(counts, added)
        left -= made
    return MapRow(no, counts, row.concurrency, row.tolerate, row.is_open)


async def _make(work: RunPass, no: int, item_nos: Sequence[int]) -> tuple[int, int]:
    """Make the executions of these items; returns how many were made, and how many failed because they cannot be."""
    run, step = work.run, work.graph.steps[no]
    payloads, refused = await _make_payloads(work, no, item_nos)
    ids = dict(zip(item_nos, map(ExecutionId, work.database.clock.new_ids(len(item_nos))), strict=True))
    await make_items(work.connection, run.tenant_no, run.id, no, ids)
    made = {item_no: id_ for item_no, id_ in ids.items() if item_no in payloads}
    if isinstance(step.target, SubWorkflow):
        runs = {id_: (item_no, payloads[item_no]) for item_no, id_ in made.items()}
        if why := await insert_children(work, no, step.target, runs):
            refused |= dict.fromkeys(made, why)
    elif made:
        await _insert_executions(work, no, made, payloads)
    if refused:
        await fail_items(work, no, {ids[item_no]: (item_no, why) for item_no, why in refused.items()})
        ends = [(no, item_no, ids[item_no], "FAILED") for item_no in refused]
        await end_items(work.connection, run.tenant_no, run.id, ends)
    return len(item_nos) - len(refused), len(refused)


async def _insert_executions(
    work: RunPass, no: int, made: Mapping[int, ExecutionId], payloads: Mapping[int, str | None]
) -> None:
    run, spec = work.run, step_job_spec(work.spec, no)
    pools = await work.database.pools.register(work.connection, {spec.pool})
    stages, priority_class = work.stages_of(no, spec.limits), work.class_of(spec.priority_class)
    new = [
        NewExecution(id_, no, pools[spec.pool], priority_class, stages, payloads[item_no], item_no)
        for item_no, id_ in made.items()
    ]
    work.effects.wake_all(await write_pass(work.connection, executions=[(run, execution) for execution in new]))


async def _make_payloads(
    work: RunPass, no: int, item_nos: Sequence[int]
) -> tuple[dict[int, str | None], dict[int, str]]:
    """The payloads of items, None for that of the spec; and why some have none."""
    step = work.graph.steps[no]
    items = await _read_item_values(work, no, item_nos)
    payloads: dict[int, str | None] = {}
    refused: dict[int, str] = {item_no: str(value) for item_no, value in items.items() if isinstance(value, Unresolved)}
    if step.payload is not None and not may_refer(step.payload):
        return {item_no: None for item_no in item_nos if item_no not in refused}, refused
    each = _map_of(work, no).each
    wanted = {name: needs for name, needs in find_wanted(step.payload).items() if name != each}
    values = await read_values(work, wanted)
    payload = await read_payload(work) if step.payload is not None else None
    template = None if step.payload is None else msgspec.json.decode(step.payload)
    for item_no in (item_no for item_no in item_nos if item_no not in refused):
        value = items[item_no]
        try:
            if template is None:
                text = bytes(value) if isinstance(value, Raw) else msgspec.json.encode(value)
            else:
                plain = msgspec.json.decode(value) if isinstance(value, Raw) else value
                found = {name: get() for name, get in values.items()}
                if each is not None:
                    found[each] = StepValue(plain)
                text = msgspec.json.encode(resolve(template, found, payload, Item(item_no, plain)))
            payloads[item_no] = check_size(text)
        except Unresolved as trouble:
            refused[item_no] = str(trouble)
    return payloads, refused


async def _read_item_values(work: RunPass, no: int, item_nos: Sequence[int]) -> dict[int, Any]:
    """The items: of the list, as JSON; or, with `each`, the results of the items of the step before."""
    run = work.run
    parent = work.graph.find_each(no)
    firsts = sorted({item_no - item_no % PORTION for item_no in item_nos})
    portions = await read_portions(work.connection, run.tenant_no, run.id, no, firsts)
    if portions or parent is None:
        return {item_no: portions[item_no - item_no % PORTION][item_no % PORTION] for item_no in item_nos}
    ids = await find_item_executions(work.connection, run.tenant_no, run.id, parent, item_nos)
    return await read_results_of(work, work.graph.steps[parent], work.graph.names[parent], ids)


async def _read_over(work: RunPass, step: StepSpec) -> Any:
    """The value under `over`; with `each`, the result of the step before, if that has no items: it was set by hand."""
    assert step.map is not None
    over = step.map.over
    if over is None:
        over = Raw(msgspec.json.encode({"$from": f"{step.map.each}.result"}))
    values = await read_values(work, find_wanted(over))
    found = {name: get() for name, get in values.items()}
    return resolve(msgspec.json.decode(over), found, await read_payload(work))


async def _insert_list(work: RunPass, no: int, items: Sequence[object]) -> None:
    """The map, its list in portions, and the maps of the steps that follow item by item."""
    run = work.run
    totals = {no: len(items)}
    ahead = [no]
    while ahead:
        for child in work.graph.find_followers(ahead.pop()):
            totals[child] = len(items)
            ahead.append(child)
    await insert_maps(work.connection, run.tenant_no, run.id, totals, with_cursor=no)
    portions = ((first, msgspec.json.encode(portion).decode()) for first, portion in split(items))
    while batch := dict(islice(portions, 10)):
        await insert_portions(work.connection, run.tenant_no, run.id, no, batch)


def _map_of(work: RunPass, no: int) -> MapSpec:
    spec = work.graph.steps[no].map
    assert spec is not None
    return spec


def _concurrency(work: RunPass, row: MapRow) -> int | None:
    return row.concurrency or _map_of(work, row.step_no).concurrency


def _item_state(state: str) -> str:
    """SKIPPED and CANCELLED count as failed: the item has no result. RUNNING: a child that goes on."""
    match state:
        case "SUCCEEDED" | "BLOCKED":
            return state
        case "RUNNING":
            return "RELEASED"
        case _:
            return "FAILED"


def _add(added: Added, before: str, after: str) -> Added:
    stuck = (after == "BLOCKED") - (before == "BLOCKED")
    has_ended = after not in {"BLOCKED", "RELEASED"}
    return replace(
        added,
        active=added.active - has_ended,
        stuck=added.stuck + stuck,
        succeeded=added.succeeded + (after == "SUCCEEDED"),
        failed=added.failed + (after == "FAILED"),
    )


def _plus(counts: MapCounts, added: Added) -> MapCounts:
    return msgspec.structs.replace(
        counts,
        cursor=counts.cursor + added.cursor,
        waiting=counts.waiting + added.waiting,
        active=counts.active + added.active,
        failed=counts.failed + added.failed,
    )
