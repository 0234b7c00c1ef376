"""Housekeeping repeats its passes, the self-check among them, and none delays the watch."""

import asyncio
from dataclasses import astuple

import pytest

from ondot.flow.days import make_days
from ondot.flow.dispatch import Dispatcher
from ondot.flow.plan import Planner
from ondot.model import check
from ondot.model.execution import State
from ondot.roles import housekeeper
from ondot.roles.housekeeper import Housekeeper
from ondot.store.check import list_found
from ondot.store.chores import find_chores
from ondot.store.database import open_database
from ondot.transports.polling import PollingTransport
from tests.proves import proves
from tests.servers import connected, settings_for
from tests.world import RecordingTransport, World, job


@proves("P5", "C1")
async def test_a_housekeeper_on_duty_checks_and_every_node_makes_partitions(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "CONFIRM_SOONEST_S", 0.0)
    for name in ("CHECK_EVERY_S", "CHECK_MORE_S", "PARTITIONS_EVERY_S"):
        monkeypatch.setattr(housekeeper, name, 0.01)
    database = await open_database(settings_for(database_url))
    await database.read_clock()
    await make_days(database)
    is_on_duty = False
    keeper = Housekeeper(database, Dispatcher(PollingTransport()), on_duty=lambda: is_on_duty)
    async with database.connection() as connection:
        await connection.execute("DELETE FROM ondot.partition WHERE partition_no = 0")
        await connection.execute("INSERT INTO ondot.ready VALUES (1, 2, 1, now() - interval '1 h', gen_random_uuid())")

        async def found(kind: str) -> None:
            while kind not in {entry.kind for entry in await list_found(connection)}:
                await asyncio.sleep(0.01)

        keeping = asyncio.create_task(keeper.run())
        async with asyncio.timeout(20):
            await found("partition")
            assert await connection.fetchval("SELECT count(*) FROM ondot.ready") == 1
            is_on_duty = True
            await found("queued_without_execution")
        assert await connection.fetchval("SELECT count(*) FROM ondot.ready") == 0
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
    await database.close()


@proves("W8")
async def test_one_look_a_second_wakes_the_passes_that_have_work(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeper, "CHORES_EVERY_S", 0.01)
    database = await open_database(settings_for(database_url))
    await database.read_clock()
    await make_days(database)
    keeper = Housekeeper(database, Dispatcher(PollingTransport()), on_duty=lambda: True)
    async with database.connection() as connection:
        assert not any(astuple(await find_chores(connection)))
        keeping = asyncio.create_task(keeper.run())
        async with asyncio.timeout(30):
            # The first may be found when its loop starts, the second only by a look: the loop's own tick is a minute.
            for no in range(2):
                await connection.execute(
                    "INSERT INTO ondot.step_wait (run_id, execution_id, due_at, step_no, tenant_no, kind)"
                    " VALUES (gen_random_uuid(), gen_random_uuid(), now(), $1, 1, 'time')",
                    no,
                )
                while await connection.fetchval("SELECT count(*) FROM ondot.step_wait WHERE ended_at IS NULL"):
                    await asyncio.sleep(0.01)
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
        ids, old = "gen_random_uuid(), gen_random_uuid()", "now() - interval '2 s'"
        for insert, chore in (
            (f"dependency (parent_id, child_id, look_at, tenant_no) VALUES ({ids}, {old}, 1)", "parents"),
            (f"arrival (run_id, execution_id, state, at, tenant_no) VALUES ({ids}, 'FAILED', {old}, 1)", "arrivals"),
        ):
            await connection.execute(f"INSERT INTO ondot.{insert}")
            assert getattr(await find_chores(connection), chore)
    await database.close()


@proves("E6", "L3")
async def test_a_recovery_that_takes_long_does_not_keep_the_next_loss_from_being_seen(database_url: str) -> None:
    database = await open_database(settings_for(database_url, heartbeat_s=0.5))
    await database.read_clock()
    await make_days(database)
    transport = RecordingTransport()
    dispatcher = Dispatcher(transport)
    now = database.clock.now()
    world = World(database_url, database, transport, dispatcher, Planner(database, dispatcher), now)
    await world.submit(job())
    first = await world.worker()
    [assignment] = await first.lease()
    keeping = asyncio.create_task(Housekeeper(database, dispatcher, on_duty=lambda: True).run())

    async def until(sql: str, *arguments: object) -> None:
        while not await world.value(sql, *arguments):
            await asyncio.sleep(0.01)

    async with connected(database_url) as other, asyncio.timeout(20):
        async with other.transaction():
            # Who recovers it waits for this lock: for the 30 s that a statement may take.
            await other.execute("SELECT FROM ondot.execution WHERE id = $1 FOR UPDATE", assignment.leased.id)
            await until(
                "SELECT EXISTS (SELECT FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock')"
            )
            second = await world.worker()
            await until("SELECT state = 'LOST' FROM ondot.worker WHERE id = $1", second.id)
        await until("SELECT state = 'RETRYING' FROM ondot.execution WHERE id = $1", assignment.leased.id)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    assert (await world.execution(assignment.leased.id)).state is State.RETRYING
    await database.close()
