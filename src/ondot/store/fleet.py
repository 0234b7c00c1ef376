"""The fleet as people see it: scheduler nodes with the partitions they own, and the workers of a tenant (C1, E1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from ondot.model.ids import NodeId, TenantNo, WorkerId
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("fleet")

WorkerState = Literal["ALIVE", "DRAINING", "LOST", "GONE"]


@dataclass(frozen=True, slots=True)
class OwnedPartition:
    """`epoch` has grown with every owner."""

    no: int
    epoch: int
    owned_since: datetime | None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One that is not alive owns nothing; `partitions` are then those that nobody has taken over from it yet."""

    id: NodeId
    host: str
    pid: int
    release: str
    started_at: datetime
    beat_at: datetime
    expires_at: datetime
    stalled_at: datetime | None
    stalled_in: str | None
    is_alive: bool
    partitions: tuple[OwnedPartition, ...]


@dataclass(frozen=True, slots=True)
class Nodes:
    """`rows`: oldest first. `unowned`: the partitions without a live owner, of `partitions` in all. `held_at`: since
    when nothing is begun on this database, and why (`store.lineage`); the nodes then stand still."""

    now: datetime
    rows: tuple[NodeRow, ...]
    partitions: int
    unowned: tuple[int, ...]
    held_at: datetime | None
    held_why: str | None


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """`pools`: those of the tenant that asked. `running`: as of the last beat."""

    id: WorkerId
    state: WorkerState
    host: str
    pid: int
    release: str
    slots: int
    running: int
    started_at: datetime
    beat_at: datetime
    ended_at: datetime | None
    stalled_at: datetime | None
    stalled_in: str | None
    pools: Sequence[str]
    now: datetime

    @property
    def silent_s(self) -> float:
        """How long nothing was heard of it; of one that has ended, when it did."""
        return max(((self.ended_at or self.now) - self.beat_at).total_seconds(), 0.0)


async def read_nodes(connection: Connection) -> Nodes:
    rows = await connection.fetch(_SQL["fleet_nodes"].text)
    owned: dict[UUID, list[OwnedPartition]] = {row["id"]: [] for row in rows if row["id"] is not None}
    for row in rows:
        if row["id"] is not None and row["partition_no"] is not None:
            owned[row["id"]].append(OwnedPartition(row["partition_no"], row["epoch"], row["owned_since"]))
    nodes = {
        row["id"]: NodeRow(
            NodeId(row["id"]),
            row["host"],
            row["pid"],
            row["release"],
            row["started_at"],
            row["beat_at"],
            row["expires_at"],
            row["stalled_at"],
            row["stalled_in"],
            row["is_alive"],
            tuple(owned[row["id"]]),
        )
        for row in rows
        if row["id"] is not None
    }
    numbers = [row for row in rows if row["partition_no"] is not None]
    return Nodes(
        rows[0]["now"],
        tuple(nodes.values()),
        len(numbers),
        tuple(sorted(row["partition_no"] for row in numbers if not row["is_alive"])),
        rows[0]["held_at"],
        rows[0]["held_why"],
    )


async def list_fleet_workers(
    connection: Connection,
    tenant_no: TenantNo,
    *,
    state: WorkerState | None = None,
    before: UUID | None = None,
    limit: int,
) -> list[WorkerRow]:
    rows = await connection.fetch(_SQL["fleet_workers"].text, tenant_no, state, before, limit)
    return [WorkerRow(*row.values()) for row in rows]
