"""Mapped steps, pass by pass (W7): windows, tolerance, items that follow each other, retries."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ondot.flow.lease import Assignment
from ondot.flow.workflows.begin import begin
from ondot.flow.workflows.repair import Wanted, repair_run
from ondot.flow.workflows.results import read_for_attempt
from ondot.model.ids import DEFAULT_TENANT, ExecutionId
from ondot.model.outcome import Report, Succeeded
from ondot.model.target import HttpTarget
from ondot.model.workflow.spec import MapSpec, StepSpec, Tolerate
from ondot.model.workflow.step_results import Results
from ondot.store.audit import By
from tests.flow.workflows import advance, run_state, start, step, step_of, step_states
from tests.proves import proves
from tests.world import Worker, World, failed


def over(value: object, **fields: Any) -> MapSpec:
    return MapSpec(over=Raw(msgspec.json.encode(value)), **fields)


def result(value: object) -> Succeeded:
    return Succeeded(msgspec.json.encode(value).decode())


def item_of(assignment: Assignment) -> int | None:
    assert assignment.step is not None
    return assignment.step.item_no


async def run_all(
    world: World,
    worker: Worker,
    run: ExecutionId,
    report: Callable[[str, int | None, Any], Report | None] = lambda _step, _item, _payload: None,
    slots: int = 1000,
) -> list[dict[str, int]]:
    """Run all that is released until nothing is; returns how many of each step ran in each round."""
    rounds = []
    while assignments := await worker.lease(slots):
        count: dict[str, int] = {}
        for assignment in assignments:
            count[step_of(assignment)] = count.get(step_of(assignment), 0) + 1
        rounds.append(count)
        by_report: list[tuple[Assignment, Report | None]] = [
            (assignment, report(step_of(assignment), item_of(assignment), msgspec.json.decode(assignment.payload)))
            for assignment in assignments
        ]
        for assignment, outcome in by_report:
            if outcome is not None:
                await worker.complete(assignment, outcome)
        if plain := [assignment for assignment, outcome in by_report if outcome is None]:
            await worker.complete_all(plain)
        await advance(world, run)
    return rounds


async def payloads_of(world: World, run: ExecutionId, step_no: int) -> list[Any]:
    rows = await world.fetch(
        "SELECT payload FROM ondot.history WHERE job_id = $1 AND step_no = $2 ORDER BY item_no, id", run, step_no
    )
    return [msgspec.json.decode(row["payload"]) if row["payload"] else None for row in rows]


async def letters(world: World) -> list[str]:
    rows = await world.fetch("SELECT error->>'message' AS message FROM ondot.dead_letter ORDER BY execution_id")
    return [row["message"] for row in rows]


@proves("W7")
@pytest.mark.parametrize("count", [0, 1, 7])
async def test_a_map_runs_once_for_each_item_and_the_next_step_reads_items_and_count(world: World, count: int) -> None:
    worker = await world.worker()
    steps = {
        "list": step(),
        "process": step("list", map=over({"$from": "list.result.files"})),
        "report": step("process", payload={"n": {"$from": "process.count"}, "all": {"$from": "process.items"}}),
    }
    files = [{"name": f"f{number}"} for number in range(count)]

    def report(name: str, item: int | None, payload: Any) -> Report | None:
        if name == "list":
            return result({"files": files})
        return result([item, payload]) if name == "process" else None

    run = await start(world, worker, steps)
    await run_all(world, worker, run, report)
    assert await step_states(world, run) == dict.fromkeys(steps, "SUCCEEDED")
    assert await run_state(world, run) == "SUCCEEDED"
    items = [[number, file] for number, file in enumerate(files)]
    assert await payloads_of(world, run, 2) == [{"n": count, "all": items}]
    assert await world.count("arrival") == await world.count("execution") == 0


@proves("W7")
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": 1}, "`map.over` of step 'process' must be a list, got an object."),
        (None, "`map.over` of step 'process' must be a list, got null."),
        ([0] * 100_001, "`map.over` of step 'process' has 100,001 items, and a map has 100,000 at most."),
    ],
)
async def test_a_value_that_cannot_be_mapped_fails_the_step_with_a_sentence(
    world: World, value: object, sentence: str
) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"list": step(), "process": step("list", map=over({"$from": "list.result"}))})
    await run_all(world, worker, run, lambda *_: result(value))
    assert await step_states(world, run) == {"list": "SUCCEEDED", "process": "FAILED"}
    assert await run_state(world, run) == "BLOCKED"
    [letter] = await letters(world)
    assert letter.startswith(sentence)


@proves("W7")
async def test_a_path_that_the_result_lacks_fails_the_step_and_not_the_run_in_silence(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"list": step(), "process": step("list", map=over({"$from": "list.result.x"}))})
    await run_all(world, worker, run, lambda *_: result({"y": []}))
    assert await step_states(world, run) == {"list": "SUCCEEDED", "process": "FAILED"}
    assert "has no `x`" in (await letters(world))[0]


@proves("W7")
async def test_concurrency_bounds_how_many_items_are_live_at_a_time(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"process": step(map=over(list(range(10)), concurrency=3))})
    assert await world.count("execution") == 1 + 3
    rounds = await run_all(world, worker, run)
    assert rounds == [{"process": 3}] * 3 + [{"process": 1}]
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W7")
async def test_a_long_list_is_made_in_a_window_and_never_stands_in_the_queue_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondot.model.workflow.maps.WINDOW", 300)
    worker = await world.worker()
    run = await start(world, worker, {"process": step(map=over(list(range(1_000))))})
    assert await world.count("ready") == 300
    rounds = await run_all(world, worker, run)
    assert sum(count["process"] for count in rounds) == 1_000
    assert max(count["process"] for count in rounds) == 300
    assert await payloads_of(world, run, 0) == list(range(1_000))


@proves("W7")
async def test_failures_within_tolerance_are_null_among_the_items_and_leave_no_letter(world: World) -> None:
    worker = await world.worker()
    steps = {
        "process": step(map=over(["a", "b", "c"], tolerate=Tolerate(count=1))),
        "report": step("process", payload=[{"$from": "process.items"}, {"$from": "process.count"}]),
    }
    run = await start(world, worker, steps)
    await run_all(
        world,
        worker,
        run,
        lambda name, item, payload: failed(retryable=False) if item == 1 else result(payload),
    )
    assert await run_state(world, run) == "SUCCEEDED"
    assert await payloads_of(world, run, 1) == [[["a", None, "c"], 2]]
    assert await letters(world) == []


@proves("W7")
async def test_failures_beyond_tolerance_fail_the_step_once_all_items_have_run_with_one_letter(world: World) -> None:
    worker = await world.worker()
    run = await start(
        world,
        worker,
        {"process": step(map=over(list(range(6)), tolerate=Tolerate(percent=20))), "end": step("process")},
    )
    await run_all(world, worker, run, lambda _name, item, _payload: failed(retryable=False) if item in {0, 3} else None)
    assert await step_states(world, run) == {"process": "FAILED", "end": "BLOCKED"}
    assert await letters(world) == ["2 of 6 items of step 'process' failed, and 1 may fail."]
    assert await payloads_of(world, run, 0) == [0, 1, 2, 3, 4, 5, None]


@proves("W7")
async def test_items_of_each_wait_only_for_their_own(world: World) -> None:
    worker = await world.worker()
    steps = {
        "process": step(map=over(["a", "b", "c"])),
        "upload": step("process", map=MapSpec(each="process")),
        "check": step("upload", map=MapSpec(each="upload"), payload={"i": {"$from": "index"}, "up": {"$from": "item"}}),
    }
    run = await start(world, worker, steps)
    first, second, third = await worker.lease(10)
    await worker.complete(second, result("B"))
    await advance(world, run)
    [upload] = await worker.lease(10)
    assert (step_of(upload), item_of(upload), upload.payload) == ("upload", 1, b'"B"')
    await worker.complete(upload, result("up"))
    await advance(world, run)
    [check] = await worker.lease(10)
    assert (step_of(check), item_of(check)) == ("check", 1)
    assert msgspec.json.decode(check.payload) == {"i": 1, "up": "up"}
    await worker.complete_all([first, third, check])
    await advance(world, run)
    await run_all(world, worker, run)
    assert await step_states(world, run) == dict.fromkeys(steps, "SUCCEEDED")
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W7")
@pytest.mark.parametrize(("may_fail", "states"), [(1, ["SUCCEEDED"] * 3), (0, ["FAILED", "BLOCKED", "BLOCKED"])])
async def test_the_successor_of_a_failed_item_is_skipped_within_tolerance_and_else_blocked(
    world: World, may_fail: int, states: list[str]
) -> None:
    worker = await world.worker()
    steps = {
        "process": step(map=over([1, 2, 3], tolerate=Tolerate(count=may_fail))),
        "upload": step("process", map=MapSpec(each="process")),
        "report": step("upload", payload={"$from": "upload.items"}),
    }
    run = await start(world, worker, steps)
    rounds = await run_all(
        world,
        worker,
        run,
        lambda name, item, _payload: (
            failed(retryable=False) if (name, item) == ("process", 1) else result(f"{name}{item}")
        ),
    )
    assert sum(count.get("upload", 0) for count in rounds) == 2
    assert list((await step_states(world, run)).values()) == states
    if may_fail:
        assert await payloads_of(world, run, 2) == [["upload0", None, "upload2"]]
    else:
        assert await run_state(world, run) == "BLOCKED"


@proves("W7")
async def test_a_step_that_is_skipped_under_each_skips_its_followers(world: World) -> None:
    worker = await world.worker()
    skipped: dict[str, StepSpec] = {
        "process": step(map=over([1]), condition={"payload": {"go": [True]}}),
        "upload": step("process", map=MapSpec(each="process")),
    }
    run = await start(world, worker, skipped)
    assert await step_states(world, run) == dict.fromkeys(skipped, "SKIPPED")


@proves("W7")
async def test_an_item_whose_payload_cannot_be_made_fails_alone(world: World) -> None:
    worker = await world.worker()
    steps = {
        "process": step(map=over([{"a": 1}, {"b": 2}], tolerate=Tolerate(count=1)), payload={"a": {"$from": "item.a"}})
    }
    run = await start(world, worker, steps)
    assert await run_all(world, worker, run) == [{"process": 1}]
    assert await run_state(world, run) == "SUCCEEDED"
    [error] = await world.fetch("SELECT error->>'message' AS m FROM ondot.history WHERE item_no = 1")
    assert "has no `a`" in error["m"]


@proves("W7")
async def test_advances_of_two_processes_at_once_make_every_item_once(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"process": step(map=over(list(range(60)), concurrency=10))})
    while assignments := await worker.lease(7):
        await worker.complete_all(assignments)
        await asyncio.gather(*(advance(world, run) for _ in range(4)))
    assert await run_state(world, run) == "SUCCEEDED"
    assert await payloads_of(world, run, 0) == list(range(60))


@proves("W7")
async def test_a_pause_stops_the_window_and_a_resume_goes_on(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"process": step(map=over(list(range(4)), concurrency=2))})
    await world.fetch("UPDATE ondot.run SET is_paused = true WHERE id = $1", run)
    assert await run_all(world, worker, run) == [{"process": 2}]
    await world.fetch("UPDATE ondot.run SET is_paused = false WHERE id = $1", run)
    await advance(world, run)
    assert await run_all(world, worker, run) == [{"process": 2}]
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W4", "W7")
async def test_a_function_gets_the_results_of_all_steps_above_it(world: World) -> None:
    worker = await world.worker()
    steps = {
        "list": step(),
        "process": step("list", map=over({"$from": "list.result"}, tolerate=Tolerate(count=1))),
        "report": step("process"),
    }
    run = await start(world, worker, steps)

    def report(name: str, item: int | None, _payload: Any) -> Report | None:
        if name == "list":
            return result(["a", "b"])
        return failed(retryable=False) if item == 0 else result(item)

    for _ in range(2):
        for assignment in await worker.lease():
            await worker.complete(assignment, report(step_of(assignment), item_of(assignment), None))
        await advance(world, run)
    [assignment] = await worker.lease()
    assert assignment.step is not None
    results = Results(await read_for_attempt(world.database, None, assignment.step, DEFAULT_TENANT))
    assert dict(results) == {"process": [None, 1], "list": ["a", "b"]}


@proves("W4")
async def test_a_result_that_was_cut_fails_the_step_that_reads_it_with_a_sentence(world: World) -> None:
    worker = await world.worker()
    steps = {
        "fetch": step(target=HttpTarget(url="https://example.com")),
        "use": step("fetch", payload={"body": {"$from": "fetch.result.body"}}),
        "plain": step("fetch"),
    }
    run = await start(world, worker, steps)
    cut = {"status": 200, "body": "xxx", "cut": "only the first 3 bytes of the answer are kept"}
    [assignment] = await worker.lease()
    assert assignment.step is not None
    assert assignment.step.is_read
    await worker.complete(assignment, result(cut))
    await advance(world, run)
    assert await step_states(world, run) == {"fetch": "SUCCEEDED", "use": "FAILED", "plain": "RELEASED"}
    assert await letters(world) == [
        "The result of `fetch` was cut (only the first 3 bytes of the answer are kept), and cannot be used."
    ]


@proves("W4")
async def test_a_payload_that_is_too_large_once_it_is_filled_in_fails_its_step(world: World) -> None:
    worker = await world.worker()
    steps = {"a": step(), "b": step("a", payload=[{"$from": "a.result"}] * 6)}
    run = await start(world, worker, steps)
    await run_all(world, worker, run, lambda *_: result("x" * 200_000))
    assert (await step_states(world, run))["b"] == "FAILED"
    assert (await letters(world))[0].startswith("The payload has 1,200,019 bytes once `$from` is filled in")


async def repair(world: World, run: ExecutionId, wanted: Wanted) -> None:
    await repair_run(
        world.database, world.dispatcher, DEFAULT_TENANT, run, wanted, by=By("ada"), render=lambda _: "done"
    )


async def resume(world: World, worker: Worker) -> None:
    """Lease the runs that wait for their slots, and resume them."""
    for assignment in await worker.lease():
        assert await begin(world.database, world.dispatcher, worker.id, assignment.leased) is True
        worker.completer.release(assignment.lease_id)


@proves("W7", "W3")
async def test_a_retry_runs_failed_items_only_and_the_items_that_follow_them(world: World) -> None:
    worker = await world.worker()
    steps = {
        "process": step(map=over(["a", "b", "c"])),
        "upload": step("process", map=MapSpec(each="process")),
        "report": step("upload", payload={"$from": "upload.items"}),
    }
    run = await start(world, worker, steps)
    await run_all(
        world,
        worker,
        run,
        lambda name, item, payload: failed(retryable=False) if (name, item) == ("process", 1) else result(payload),
    )
    assert await run_state(world, run) == "BLOCKED"
    await repair(world, run, Wanted("retry"))
    await resume(world, worker)
    rounds = await run_all(world, worker, run, lambda _name, _item, payload: result(payload))
    assert rounds == [{"process": 1}, {"upload": 1}, {"report": 1}]
    assert await run_state(world, run) == "SUCCEEDED"
    assert await payloads_of(world, run, 2) == [["a", "b", "c"]]


@proves("W7", "W3")
async def test_a_retry_from_a_step_maps_its_new_list_from_scratch(world: World) -> None:
    worker = await world.worker()
    steps = {"list": step(), "process": step("list", map=over({"$from": "list.result"})), "end": step("process")}
    run = await start(world, worker, steps)

    def report(files: list[str], fails: bool) -> Callable[[str, int | None, Any], Report | None]:
        def find(name: str, _item: int | None, _payload: Any) -> Report | None:
            if name == "list":
                return result(files)
            return failed(retryable=False) if name == "end" and fails else None

        return find

    await run_all(world, worker, run, report(["a", "b", "c"], fails=True))
    assert await run_state(world, run) == "BLOCKED"
    await repair(world, run, Wanted("from", ("list",)))
    await resume(world, worker)
    assert await run_all(world, worker, run, report(["x"], fails=False)) == [{"list": 1}, {"process": 1}, {"end": 1}]
    assert await run_state(world, run) == "SUCCEEDED"
