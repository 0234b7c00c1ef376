"""Reruns of ended runs, and repairs by the latest version of a workflow, pass by pass (W8)."""

from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
import pytest

from ondot.flow.change.change import delete
from ondot.flow.gate import skip_queued
from ondot.flow.idempotency import Idempotency
from ondot.flow.workflows.control import cancel_run, give_up_run
from ondot.flow.workflows.repair import Repaired, Wanted
from ondot.flow.workflows.rerun import rerun
from ondot.model.errors import Conflict, NotFound
from ondot.model.execution import State
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId, TenantNo
from ondot.model.target import FunctionTarget
from ondot.model.workflow.spec import MapSpec, StepSpec
from ondot.store.audit import By, list_audit
from ondot.store.run_reads import get_run, list_repairs
from tests.flow.test_maps import over, result, run_all
from tests.flow.test_repair import repair, resume
from tests.flow.workflows import advance, keep_house, run_state, run_steps, start, step, step_of, step_states, workflow
from tests.proves import proves
from tests.world import Worker, World, every, failed, job

BY = By("ann", "the disk is back")
BROKEN = failed(retryable=False)
CHAIN = {"a": step(), "b": step("a"), "c": step("b"), "other": step()}


async def again(
    world: World, run: ExecutionId, *steps: str, change: str = "retry", tenant_no: TenantNo = DEFAULT_TENANT, **how: Any
) -> Repaired:
    done: list[Repaired] = []
    idempotency = how.pop("idempotency", None)

    def render(repaired: Repaired) -> str:
        done.append(repaired)
        return "{}"

    await rerun(
        world.database,
        world.dispatcher,
        tenant_no,
        run,
        Wanted(change=change, steps=steps or None, **how),  # type: ignore[arg-type]
        by=BY,
        render=render,
        idempotency=idempotency,
    )
    return done[0]


async def given_up(world: World, worker: Worker, steps: Mapping[str, StepSpec] = CHAIN, **fields: Any) -> ExecutionId:
    """A run of a workflow that recurs, whose step b failed, and that a person gave up."""
    spec = job("flow", target=workflow(steps), schedule=every(86_400, world.after(3600)), **fields)
    run = await world.run_now((await world.submit(spec)).id)
    await resume(world, worker, run)
    await run_all(world, worker, run, lambda name, _, __: BROKEN if name == "b" else result({"from": name}))
    await give_up_run(world.database, world.dispatcher, DEFAULT_TENANT, run, by=BY)
    await run_all(world, worker, run)
    assert await run_state(world, run) == "FAILED"
    return run


async def update(world: World, run: ExecutionId, steps: Mapping[str, StepSpec]) -> JobId:
    """Another version of the run's workflow."""
    job_id = JobId(await world.value("SELECT job_id FROM ondot.run WHERE id = $1", run))
    spec = (await world.job(job_id)).spec
    await world.update(job_id, msgspec.structs.replace(spec, target=workflow(steps)))
    return job_id


@proves("W8")
async def test_a_rerun_runs_what_failed_and_takes_over_the_rest(world: World) -> None:
    worker = await world.worker()
    run = await given_up(world, worker)
    done = await again(world, run)
    assert (done.named, done.again, done.state, done.rerun_of) == (("b",), ("b", "c"), "PENDING", run)
    assert (await world.execution(done.run_id)).origin == "run"
    await resume(world, worker, done.run_id)
    assert await run_steps(world, worker, done.run_id) == [["b"], ["c"]]
    assert await run_state(world, done.run_id) == "SUCCEEDED"
    assert (await world.execution(done.run_id)).state is State.SUCCEEDED
    assert await run_state(world, run) == "FAILED", "it stays as it is"
    async with world.database.connection() as connection:
        shown = await get_run(connection, DEFAULT_TENANT, done.run_id)
        [repaired] = await list_repairs(connection, DEFAULT_TENANT, done.run_id)
        [entry] = await list_audit(connection, DEFAULT_TENANT, limit=5, action="run.rerun")
    assert shown is not None
    assert (shown.rerun_of, shown.succeeded, shown.waiting) == (run, 4, 0)
    assert (repaired.action, repaired.reason) == ("rerun", "the disk is back")
    assert entry.before == {"state": "FAILED", "steps": {"b": "FAILED", "c": "BLOCKED"}}
    assert entry.after["run_id"] == str(done.run_id)


