"""Scheduler nodes and the partitions they own."""

from collections.abc import Mapping, Sequence

from ondot.model.ids import NodeId
from ondot.ports.coordinator import Standing
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

LONGEST_WHY = 300

_SQL = load_queries("nodes")


async def beat_node(
    connection: Connection,
    node_id: NodeId,
    *,
    host: str,
    pid: int,
    release: str,
    lease_s: float,
    coordination: str = "postgres",
) -> Standing:
    row = await connection.fetchrow(_SQL["beat_node"].text, node_id, host, pid, release, lease_s, coordination)
    assert row is not None
    return Standing(row["now"], frozenset(row["owned"]), row["live"], row["rank"], row["next_expiry_s"])


async def report_stalled_node(connection: Connection, node_id: NodeId, *, stalled_s: float, where: str) -> None:
    """Record that a node's loop is blocked; this is no beat."""
    await connection.execute(_SQL["report_stalled_node"].text, node_id, stalled_s, where)


async def note_coordinator_away(
    connection: Connection, node_id: NodeId, *, host: str, pid: int, release: str, coordination: str, why: str
) -> None:
    """Record that a node cannot renew its lease; this is no beat, and the lease runs out."""
    await connection.execute(
        _SQL["note_coordinator_away"].text, node_id, host, pid, release, coordination, why[:LONGEST_WHY]
    )


async def read_installation(connection: Connection) -> str:
    """What names this installation among others: its id, and the number of its database, which a copy of it in the
    same PostgreSQL does not share."""
    name: str = await connection.fetchval(_SQL["read_installation"].text)
    return name


async def record_partitions(connection: Connection, node_id: NodeId, partitions: Sequence[int]) -> frozenset[int]:
    """Record what a node won elsewhere, with higher epochs; returns what it owns then: nothing once its row expired."""
    rows = await connection.fetch(_SQL["record_partitions"].text, node_id, partitions)
    return frozenset(row["partition_no"] for row in rows)


async def take_partitions(connection: Connection, node_id: NodeId, at_most: int) -> frozenset[int]:
    rows = await connection.fetch(_SQL["take_partitions"].text, node_id, at_most)
    return frozenset(row["partition_no"] for row in rows)


async def give_back_partitions(connection: Connection, node_id: NodeId, partitions: Sequence[int]) -> None:
    await connection.execute(_SQL["give_back_partitions"].text, node_id, partitions)


async def retire_node(connection: Connection, node_id: NodeId) -> None:
    """Record that a node is about to leave. Commit it before `find_heirs`."""
    await connection.execute(_SQL["retire_node"].text, node_id)


async def find_heirs(connection: Connection, node_id: NodeId) -> dict[NodeId, int]:
    """The nodes that may take over from one that leaves, with how many partitions each has. None leaves meanwhile."""
    rows = await connection.fetch(_SQL["find_heirs"].text, node_id)
    return {NodeId(row["id"]): row["owned"] for row in rows}


async def list_owned_partitions(connection: Connection, node_id: NodeId) -> list[int]:
    return [row["partition_no"] for row in await connection.fetch(_SQL["list_owned_partitions"].text, node_id)]


async def hand_over_partitions(connection: Connection, node_id: NodeId, heirs: Mapping[int, NodeId]) -> int:
    """Give the partitions that this node still owns to others; returns how many."""
    rows = await connection.fetch(_SQL["hand_over_partitions"].text, node_id, list(heirs.keys()), list(heirs.values()))
    return len(rows)


async def leave_node(connection: Connection, node_id: NodeId) -> None:
    await connection.execute(_SQL["leave_node"].text, node_id)


async def forget_nodes(connection: Connection) -> None:
    await connection.execute(_SQL["forget_nodes"].text)


async def has_live_nodes(connection: Connection) -> bool:
    """Whether any scheduler runs."""
    is_so: bool = await connection.fetchval(_SQL["has_live_nodes"].text)
    return is_so
