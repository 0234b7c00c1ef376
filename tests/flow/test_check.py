"""The self-check: rows that no process owns are found, repaired, counted and logged."""

from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from ondot.flow.check import make_partitions_pass
from ondot.model.check import Kind
from ondot.model.execution import State
from ondot.model.gates import Limits
from ondot.model.retry import Retry
from ondot.model.schedule import Cron, Schedule
from ondot.telemetry.metrics import FOUND
from tests.flow.checking import Checker, assert_logged, limit_pool, own_partitions, unmake
from tests.flow.test_recover import lose
from tests.proves import proves
from tests.world import World, every, failed, job


@proves("E6", "P5", "P7")
async def test_an_execution_of_a_gone_worker_without_a_lease_is_given_back_as_a_loss(world: World) -> None:
    await world.submit_all([job(), job(retry=Retry(max_worker_losses=0))])
    worker = await world.worker()
    assignments = await worker.lease()
    await world.value("DELETE FROM ondot.lease")
    await lose(world, worker)
    assert await world.recover() == 0
    before = FOUND.labels("running_of_gone_worker").value
    checker = Checker(world)
    [found] = await checker.look_twice()
    assert (found.kind, found.count, found.last_at) == ("running_of_gone_worker", 2, world.now)
    assert set(found.example["ids"]) == {str(entry.leased.id) for entry in assignments}
    assert FOUND.labels("running_of_gone_worker").value == before + 2
    assert_logged(checker, Kind.RUNNING_OF_GONE_WORKER, assignments[0].leased.id, count=2)
    assert await world.recover() == 1
    assert {(row.state, row.losses) for row in await world.executions()} == {(State.RETRYING, 1), (State.FAILED, 1)}
    assert await worker.complete(assignments[0]) == []
    assert await world.count("lease") == 0


@proves("E6", "P5")
async def test_an_execution_that_runs_under_an_unknown_worker_or_under_none_is_given_back(world: World) -> None:
    await world.submit_all([job(), job()])
    worker = await world.worker()
    await worker.lease()
    await world.value("DELETE FROM ondot.lease")
    await world.value("DELETE FROM ondot.worker")
    [first, *_] = await world.executions()
    await world.value("UPDATE ondot.execution SET worker_id = NULL WHERE id = $1", first.id)
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"running_of_gone_worker": 2}
    while await world.recover():
        pass
    assert [(row.state, row.losses) for row in await world.executions()] == [(State.RETRYING, 1)] * 2


@proves("E6", "P5", "P6", "P7")
async def test_an_execution_of_a_live_worker_that_has_no_lease_for_it_is_given_back_as_a_loss(world: World) -> None:
    """Its worker may have made the call, so it costs a loss, and a late outcome of that worker is refused."""
    await world.submit_all([job(), job(retry=Retry(max_worker_losses=0)), job()])
    worker = await world.worker()
    unnamed = await worker.lease(2)
    [named] = await worker.lease(1)
    await world.value("DELETE FROM ondot.lease WHERE id = $1", unnamed[0].lease_id)
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"running_without_lease": 2}
    assert_logged(checker, Kind.RUNNING_WITHOUT_LEASE, unnamed[0].leased.id, count=2)
    await worker.beat()
    while await world.recover():
        pass
    rows = {row.id: (row.state, row.losses) for row in await world.executions()}
    lost = [rows[entry.leased.id] for entry in unnamed]
    assert sorted(lost) == [(State.FAILED, 1), (State.RETRYING, 1)]
    assert rows[named.leased.id] == (State.RUNNING, 0)
    outcomes = await world.fetch("SELECT outcome FROM ondot.attempt")
    assert [row["outcome"] for row in outcomes] == ["WORKER_LOST"] * 2
    assert await worker.complete_all(unnamed) == []
    await worker.complete(named)
    await checker.look_twice()
    assert await checker.counts() == {"running_without_lease": 2}


@proves("E6", "P5")
async def test_a_lease_of_an_earlier_attempt_does_not_count(world: World) -> None:
    """The same worker has leased it twice; the first lease still exists, for another execution."""
    await world.submit_all([job(retry=Retry(initial_s=0.001, jitter=False)), job()])
    worker = await world.worker()
    first, _ = await worker.lease()
    await worker.complete(first, failed())
    await world.advance(1)
    [again] = await worker.lease()
    assert again.leased.id == first.leased.id
    checker = Checker(world)
    await world.advance(0.001)
    assert await checker.suspects() == []
    await world.value("DELETE FROM ondot.lease WHERE id = $1", again.lease_id)
    await checker.look_twice()
    assert await checker.counts() == {"running_without_lease": 1}


@proves("S6", "P4", "L6")
async def test_a_timer_that_plan_has_missed_is_planned(world: World) -> None:
    await own_partitions(world)
    overlooked = await world.submit(job(schedule=every(3600, world.now)))
    await world.advance(3700)
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"overdue_timer": 1}
    assert_logged(checker, Kind.OVERDUE_TIMER, overlooked.id)
    timer = await world.timer(overlooked.id)
    assert timer is not None
    assert timer["next_fire_at"] > world.now
    assert len(await world.executions(overlooked.id)) == 1
    await checker.look_twice()
    assert await checker.counts() == {"overdue_timer": 1}