@proves("W8", "W4")
async def test_results_are_read_from_the_run_before_also_through_two_reruns(world: World) -> None:
    worker = await world.worker()
    steps = {"a": step(), "b": step("a", payload={"x": {"$from": "a.result.from"}}), "c": step("b")}
    run = await given_up(world, worker, steps)
    for _ in range(2):
        run = (await again(world, run)).run_id
        await resume(world, worker, run)
        [b] = await worker.lease()
        assert (step_of(b), msgspec.json.decode(b.payload)) == ("b", {"x": "a"})
        await worker.complete(b, BROKEN)
        await advance(world, run)
        await give_up_run(world.database, world.dispatcher, DEFAULT_TENANT, run, by=BY)
    assert await world.value("SELECT results_from < rerun_of FROM ondot.run WHERE id = $1", run)


@proves("W8")
async def test_a_run_in_which_nothing_failed_runs_again_as_a_whole_with_its_payload(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN, payload=msgspec.Raw(b'{"day":1}'))
    await run_steps(world, worker, run)
    done = await again(world, run)
    assert done.again == ("a", "b", "c", "other")
    await resume(world, worker, done.run_id)
    assert await run_steps(world, worker, done.run_id) == [["a", "other"], ["b"], ["c"]]
    assert await run_state(world, done.run_id) == "SUCCEEDED"


@proves("W8")
async def test_finally_steps_run_again_and_named_steps_with_all_below_them(world: World) -> None:
    worker = await world.worker()
    steps = CHAIN | {"clean": step("c", is_final=True, when="ended")}
    run = await start(world, worker, steps)
    await run_steps(world, worker, run)
    done = await again(world, run, "b", change="from", payload='{"n": 7}')
    assert done.again == ("b", "c")
    await resume(world, worker, done.run_id)
    [b] = await worker.lease()
    assert (step_of(b), msgspec.json.decode(b.payload)) == ("b", {"n": 7})
    await worker.complete(b)
    await advance(world, done.run_id)
    assert await run_steps(world, worker, done.run_id) == [["c"], ["clean"]]
    assert await run_state(world, done.run_id) == "SUCCEEDED"


@proves("W8", "W7")
async def test_a_map_takes_over_its_items_and_runs_the_failed_ones(world: World) -> None:
    worker = await world.worker()
    steps = {
        "a": step(map=over([10, 20, 30])),
        "b": step("a", map=over([1, 2, 3])),
        "c": step("b", payload={"a": {"$from": "a.items"}, "b": {"$from": "b.items"}, "n": {"$from": "b.count"}}),
    }
    run = await start(world, worker, steps)
    await run_all(world, worker, run, lambda name, no, value: BROKEN if (name, no) == ("b", 1) else result(value))
    await give_up_run(world.database, world.dispatcher, DEFAULT_TENANT, run, by=BY)
    done = await again(world, run)
    await resume(world, worker, done.run_id)
    seen: list[Any] = []

    def report(name: str, _: int | None, value: Any) -> Any:
        seen.append((name, value))
        return result(value)

    assert await run_all(world, worker, done.run_id, report) == [{"b": 1}, {"c": 1}]
    assert seen == [("b", 2), ("c", {"a": [10, 20, 30], "b": [1, 2, 3], "n": 3})]
    assert await run_state(world, done.run_id) == "SUCCEEDED"


@proves("W8", "W7")
async def test_items_that_follow_items_read_those_of_the_run_before(world: World) -> None:
    worker = await world.worker()
    steps = {"a": step(map=over([1, 2])), "b": step("a", map=MapSpec(each="a"))}
    run = await start(world, worker, steps)
    await run_all(world, worker, run, lambda _, __, value: result(value * 10))
    done = await again(world, run, "b", change="from")
    await resume(world, worker, done.run_id)
    seen: list[Any] = []

    def report(_: str, __: int | None, value: Any) -> Any:
        seen.append(value)
        return result(value)

    await run_all(world, worker, done.run_id, report)
    assert sorted(seen) == [10, 20]
    assert await run_state(world, done.run_id) == "SUCCEEDED"


@proves("W8", "P3")
async def test_a_rerun_waits_for_the_slot_of_its_job(world: World) -> None:
    worker = await world.worker()
    limits = Limits(key="disk", key_concurrency=1)
    run = await given_up(world, worker, limits=limits)
    other = await start(world, worker, CHAIN, limits=limits)
    done = await again(world, run)
    assert {step_of(assignment) for assignment in await worker.lease()} == {"a", "other"}, "of the other run"
    await cancel_run(world.database, world.dispatcher, DEFAULT_TENANT, other, by=BY)
    assert (await world.execution(done.run_id)).state is State.PENDING


