"""What does not fit into a deadline is asked for in less: no pass tries the same in vain for ever."""

import asyncio
from collections.abc import Sequence

import pytest

from ondot.flow.complete import BATCH_LENGTH, Completer, Done
from ondot.flow.lease import Leaser
from ondot.flow.plan import Planner
from ondot.flow.recover import AT_ONCE, recover_pass
from ondot.model.errors import Unavailable
from ondot.model.execution import State
from ondot.model.ids import PARTITIONS, WorkerId
from ondot.model.outcome import Succeeded
from ondot.store.adaptive_batch import AdaptiveBatch
from ondot.store.database import open_database
from ondot.store.outcomes import Written
from tests.faults.proxy import a_proxy
from tests.flow.slow_line import DEADLINE_S, MANY, large, slow_database
from tests.flow.test_recover import lose
from tests.proves import proves
from tests.servers import settings_for
from tests.world import DEFAULT_POOL, World, done, every, job, once

TRIES = 15


@proves("L4", "E1")
async def test_a_lease_of_large_payloads_is_read_over_a_slow_line(world: World) -> None:
    await world.submit_all([job(payload=large(number).encode()) for number in range(MANY // 2)])
    recurring = await world.submit(job(schedule=every(3600, world.after(60))))
    for number in range(MANY // 2, MANY):
        await world.run_now(recurring.id, large(number).encode())
    worker = await world.worker()
    async with slow_database(world) as database:
        leaser = Leaser(database, worker.id, [DEFAULT_POOL])
        for _ in range(TRIES):
            try:
                batch = await leaser.one_pass(MANY)
            except Unavailable:
                assert leaser.pending is not None
            else:
                break
    assert {assignment.payload for assignment in batch.assignments} == {large(n).encode() for n in range(MANY)}
    assert await world.count("lease") == 1


@proves("L4", "E1")
async def test_what_was_read_of_a_lease_before_the_line_broke_is_not_read_again(world: World) -> None:
    jobs = await world.submit_all([job(payload=f'"payload {number}"'.encode()) for number in range(3)])
    worker = await world.worker()
    async with a_proxy(world.url) as proxy:
        database = await open_database(settings_for(proxy.url), hurried=True)
        database.clock.freeze(world.now)
        leaser = Leaser(database, worker.id, [DEFAULT_POOL])
        first = await leaser.one_pass(3)
        leaser._at_once.size = 2
        proxy.cut_before_reply('"payload 2"')
        with pytest.raises(Unavailable):
            await leaser._adopt(first.assignments[0].lease_id)
        await world.fetch("DELETE FROM ondot.job_once WHERE id = ANY ($1)", [accepted.id for accepted in jobs[:2]])
        again = await leaser._adopt(first.assignments[0].lease_id)
        await database.close()
    assert [assignment.payload for assignment in again.assignments] == [f'"payload {n}"'.encode() for n in range(3)]


@proves("L4", "E1")
async def test_who_was_taken_from_a_worker_while_it_read_is_not_run(world: World) -> None:
    await world.submit_all([job(payload=f'"payload {number}"'.encode()) for number in range(3)])
    worker = await world.worker()
    async with a_proxy(world.url) as proxy:
        database = await open_database(settings_for(proxy.url), hurried=True)
        database.clock.freeze(world.now)
        leaser = Leaser(database, worker.id, [DEFAULT_POOL])
        batch = await leaser.one_pass(3)
        leaser._at_once.size = 1
        proxy.cut_before_reply('"payload 2"')
        with pytest.raises(Unavailable):
            await leaser._adopt(batch.assignments[0].lease_id)
        taken = batch.assignments[0].leased.id
        await world.fetch("UPDATE ondot.execution SET state = 'PENDING', worker_id = NULL WHERE id = $1", taken)
        again = await leaser._adopt(batch.assignments[0].lease_id)
        await database.close()
    assert [assignment.payload for assignment in again.assignments] == [b'"payload 1"', b'"payload 2"']


@proves("L4", "S6")
async def test_specs_of_recurring_jobs_that_came_before_the_line_broke_are_kept(world: World) -> None:
    schedule = every(3600, world.after(60))
    jobs = await world.submit_all([job(schedule=schedule, payload=f'"payload {n}"'.encode()) for n in range(3)])
    versions = [(accepted.id, 1) for accepted in jobs]
    async with a_proxy(world.url) as proxy:
        database = await open_database(settings_for(proxy.url), hurried=True)
        database.specs._at_once.size = 1
        proxy.cut_before_reply('"payload 2"')
        with pytest.raises(Unavailable):
            async with database.connection() as connection:
                await database.specs.find(connection, versions)
        await world.fetch("DELETE FROM ondot.job_version WHERE job_id = $1", jobs[0].id)
        async with database.connection() as connection:
            specs = await database.specs.find(connection, versions)
        await database.close()
    assert [bytes(specs[version].payload) for version in versions] == [f'"payload {n}"'.encode() for n in range(3)]


@proves("L4", "S6")
async def test_large_jobs_are_planned_over_a_slow_line_by_a_node_that_knows_none_of_them(world: World) -> None:
    at = world.after(30)
    recurring = [job(schedule=every(3600, at), payload=large(number).encode()) for number in range(MANY // 2)]
    single = [job(schedule=once(at), payload=large(number).encode()) for number in range(MANY // 2)]
    await world.submit_all(recurring + single)
    await world.advance(20)
    async with slow_database(world) as database:
        planner = Planner(database, world.dispatcher)
        for _ in range(TRIES):
            try:
                await planner.one_pass(range(PARTITIONS))
            except Unavailable:
                continue
            else:
                break
    assert await world.count("execution") == MANY


@proves("L4", "E6", "L3")
async def test_what_a_lost_worker_ran_with_large_payloads_is_recovered_over_a_slow_line(world: World) -> None:
    await world.submit_all([job(payload=large(number).encode()) for number in range(MANY)])
    worker = await world.worker()
    assert len(await worker.lease()) == MANY
    await lose(world, worker)
    async with slow_database(world) as database:
        at_once = AdaptiveBatch(AT_ONCE)
        for _ in range(TRIES):
            try:
                leases = await recover_pass(database, world.dispatcher, at_once)
            except Unavailable:
                continue
            if not leases:
                break
    assert await world.value("SELECT count(*) FROM ondot.execution WHERE state = 'RETRYING'") == MANY
    assert await world.count("lease") == 0


@proves("L4", "E6", "L3")
async def test_more_lost_executions_than_a_statement_can_write_in_time_are_recovered(world: World) -> None:
    await world.submit_all([job() for _ in range(300)])
    worker = await world.worker()
    for _ in range(3):
        assert len(await worker.lease(100)) == 100
    await lose(world, worker)
    await world.fetch(
        "CREATE FUNCTION ondot.dawdle() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.001); RETURN new; END $$"
    )
    await world.fetch(
        "CREATE TRIGGER dawdle BEFORE UPDATE ON ondot.execution FOR EACH ROW EXECUTE FUNCTION ondot.dawdle()"
    )
    database = await open_database(
        settings_for(world.url).model_copy(update={"statement_timeout_s": DEADLINE_S}), hurried=True
    )
    database.clock.freeze(world.now)
    at_once = AdaptiveBatch(AT_ONCE)
    for _ in range(TRIES):
        try:
            leases = await recover_pass(database, world.dispatcher, at_once)
        except Unavailable:
            continue
        if not leases:
            break
    await database.close()
    assert await world.value("SELECT count(*) FROM ondot.execution WHERE state = 'RETRYING'") == 300
    assert (await world.count("ready"), await world.count("lease")) == (300, 0)


@proves("E6", "P7")
async def test_a_lease_that_goes_back_in_parts_stays_until_nothing_of_it_runs(world: World) -> None:
    await world.submit_all([job() for _ in range(5)])
    worker = await world.worker()
    await worker.lease()
    await lose(world, worker)
    assert await recover_pass(world.database, world.dispatcher, AdaptiveBatch(2)) == 1
    assert set(await world.states()) == {State.RETRYING}
    assert await world.count("lease") == 1
    assert await recover_pass(world.database, world.dispatcher, AdaptiveBatch(2)) == 1
    assert await recover_pass(world.database, world.dispatcher, AdaptiveBatch(2)) == 0
    assert await world.value("SELECT count(*) FROM ondot.attempt WHERE outcome = 'WORKER_LOST'") == 5
    assert (await world.count("ready"), await world.count("lease")) == (5, 0)


@proves("L4", "P7")
async def test_large_outcomes_are_written_over_a_slow_line(world: World) -> None:
    await world.submit_all([job() for _ in range(MANY)])
    worker = await world.worker()
    assignments = await worker.lease()
    async with slow_database(world) as database:
        completer = Completer(database, world.dispatcher, worker.id)
        completer.hold(assignments[0].lease_id, MANY)
        writing = asyncio.create_task(completer.run())
        for number, assignment in enumerate(assignments):
            completer.add(done(assignment, Succeeded(large(number))))
        async with asyncio.timeout(20):
            await completer.drained()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    assert await world.value("SELECT count(*) FROM ondot.history WHERE state = 'SUCCEEDED'") == MANY
    assert await world.count("lease") == 0


class _Remembering(Completer):
    """Remembers how long the results were that it wrote at once."""

    def __init__(self, world: World, worker_id: WorkerId) -> None:
        super().__init__(world.database, world.dispatcher, worker_id)
        self.lengths: list[int] = []

    async def write(self, batch: Sequence[Done]) -> list[Written]:
        self.lengths.append(sum(len(entry.completion.result or "") for entry in batch))
        return await super().write(batch)


@proves("L4", "E11")
async def test_a_batch_of_outcomes_is_bounded_by_its_length_too(world: World) -> None:
    await world.submit_all([job() for _ in range(9)])
    worker = await world.worker()
    assignments = await worker.lease()
    completer = _Remembering(world, worker.id)
    completer.hold(assignments[0].lease_id, 9)
    for assignment in assignments:
        completer.add(done(assignment, Succeeded(f'"{assignment.leased.id!s:*>900000}"')))
    writing = asyncio.create_task(completer.run())
    async with asyncio.timeout(20):
        await completer.drained()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert sum(completer.lengths) == 9 * 900_002
    assert max(completer.lengths) < BATCH_LENGTH + 1_000_000
    assert await world.count("history") == 9
