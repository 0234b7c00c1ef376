"""Leases in PostgreSQL (C1, C2, C6): nothing to install. A node is a row that expires, and owns partitions until then.

The others learn with each beat when a row expires, and beat again just after it.
"""

import os
import socket
from collections.abc import Callable, Sequence

from ondot import __version__
from ondot.model.ids import NodeId
from ondot.model.partition import bequeath
from ondot.ports.coordinator import Standing
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.nodes import (
    beat_node,
    find_heirs,
    give_back_partitions,
    hand_over_partitions,
    leave_node,
    list_owned_partitions,
    retire_node,
    take_partitions,
)


class PostgresCoordinator:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.name = "PostgreSQL"
        self.node_id = NodeId(database.clock.new_id())
        self.on_change: Callable[[], None] = lambda: None

    async def beat(self, connection: Connection) -> Standing:
        return await beat_node(
            connection,
            self.node_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            release=__version__,
            lease_s=self._database.settings.lease_s,
        )

    async def take(self, connection: Connection, at_most: int) -> frozenset[int]:
        return await take_partitions(connection, self.node_id, at_most)

    async def give_back(self, connection: Connection, partitions: Sequence[int]) -> None:
        await give_back_partitions(connection, self.node_id, partitions)

    async def disconnect(self) -> None:
        """It uses the connection of the thread that beats, and has none of its own."""

    async def leave(self) -> int:
        return await leave(self._database, self.node_id)


async def leave(database: Database, node_id: NodeId) -> int:
    """Hand over the partitions of a node to the others; return how many.

    That it leaves is committed first: two nodes that stop at the same time would make each other their heirs.
    """
    async with database.connection() as connection:
        await retire_node(connection, node_id)
    async with database.transaction() as connection:
        heirs = await find_heirs(connection, node_id)
        # Read again: another leaving node may have handed some over since the last beat.
        owned = await list_owned_partitions(connection, node_id)
        handed_over = await hand_over_partitions(connection, node_id, bequeath(owned, heirs))
        await leave_node(connection, node_id)
    return handed_over
