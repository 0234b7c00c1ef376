"""Runs of workflows, pass by pass: begin, advance, end (W1, W3, W4, W6, W8)."""

import asyncio
import json
from typing import Any

import pytest

from ondot.flow.cancel import cancel
from ondot.flow.change import change
from ondot.flow.replay import Replay
from ondot.flow.retry import retry
from ondot.flow.workflows.advance import Advancer
from ondot.flow.workflows.begin import begin
from ondot.flow.workflows.control import cancel_runs_of_job, give_up_run, pause_run, resume_run
from ondot.model.errors import Conflict
from ondot.model.execution import PriorityClass, State
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.outcome import Cancelled, Succeeded
from ondot.model.workflow.states import RunState
from ondot.store.audit import By
from ondot.store.passes import change_run
from ondot.store.runs import lock_run, requeue_run
from tests.flow.workflows import (
    advance,
    keep_house,
    run_state,
    run_steps,
    start,
    step,
    step_of,
    step_states,
    workflow,
)
from tests.proves import proves
from tests.world import World, every, failed, job

CHAIN = {"a": step(), "b": step("a"), "c": step("b")}
DIAMOND = {"a": step(), "b": step("a"), "c": step("a"), "d": step("b", "c")}
FATAL = failed(retryable=False)
ME = By("me")


def result(value: Any) -> Succeeded:
    return Succeeded(json.dumps(value))


@proves("W1")
async def test_a_chain_runs_from_its_root_to_its_end(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    assert (await world.execution(run)).state is State.RUNNING
    assert await run_steps(world, worker, run) == [["a"], ["b"], ["c"]]
    assert await run_state(world, run) == "SUCCEEDED"
    assert (await world.execution(run)).state is State.SUCCEEDED
    assert await world.count("arrival") == await world.count("execution") == await world.count("ready") == 0


@proves("W1")
async def test_the_join_of_a_diamond_runs_once_after_both_parents(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, DIAMOND)
    assert await run_steps(world, worker, run) == [["a"], ["b", "c"], ["d"]]
    assert await step_states(world, run) == dict.fromkeys("abcd", "SUCCEEDED")


@proves("W3")
async def test_a_failed_step_blocks_its_descendants_and_the_run(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, DIAMOND)
    assert await run_steps(world, worker, run, {"b": FATAL}) == [["a"], ["b", "c"]]
    assert await step_states(world, run) == {"a": "SUCCEEDED", "b": "FAILED", "c": "SUCCEEDED", "d": "BLOCKED"}
    assert await run_state(world, run) == "BLOCKED"
    assert (await world.execution(run)).state is State.BLOCKED
    assert await advance(world, run) == 1


@proves("W3", "E10")
async def test_the_letter_of_a_step_names_its_workflow_its_run_and_its_step(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    await run_steps(world, worker, run, {"b": FATAL})
    [letter] = await world.fetch("SELECT job_id, run_id, step_no FROM ondot.dead_letter")
    job_id = await world.value("SELECT job_id FROM ondot.run")
    assert tuple(letter) == (job_id, run, 1)


@proves("W6")
async def test_a_failure_that_is_handled_lets_the_run_succeed_and_resolves_its_letter(world: World) -> None:
    worker = await world.worker()
    steps = {"a": step(), "b": step("a"), "page": step("b", when="failure", handles=True)}
    run = await start(world, worker, steps)
    assert await run_steps(world, worker, run, {"a": FATAL}) == [["a"], ["page"]]
    assert await run_state(world, run) == "SUCCEEDED"
    assert await world.value("SELECT resolution FROM ondot.dead_letter") == "handled"


@proves("W6")
@pytest.mark.parametrize(("report", "verdict"), [(None, "SUCCEEDED"), (FATAL, "FAILED")])
async def test_final_steps_run_once_when_the_run_ends(world: World, report: Any, verdict: str) -> None:
    worker = await world.worker()
    steps = {"a": step(), "clean": step("a", when="ended", is_final=True), "after": step("clean", is_final=True)}
    run = await start(world, worker, steps, on_failure="fail")
    assert await run_steps(world, worker, run, {"a": report} if report else {}) == [["a"], ["clean"], ["after"]]
    assert await run_state(world, run) == verdict


@proves("W6")
async def test_a_final_step_that_fails_turns_a_success_into_a_failure(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"a": step(), "clean": step(is_final=True)})
    await run_steps(world, worker, run, {"clean": FATAL})
    execution = await world.execution(run)
    assert (execution.state, execution.reason) == (State.FAILED, "step clean failed")


@proves("W6")
async def test_a_failure_ends_a_run_at_once_if_it_is_to_fail(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"a": step(), "b": step(), "c": step("b")}, on_failure="fail")
    a, b = await worker.lease()
    await worker.complete(a, FATAL)
    await advance(world, run)
    assert await run_state(world, run) == "ENDING"
    assert (await world.execution(b.leased.id)).cancel_at is not None
    await worker.complete(b, Cancelled("stopped"))
    await advance(world, run)
    assert (await world.execution(run)).state is State.FAILED
    assert await step_states(world, run) == {"a": "FAILED", "b": "CANCELLED", "c": "CANCELLED"}