@proves("W8", "E8")
@pytest.mark.parametrize("by_execution", [True, False])
async def test_a_rerun_that_is_cancelled_in_the_queue_ends_and_runs_nothing(world: World, by_execution: bool) -> None:
    from ondot.flow.cancel import cancel

    worker = await world.worker()
    run = await given_up(world, worker, CHAIN | {"clean": step("c", is_final=True, when="ended")})
    done = await again(world, run)
    if by_execution:
        await cancel(world.database, world.dispatcher, DEFAULT_TENANT, done.run_id, by=BY)
        await advance(world, done.run_id)
    else:
        await cancel_run(world.database, world.dispatcher, DEFAULT_TENANT, done.run_id, by=BY)
    assert await run_state(world, done.run_id) == "CANCELLED"
    assert (await world.execution(done.run_id)).state is State.CANCELLED
    assert await worker.lease() == []
    states = await step_states(world, done.run_id)
    assert (states["a"], states["b"], states["c"], states["clean"]) == ("SUCCEEDED", *["CANCELLED"] * 3)
    assert await world.value("SELECT count(*) FROM ondot.arrival") == 0
    assert await world.value("SELECT superseded FROM ondot.run WHERE id = $1", done.run_id) == 0


@proves("W8")
async def test_a_rerun_that_cannot_start_in_time_ends(world: World) -> None:
    worker = await world.worker()
    run = await given_up(world, worker)
    done = await again(world, run)
    assert await skip_queued(world.database, [done.run_id], "expired") == 1
    await world.advance(2)
    await keep_house(world)
    assert (await world.execution(done.run_id)).state is State.SKIPPED
    assert await run_state(world, done.run_id) == "CANCELLED"


@proves("W8")
async def test_what_cannot_run_again_is_refused_in_words(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    with pytest.raises(Conflict, match=r"has not ended.*retry"):
        await again(world, run)
    await run_steps(world, worker, run)
    with pytest.raises(Conflict, match=r"'a' has succeeded.*from"):
        await again(world, run, "a")
    with pytest.raises(NotFound):
        await again(world, run, tenant_no=TenantNo(77))
    with pytest.raises(NotFound, match="removed"):
        await again(world, ExecutionId(world.database.clock.new_id()))
    dry = await again(world, run, dry_run=True)
    assert (dry.run_id, dry.repair_id) == (run, None)
    assert await world.value("SELECT count(*) FROM ondot.run") == 1
    run = await given_up(world, worker)
    job_id = JobId(await world.value("SELECT job_id FROM ondot.run WHERE id = $1", run))
    await delete(world.database, DEFAULT_TENANT, job_id)
    with pytest.raises(Conflict, match="deleted"):
        await again(world, run)


@proves("W8")
async def test_a_lost_result_is_refused_by_name(world: World) -> None:
    worker = await world.worker()
    run = await given_up(world, worker)
    gone = "UPDATE ondot.step SET execution_id = $2 WHERE run_id = $1 AND step_no = 0"
    await world.value(gone, run, world.database.clock.new_id())
    with pytest.raises(Conflict, match="'a' left results"):
        await again(world, run)
    assert (await again(world, run, "a", change="from")).again == ("a", "b", "c")


@proves("W8", "S3")
async def test_the_same_key_makes_one_rerun(world: World) -> None:
    worker = await world.worker()
    run = await given_up(world, worker)
    key = Idempotency("k", b"same")
    first = await again(world, run, idempotency=key)
    with pytest.raises(IndexError):
        await again(world, run, idempotency=key)  # nothing is rendered
    assert await world.value("SELECT count(*) FROM ondot.run WHERE rerun_of = $1", run) == 1
    assert first.rerun_of == run


@proves("W8")
async def test_the_latest_version_is_mapped_by_name(world: World) -> None:
    worker = await world.worker()
    run = await given_up(world, worker, {"a": step(), "b": step("a"), "c": step("b")})
    new = FunctionTarget(name="better")
    await update(
        world,
        run,
        {"first": step("b"), "c": step("b", "first"), "b": step("a", target=new), "a": step(labels={"x": "y"})},
    )
    done = await again(world, run, is_latest=True)
    assert (done.job_version, set(done.again)) == (2, {"b", "c", "first"})
    await resume(world, worker, done.run_id)
    assert await run_steps(world, worker, done.run_id) == [["b"], ["first"], ["c"]]
    assert await run_state(world, done.run_id) == "SUCCEEDED"
    assert await step_states(world, done.run_id) == dict.fromkeys(("first", "c", "b", "a"), "SUCCEEDED")


@proves("W8")
@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"a": step(payload={"x": 2}), "b": step("a"), "c": step("b"), "other": step()}, "'a' differ in version 2"),
        (CHAIN | {"new": step("a")}, "'new' are new in version 2"),
        ({name: CHAIN[name] for name in "abc"}, "'other' are not in version 2"),
    ],
)
async def test_a_version_that_does_not_fit_is_refused_by_name(
    world: World, steps: dict[str, StepSpec], words: str
) -> None:
    worker = await world.worker()
    run = await given_up(world, worker)
    await update(world, run, steps)
    with pytest.raises(Conflict, match=words):
        await again(world, run, is_latest=True)
    assert (await again(world, run)).job_version == 1


