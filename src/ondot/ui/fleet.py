"""`/fleet`: scheduler nodes with their partitions, workers, and pools with the work that waits for them (C1, C7, O5).

Like the first page, it is read once for all watchers. Each section is a frozen value. Troubles come first; among many
workers, those that need attention come first. Beside other tenants only an owner sees it whole; others see no
schedulers and no counts of what runs, as in `GET /v1/workers` and `GET /v1/pools` (T1).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import count, product
from string import ascii_uppercase
from typing import Final, Literal
from uuid import UUID

from ondot.model.held_back import HeldBack
from ondot.model.ids import TenantNo
from ondot.model.liveness import is_silent, is_stalled
from ondot.store.database import Database
from ondot.store.fleet import NodeRow, Nodes, WorkerRow, list_workers, read_nodes
from ondot.store.overview import read_held_back
from ondot.store.pools import WAITING_COUNTED, PoolRow, list_pools
from ondot.words.fleet import (
    EXPIRED_SHOWN,
    NodeAway,
    PoolLoad,
    StalledLoop,
    Trouble,
    WorkerBeat,
    count_more_expired,
    describe_healthy_fleet,
    find_troubles,
    format_ranges,
    worker_command,
)

WORKERS_READ: Final = 1_000
WORKERS_SHOWN: Final = 60
POOLS_SHOWN: Final = 60
TROUBLES_SHOWN: Final = 6
COLOURS: Final = 8
"""Of owners; owners that share a colour differ in their letters."""
RANKS: Final = {"LOST": 0, "DRAINING": 2, "ALIVE": 3, "GONE": 4}
"""The order in which workers are shown; silent workers come right after lost ones."""


@dataclass(frozen=True, slots=True)
class FleetHealth:
    level: Literal["good", "warning", "bad"]
    troubles: tuple[Trouble, ...]
    more: int
    well: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A partition, with the letter and the colour of its owner; no letter: it has no live owner."""

    no: int
    letter: str | None
    colour: int
    title: str


@dataclass(frozen=True, slots=True)
class NodeLine:
    """`letter`: None if the node is not alive. `since_at`: when it took the latest of its partitions."""

    letter: str | None
    colour: int
    name: str
    id: UUID
    release: str
    is_alive: bool
    stalled_at: datetime | None
    stalled_in: str | None
    started_at: datetime
    beat_at: datetime
    count: int
    ranges: str
    epochs: str
    since_at: datetime | None
    coordination: str


@dataclass(frozen=True, slots=True)
class FleetNodes:
    """`more`: the expired nodes that are not among `rows`, in words."""

    cells: tuple[Cell, ...]
    rows: tuple[NodeLine, ...]
    more: str | None
    unowned: str
    summary: str


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """`running`: None if it counts the work of other tenants too. `tenants`: that it serves; None: all, or there is
    one. `trusts`: the transports through which hints reach it for certain."""

    id: UUID
    name: str
    release: str
    app: str | None
    app_release: str | None
    state: str
    is_silent: bool
    stalled_at: datetime | None
    stalled_in: str | None
    pools: str
    tenants: str | None
    running: int | None
    slots: int
    started_at: datetime
    beat_at: datetime
    ended_at: datetime | None
    trusts: str | None


@dataclass(frozen=True, slots=True)
class FleetWorkers:
    rows: tuple[WorkerLine, ...]
    total: int
    is_cut: bool
    is_whole: bool


@dataclass(frozen=True, slots=True)
class PoolLine:
    """`command`: how to start a worker, if work waits and none serves the pool; None while the database is on hold.

    `running`: None if it counts the work of other tenants too.
    """

    name: str
    workers: int
    slots: int
    running: int | None
    waiting: str
    oldest_at: datetime | None
    gated: int
    limits: str
    transport: str | None
    command: str | None


@dataclass(frozen=True, slots=True)
class FleetPools:
    rows: tuple[PoolLine, ...]
    more: int
    is_whole: bool


