"""Day partitions: made ahead, cut off the catch-all with what is in it, by any number of processes at once."""

import asyncio
from datetime import timedelta

from ondot.flow.retain import retain_pass
from ondot.model.execution import State
from ondot.model.ids import first_id_at
from ondot.store.days import make_days, read_day_tables
from tests.proves import proves
from tests.world import World, job


async def days_ahead(world: World) -> set[int]:
    async with world.database.connection() as connection:
        return {(table.next_day - table.today).days for table in await read_day_tables(connection)}


@proves("O1")
async def test_a_week_of_days_is_made_ahead_and_another_day_each_day(world: World) -> None:
    await make_days(world.database)
    assert await days_ahead(world) == {8}
    assert await make_days(world.database) == 0
    await world.advance(86_400)
    assert await make_days(world.database) == 6
    assert await days_ahead(world) == {8}


@proves("O1", "P1")
async def test_rows_that_came_into_the_catch_all_move_to_their_day(world: World) -> None:
    await world.advance(10 * 86_400)
    accepted = await world.submit(job())
    worker = await world.worker()
    await worker.run_one()
    assert await world.value("SELECT count(*) FROM ondot.history_ahead") == 1
    await make_days(world.database)
    day = f"{world.now:%Y%m%d}"
    for table in ("history", "job_once"):
        assert await world.value(f"SELECT count(*) FROM ondot.{table}_ahead") == 0
        assert await world.value(f"SELECT count(*) FROM ondot.{table}_{day}") == 1
    assert await world.states(accepted.id) == [State.SUCCEEDED]


@proves("O1")
async def test_an_id_of_any_time_finds_a_partition(world: World) -> None:
    for days in (-100, 100):
        id_ = first_id_at(world.now + timedelta(days=days))
        await world.fetch(
            "INSERT INTO ondot.audit (id, tenant_no, actor, action) VALUES ($1, 1, 'somebody', 'something')", id_
        )
    assert await world.value("SELECT count(*) FROM ondot.audit_past") == 1
    assert await world.value("SELECT count(*) FROM ondot.audit_ahead") == 1


@proves("O1", "O6")
async def test_any_number_of_processes_may_make_days_at_once_while_others_write(world: World) -> None:
    await world.advance(3 * 86_400)
    await asyncio.gather(*(make_days(world.database) for _ in range(4)), *(world.submit(job()) for _ in range(20)))
    assert min(await days_ahead(world)) >= 8
    assert await world.count("job_once") == 20


@proves("O1")
async def test_a_table_that_is_in_use_gets_its_day_in_a_later_pass(world: World) -> None:
    await world.advance(3 * 86_400)
    async with world.second_connection() as connection:
        using = connection.transaction()
        await using.start()
        await connection.execute("LOCK TABLE ondot.history IN ACCESS SHARE MODE")
        await make_days(world.database)
        assert await days_ahead(world) > {8}
        await using.rollback()
    await make_days(world.database)
    assert await days_ahead(world) == {8}


@proves("O1")
async def test_the_smallest_id_of_an_instant_is_the_same_in_python_and_sql(world: World) -> None:
    for microseconds in (0, 1, 499, 500, 999, 1000, 999_999):
        at = world.now + timedelta(microseconds=microseconds)
        assert await world.value("SELECT ondot.first_id_at($1)", at) == first_id_at(at)


@proves("P2", "O1")
async def test_keeping_house_forgets_idempotency_keys_after_seven_days_and_not_before(world: World) -> None:
    await world.submit_with_key("old", job())
    await world.advance(7 * 86_400)
    assert await retain_pass(world.database) == 0
    await world.submit_with_key("young", job())
    await world.advance(1)
    assert await retain_pass(world.database) == 1
    assert [row["key"] for row in await world.fetch("SELECT key FROM ondot.idempotency")] == ["young"]
