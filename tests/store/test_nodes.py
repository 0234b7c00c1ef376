"""Scheduler nodes: partitions have one owner at a time, and a new one as soon as the old one's lease is over."""

from ondot.model.ids import PARTITIONS, NodeId, PoolNo, WorkerId
from ondot.model.partition import balance
from ondot.store import nodes
from ondot.store.workers import register_worker
from tests.proves import proves
from tests.world import World


async def beat(world: World, node_id: NodeId) -> nodes.Standing:
    async with world.database.connection() as connection:
        return await nodes.beat_node(connection, node_id, host="here", pid=1, release="0", lease_s=5)


async def balanced(world: World, node_id: NodeId) -> int:
    """One beat and what follows from it; gives how many partitions the node has then."""
    standing = await beat(world, node_id)
    step = balance(standing.owned, standing.live_nodes, standing.rank)
    async with world.database.connection() as connection:
        if step.give_back:
            await nodes.give_back_partitions(connection, node_id, step.give_back)
        taken = await nodes.take_partitions(connection, node_id, step.take) if step.take else frozenset()
    return len(standing.owned - set(step.give_back) | taken)


@proves("C1")
async def test_nodes_that_come_and_go_share_all_partitions(world: World) -> None:
    ids = [NodeId(id_) for id_ in world.database.clock.new_ids(3)]
    assert await balanced(world, ids[0]) == PARTITIONS
    for _ in range(2):
        shares = [await balanced(world, id_) for id_ in ids]
    shares = [await balanced(world, id_) for id_ in ids]
    assert sorted(shares) == [21, 21, 22]
    async with world.database.connection() as connection:
        await nodes.give_back_partitions(connection, ids[0], None)
        await nodes.leave_node(connection, ids[0])
    for _ in range(2):
        shares = [await balanced(world, id_) for id_ in ids[1:]]
    assert shares == [32, 32]


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
        assert [row["id"] for row in await nodes.list_nodes(connection)] == [old, new]
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