@proves("S6", "P4")
@pytest.mark.parametrize(
    ("part", "instead", "fault"),
    [
        ('"kind":"cron"', '"kind":"lunar"', "from a newer release"),
        ("Europe/Berlin", "Europe/Atlantis", "cannot be computed"),
    ],
    ids=["unreadable", "uncomputable"],
)
async def test_a_timer_that_cannot_be_planned_is_logged_every_time_and_counted_once(
    world: World, part: str, instead: str, fault: str
) -> None:
    await own_partitions(world)
    hourly = Schedule(when=Cron(expression="0 * * * *", timezone="Europe/Berlin"))
    doomed, well = [await world.submit(job(schedule=hourly)) for _ in range(2)]
    await world.value(
        "UPDATE ondot.job_version SET spec = replace(spec::text, $2, $3)::json WHERE job_id = $1",
        doomed.id,
        part,
        instead,
    )
    await world.advance(3700)
    checker = Checker(world)
    for times in range(1, 4):
        await checker.look_twice()
        logged = [entry for entry in checker.logged if entry["ids"] == [str(doomed.id)]]
        assert len(logged) >= times
        assert fault in logged[-1]["then"]
    assert await checker.counts() == {"overdue_timer": 2}
    assert len(await world.executions(well.id)) >= 1


@proves("P5", "L6")
@pytest.mark.parametrize("state", [State.PENDING, State.RETRYING])
async def test_an_execution_that_waits_nowhere_is_put_back_into_the_queue(world: World, state: State) -> None:
    await world.submit(job())
    worker = await world.worker()
    if state is State.RETRYING:
        await worker.run_one(failed())
    await world.value("DELETE FROM ondot.ready")
    [lost] = await world.executions()
    assert lost.state is state
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"unqueued": 1}
    assert_logged(checker, Kind.UNQUEUED, lost.id)
    [found] = await world.executions()
    assert (found.state, found.ready_at) == (state, world.now)
    await worker.run_one()
    assert await world.states() == [State.SUCCEEDED]


@proves("P5", "E13", "P11")
async def test_a_limited_execution_that_waits_nowhere_is_put_back_into_line(world: World) -> None:
    limits = Limits(order_key="o", key="k", key_concurrency=1)
    await world.submit_all([job(limits=limits) for _ in range(3)])
    worker = await world.worker()
    [running] = await worker.lease()
    await world.value("DELETE FROM ondot.waiting")
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"unqueued": 2}
    assert await worker.lease() == []  # the first still has its slot
    await worker.complete(running)
    for _ in range(2):
        await worker.run_one()
    assert await world.states() == [State.SUCCEEDED] * 3


@proves("P5", "E13")
async def test_an_execution_that_passed_its_gates_and_waits_nowhere_passes_them_again(world: World) -> None:
    await world.submit(job(limits=Limits(overlap="queue", key="k", key_concurrency=1)))
    worker = await world.worker()
    await worker.leaser.one_pass(0)
    assert (await world.count("ready"), await world.count("slot")) == (1, 2)
    await world.value("DELETE FROM ondot.ready")
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"unqueued": 1}
    await worker.run_one()
    assert await world.states() == [State.SUCCEEDED]
    assert (await world.count("slot"), await world.count("gated")) == (0, 0)


@proves("P5", "L6")
async def test_rows_of_the_queue_without_a_waiting_execution_are_deleted(world: World) -> None:
    await world.submit_all([job(), job()])
    worker = await world.worker()
    [running] = await worker.lease(1)
    await world.value(
        "INSERT INTO ondot.ready SELECT 1, 2, 1, ondot.clock(), id FROM unnest($1::uuid[]) AS n(id)",
        [running.leased.id, uuid4()],
    )
    await world.value("INSERT INTO ondot.ready SELECT 1, 3, 1, ready_at, execution_id FROM ondot.ready WHERE class = 2")
    [waiting] = [row.id for row in await world.executions() if row.state is State.PENDING]
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"queued_without_execution": 5}
    rows = await world.fetch("SELECT class, execution_id FROM ondot.ready")
    assert [tuple(row) for row in rows] == [(2, waiting)]


@proves("E16", "P5", "L6")
async def test_a_place_in_line_without_an_execution_blocks_none(world: World) -> None:
    ordered = job(limits=Limits(order_key="o"))
    await world.submit_all([ordered, ordered])
    worker = await world.worker()
    [first, second] = await world.executions()
    await unmake(world, first.id)
    await world.value("DELETE FROM ondot.gated WHERE execution_id = $1", first.id)
    await world.value(
        "INSERT INTO ondot.waiting SELECT gate_id, pool_no, $1, $2, tenant_no, stage FROM ondot.waiting",
        first.ready_at,
        first.id,
    )
    assert await worker.lease() == []
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"queued_without_execution": 1}
    assert (await worker.run_one()).leased.id == second.id