@proves("W8")
async def test_a_retry_goes_on_by_the_latest_version(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    await run_steps(world, worker, run, {"b": BROKEN})
    changed = CHAIN | {"b": step("a", target=FunctionTarget(name="better")), "d": step("c"), "e": step("b")}
    await update(world, run, changed)
    dry = await repair(world, run, is_latest=True, dry_run=True)
    assert (dry.again, dry.job_version) == (("b", "c", "d", "e"), 2)
    assert await world.value("SELECT job_version FROM ondot.run WHERE id = $1", run) == 1
    await repair(world, run, is_latest=True)
    await resume(world, worker, run)
    [b] = await worker.lease()
    assert b.spec is not None
    assert b.spec.target == FunctionTarget(name="better")
    await worker.complete(b)
    await advance(world, run)
    assert await run_steps(world, worker, run) == [["c", "e"], ["d"]]
    assert await run_state(world, run) == "SUCCEEDED"
    assert await world.value("SELECT succeeded FROM ondot.run WHERE id = $1", run) == 6
    assert await world.value("SELECT job_version FROM ondot.history WHERE id = $1", run) == 2


@proves("W8")
async def test_a_retry_refuses_a_version_that_moved_its_steps(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    await run_steps(world, worker, run, {"b": BROKEN})
    await update(world, run, {"zero": step("b")} | CHAIN)
    with pytest.raises(Conflict, match=r"removed or moved.*rerun"):
        await repair(world, run, is_latest=True)
    await update(world, run, CHAIN | {"a": step(payload={"x": 1})})
    with pytest.raises(Conflict, match="'a' differ in version 3"):
        await repair(world, run, is_latest=True)
    assert await run_state(world, run) == "BLOCKED"


def random_steps(random: Random) -> dict[str, StepSpec]:
    steps: dict[str, StepSpec] = {}
    for no in range(random.randint(2, 9)):
        parents = random.sample(list(steps), min(len(steps), random.choice((0, 1, 1, 2, 3))))
        when = random.choice(("success", "success", "success", "no_failure", "failure", "ended"))
        target = None if parents and random.random() < 0.1 else FunctionTarget(name="work")
        steps[f"s{no}"] = step(*parents, when=when, target=target, handles=random.random() < 0.2)
    return steps


@proves("W8")
@pytest.mark.parametrize("seed", range(12))
async def test_a_rerun_ends_as_a_fresh_run_whose_other_steps_had_the_same_outcomes(world: World, seed: int) -> None:
    random = Random(seed)
    worker = await world.worker()
    steps = random_steps(random)
    bad_first = {name for name in steps if random.random() < 0.3}
    run = await start(world, worker, steps)
    await run_steps(world, worker, run, dict.fromkeys(bad_first, BROKEN))
    if await run_state(world, run) == "BLOCKED":
        await give_up_run(world.database, world.dispatcher, DEFAULT_TENANT, run, by=BY)
    before = await step_states(world, run)
    named = [name for name, state in before.items() if state in {"SUCCEEDED", "FAILED", "SKIPPED"}]
    chosen = random.sample(named, random.randint(0, min(2, len(named))))
    done = await again(world, run, *chosen, change="from" if chosen else "retry")
    bad_then = {name for name in steps if random.random() < 0.2}
    await resume(world, worker, done.run_id)
    await run_steps(world, worker, done.run_id, dict.fromkeys(bad_then, BROKEN))
    bad = {name for name in steps if name in (bad_then if name in done.again else bad_first)}
    fresh = await start(world, worker, steps)
    await run_steps(world, worker, fresh, dict.fromkeys(bad, BROKEN))
    assert await step_states(world, done.run_id) == await step_states(world, fresh)
    assert await run_state(world, done.run_id) == await run_state(world, fresh)
    columns = "waiting, active, succeeded, failed, skipped, blocked"
    [ours] = await world.fetch(f"SELECT {columns} FROM ondot.run WHERE id = $1", done.run_id)
    [theirs] = await world.fetch(f"SELECT {columns} FROM ondot.run WHERE id = $1", fresh)
    assert tuple(ours) == tuple(theirs)