FleetSection = FleetHealth | FleetNodes | FleetWorkers | FleetPools


@dataclass(frozen=True, slots=True)
class FleetView:
    """`sections` by the names of their templates."""

    now: datetime
    sections: dict[str, FleetSection]


async def read_fleet(database: Database, tenant_no: TenantNo, *, is_whole: bool) -> FleetView:
    async with database.connection() as connection:
        nodes = await read_nodes(connection)
        workers = await list_workers(connection, limit=WORKERS_READ + 1, tenant_no=tenant_no)
        pools = await list_pools(connection, tenant_no)
        held = await read_held_back(connection, database.specs, tenant_no, lines=1)
    heartbeat_s = database.settings.heartbeat_s
    names = await _tenant_names(database) if is_whole else {}
    sections: dict[str, FleetSection] = {
        "fleet_health": _health(nodes, workers, pools, held, heartbeat_s, is_whole=is_whole),
        "fleet_workers": _workers(workers, names, heartbeat_s, is_whole=is_whole),
        "fleet_pools": _pools(pools, is_held=nodes.held_at is not None, is_whole=is_whole),
    }
    return FleetView(nodes.now, sections | {"fleet_nodes": _nodes(nodes)} if is_whole else sections)


def _health(
    nodes: Nodes,
    workers: list[WorkerRow],
    pools: list[PoolRow],
    held: HeldBack,
    heartbeat_s: float,
    *,
    is_whole: bool,
) -> FleetHealth:
    found = find_troubles(
        partitions=nodes.partitions,
        unowned=nodes.unowned if is_whole else (),
        live_nodes=sum(row.is_alive for row in nodes.rows),
        pools=[
            PoolLoad(row.name, row.workers, row.slots, row.running, row.waiting, row.oldest_waiting_s) for row in pools
        ],
        workers=[
            WorkerBeat(_process(row), row.state, row.silent_s)
            for row in workers
            if not is_stalled(row.state, row.stalled_at)
        ],
        heartbeat_s=heartbeat_s,
        stalled=[
            *(
                StalledLoop("scheduler", _process(row), row.stalled_in or "?")
                for row in nodes.rows
                if is_whole and row.is_alive and row.stalled_at is not None
            ),
            *(
                StalledLoop("worker", _process(row), row.stalled_in or "?")
                for row in workers
                if is_stalled(row.state, row.stalled_at)
            ),
        ],
        away=[NodeAway(_process(row), row.away_why or "") for row in nodes.rows if is_whole and row.is_away(nodes.now)],
        held_at=nodes.held_at,
        held_why=nodes.held_why,
        held_back=held,
    )
    return FleetHealth(
        found[0].level if found else "good",
        tuple(found[:TROUBLES_SHOWN]),
        max(len(found) - TROUBLES_SHOWN, 0),
        describe_healthy_fleet(nodes.partitions if is_whole else None),
    )


def _nodes(nodes: Nodes) -> FleetNodes:
    alive = [row for row in nodes.rows if row.is_alive]
    letters = dict(zip((row.id for row in alive), _letters(), strict=False))
    colours = {row.id: n % COLOURS for n, row in enumerate(alive)}
    cells = {
        owned.no: Cell(
            owned.no,
            letters[row.id],
            colours[row.id],
            f"Partition {owned.no}: {letters[row.id]}, {_process(row)}, epoch {owned.epoch}",
        )
        for row in alive
        for owned in row.partitions
    }
    for number in nodes.unowned:
        cells[number] = Cell(number, None, 0, f"Partition {number}: no live owner")
    lines = [_node_line(row, letters[row.id], colours[row.id]) for row in alive]
    owners = "; ".join(f"{line.name} owns {line.ranges or 'none'}" for line in lines)
    expired = sorted((row for row in nodes.rows if not row.is_alive), key=lambda row: row.beat_at, reverse=True)
    lines += [_node_line(row, None, 0) for row in expired[:EXPIRED_SHOWN]]
    return FleetNodes(
        tuple(cells[number] for number in sorted(cells)),
        tuple(lines),
        count_more_expired([(nodes.now - row.beat_at).total_seconds() for row in expired[EXPIRED_SHOWN:]]),
        format_ranges(nodes.unowned),
        f"{nodes.partitions - len(nodes.unowned)} of {nodes.partitions} partitions have an owner. {owners}",
    )