@proves("E13", "P5")
async def test_gates_of_an_execution_that_is_gone_are_deleted_with_its_slots(world: World) -> None:
    await world.submit_all([job(limits=Limits(key="k", key_concurrency=1)) for _ in range(2)])
    worker = await world.worker()
    [running] = await worker.lease()
    await unmake(world, running.leased.id)
    checker = Checker(world)
    await checker.look_twice()
    assert (await checker.counts())["queued_without_execution"] == 1
    assert await world.count("gated") == 1
    assert len(await worker.lease()) == 1


@proves("E13", "P5")
async def test_a_slot_without_an_execution_is_freed_and_the_next_in_line_is_called(world: World) -> None:
    await world.submit_all([job(limits=Limits(key="k", key_concurrency=1)) for _ in range(2)])
    worker = await world.worker()
    await worker.run_one()
    await world.value("INSERT INTO ondot.slot SELECT id, $1, 1, false, ondot.clock() FROM ondot.gate", uuid4())
    assert await worker.lease() == []
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"slot_without_holder": 1}
    assert len(await worker.lease()) == 1


@proves("E13", "P5")
async def test_a_pool_slot_of_an_execution_that_does_not_run_is_freed(world: World) -> None:
    await limit_pool(world, 1)
    await world.submit_all([job(), job()])
    worker = await world.worker()
    waiting = (await world.executions())[1].id
    await world.value(
        "INSERT INTO ondot.slot VALUES (ondot.pool_gate(1), $1, 1, false, ondot.clock())",
        waiting,
    )
    assert await worker.lease() == []
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"slot_without_holder": 1}
    assert_logged(checker, Kind.SLOT_WITHOUT_HOLDER, waiting)
    assert len(await worker.lease()) == 1


@proves("E13", "L6")
async def test_a_line_that_nothing_will_look_at_is_called(world: World) -> None:
    await world.submit(job(limits=Limits(key="k", key_concurrency=1)))
    await world.value("UPDATE ondot.line SET look_at = 'infinity'")
    worker = await world.worker()
    checker = Checker(world)
    await world.advance(30)
    await checker.look_twice(25)
    assert await checker.counts() == {}  # due for less than a minute
    assert await worker.lease() == []
    await world.advance(10)
    await checker.look_twice()
    assert await checker.counts() == {"line_overlooked": 1}
    assert len(await worker.lease()) == 1


@proves("E6", "P5")
async def test_a_lease_without_a_running_execution_is_deleted(world: World) -> None:
    await world.submit_all([job(), job()])
    worker = await world.worker()
    done, running = await worker.lease(1), await worker.lease(1)
    again = "INSERT INTO ondot.lease SELECT id, 0, worker_id, leased_at, execution_ids, attempt_nos FROM kept"
    await world.value("CREATE TABLE kept AS SELECT * FROM ondot.lease WHERE id = $1", done[0].lease_id)
    await worker.complete(done[0], failed())
    await world.value(again)
    await world.advance(60)
    [once_more] = await worker.lease(1)
    assert once_more.leased.id == done[0].leased.id
    await world.advance(121)
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"empty_lease": 1}
    assert_logged(checker, Kind.EMPTY_LEASE, done[0].lease_id)
    left = {row["id"] for row in await world.fetch("SELECT id FROM ondot.lease")}
    assert left == {running[0].lease_id, once_more.lease_id}


@proves("C1", "P5")
async def test_missing_partitions_are_made_and_those_without_an_owner_are_logged(world: World) -> None:
    await own_partitions(world)
    await world.value("DELETE FROM ondot.partition WHERE partition_no IN (0, 5)")
    with capture_logs() as logs:
        await make_partitions_pass(world.database)
        await make_partitions_pass(world.database)
    assert [(entry["kind"], entry["ids"]) for entry in logs] == [("partition", ["0", "5"])]
    assert await world.count("partition") == 64
    checker = Checker(world)
    assert await checker.counts() == {"partition": 2}
    for _ in range(2):  # said again while it is so, and counted once
        await checker.look_twice()
    assert await checker.counts() == {"partition": 4}
    assert [entry["ids"] for entry in checker.logged] == [["0", "5"]] * len(checker.logged)
    assert len(checker.logged) >= 2


@proves("E13", "P5")
async def test_an_execution_in_a_line_that_does_not_exist_is_put_into_one(world: World) -> None:
    await world.submit(job(limits=Limits(key="k", key_concurrency=1)))
    [waiting] = await world.executions()
    await world.value("DELETE FROM ondot.line")
    await world.value("DELETE FROM ondot.gate")
    worker = await world.worker()
    assert await worker.lease() == []
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {"unqueued": 1}
    assert (await worker.run_one()).leased.id == waiting.id


@proves("E13", "L6")
async def test_a_line_that_nothing_will_look_at_before_a_forgotten_gate_is_called(world: World) -> None:
    await world.submit(job(limits=Limits(key="k", key_concurrency=1)))
    await world.value("UPDATE ondot.line SET look_at = 'infinity'")
    await world.value("DELETE FROM ondot.gate")
    worker = await world.worker()
    checker = Checker(world)
    await world.advance(61)
    await checker.look_twice()
    assert await checker.counts() == {"line_overlooked": 1}
    assert len(await worker.lease()) == 1
