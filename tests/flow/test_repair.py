"""Repairs of runs, pass by pass: retry, retry from a step, skip, a result by hand (W3, W8)."""

import json
from random import Random
from typing import Any

import pytest

from ondot.flow.idempotency import Idempotency
from ondot.flow.workflows.begin import begin
from ondot.flow.workflows.repair import Repaired, Wanted, repair_run
from ondot.flow.workflows.waits import end_waits_pass
from ondot.model.errors import Conflict, InvalidBody, NotFound
from ondot.model.execution import State
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, TenantNo
from ondot.model.workflow.spec import Wait
from ondot.store.audit import By, list_audit
from ondot.store.retain import forget
from ondot.store.run_reads import list_past_steps, list_repairs
from tests.flow.test_maps import item_of, over, run_all
from tests.flow.workflows import advance, run_state, run_steps, start, step, step_of, step_states, workflow
from tests.proves import proves
from tests.world import Worker, World, failed, job

BY = By("ann", "the disk is back")
BROKEN = failed(retryable=False)
CHAIN = {"a": step(), "b": step("a"), "c": step("b")}


async def repair(world: World, run: ExecutionId, *steps: str, tenant_no: TenantNo = DEFAULT_TENANT, **how: Any) -> Any:
    done: list[Repaired] = []

    def render(repaired: Repaired) -> str:
        done.append(repaired)
        return json.dumps(repaired.again)

    how.setdefault("change", "retry")
    idempotency = how.pop("idempotency", None)
    wanted = Wanted(steps=steps or None, **how)
    text = await repair_run(
        world.database, world.dispatcher, tenant_no, run, wanted, by=BY, render=render, idempotency=idempotency
    )
    return done[0] if done else text


async def resume(world: World, worker: Worker, run: ExecutionId) -> None:
    """Lease a retried run, and begin it again."""
    [assignment] = await worker.lease(1)
    assert assignment.leased.id == run
    assert await begin(world.database, world.dispatcher, worker.id, assignment.leased) is True
    worker.completer.release(assignment.lease_id)


async def blocked(world: World, worker: Worker, **fields: Any) -> ExecutionId:
    """A run of a chain whose second step failed."""
    run = await start(world, worker, CHAIN, **fields)
    await run_steps(world, worker, run, {"b": BROKEN})
    assert await run_state(world, run) == "BLOCKED"
    return run


