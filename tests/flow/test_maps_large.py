"""Maps of a thousand and of a hundred thousand items, and faults in the middle of a window (W7)."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ondot.model.ids import ExecutionId
from ondot.model.outcome import Succeeded
from ondot.model.workflow.maps import WINDOW
from ondot.model.workflow.spec import MapSpec, Tolerate
from ondot.store import maps as stored
from tests.flow.workflows import advance, run_state, start, step, step_states
from tests.proves import proves
from tests.world import Worker, World, failed


async def run_rounds(world: World, worker: Worker, run: ExecutionId, failing: frozenset[int] = frozenset()) -> int:
    """Run all items in batches of 1,000; returns the most that were live at a time."""
    most = 0
    while assignments := await worker.lease(1_000):
        most = max(most, await world.count("execution"))
        bad = [one for one in assignments if one.step is not None and one.step.item_no in failing]
        good = [one for one in assignments if one not in bad]
        for one in bad:
            await worker.complete(one, failed(retryable=False))
        if good:
            await worker.complete_all(good)
        await advance(world, run)
    return most


async def check_once(world: World, run: ExecutionId, count: int) -> None:
    [row] = await world.fetch(
        "SELECT count(*) AS made, count(DISTINCT item_no) AS items, min(item_no) AS first, max(item_no) AS last"
        " FROM ondot.history WHERE job_id = $1 AND item_no IS NOT NULL",
        run,
    )
    assert tuple(row) == (count, count, 0, count - 1)


@proves("W7")
@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
async def test_every_item_of_a_long_list_runs_once(world: World, count: int) -> None:
    worker = await world.worker()
    steps = {
        "list": step(),
        "process": step(
            "list", map=MapSpec(over=Raw(b'{"$from":"list.result"}'), tolerate=Tolerate(count=3)), payload={"i": 1}
        ),
        "upload": step("process", map=MapSpec(each="process"), payload={"i": {"$from": "index"}}),
        "report": step("upload", payload={"n": {"$from": "upload.count"}}),
    }
    run = await start(world, worker, steps)
    [assignment] = await worker.lease()
    await worker.complete(assignment, Succeeded(msgspec.json.encode(list(range(count))).decode()))
    await advance(world, run)
    most = await run_rounds(world, worker, run, frozenset({7, 500}))
    assert most <= 2 * WINDOW + 1
    assert await run_state(world, run) == "SUCCEEDED"
    assert await world.value("SELECT payload->>'n' FROM ondot.history WHERE job_id = $1 AND step_no = 3", run) == str(
        count - 2
    )
    assert await world.count("execution") == await world.count("arrival") == await world.count("ready") == 0


@proves("W7")
async def test_a_crash_in_the_middle_of_a_window_makes_no_item_twice_and_leaves_none_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await world.worker()
    run = await start(
        world,
        worker,
        {"process": step(map=MapSpec(over=Raw(msgspec.json.encode(list(range(3_000)))), concurrency=1_500))},
    )
    calls = 0
    change = stored.change_counts

    async def crash(*values: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 2 == 0:
            raise RuntimeError("the process was killed")
        await change(*values)

    monkeypatch.setattr("ondot.flow.workflows.maps.change_counts", crash)
    crashes = 0
    while assignments := await worker.lease(700):
        await worker.complete_all(assignments)
        for _ in range(10):
            try:
                await advance(world, run)
            except RuntimeError:
                crashes += 1
            else:
                break
    monkeypatch.undo()
    await advance(world, run)
    await run_rounds(world, worker, run)
    assert crashes > 2
    await check_once(world, run, 3_000)
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W7")
async def test_tolerance_that_is_changed_in_the_middle_decides_at_the_end(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"process": step(map=MapSpec(over=Raw(b"[1,2,3,4]"), concurrency=2))})
    first, second = await worker.lease()
    await worker.complete(first, failed(retryable=False))
    await worker.complete(second)
    await advance(world, run)
    await world.fetch("UPDATE ondot.mapped SET tolerate_percent = 25 WHERE run_id = $1", run)
    await run_rounds(world, worker, run)
    assert await step_states(world, run) == {"process": "SUCCEEDED"}