def _node_line(row: NodeRow, letter: str | None, colour: int) -> NodeLine:
    epochs = sorted({owned.epoch for owned in row.partitions})
    return NodeLine(
        letter,
        colour,
        _process(row),
        row.id,
        row.release,
        row.is_alive,
        row.stalled_at,
        row.stalled_in,
        row.started_at,
        row.beat_at,
        len(row.partitions),
        format_ranges(owned.no for owned in row.partitions),
        "" if not epochs else str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}",
        max((owned.owned_since for owned in row.partitions if owned.owned_since), default=None),
        row.coordination,
    )


def _letters() -> Iterator[str]:
    """A to Z, then AA, AB …"""
    for length in count(1):
        yield from ("".join(letters) for letters in product(ascii_uppercase, repeat=length))


async def _tenant_names(database: Database) -> dict[TenantNo, str]:
    """By number; empty if there is only one."""
    tenants = await database.tenants.snapshot()
    names = {no: tenant.name for no, tenant in tenants.items() if tenant.exists}
    return names if len(names) > 1 else {}


def _workers(
    workers: list[WorkerRow], names: Mapping[TenantNo, str], heartbeat_s: float, *, is_whole: bool
) -> FleetWorkers:
    lines = [
        WorkerLine(
            row.id,
            _process(row),
            row.release,
            row.app,
            row.app_release,
            row.state,
            is_silent(row.state, row.silent_s, heartbeat_s),
            row.stalled_at,
            row.stalled_in,
            ", ".join(row.pools),
            None
            if row.tenant_nos is None or not names
            else ", ".join(sorted(names[no] for no in row.tenant_nos if no in names)) or "deleted tenants",
            row.running if is_whole else None,
            row.slots,
            row.started_at,
            row.beat_at,
            row.ended_at,
            None if row.ended_at else ", ".join(row.trusts or ()) or None,
        )
        for row in workers[:WORKERS_READ]
    ]
    lines.sort(key=lambda line: (1 if line.is_silent else RANKS[line.state], line.started_at, line.id))
    return FleetWorkers(tuple(lines[:WORKERS_SHOWN]), len(lines), len(workers) > WORKERS_READ, is_whole)


def _pools(pools: list[PoolRow], *, is_held: bool, is_whole: bool) -> FleetPools:
    """The pool whose work has waited longest comes first."""
    ordered = sorted(pools, key=lambda row: (-(row.oldest_waiting_s or 0.0), row.name))
    lines = tuple(_pool_line(row, is_held, is_whole) for row in ordered[:POOLS_SHOWN])
    return FleetPools(lines, max(len(ordered) - POOLS_SHOWN, 0), is_whole)


def _pool_line(row: PoolRow, is_held: bool, is_whole: bool) -> PoolLine:
    limits = [
        f"at most {row.concurrency:,} at a time" if row.concurrency is not None else "",
        f"{row.rate.limit:,} in {row.rate.per_s:g} s" if row.rate is not None else "",
    ]
    return PoolLine(
        row.name,
        row.workers,
        row.slots,
        row.running if is_whole else None,
        f"{row.waiting:,}{'+' if row.waiting >= WAITING_COUNTED else ''}",
        row.oldest_waiting_at,
        row.gated,
        ", ".join(limit for limit in limits if limit),
        row.transport,
        worker_command(row.name) if row.waiting and not row.workers and not is_held else None,
    )


def _process(row: NodeRow | WorkerRow) -> str:
    return f"{row.host}:{row.pid}"
