"""Every coordinator: a partition has one owner at a time, which PostgreSQL shows, and soon a new one when a node is
gone (C1, C2, C6)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import get_args

import pytest

from ondot.app import COORDINATORS
from ondot.model.ids import PARTITIONS, NodeId
from ondot.model.partition import balance
from ondot.ports.coordinator import Coordinator, CoordinatorAway
from ondot.settings import Settings
from ondot.store.connection import Connection
from ondot.store.database import Database, open_database
from ondot.store.nodes import record_partitions
from tests.proves import proves
from tests.servers import Server, connected, new_database, settings_for

LEASE_S = 2.0
"""The least of etcd."""
WITHIN_S = 30


class Node:
    """One coordinator, beaten by hand, with a connection as that of the thread that beats."""

    def __init__(self, coordinator: Coordinator[Connection], connection: Connection) -> None:
        self.coordinator = coordinator
        self.connection = connection
        self.sent_s = 0.0

    async def beat(self) -> frozenset[int]:
        """Renew the lease only."""
        self.sent_s = time.monotonic()
        return (await self.coordinator.beat(self.connection)).owned

    async def step(self) -> frozenset[int]:
        """A beat with its consequences, as a scheduler does it; returns what the node owns then."""
        self.sent_s = time.monotonic()
        standing = await self.coordinator.beat(self.connection)
        decision = balance(standing.owned, standing.live_nodes, standing.rank)
        if decision.give_back:
            await self.coordinator.give_back(self.connection, decision.give_back)
            return standing.owned - set(decision.give_back)
        if decision.take:
            return standing.owned | await self.coordinator.take(self.connection, decision.take)
        return standing.owned


class Installation:
    def __init__(self, database: Database, stack: AsyncExitStack, kind: str) -> None:
        self.database = database
        self.kind = kind
        self._stack = stack

    async def join(self) -> Node:
        coordinator = COORDINATORS[self.kind](self.database)
        self._stack.push_async_callback(coordinator.disconnect)
        return Node(
            coordinator, await self._stack.enter_async_context(connected(self.database.settings.needs_database_url))
        )

    async def shown(self) -> dict[int, tuple[NodeId | None, int]]:
        """The owner and epoch of each partition, as PostgreSQL has them."""
        async with self.database.connection() as connection:
            rows = await connection.fetch("SELECT partition_no, owner, epoch FROM ondot.partition")
        return {row["partition_no"]: (row["owner"], row["epoch"]) for row in rows}

    async def owned(self, node: Node) -> set[int]:
        return {no for no, (owner, _) in (await self.shown()).items() if owner == node.coordinator.node_id}

    async def share_out(self, *nodes: Node) -> list[frozenset[int]]:
        """Step until every partition has an owner and all shares are fair; returns them."""
        fair = {PARTITIONS // len(nodes), -(-PARTITIONS // len(nodes))}
        async with asyncio.timeout(WITHIN_S):
            while True:
                owned = [await node.step() for node in nodes]
                if sum(map(len, owned)) == PARTITIONS and {len(each) for each in owned} <= fair:
                    return owned


@pytest.fixture(params=sorted(COORDINATORS))
async def installation(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Installation]:
    changed: dict[str, object] = {"lease_s": LEASE_S, "coordination": request.param}
    if request.param == "etcd":
        changed["etcd_url"] = request.getfixturevalue("etcd_url")
    async with opened(settings_for(database_url).model_copy(update=changed)) as database, AsyncExitStack() as stack:
        yield Installation(database, stack, request.param)


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Database]:
    database = await open_database(settings)
    await database.read_clock()
    try:
        yield database
    finally:
        await database.close()


def test_every_coordinator_of_the_settings_exists() -> None:
    assert set(COORDINATORS) == set(get_args(Settings.model_fields["coordination"].annotation))


@proves("C1", "C6")
async def test_nodes_that_join_and_leave_share_all_partitions(installation: Installation) -> None:
    first, second, third = [await installation.join() for _ in range(3)]
    assert await first.step() == frozenset(range(PARTITIONS))
    owned = await installation.share_out(first, second, third)
    assert sorted(map(len, owned)) == [21, 21, 22]
    assert len(frozenset().union(*owned)) == PARTITIONS
    assert [await installation.owned(node) for node in (first, second, third)] == owned
    await first.coordinator.leave()
    assert [len(each) for each in await installation.share_out(second, third)] == [32, 32]


@proves("C1", "C6", "C11", "L2")
async def test_partitions_of_a_leaving_node_have_other_owners_at_once_with_a_new_epoch(
    installation: Installation,
) -> None:
    nodes = [await installation.join() for _ in range(3)]
    shares = await installation.share_out(*nodes)
    before = await installation.shown()
    assert await nodes[1].coordinator.leave() == len(shares[1])
    after = await installation.shown()
    assert {number for number in after if after[number][1] == before[number][1] + 1} == shares[1]
    stay = [await node.beat() for node in (nodes[0], nodes[2])]
    assert [await installation.owned(node) for node in (nodes[0], nodes[2])] == stay
    assert sorted(map(len, stay)) == [32, 32]
    assert await installation.shown() == after, "a beat records nothing again"


@proves("C1", "C6", "C11")
async def test_a_node_that_leaves_alone_leaves_its_partitions_free(installation: Installation) -> None:
    last, next_one = await installation.join(), await installation.join()
    await last.step()
    assert await last.coordinator.leave() == 0
    assert {owner for owner, _ in (await installation.shown()).values()} == {None}
    assert len(await next_one.step()) == PARTITIONS


@proves("C1", "C6", "C11", "L2")
async def test_nodes_that_leave_together_hand_over_to_the_one_that_stays(installation: Installation) -> None:
    *leaving, stays = [await installation.join() for _ in range(4)]
    await installation.share_out(*leaving, stays)
    await asyncio.gather(*(node.coordinator.leave() for node in leaving))
    await installation.share_out(stays)
    assert {owner for owner, _ in (await installation.shown()).values()} == {stays.coordinator.node_id}


@proves("C1", "C6")
async def test_two_nodes_that_take_at_once_get_different_partitions(installation: Installation) -> None:
    one, other = await installation.join(), await installation.join()
    await one.beat()
    await other.beat()
    taken = await asyncio.gather(one.coordinator.take(one.connection, 40), other.coordinator.take(other.connection, 40))
    assert not taken[0] & taken[1]
    assert [await installation.owned(node) for node in (one, other)] == list(taken)


@proves("C1", "C2", "C6", "L2")
async def test_the_partitions_of_a_silent_node_are_free_when_its_lease_is_over_and_not_before(
    installation: Installation,
) -> None:
    silent, alive = await installation.join(), await installation.join()
    await alive.beat()
    await silent.step()
    shares = await installation.share_out(silent, alive)
    before = await installation.shown()
    async with asyncio.timeout(WITHIN_S):
        while len(await alive.step()) < PARTITIONS:
            pass
    assert time.monotonic() - silent.sent_s >= LEASE_S
    after = await installation.shown()
    assert {number for number in after if after[number][1] == before[number][1] + 1} == shares[0]
    assert await silent.beat() == frozenset()


@proves("C1", "C2", "C6", "L4")
async def test_a_node_that_was_frozen_while_it_took_partitions_displaces_no_owner(installation: Installation) -> None:
    frozen, alive = await installation.join(), await installation.join()
    await frozen.beat()
    async with asyncio.timeout(WITHIN_S):
        while len(await alive.step()) < PARTITIONS:
            pass
    with suppress(CoordinatorAway):
        assert await frozen.coordinator.take(frozen.connection, PARTITIONS) == frozenset()
    assert await record_partitions(frozen.connection, frozen.coordinator.node_id, range(PARTITIONS)) == frozenset()
    assert await installation.owned(alive) == set(range(PARTITIONS))


@proves("C1", "C6")
async def test_installations_share_a_coordinator_without_sharing_partitions(
    installation: Installation, server: Server
) -> None:
    node = await installation.join()
    assert len(await node.step()) == PARTITIONS
    async with new_database(server) as url, AsyncExitStack() as stack:
        settings = installation.database.settings.model_copy(update={"database_url": url})
        async with opened(settings) as database:
            other = Installation(database, stack, installation.kind)
            assert len(await (await other.join()).step()) == PARTITIONS
    assert len(await node.beat()) == PARTITIONS
