"""The fleet as people see it: scheduler nodes with the partitions they own, and workers with their pools (C1, E1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from ondot.model.ids import NodeId, TenantNo, WorkerId
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("fleet")

SEEN_WITHIN = timedelta(seconds=30)
"""A process that has said nothing for longer is gone, whatever it said last."""

WorkerState = Literal["ALIVE", "DRAINING", "LOST", "GONE"]


@dataclass(frozen=True, slots=True)
class OwnedPartition:
    """`epoch` grows with every owner."""

    no: int
    epoch: int
    owned_since: datetime | None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node that is not alive owns nothing: its `partitions` are those that no other node has taken over yet."""

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
    coordination: str
    """Where it holds its lease."""
    away_since: datetime | None
    """Since when it could not renew its lease there, though it reaches PostgreSQL; None: it can."""
    away_why: str | None

    def is_away(self, now: datetime) -> bool:
        """It runs, could not renew its lease, and has none any more."""
        return not self.is_alive and self.away_since is not None and now - self.beat_at < SEEN_WITHIN


@dataclass(frozen=True, slots=True)
class Nodes:
    """`rows`: oldest first. `unowned`: the partitions without a live owner, of `partitions` in all.

    `held_at`, `held_why`: since when this database starts nothing, and why (`store.lineage`). Nodes pause meanwhile.
    """

    now: datetime
    rows: tuple[NodeRow, ...]
    partitions: int
    unowned: tuple[int, ...]
    held_at: datetime | None
    held_why: str | None


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """`running`: as of the last beat."""

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
    tenant_nos: Sequence[TenantNo] | None = None
    """The tenants that it serves; None: all."""
    app: str | None = None
    """Whose functions it runs; None: it has no app."""
    app_release: str | None = None
    trusts: Sequence[str] | None = None
    """The transports that it trusts, as of the last beat; None: of a release that does not report it."""

    @property
    def silent_s(self) -> float:
        """How long it has sent no beat; for a worker that has ended, how long before its end."""
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
            row["coordination"],
            row["away_since"],
            row["away_why"],
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


async def list_workers(
    connection: Connection,
    *,
    state: WorkerState | None = None,
    before: UUID | None = None,
    limit: int | None = None,
    tenant_no: TenantNo | None = None,
) -> list[WorkerRow]:
    """`tenant_no`: only those that serve a tenant, with the pools that it may name."""
    rows = await connection.fetch(_SQL["list_workers"].text, state, before, limit, tenant_no)
    return [WorkerRow(*row.values()) for row in rows]
