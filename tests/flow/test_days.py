"""Day partitions: made ahead, cut off the catch-all with what is in it, by any number of processes at once."""

import asyncio
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from ondot.flow.days import BELIEVED_AFTER_S, Days, make_days
from ondot.model.execution import State
from ondot.model.ids import first_id_at
from ondot.store.days import read_day_tables
from tests.proves import proves
from tests.world import World, job


@pytest.fixture
async def world(world: World) -> World:
    """With all the days that a role makes when it starts."""
    await make_days(world.database)
    return world


async def days_ahead(world: World) -> set[int]:
    async with world.database.connection() as connection:
        return {(table.next_day - table.today).days for table in await read_day_tables(connection)}


async def tables_of(world: World) -> int:
    """How many day tables there are in all."""
    async with world.database.connection() as connection:
        return sum((table.next_day - table.first_day).days for table in await read_day_tables(connection))


@proves("O1")
async def test_two_weeks_of_days_are_made_ahead_and_the_next_when_fewer_than_a_week_are_left(world: World) -> None:
    [ahead] = await days_ahead(world)
    while ahead > 8:
        await world.advance(86_400)
        assert await make_days(world.database) == 0
        [ahead] = await days_ahead(world)
    await world.advance(86_400)
    assert await make_days(world.database) == 8 * 8
    assert await days_ahead(world) == {15}


@proves("O1", "P1")
async def test_rows_that_came_into_the_catch_all_move_to_their_day(world: World) -> None:
    await world.advance(20 * 86_400)
    accepted = await world.submit(job())
    worker = await world.worker()
    await worker.run_one()
    assert await world.value("SELECT count(*) FROM ondot.history_ahead") == 1
    while await make_days(world.database):
        pass
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
    await world.advance(10 * 86_400)
    await asyncio.gather(*(make_days(world.database) for _ in range(4)), *(world.submit(job()) for _ in range(20)))
    # One that met another at the same table left it for later.
    await make_days(world.database)
    assert await days_ahead(world) == {15}
    assert await world.count("job_once") == 20


REFUSING = """
CREATE OR REPLACE FUNCTION ondot.add_days(parent_name text, through date) RETURNS integer LANGUAGE plpgsql
AS $$ BEGIN RAISE EXCEPTION 'tried'; END $$
"""


@proves("O1", "L1")
async def test_no_lock_is_asked_for_while_somebody_reads_the_table(world: World) -> None:
    """A dump holds it for hours: a statement that waits for the lock blocks every completion behind it."""
    await world.advance(10 * 86_400)
    async with world.second_connection() as connection:
        await connection.execute("BEGIN")
        for table in await world.fetch("SELECT parent FROM ondot.day_table"):
            await connection.execute(f"LOCK TABLE ondot.{table['parent']} IN ACCESS SHARE MODE")
        await world.fetch(REFUSING)
        assert await make_days(world.database) == 0
        await connection.execute("ROLLBACK")
    with pytest.raises(asyncpg.RaiseError, match="tried"):
        await make_days(world.database)


@proves("O1", "L1")
async def test_a_table_that_is_taken_in_the_last_moment_gets_its_days_in_a_later_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.advance(10 * 86_400)

    async def nobody(*_: object) -> bool:
        return False

    async with world.second_connection() as connection:
        await connection.execute("BEGIN")
        await connection.execute("LOCK TABLE ondot.history IN ACCESS SHARE MODE")
        with monkeypatch.context() as patch:
            patch.setattr("ondot.flow.days.is_held", nobody)
            await make_days(world.database)
        assert len(await days_ahead(world)) == 2
        await connection.execute("ROLLBACK")
    await make_days(world.database)
    assert await days_ahead(world) == {15}


@proves("O1")
async def test_with_no_day_left_ahead_they_are_made_though_somebody_reads_the_table(world: World) -> None:
    await world.advance(14 * 86_400)
    async with world.second_connection() as connection:
        await connection.execute("BEGIN")
        await connection.execute("LOCK TABLE ondot.history IN ACCESS SHARE MODE")
        making = asyncio.create_task(make_days(world.database))
        await world.until_a_lock_is_awaited()
        await connection.execute("ROLLBACK")
    await making
    assert await days_ahead(world) == {15}


@proves("O1", "C3")
async def test_a_wrong_reading_of_the_clock_makes_no_days_and_a_lasting_one_does(world: World) -> None:
    now_s = 0.0
    days = Days(world.database, monotonic=lambda: now_s)
    tables = await tables_of(world)
    await world.advance(100 * 86_400)
    assert await days.one_pass() == 0
    await world.advance(-100 * 86_400)
    assert await days.one_pass() == 0
    now_s = 1000.0
    await world.advance(100 * 86_400)
    assert await days.one_pass() == 0, "it was not read all the time"
    assert await tables_of(world) == tables
    now_s += BELIEVED_AFTER_S
    while made := await days.one_pass():
        assert made <= 8 * 15
    assert await days_ahead(world) == {15}


@proves("O1", "C3")
async def test_days_that_a_wrong_clock_made_are_removed_when_it_is_right_again(world: World) -> None:
    now_s = 0.0
    days = Days(world.database, monotonic=lambda: now_s)
    await world.advance(60 * 86_400)
    await days.one_pass()
    now_s += BELIEVED_AFTER_S
    while await days.one_pass():
        pass
    accepted = await world.submit(job())
    await (await world.worker()).run_one()
    await world.advance(-60 * 86_400)
    await days.one_pass()
    assert min(await days_ahead(world)) > 70, "it may be the one that is wrong"
    now_s += BELIEVED_AFTER_S
    await days.one_pass()
    assert await days_ahead(world) == {15}
    assert await world.value("SELECT count(*) FROM ondot.history_ahead") == 1
    assert await world.states(accepted.id) == [State.SUCCEEDED]


@proves("O1", "C3")
async def test_a_day_that_holds_much_is_never_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ondot.flow.days.FEW_ROWS", 3)
    now_s = 0.0
    days = Days(world.database, monotonic=lambda: now_s)
    first_id = first_id_at(world.after(12 * 86_400)).int
    for number in range(4):
        await world.fetch(
            "INSERT INTO ondot.audit (id, tenant_no, actor, action) VALUES ($1, 1, 'somebody', 'something')",
            UUID(int=first_id + number),
        )
    await world.advance(-30 * 86_400)
    await days.one_pass()
    now_s += BELIEVED_AFTER_S
    await days.one_pass()
    async with world.database.connection() as connection:
        ahead = {table.parent: (table.next_day - table.today).days for table in await read_day_tables(connection)}
    assert ahead.pop("audit") == 30 + 13
    assert max(ahead.values()) < 30 + 13
    assert await world.count("audit") == 4


@proves("O1")
async def test_the_smallest_id_of_an_instant_is_the_same_in_python_and_sql(world: World) -> None:
    for microseconds in (0, 1, 499, 500, 999, 1000, 999_999):
        at = world.now + timedelta(microseconds=microseconds)
        assert await world.value("SELECT ondot.first_id_at($1)", at) == first_id_at(at)
