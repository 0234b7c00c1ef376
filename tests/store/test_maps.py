"""Rows of maps and of steps that wait (W7, W8)."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from ondot.model.ids import DEFAULT_TENANT, ExecutionId
from ondot.model.workflow.maps import MapCounts
from ondot.model.workflow.spec import Tolerate
from ondot.store.connection import Connection
from ondot.store.maps import (
    Added,
    ItemEnd,
    change_counts,
    end_items,
    find_maps,
    find_waiting_items,
    forget_maps,
    insert_maps,
    insert_portions,
    list_items,
    make_items,
    offer_items,
    read_portions,
    reset_failed_items,
    set_map,
)
from ondot.store.step_waits import end_due_waits, end_wait, find_wait, insert_step_wait
from tests.proves import proves
from tests.world import World

RUN = UUID("0192f3a1-5b7c-7d3e-8f90-a1b2c3d4e5f6")
PROCESS, UPLOAD = 1, 2


@pytest.fixture
async def connection(world: World) -> AsyncIterator[Connection]:
    async with world.database.connection() as connection:
        yield connection


def new_ids(world: World, count: int) -> list[ExecutionId]:
    return [ExecutionId(id_) for id_ in world.database.clock.new_ids(count)]


@proves("W7")
async def test_items_go_through_their_states_and_stale_arrivals_change_nothing(
    world: World, connection: Connection
) -> None:
    first, second, again = new_ids(world, 3)
    await insert_maps(connection, DEFAULT_TENANT, RUN, {PROCESS: 2, UPLOAD: 2}, with_cursor=PROCESS)
    await insert_portions(connection, DEFAULT_TENANT, RUN, PROCESS, {0: '["a",{"b":1.0}]'})
    assert [bytes(item) for item in (await read_portions(connection, DEFAULT_TENANT, RUN, PROCESS, [0]))[0]] == [
        b'"a"',
        b'{"b":1.0}',
    ]
    await make_items(connection, DEFAULT_TENANT, RUN, PROCESS, {0: first, 1: second})
    await change_counts(connection, DEFAULT_TENANT, RUN, {PROCESS: Added(cursor=2, active=2)})
    ends = [(PROCESS, 0, first, "SUCCEEDED"), (PROCESS, 1, second, "FAILED")]
    assert sorted(await end_items(connection, DEFAULT_TENANT, RUN, ends), key=lambda end: end.item_no) == [
        ItemEnd(PROCESS, 0, "RELEASED", "SUCCEEDED"),
        ItemEnd(PROCESS, 1, "RELEASED", "FAILED"),
    ]
    assert await end_items(connection, DEFAULT_TENANT, RUN, ends) == []
    await change_counts(connection, DEFAULT_TENANT, RUN, {PROCESS: Added(active=-2, succeeded=1, failed=1)})
    assert await reset_failed_items(connection, DEFAULT_TENANT, RUN, [PROCESS]) == {PROCESS: 1}
    counts = (await find_maps(connection, DEFAULT_TENANT, RUN))[PROCESS].counts
    assert counts == MapCounts(total=2, cursor=2, waiting=1, succeeded=1)
    assert await find_waiting_items(connection, DEFAULT_TENANT, RUN, PROCESS, 10) == [1]
    await make_items(connection, DEFAULT_TENANT, RUN, PROCESS, {1: again})
    assert await end_items(connection, DEFAULT_TENANT, RUN, [(PROCESS, 1, second, "FAILED")]) == []
    [_, item] = await list_items(connection, DEFAULT_TENANT, RUN, PROCESS, limit=10)
    assert (item.execution_id, item.generation, item.state) == (again, 2, "RELEASED")


@proves("W7")
async def test_an_item_of_each_is_offered_once(connection: Connection) -> None:
    await insert_maps(connection, DEFAULT_TENANT, RUN, {PROCESS: 5, UPLOAD: 5}, with_cursor=PROCESS)
    assert await offer_items(connection, DEFAULT_TENANT, RUN, UPLOAD, [0, 3]) == 2
    assert await offer_items(connection, DEFAULT_TENANT, RUN, UPLOAD, [3, 4]) == 1
    assert (await find_maps(connection, DEFAULT_TENANT, RUN, [UPLOAD]))[UPLOAD].counts.cursor == 5
    await forget_maps(connection, DEFAULT_TENANT, RUN, [UPLOAD])
    assert list(await find_maps(connection, DEFAULT_TENANT, RUN)) == [PROCESS]
    assert await list_items(connection, DEFAULT_TENANT, RUN, UPLOAD, limit=10) == []


@proves("W7")
async def test_concurrency_and_tolerance_are_changed_each_for_itself(connection: Connection) -> None:
    async def change(concurrency: int | None = None, tolerate: Tolerate | None = None) -> bool:
        return await set_map(
            connection,
            DEFAULT_TENANT,
            RUN,
            PROCESS,
            concurrency=concurrency,
            tolerate=tolerate,
            sets_concurrency=concurrency is not None,
            sets_tolerate=tolerate is not None,
        )

    assert not await change(concurrency=1)
    await insert_maps(connection, DEFAULT_TENANT, RUN, {PROCESS: 5}, with_cursor=PROCESS)
    assert await change(concurrency=7)
    assert await change(tolerate=Tolerate(percent=2.5))
    row = (await find_maps(connection, DEFAULT_TENANT, RUN))[PROCESS]
    assert (row.concurrency, row.tolerate) == (7, Tolerate(percent=2.5))
    await change(tolerate=Tolerate(count=3))
    assert (await find_maps(connection, DEFAULT_TENANT, RUN))[PROCESS].tolerate == Tolerate(count=3)


@proves("W8")
async def test_a_wait_ends_once_by_time_or_by_a_person(world: World) -> None:
    timed, approval = new_ids(world, 2)
    async with world.database.connection() as connection:
        await insert_step_wait(connection, DEFAULT_TENANT, RUN, 0, timed, "time", within_s=60)
        await insert_step_wait(connection, DEFAULT_TENANT, RUN, 1, approval, "approval", role="operator", within_s=60)
        assert await end_due_waits(connection, 10) == []
        assert await end_wait(connection, DEFAULT_TENANT, RUN, approval, "SUCCEEDED", result='{"by":"ada"}')
        assert not await end_wait(connection, DEFAULT_TENANT, RUN, approval, "FAILED")
    await world.advance(60)
    async with world.database.connection() as connection:
        assert await end_due_waits(connection, 10) == [RUN]
        assert await end_due_waits(connection, 10) == []
        wait = await find_wait(connection, DEFAULT_TENANT, RUN, approval)
    assert wait is not None
    assert (wait.state, wait.result) == ("SUCCEEDED", '{"by":"ada"}')
    arrivals = await world.fetch("SELECT step_no, execution_id, state FROM ondot.arrival ORDER BY step_no")
    assert [tuple(row) for row in arrivals] == [(0, timed, "SUCCEEDED"), (1, approval, "SUCCEEDED")]
