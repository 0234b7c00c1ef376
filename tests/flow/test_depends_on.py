"""Jobs that wait for other jobs: they run once, when all parents have succeeded, whatever happens at that moment."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from ondot.flow.cancel import cancel
from ondot.flow.change.change import delete, pause, resume
from ondot.flow.replay import Replay
from ondot.flow.retry import retry
from ondot.flow.workflows.advance import advance_run
from ondot.flow.workflows.depends import resolve_parents, settle_due_pass, settle_parents
from ondot.model.errors import InvalidBody, InvalidGraph
from ondot.model.execution import State
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.job import JobSpec, JobState
from ondot.model.retry import Retry
from ondot.store.audit import By
from tests.flow.test_workflow_races import step_worker
from tests.proves import proves
from tests.world import World, every, failed, job, once

NO_RETRY = Retry(max_retries=0)
BY = By("ann")


def after(*parents: object, **fields: Any) -> JobSpec:
    return job("child", depends_on=tuple(str(getattr(parent, "id", parent)) for parent in parents), **fields)


async def state(world: World, job_id: JobId) -> State:
    [execution] = await world.executions(job_id)
    return execution.state


async def arrive(world: World) -> int:
    """What the process does that has written ends: it settles the jobs whose ends have arrived."""
    before = await world.count("dependent")
    for row in await world.fetch("SELECT DISTINCT run_id FROM ondot.arrival"):
        await advance_run(world.database, world.dispatcher, row["run_id"])
    return before - await world.count("dependent")


async def is_clean(world: World) -> bool:
    return [await world.count(table) for table in ("dependent", "dependency", "arrival")] == [0, 0, 0]


@proves("W1")
async def test_a_job_runs_once_when_its_last_parent_has_succeeded(world: World) -> None:
    worker = await world.worker()
    first, second = await world.submit_all([job("a"), job("b")])
    child = await world.submit(after(first, second))
    assert await state(world, child.id) is State.BLOCKED
    assert (await world.job(child.id)).state is JobState.ACTIVE
    [one, other] = await worker.lease()
    await worker.complete(one)
    assert await arrive(world) == 0
    assert await state(world, child.id) is State.BLOCKED
    await worker.complete(other)
    assert await arrive(world) == 1
    assert (await worker.run_one()).leased.job_id == child.id
    assert await worker.lease() == []
    assert await is_clean(world)


@proves("W1")
async def test_a_parent_that_has_succeeded_before_counts(world: World) -> None:
    worker = await world.worker()
    parent = await world.submit(job("a"))
    await worker.run_one()
    child = await world.submit(after(parent))
    assert (await worker.run_one()).leased.job_id == child.id
    assert await is_clean(world)


@proves("W1", "W3")
async def test_a_parent_that_failed_blocks_its_child_until_a_retry_succeeds(world: World) -> None:
    worker = await world.worker()
    parent = await world.submit(job("a", retry=NO_RETRY))
    execution = (await worker.run_one(failed())).leased
    child = await world.submit(after(parent))
    assert await world.value("SELECT state FROM ondot.dependency") == "FAILED"
    assert await worker.lease() == []
    await retry(world.database, world.dispatcher, DEFAULT_TENANT, execution.id, Replay(), by=BY, render=lambda _: "")
    await settle_due_pass(world.database, world.dispatcher)
    assert await world.value("SELECT state FROM ondot.dependency") == "WAITING"
    await worker.run_one()
    await arrive(world)
    assert (await worker.run_one()).leased.job_id == child.id
    assert await is_clean(world)


@proves("W3")
async def test_a_parent_that_fails_later_leaves_its_child_blocked(world: World) -> None:
    worker = await world.worker()
    parent = await world.submit(job("a", retry=NO_RETRY))
    child = await world.submit(after(parent))
    await worker.run_one(failed())
    await arrive(world)
    assert await state(world, child.id) is State.BLOCKED
    assert await world.value("SELECT stuck_at IS NOT NULL FROM ondot.dependent")


@proves("W1")
async def test_a_parent_that_is_due_long_after_the_horizon_is_followed(world: World) -> None:
    worker = await world.worker()
    parent = await world.submit(job("a", schedule=once(world.after(86_400))))
    child = await world.submit(after(parent))
    assert await settle_due_pass(world.database, world.dispatcher) == 0
    await world.set_clock(world.after(86_400))
    await world.plan()
    await settle_due_pass(world.database, world.dispatcher)
    await worker.run_one()
    assert await arrive(world) == 1
    assert (await worker.run_one()).leased.job_id == child.id


@proves("W1")
@pytest.mark.parametrize("way", ["cancel", "delete"])
async def test_a_parent_that_is_cancelled_or_deleted_blocks_its_child_and_says_so(world: World, way: str) -> None:
    parent = await world.submit(job("a", schedule=once(world.after(5))))
    await world.submit(after(parent))
    if way == "cancel":
        [execution] = await world.executions(parent.id)
        await cancel(world.database, world.dispatcher, DEFAULT_TENANT, execution.id, by=BY)
    else:
        await delete(world.database, DEFAULT_TENANT, parent.id, by=BY)
    await settle_due_pass(world.database, world.dispatcher)
    await arrive(world)
    assert await world.value("SELECT state FROM ondot.dependency") == {"cancel": "CANCELLED", "delete": "DELETED"}[way]


@proves("W1", "E8")
async def test_a_blocked_job_can_be_cancelled_and_deleted_and_leaves_nothing_behind(world: World) -> None:
    parent = await world.submit(job("a", schedule=once(world.after(86_400))))
    cancelled, deleted = await world.submit(after(parent)), await world.submit(after(parent))
    [execution] = await world.executions(cancelled.id)
    await cancel(world.database, world.dispatcher, DEFAULT_TENANT, execution.id, by=BY)
    await delete(world.database, DEFAULT_TENANT, deleted.id, by=BY)
    assert [await state(world, id_) for id_ in (cancelled.id, deleted.id)] == [State.CANCELLED] * 2
    assert (await world.job(deleted.id)).state is JobState.DELETED
    assert await is_clean(world)


@proves("W1", "S8")
async def test_an_update_of_a_blocked_job_keeps_it_waiting_and_runs_the_new_version(world: World) -> None:
    worker = await world.worker()
    parent = await world.submit(job("a"))
    child = await world.submit(after(parent))
    spec = structs.replace(child.spec, name="renamed", priority="high")
    await world.update(child.id, spec)
    [execution] = await world.executions(child.id)
    assert (execution.state, execution.job_version) == (State.BLOCKED, 2)
    await worker.run_one()
    await arrive(world)
    leased = (await worker.run_one()).leased
    assert (leased.job_id, leased.job_version) == (child.id, 2)
    assert await world.states(child.id) == [State.SUCCEEDED]


@proves("W1", "S8")
async def test_a_change_may_leave_parents_out_and_add_none(world: World) -> None:
    worker = await world.worker()
    far, other = [await world.submit(job(name, schedule=once(world.after(86_400)))) for name in "ab"]
    child = await world.submit(after(far))
    with pytest.raises(InvalidBody, match="leave jobs out"):
        await world.update(child.id, structs.replace(child.spec, depends_on=(str(far.id), str(other.id))))
    await world.update(child.id, structs.replace(child.spec, depends_on=()))
    assert (await worker.run_one()).leased.job_id == child.id
    assert await is_clean(world)


@proves("W1", "S8")
async def test_a_paused_child_waits_for_its_resume_even_if_its_parents_succeed(world: World) -> None:
    worker = await world.worker()
    parent = await world.submit(job("a"))
    child = await world.submit(after(parent))
    await pause(world.database, DEFAULT_TENANT, child.id)
    await worker.run_one()
    await arrive(world)
    assert await state(world, child.id) is State.BLOCKED
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, child.id)
    assert (await worker.run_one()).leased.job_id == child.id
    assert await is_clean(world)


@proves("W1", "E13")
async def test_a_child_passes_its_gates_once_it_may_run(world: World) -> None:
    worker = await world.worker()
    limits = Limits(key="db", key_concurrency=1)
    parent = await world.submit(job("a"))
    children = [await world.submit(after(parent, limits=limits)) for _ in range(2)]
    await worker.run_one()
    assert await arrive(world) == 2
    [only] = await worker.lease()
    await worker.complete(only)
    [next_one] = await worker.lease()
    await worker.complete(next_one)
    assert {only.leased.job_id, next_one.leased.job_id} == {child.id for child in children}
    assert [await world.count(table) for table in ("waiting", "slot", "gated")] == [0, 0, 0]


@proves("W1")
async def test_a_chain_and_a_diamond_of_jobs_run_in_their_order(world: World) -> None:
    worker = await world.worker()
    top = await world.submit(job("top"))
    left, right = [await world.submit(after(top)) for _ in range(2)]
    bottom = await world.submit(after(left, right))
    order = []
    for _ in range(6):
        for assignment in await worker.lease():
            order.append(assignment.leased.job_id)
            await worker.complete(assignment)
        await arrive(world)
    assert order[0] == top.id
    assert set(order[1:3]) == {left.id, right.id}
    assert order[3:] == [bottom.id]


@proves("W1", "W2")
async def test_a_batch_names_its_own_jobs_by_key_and_refuses_a_cycle(world: World) -> None:
    worker = await world.worker()
    specs = [job("b", key="b", depends_on=("a",)), job("a", key="a"), after("a", "b")]
    specs = list(await resolve_parents(world.database, DEFAULT_TENANT, specs, is_batch=True))
    b, a, child = await world.submit_all(specs)
    assert child.spec.depends_on == (str(a.id), str(b.id))
    for expected in (a, b, child):
        assert (await worker.run_one()).leased.job_id == expected.id
        await arrive(world)
    cycle = [job(key, key=key, depends_on=(parent,)) for key, parent in (("x", "z"), ("y", "x"), ("z", "y"))]
    with pytest.raises(InvalidGraph, match=r"x → y → z → x|y → z → x → y|z → x → y → z") as refusal:
        await resolve_parents(world.database, DEFAULT_TENANT, cycle, is_batch=True)
    assert {fault.pointer for fault in refusal.value.faults} == {f"/jobs/{no}/depends_on/0" for no in range(3)}


@proves("W1", "P2")
async def test_an_upsert_of_the_same_child_changes_nothing(world: World) -> None:
    [parent] = await world.submit_all([job("a", key="a")])
    specs = [after("a", key="child")]

    async def create() -> Sequence[Any]:
        return await world.submit_all(await resolve_parents(world.database, DEFAULT_TENANT, specs, is_batch=False))

    [first], [second] = await create(), await create()
    assert (first.id, first.version, first.spec.depends_on) == (second.id, second.version, (str(parent.id),))
    assert await world.count("dependency") == 1


@proves("W2", "T1")
async def test_unknown_foreign_and_recurring_parents_are_refused_with_pointers(world: World) -> None:
    other = await world.add_tenant()
    foreign = await world.submit(job("a"), other)
    recurring = await world.submit(job("r", schedule=every(60, world.now)))
    messages = []
    for parent in (foreign.id, JobId(world.database.clock.new_id()), "no-such-key"):
        with pytest.raises(InvalidGraph) as refusal:
            await resolve_parents(world.database, DEFAULT_TENANT, [after(parent)], is_batch=False)
        [fault] = refusal.value.faults
        assert fault.pointer == "/depends_on/0"
        messages.append(fault.message.replace(str(parent), "X"))
    assert len(set(messages)) == 1
    with pytest.raises(InvalidBody, match="workflow") as refused:
        await resolve_parents(world.database, DEFAULT_TENANT, [after(recurring)], is_batch=True)
    assert not isinstance(refused.value, InvalidGraph)
    assert refused.value.faults[0].pointer == "/jobs/0/depends_on/0"


@proves("W1")
async def test_a_parent_that_completes_while_its_child_is_created_is_never_missed(world: World) -> None:
    """The completion runs on another connection at the same moment, 200 times: the child finds it in history, or its
    end arrives."""
    worker = await world.worker()
    children = []
    for no in range(200):
        parent = await world.submit(job("a"))
        [assignment] = await worker.lease()

        async def create(parent_id: JobId = parent.id, pause_first: int = no % 3) -> JobId:
            for _ in range(pause_first):
                await asyncio.sleep(0)
            return (await world.submit(after(parent_id))).id

        child_id, _ = await asyncio.gather(create(), worker.complete(assignment))
        await arrive(world)
        children.append(child_id)
        assert await state(world, child_id) is State.PENDING, no
        [own] = await worker.lease()
        assert own.leased.job_id == child_id
        await worker.complete(own)
    assert await is_clean(world)


@proves("W1")
async def test_a_parent_that_another_process_completes_at_this_moment_is_never_missed(world: World) -> None:
    own = await world.worker()
    async with step_worker(world) as other:
        for no in range(200):
            parent = await world.submit(job("a"))
            assert await other.ask("lease 1") == "1"

            async def create(parent_id: JobId = parent.id, pauses: int = no % 40) -> JobId:
                for _ in range(pauses):
                    await asyncio.sleep(0)
                return (await world.submit(after(parent_id))).id

            child_id, answer = await asyncio.gather(create(), other.ask("finish"))
            assert answer == "finish"
            [assignment] = await own.lease()
            assert assignment.leased.job_id == child_id, no
            await own.complete(assignment)
    assert await is_clean(world)


@proves("W1", "E11")
async def test_a_process_killed_after_it_completed_a_parent_strands_no_child(world: World) -> None:
    parent = await world.submit(job("a"))
    child = await world.submit(after(parent))
    async with step_worker(world) as doomed:
        assert await doomed.ask("lease 1") == "1"
        assert await doomed.ask("complete") == "complete"
        await doomed.kill()
    assert await state(world, child.id) is State.BLOCKED
    await world.advance(2)
    await settle_due_pass(world.database, world.dispatcher)
    assert await state(world, child.id) is State.PENDING
    assert await is_clean(world)


@proves("W1")
async def test_a_thousand_children_of_one_parent_and_a_child_of_hundreds_of_parents_run_once_each(world: World) -> None:
    worker = await world.worker()
    top = await world.submit(job("top", key="top"))
    middle = [job("middle", key=f"m{no}", depends_on=(str(top.id),)) for no in range(1_001)]
    bottom = after(*(f"m{no}" for no in range(300)), key="bottom")
    created = await world.submit_all([*middle, bottom])
    await worker.run_one()
    assert await arrive(world) == 1_001
    while assignments := await worker.lease(500):
        await worker.complete_all(assignments)
        await arrive(world)
    assert set(await world.states()) == {State.SUCCEEDED}
    assert len(await world.executions(created[-1].id)) == 1
    assert await is_clean(world)


@proves("W1")
async def test_two_last_parents_that_succeed_at_once_free_their_child_once(world: World) -> None:
    workers = [await world.worker() for _ in range(2)]
    for no in range(50):
        parents = await world.submit_all([job("a"), job("b")])
        child = await world.submit(after(*parents))
        assignments = [(await worker.lease(1))[0] for worker in workers]

        async def finish(at: int, assignments: Sequence[Any] = assignments) -> None:
            await workers[at].complete(assignments[at])
            await settle_parents(world.database, world.dispatcher, [assignments[at].leased.job_id])

        await asyncio.gather(finish(0), finish(1))
        assert (await workers[0].run_one()).leased.job_id == child.id, no
    assert await is_clean(world)


@proves("W1", "L3")
async def test_a_job_whose_parent_failed_is_cancelled_after_the_retention(world: World) -> None:
    worker = await world.worker()
    parent = await world.submit(job("a", retry=NO_RETRY))
    child = await world.submit(after(parent))
    await worker.run_one(failed())
    await arrive(world)
    await world.set_clock(world.after(86_400 * (world.database.settings.retention_days + 1)))
    await world.retain()
    assert await world.count("dependent") == 0
    assert await state(world, child.id) is State.CANCELLED
