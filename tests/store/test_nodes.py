"""Scheduler nodes: a partition has one owner at a time, and a new one as soon as the lease of the old one ends."""

import asyncio
from datetime import timedelta

from ondot.coordination.postgres import leave
from ondot.model.ids import PARTITIONS, NodeId, PoolNo, WorkerId
from ondot.model.partition import balance
from ondot.ports.coordinator import Standing
from ondot.store import nodes
from ondot.store.workers import register_worker
from tests.proves import proves
from tests.world import World


async def beat(world: World, node_id: NodeId) -> Standing:
    async with world.database.connection() as connection:
        return await nodes.beat_node(connection, node_id, host="here", pid=1, release="0", lease_s=5)


async def balanced(world: World, node_id: NodeId) -> int:
    """One beat with its consequences; returns how many partitions the node then has."""
    standing = await beat(world, node_id)
    step = balance(standing.owned, standing.live_nodes, standing.rank)
    async with world.database.connection() as connection:
        if step.give_back:
            await nodes.give_back_partitions(connection, node_id, step.give_back)
        taken = await nodes.take_partitions(connection, node_id, step.take) if step.take else frozenset()
    return len(standing.owned - set(step.give_back) | taken)


@proves("C1")
async def test_nodes_that_join_and_leave_share_all_partitions(world: World) -> None:
    ids = [NodeId(id_) for id_ in world.database.clock.new_ids(3)]
    assert await balanced(world, ids[0]) == PARTITIONS
    for _ in range(2):
        shares = [await balanced(world, id_) for id_ in ids]
    shares = [await balanced(world, id_) for id_ in ids]
    assert sorted(shares) == [21, 21, 22]
    async with world.database.connection() as connection:
        await nodes.leave_node(connection, ids[0])
    for _ in range(2):
        shares = [await balanced(world, id_) for id_ in ids[1:]]
    assert shares == [32, 32]


@proves("C1", "C11", "L2")
async def test_partitions_of_a_leaving_node_have_other_owners_at_once_with_a_new_epoch(world: World) -> None:
    ids = [NodeId(id_) for id_ in world.database.clock.new_ids(3)]
    for _ in range(3):
        for id_ in ids:
            await balanced(world, id_)
    leaving = (await beat(world, ids[1])).owned
    before = {row["partition_no"]: row["epoch"] for row in await world.fetch("SELECT * FROM ondot.partition")}
    assert await leave(world.database, ids[1]) == len(leaving)
    assert sorted([len((await beat(world, id_)).owned) for id_ in (ids[0], ids[2])]) == [32, 32]
    after = {row["partition_no"]: row["epoch"] for row in await world.fetch("SELECT * FROM ondot.partition")}
    assert {number for number in after if after[number] == before[number] + 1} == leaving


@proves("C1", "C11")
async def test_a_node_that_leaves_alone_leaves_its_partitions_free(world: World) -> None:
    last = NodeId(world.database.clock.new_id())
    await balanced(world, last)
    assert await leave(world.database, last) == 0
    assert {row["owner"] for row in await world.fetch("SELECT owner FROM ondot.partition")} == {None}
    assert await balanced(world, NodeId(world.database.clock.new_id())) == PARTITIONS


@proves("C1", "C11", "L2")
async def test_nodes_that_leave_together_hand_over_to_those_that_stay_and_not_to_each_other(
    world: World,
) -> None:
    for _ in range(5):
        ids = [NodeId(id_) for id_ in world.database.clock.new_ids(4)]
        for _ in range(2):
            for id_ in ids:
                await balanced(world, id_)
        *leaving, stays = ids
        await asyncio.gather(*(leave(world.database, id_) for id_ in leaving))
        assert {row["owner"] for row in await world.fetch("SELECT owner FROM ondot.partition")} == {stays}
        await leave(world.database, stays)


@proves("C1", "C11", "L2")
async def test_an_heir_that_leaves_during_the_hand_over_waits_for_it_and_passes_everything_on(world: World) -> None:
    first, heir, stays = (NodeId(id_) for id_ in world.database.clock.new_ids(3))
    await balanced(world, first)
    await beat(world, heir)
    async with asyncio.timeout(30):
        async with world.database.connection() as connection:
            await nodes.retire_node(connection, first)
        async with world.second_connection() as leaving:
            transaction = leaving.transaction()
            await transaction.start()
            assert list(await nodes.find_heirs(leaving, first)) == [heir]
            following = asyncio.create_task(leave(world.database, heir))
            while not await leaving.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                assert not following.done()
            await nodes.hand_over_partitions(leaving, first, dict.fromkeys(range(PARTITIONS), heir))
            await nodes.leave_node(leaving, first)
            await beat(world, stays)
            await transaction.commit()
        assert await following == PARTITIONS
    assert {row["owner"] for row in await world.fetch("SELECT owner FROM ondot.partition")} == {stays}


@proves("C2", "L2")
async def test_the_reply_to_a_beat_has_when_the_lease_of_another_node_ends(world: World) -> None:
    one, other = (NodeId(id_) for id_ in world.database.clock.new_ids(2))
    assert (await beat(world, one)).next_expiry_s is None
    await world.advance(2)
    assert (await beat(world, other)).next_expiry_s == 3


@proves("C1", "C3")
async def test_a_node_that_died_before_the_clock_was_set_back_owns_nothing(world: World) -> None:
    dead, alive = (NodeId(id_) for id_ in world.database.clock.new_ids(2))
    await balanced(world, dead)
    await beat(world, alive)
    await world.set_clock(world.now - timedelta(hours=1))
    assert await balanced(world, alive) == PARTITIONS


@proves("C1", "C2", "L2")
async def test_the_partitions_of_a_silent_node_are_free_when_its_lease_is_over_and_not_before(world: World) -> None:
    old, new = (NodeId(id_) for id_ in world.database.clock.new_ids(2))
    await balanced(world, old)
    await world.advance(4.9)
    async with world.database.connection() as connection:
        await beat(world, new)
        assert await nodes.take_partitions(connection, new, PARTITIONS) == frozenset()
        await world.advance(0.2)
        assert len(await nodes.take_partitions(connection, new, PARTITIONS)) == PARTITIONS
        epochs = {row["epoch"] for row in await world.fetch("SELECT epoch FROM ondot.partition")}
        assert epochs == {2}
        assert (await beat(world, old)).owned == frozenset()
        await world.advance(3700)
        await beat(world, new)
        await nodes.forget_nodes(connection)
    assert await world.count("node") == 1


@proves("C1")
async def test_two_nodes_that_take_at_once_get_different_partitions(world: World) -> None:
    ids = [NodeId(id_) for id_ in world.database.clock.new_ids(2)]
    for id_ in ids:
        await beat(world, id_)
    async with world.second_connection() as first, first.transaction(), world.database.connection() as second:
        one = await nodes.take_partitions(first, ids[0], 40)
        other = await nodes.take_partitions(second, ids[1], 40)
    assert (len(one), len(other)) == (40, 24)
    assert not one & other


@proves("E6")
async def test_a_worker_may_register_again_when_the_reply_to_its_first_try_was_lost(world: World) -> None:
    id_ = WorkerId(world.database.clock.new_id())
    async with world.database.connection() as connection:
        for _ in range(2):
            await register_worker(connection, id_, host="here", pid=1, release="0", pool_nos=[PoolNo(1)], slots=1)
    assert await world.count("worker") == 1