@proves("W4")
async def test_results_reach_the_payload_of_a_child_typed(world: World) -> None:
    worker = await world.worker()
    payload = {"files": {"$from": "list.result.files"}, "first": {"$from": "list.result.files.0"}, "who": "me"}
    run = await start(world, worker, {"list": step(), "use": step("list", payload=payload)})
    [assignment] = await worker.lease()
    await worker.complete(assignment, result({"files": ["x", 2]}))
    await advance(world, run)
    [child] = await worker.lease()
    assert json.loads(child.payload) == {"files": ["x", 2], "first": "x", "who": "me"}


@proves("W4")
async def test_a_path_that_is_not_there_fails_the_step_with_a_sentence(world: World) -> None:
    worker = await world.worker()
    payload = {"n": {"$from": "list.result.total"}}
    run = await start(world, worker, {"list": step(), "use": step("list", payload=payload), "then": step("use")})
    await run_steps(world, worker, run, {"list": result({"files": []})})
    assert await step_states(world, run) == {"list": "SUCCEEDED", "use": "FAILED", "then": "BLOCKED"}
    [execution] = [row for row in await world.executions() if row.state is State.FAILED]
    assert execution.error is not None
    assert "`list.result.total`" in execution.error["message"]
    assert await world.count("dead_letter") == 1
    assert await run_state(world, run) == "BLOCKED"


@proves("W6")
@pytest.mark.parametrize(("total", "state"), [(3, "SUCCEEDED"), (0, "SKIPPED")])
async def test_a_condition_looks_at_results(world: World, total: int, state: str) -> None:
    worker = await world.worker()
    condition = {"steps": {"list": {"result": {"total": [{"numeric": [">", 0]}]}}}}
    run = await start(world, worker, {"list": step(), "use": step("list", condition=condition), "then": step("use")})
    await run_steps(world, worker, run, {"list": result({"total": total})})
    assert await step_states(world, run) == {"list": "SUCCEEDED", "use": state, "then": state}
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W4")
async def test_the_payload_of_a_run_reaches_its_steps(world: World) -> None:
    worker = await world.worker()
    steps = {"a": step(), "b": step(payload={"x": {"$from": "payload.n"}})}
    accepted = await world.submit(job("flow", target=workflow(steps), schedule=every(3600, world.now)))
    run = await world.run_now(accepted.id, b'{"n": 7}')
    [leased] = await worker.lease()
    await begin(world.database, world.dispatcher, worker.id, leased.leased)
    assert leased.leased.id == run
    payloads = {step_of(child): json.loads(child.payload) for child in await worker.lease()}
    assert payloads == {"a": {"n": 7}, "b": {"x": 7}}


@proves("W5")
@pytest.mark.parametrize("wide", [1_000, 10_000])
async def test_a_fan_in_of_thousands_fires_its_join_once(world: World, wide: int) -> None:
    worker = await world.worker()
    steps = {f"s{n}": step() for n in range(wide)}
    run = await start(world, worker, {**steps, "join": step(*steps)})
    while assignments := await worker.lease(1_000):
        if step_of(assignments[0]) == "join":
            break
        await worker.complete_all(assignments)
        await advance(world, run)
    assert [step_of(assignment) for assignment in assignments] == ["join"]
    await worker.complete_all(assignments)
    await advance(world, run)
    assert await run_state(world, run) == "SUCCEEDED"
    assert await world.value("SELECT count(*) FROM ondot.history WHERE origin = 'step'") == wide + 1