@proves("W3", "W8")
async def test_a_retried_run_goes_on_under_its_id_and_succeeds(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    done = await repair(world, run)
    assert (done.named, done.again, done.state) == (("b",), ("b", "c"), "PENDING")
    assert (await world.execution(run)).state is State.PENDING
    await resume(world, worker, run)
    assert await run_steps(world, worker, run) == [["b"], ["c"]]
    assert await run_state(world, run) == "SUCCEEDED"
    assert (await world.execution(run)).state is State.SUCCEEDED
    assert await world.value("SELECT generation FROM ondot.step WHERE run_id = $1 AND step_no = 1", run) == 2


@proves("W8")
async def test_the_generation_before_and_the_repair_stay_visible(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    await repair(world, run)
    async with world.database.connection() as connection:
        [past] = await list_past_steps(connection, DEFAULT_TENANT, run, 1)
        [done] = await list_repairs(connection, DEFAULT_TENANT, run)
        [entry] = await list_audit(connection, DEFAULT_TENANT, limit=5, action="run.retry")
    assert (past.generation, past.state) == (1, "FAILED")
    assert past.execution_id is not None
    assert (await world.execution(past.execution_id)).state is State.FAILED
    assert (done.action, done.actor, done.reason, done.steps) == ("retry", "ann", "the disk is back", ("b",))
    assert entry.before == {"steps": {"b": "FAILED", "c": "BLOCKED"}}
    assert entry.after["steps"] == {"b": "WAITING", "c": "WAITING"}


@proves("W8")
async def test_the_dead_letter_of_a_retried_step_is_resolved(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    assert (
        await world.value("SELECT count(*) FROM ondot.dead_letter WHERE run_id = $1 AND resolved_at IS NULL", run) == 1
    )
    await repair(world, run)
    [letter] = await world.fetch(
        "SELECT resolution, resolved_by, replay_id FROM ondot.dead_letter WHERE run_id = $1", run
    )
    assert tuple(letter) == ("replayed", "ann", run)


@proves("W3")
async def test_a_retried_run_waits_for_the_slot_that_another_run_has(world: World) -> None:
    worker = await world.worker()
    limits = Limits(key="disk", key_concurrency=1)
    run = await blocked(world, worker, limits=limits)
    other = await start(world, worker, CHAIN, limits=limits)
    await repair(world, run)
    [assignment] = await worker.lease()
    assert step_of(assignment) == "a", "of the other run"
    await worker.complete(assignment)
    await advance(world, other)
    for name in ("b", "c"):
        [assignment] = await worker.lease()
        assert step_of(assignment) == name, "of the other run"
        await worker.complete(assignment)
        await advance(world, other)
    assert await run_state(world, other) == "SUCCEEDED"
    await resume(world, worker, run)
    await run_steps(world, worker, run)
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W3", "P14")
async def test_a_running_step_is_cancelled_and_its_next_generation_starts_when_it_has_ended(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    [a] = await worker.lease()
    await worker.complete(a)
    await advance(world, run)
    [b] = await worker.lease()
    done = await repair(world, run, "a", change="from")
    assert (done.again, done.stopped) == (("a", "b", "c"), ("b",))
    [again] = await worker.lease()
    assert step_of(again) == "a"
    await worker.complete(again)
    await advance(world, run)
    assert await worker.lease() == [], "the first generation of b still runs"
    assert (await world.execution(b.leased.id)).cancel_at is not None
    await worker.complete(b)
    await advance(world, run)
    assert await world.value("SELECT superseded FROM ondot.run WHERE id = $1", run) == 1
    assert await run_steps(world, worker, run) == [["b"], ["c"]]
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W3")
async def test_a_queued_step_is_cancelled_at_once_and_queued_again(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    first = ExecutionId(await world.value("SELECT execution_id FROM ondot.step WHERE run_id = $1 AND step_no = 0", run))
    await repair(world, run, "a")
    assert (await world.execution(first)).state is State.CANCELLED
    assert await run_steps(world, worker, run) == [["a"], ["b"], ["c"]]


@proves("W8")
async def test_a_skipped_step_skips_what_needs_its_success(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    done = await repair(world, run, "b", change="skip")
    assert done.set_by_hand == {"b": "SKIPPED"}
    await resume(world, worker, run)
    assert await step_states(world, run) == {"a": "SUCCEEDED", "b": "SKIPPED", "c": "SKIPPED"}
    assert await run_state(world, run) == "SUCCEEDED"
    assert await world.value("SELECT resolution FROM ondot.dead_letter WHERE run_id = $1", run) == "handled"


@proves("W8")
async def test_a_result_by_hand_reaches_the_next_step(world: World) -> None:
    worker = await world.worker()
    steps = {"a": step(), "b": step("a", payload={"n": {"$from": "a.result.n"}})}
    run = await start(world, worker, steps)
    await run_steps(world, worker, run, {"a": BROKEN})
    await repair(world, run, "a", change="result", result='{"n": 7}')
    await resume(world, worker, run)
    [b] = await worker.lease()
    assert (await world.execution(b.leased.id)).payload == {"n": 7}
    await worker.complete(b)
    await advance(world, run)
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W8")
async def test_a_payload_is_what_the_step_runs_with_from_then_on(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    for _ in range(2):
        await repair(world, run, "b", payload='{"fixed": true}')
        await resume(world, worker, run)
        [b] = await worker.lease()
        assert (await world.execution(b.leased.id)).payload == {"fixed": True}
        await worker.complete(b, BROKEN)
        await advance(world, run)
    await repair(world, run)
    await resume(world, worker, run)
    [b] = await worker.lease()
    assert (await world.execution(b.leased.id)).payload == {"fixed": True}


@proves("W8")
async def test_a_dry_run_changes_nothing(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    done = await repair(world, run, dry_run=True)
    assert (done.again, done.repair_id) == (("b", "c"), None)
    assert await run_state(world, run) == "BLOCKED"
    assert await world.count("repair") == await world.count("past_step") == 0


@proves("W8", "P2")
async def test_a_repeated_request_gets_the_first_answer_and_changes_nothing(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    key = Idempotency("k", b"same")
    await repair(world, run, idempotency=key)
    assert await repair(world, run, idempotency=key) == '["b", "c"]'
    assert await world.count("repair") == 1


@proves("W8")
async def test_the_second_of_two_people_is_refused_in_words(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    await repair(world, run)
    with pytest.raises(Conflict, match="so there is nothing to retry"):
        await repair(world, run)


@proves("W3", "W8")
async def test_an_ended_run_proposes_a_new_one(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    await run_steps(world, worker, run)
    with pytest.raises(Conflict, match="ondot run rerun"):
        await repair(world, run, "a", change="from")


@proves("W8", "P12")
async def test_runs_of_other_tenants_and_steps_are_not_found(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    with pytest.raises(NotFound):
        await repair(world, run, tenant_no=TenantNo(2))
    [past] = await world.fetch("SELECT execution_id FROM ondot.step WHERE run_id = $1 AND step_no = 1", run)
    with pytest.raises(NotFound):
        await repair(world, past["execution_id"])


@proves("W8")
async def test_unknown_steps_and_steps_that_cannot_be_repaired_are_named(world: World) -> None:
    worker = await world.worker()
    run = await blocked(world, worker)
    with pytest.raises(InvalidBody, match="There is no step 'x'"):
        await repair(world, run, "x")
    with pytest.raises(Conflict, match="'c' has not run because of 'b'"):
        await repair(world, run, "c")
    with pytest.raises(Conflict, match="'a' has succeeded"):
        await repair(world, run, "a")
    with pytest.raises(Conflict, match="'a' has succeeded"):
        await repair(world, run, "a", change="skip")


@proves("W8")
async def test_a_run_that_has_not_started_cannot_be_repaired(world: World) -> None:
    accepted = await world.submit(job("flow", target=workflow(CHAIN)))
    [execution] = await world.executions(accepted.id)
    with pytest.raises(Conflict, match="has not started"):
        await repair(world, execution.id)


@proves("W7", "W8")
async def test_a_retry_of_a_mapped_step_runs_only_the_items_that_failed(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"m": step(map=over([1, 2, 3, 4])), "after": step("m")})
    await run_all(world, worker, run, lambda _, item, __: BROKEN if item in {1, 3} else None)
    assert await run_state(world, run) == "BLOCKED"
    await repair(world, run)
    await resume(world, worker, run)
    items = await worker.lease()
    assert sorted(item_of(item) or 0 for item in items) == [1, 3]
    await worker.complete_all(items)
    await advance(world, run)
    assert await run_steps(world, worker, run) == [["after"]]
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W7", "W8")
async def test_a_run_from_a_step_above_a_map_makes_all_its_items_again(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"list": step(), "m": step("list", map=over([1, 2])), "after": step("m")})
    await run_all(world, worker, run, lambda name, _, __: BROKEN if name == "after" else None)
    await repair(world, run, "list", change="from")
    await resume(world, worker, run)
    assert await run_all(world, worker, run) == [{"list": 1}, {"m": 2}, {"after": 1}]
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W8")
async def test_a_step_that_waits_for_a_time_starts_to_wait_again(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"a": step(), "w": step("a", target=Wait(for_s=60)), "b": step("w")})
    await run_steps(world, worker, run)
    assert (await step_states(world, run))["w"] == "RELEASED"
    done = await repair(world, run, "a", change="from")
    assert done.stopped == ("w",)
    assert await run_steps(world, worker, run) == [["a"]]
    await world.advance(61)
    await end_waits_pass(world.database)
    await advance(world, run)
    assert await run_steps(world, worker, run) == [["b"]]
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W8", "P14")
@pytest.mark.parametrize("seed", range(3))
async def test_a_hundred_retries_from_random_steps_while_the_run_runs(world: World, seed: int) -> None:
    """However often steps are run again, each generation runs once, and the run ends as its last outcomes say."""
    random = Random(seed)
    worker = await world.worker()
    names = [f"s{no}" for no in range(8)]
    steps = {
        name: step(*random.sample(names[:no], random.randint(0, min(no, 3))), when=random.choice(["success", "ended"]))
        for no, name in enumerate(names)
    }
    run = await start(world, worker, steps)
    held: list[Any] = []
    repaired = refused = 0
    while repaired + refused < 100:
        match random.randint(0, 3):
            case 0 if held:
                outcome = BROKEN if random.random() < 0.3 else None
                await worker.complete(held.pop(random.randrange(len(held))), outcome)
                await advance(world, run)
            case 1:
                for assignment in await worker.lease(random.randint(1, 3)):
                    if assignment.leased.id == run:
                        assert await begin(world.database, world.dispatcher, worker.id, assignment.leased) is True
                        worker.completer.release(assignment.lease_id)
                    else:
                        held.append(assignment)
            case _:
                try:
                    await repair(world, run, random.choice(names), change=random.choice(["retry", "from", "skip"]))
                    repaired += 1
                except Conflict:
                    refused += 1
        if await run_state(world, run) in {"SUCCEEDED", "FAILED"}:
            break
    assert repaired > 3
    for _ in range(200):
        for assignment in held:
            await worker.complete(assignment)
        held = []
        await advance(world, run)
        for assignment in await worker.lease():
            if assignment.leased.id == run:
                assert await begin(world.database, world.dispatcher, worker.id, assignment.leased) is True
                worker.completer.release(assignment.lease_id)
            else:
                held.append(assignment)
        if not held and (state := await run_state(world, run)) == "BLOCKED":
            await repair(world, run)
        elif not held and state in {"SUCCEEDED", "FAILED"}:
            break
    assert await run_state(world, run) == "SUCCEEDED"
    assert await world.count("arrival") == await world.count("execution") == await world.count("ready") == 0
    released = await world.value("SELECT sum(generation) FROM ondot.step WHERE run_id = $1", run)
    ended = await world.value("SELECT count(*) FROM ondot.history WHERE job_id = $1 AND origin = 'step'", run)
    assert released == ended, "each generation is one execution"


@proves("W7", "W8")
async def test_a_payload_for_a_step_that_would_not_use_it_is_rejected(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"m": step(map=over([1, 2]))})
    await run_all(world, worker, run, lambda *_: BROKEN)
    for names in ((), ("m",)):
        with pytest.raises(InvalidBody, match="'m' is mapped: its items get their payloads from its list"):
            await repair(world, run, *names, payload='{"n": 1}')
    await repair(world, run)


@proves("W7", "P10")
async def test_a_run_of_many_items_is_forgotten_in_bounded_batches(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"m": step(map=over(list(range(12)))), "after": step("m")})
    await run_all(world, worker, run)
    assert await run_state(world, run) == "SUCCEEDED"
    items = await world.count("item")
    await world.fetch("UPDATE ondot.run SET ended_at = ended_at - interval '400 days'")
    removed = []
    async with world.database.connection() as connection:
        while count := await forget(connection, "runs", 30, 1):
            removed.append(count)
            assert count <= 11, "five of each kind, and the run"
    assert sum(removed) == items + 3
    left = ("run", "step", "item", "mapped", "map_portion", "step_wait", "arrival", "past_step", "repair")
    assert [await world.count(table) for table in left] == [0] * len(left)