@proves("W1", "E6")
async def test_a_run_that_has_begun_outlives_its_worker_and_its_steps_are_recovered(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    [lost] = await worker.lease()
    await world.fetch("UPDATE ondot.worker SET state = 'LOST'")
    while await world.recover():
        pass
    assert (await world.execution(run)).state is State.RUNNING
    other = await world.worker()
    assert await run_steps(world, other, run) == [["a"], ["b"], ["c"]]
    assert (await world.execution(lost.leased.id)).losses == 1
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W1", "E11")
async def test_a_worker_that_dies_before_it_begins_the_run_leaves_it_to_the_next(world: World) -> None:
    worker = await world.worker()
    await world.submit(job("flow", target=workflow(CHAIN)))
    [stale] = await worker.lease()
    await world.fetch("UPDATE ondot.worker SET state = 'LOST'")
    await world.recover()
    assert await begin(world.database, world.dispatcher, worker.id, stale.leased) is False
    assert await world.count("run") == 0
    other = await world.worker()
    [assignment] = await other.lease()
    assert await begin(world.database, world.dispatcher, other.id, assignment.leased) is True
    assert await run_steps(world, other, stale.leased.id) == [["a"], ["b"], ["c"]]


@proves("W1", "E11")
async def test_a_run_whose_reply_was_lost_is_begun_once(world: World) -> None:
    worker = await world.worker()
    await world.submit(job("flow", target=workflow(CHAIN)))
    [assignment] = await worker.lease()
    for _ in range(2):
        assert await begin(world.database, world.dispatcher, worker.id, assignment.leased) is True
    assert [step_of(each) for each in await worker.lease()] == ["a"]


@proves("W1", "E11")
async def test_doubled_and_stale_arrivals_change_nothing(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    [a] = await worker.lease()
    await worker.complete(a)
    await advance(world, run)
    again = "INSERT INTO ondot.arrival SELECT $1, $2, ondot.clock(), 1, $3, NULL, 'SUCCEEDED'"
    await world.fetch(again, run, a.leased.id, 0)
    await world.fetch(again, run, world.database.clock.new_id(), 1)
    await advance(world, run)
    assert [step_of(each) for each in await worker.lease()] == ["b"]
    assert await world.value("SELECT superseded FROM ondot.run") == 2
    assert await step_states(world, run) == {"a": "SUCCEEDED", "b": "RELEASED", "c": "WAITING"}


@proves("W1")
async def test_arrivals_whose_process_died_before_it_advanced_are_found_by_housekeeping(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, DIAMOND)
    for expected in (["a"], ["b", "c"], ["d"]):
        assignments = await worker.lease()
        assert sorted(map(step_of, assignments)) == expected
        await worker.complete_all(assignments)
        assert await worker.lease() == []
        await world.advance(2)
        await keep_house(world)
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W1", "O6")
async def test_a_run_that_a_fault_of_ours_stops_shows_it_and_is_tried_again_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall(*_: object) -> None:
        raise RecursionError("too deep")

    worker = await world.worker()
    run = await start(world, worker, {"a": step(), "b": step("a")})
    await worker.complete_all(await worker.lease())
    advancer = Advancer(world.database, world.dispatcher)
    monkeypatch.setattr("ondot.flow.workflows.advance.settle", fall)
    running = asyncio.create_task(advancer.run())
    advancer.request([run])
    await advancer.drained()
    running.cancel()
    assert "RecursionError: too deep" in str(await world.value("SELECT reason FROM ondot.run WHERE id = $1", run))
    monkeypatch.undo()
    await world.advance(2)
    await keep_house(world)
    assert await worker.lease() == [], "not at once again: it may fail each time"
    await world.advance(10)
    await keep_house(world)
    assert [step_of(each) for each in await worker.lease()] == ["b"]
    assert await world.value("SELECT reason FROM ondot.run WHERE id = $1", run) is None


@proves("W1")
async def test_an_advance_that_finds_the_run_locked_leaves_it_to_the_holder(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"a": step(), "b": step(), "c": step("a", "b")})
    a, b = await worker.lease()
    await worker.complete(a)
    async with world.second_connection() as connection, connection.transaction():
        await connection.execute("SELECT FROM ondot.run WHERE id = $1 FOR UPDATE", run)
        await worker.complete(b)
        assert await advance(world, run) == 0
    assert await advance(world, run) == 1
    assert [step_of(each) for each in await worker.lease()] == ["c"]


@proves("W8")
async def test_a_run_that_takes_too_long_fails_and_its_final_steps_run(world: World) -> None:
    worker = await world.worker()
    steps = {"a": step(), "b": step("a"), "clean": step(is_final=True)}
    run = await start(world, worker, steps, timeout_s=60.0)
    [a] = await worker.lease()
    await world.advance(61)
    await keep_house(world)
    assert (await world.execution(a.leased.id)).cancel_at is not None
    await worker.complete(a, Cancelled("stopped"))
    await advance(world, run)
    assert await run_steps(world, worker, run) == [["clean"]]
    execution = await world.execution(run)
    assert (execution.state, execution.reason) == (State.FAILED, "timeout: it did not end within 60 s")


@proves("W3")
async def test_a_run_that_is_blocked_for_too_long_fails(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN, blocked_for_s=3600.0)
    await run_steps(world, worker, run, {"a": FATAL})
    await world.advance(3601)
    await keep_house(world)
    assert (await world.execution(run)).state is State.FAILED


@proves("W3", "E12")
async def test_a_blocked_run_gives_back_its_slots_and_counts_as_one_failure(world: World) -> None:
    worker = await world.worker()
    limits = Limits(overlap="queue")
    spec = job("flow", target=workflow(CHAIN), schedule=every(3600, world.now), limits=limits, pause_after_failures=2)
    accepted = await world.submit(spec)
    first = await world.run_now(accepted.id)
    second = await world.run_now(accepted.id)
    [leased] = await worker.lease()
    await begin(world.database, world.dispatcher, worker.id, leased.leased)
    assert leased.leased.id == first
    [a] = await worker.lease()
    await worker.complete(a, FATAL)
    await advance(world, first)
    assert await run_state(world, first) == "BLOCKED"
    [leased] = await worker.lease()
    assert leased.leased.id == second
    assert await world.value("SELECT failures FROM ondot.streak") == 1
    await give_up_run(world.database, world.dispatcher, DEFAULT_TENANT, first, by=ME)
    assert (await world.execution(first)).state is State.FAILED
    assert await world.value("SELECT failures FROM ondot.streak") == 1


@proves("W8", "E8")
async def test_cancel_ends_what_waits_asks_what_runs_and_then_runs_final_steps(world: World) -> None:
    worker = await world.worker()
    steps = {"a": step(), "b": step(), "c": step("a"), "clean": step(is_final=True)}
    run = await start(world, worker, steps)
    [a] = await worker.lease(1)
    row = await cancel(world.database, world.dispatcher, DEFAULT_TENANT, run, by=ME)
    assert row.state is State.RUNNING
    assert await run_state(world, run) == "ENDING"
    await worker.complete(a, Cancelled("stopped"))
    await advance(world, run)
    assert await run_steps(world, worker, run) == [["clean"]]
    assert (await world.execution(run)).state is State.CANCELLED
    assert await step_states(world, run) == {**dict.fromkeys("abc", "CANCELLED"), "clean": "SUCCEEDED"}
    with pytest.raises(Conflict):
        await give_up_run(world.database, world.dispatcher, DEFAULT_TENANT, run, by=ME)


@proves("W8")
async def test_a_blocked_run_can_be_cancelled(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    await run_steps(world, worker, run, {"a": FATAL})
    await cancel(world.database, world.dispatcher, DEFAULT_TENANT, run, by=ME)
    assert (await world.execution(run)).state is State.CANCELLED


@proves("W8", "E12")
async def test_a_run_that_must_make_room_for_the_next_fire_is_cancelled(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    await world.fetch(
        "UPDATE ondot.execution SET cancel_at = ondot.clock(), cancel_reason = 'overlap' WHERE id = $1", run
    )
    await keep_house(world)
    assert (await world.execution(run)).state is State.CANCELLED


@proves("W8")
async def test_a_paused_run_releases_nothing_until_it_is_resumed(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    await pause_run(world.database, world.dispatcher, DEFAULT_TENANT, run, by=ME)
    assert await run_steps(world, worker, run) == [["a"]]
    assert await step_states(world, run) == {"a": "SUCCEEDED", "b": "WAITING", "c": "WAITING"}
    await resume_run(world.database, world.dispatcher, DEFAULT_TENANT, run, by=ME)
    assert await run_steps(world, worker, run) == [["b"], ["c"]]
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W4")
async def test_steps_of_a_run_that_catches_up_stay_in_that_class(world: World) -> None:
    worker = await world.worker()
    await world.submit(job("flow", target=workflow({"a": step(priority="high")})))
    for table in ("execution", "ready"):
        await world.fetch(f"UPDATE ondot.{table} SET class = 4")
    [assignment] = await worker.lease()
    await begin(world.database, world.dispatcher, worker.id, assignment.leased)
    [a] = await worker.lease()
    assert a.leased.priority_class == PriorityClass.CATCH_UP


@proves("W1", "E12")
async def test_a_limit_of_a_step_holds_over_all_runs(world: World) -> None:
    worker = await world.worker()
    steps = {"a": step(limits=Limits(concurrency=1))}
    accepted = await world.submit(job("flow", target=workflow(steps), schedule=every(3600, world.now)))
    for _ in range(2):
        await world.run_now(accepted.id)
    runs = await worker.lease()
    for assignment in runs:
        await begin(world.database, world.dispatcher, worker.id, assignment.leased)
    first = await worker.lease()
    assert len(first) == 1
    assert await worker.lease() == []
    await worker.complete_all(first)
    assert len(await worker.lease()) == 1


@proves("W1")
async def test_many_processes_that_advance_at_once_release_each_step_once(world: World) -> None:
    worker = await world.worker()
    steps = {f"s{n}": step() for n in range(40)}
    run = await start(world, worker, {**steps, "join": step(*steps)})
    assignments = await worker.lease()

    async def complete(number: int) -> None:
        await worker.complete(assignments[number])
        await advance(world, run)

    await asyncio.gather(*(complete(number) for number in range(len(assignments))))
    assert [step_of(each) for each in await worker.lease()] == ["join"]


@proves("W1")
async def test_users_see_the_workflow_the_run_and_the_step_of_an_execution(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    [a] = await worker.lease()
    job_id = await world.value("SELECT job_id FROM ondot.run")
    assert a.step is not None
    assert (a.step.job_id, a.step.run_id, a.step.step, a.step.item_no) == (job_id, run, "a", None)
    row = await world.execution(a.leased.id)
    assert (row.job_id, row.run_id, row.step_no) == (job_id, run, 0)
    await worker.complete(a, FATAL)
    row = await world.execution(a.leased.id)
    assert (row.job_id, row.run_id, row.step_no) == (job_id, run, 0)
    with pytest.raises(Conflict, match=f"POST /v1/runs/{run}/retry"):
        await retry(
            world.database, world.dispatcher, DEFAULT_TENANT, row.id, Replay(), by=ME, render=lambda _: "retried"
        )


@proves("W3", "W8", "P10")
async def test_a_retried_run_that_waits_for_its_slot_outlives_changes_of_its_job(world: World) -> None:
    worker = await world.worker()
    schedule = every(3600, world.now)
    accepted = await world.submit(
        job("flow", target=workflow(CHAIN), schedule=schedule, limits=Limits(overlap="queue"))
    )
    await world.advance(3600)
    await world.plan()
    [leased] = await worker.lease()
    run = leased.leased.id
    await begin(world.database, world.dispatcher, worker.id, leased.leased)
    [a] = await worker.lease()
    await worker.complete(a, FATAL)
    await advance(world, run)
    async with world.database.transaction() as connection:
        row = await lock_run(connection, run)
        assert row is not None
        assert row.state == "BLOCKED"
        row.state = RunState.PENDING
        await change_run(connection, row)
        await requeue_run(connection, run, None, row.priority_class)
    await world.update(accepted.id, job("flow", schedule=schedule))
    await change.pause(world.database, DEFAULT_TENANT, accepted.id)
    await change.delete(world.database, DEFAULT_TENANT, accepted.id)
    execution = await world.execution(run)
    assert (execution.state, execution.job_version) == (State.PENDING, 1)
    [again] = await worker.lease()
    assert again.leased.id == run
    assert await begin(world.database, world.dispatcher, worker.id, again.leased) is True
    assert await run_state(world, run) == "BLOCKED"


@proves("W8")
async def test_runs_of_a_deleted_workflow_go_on_unless_they_are_to_be_cancelled(world: World) -> None:
    worker = await world.worker()
    job_id = (await world.submit(job("flow", target=workflow(CHAIN), schedule=every(3600, world.now)))).id
    run = await world.run_now(job_id)
    [leased] = await worker.lease()
    await begin(world.database, world.dispatcher, worker.id, leased.leased)
    await change.delete(world.database, DEFAULT_TENANT, job_id)
    [a] = await worker.lease()
    await worker.complete(a)
    await advance(world, run)
    assert await run_state(world, run) == "RUNNING"
    assert await cancel_runs_of_job(world.database, world.dispatcher, DEFAULT_TENANT, job_id, by=ME) == 1
    assert (await world.execution(run)).state is State.CANCELLED
