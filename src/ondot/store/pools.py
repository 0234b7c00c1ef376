"""Pools belong to the installation: a name is unique, workers serve a pool for all tenants (E1, E13, T1).

A pool is created when a worker, or a job of a tenant that may name every pool, first names it. Other tenants have a
list of pools that they may name. A name that is not on it is rejected without a look-up: whether such a pool exists
makes no difference, also not in time. Jobs that exist stay in their pool if it is taken off the list.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

import msgspec

from ondot.model.errors import Fault, InvalidBody
from ondot.model.gates import Rate
from ondot.model.ids import ExecutionId, PoolNo, TenantNo
from ondot.model.routes import BOTH_FOR, Route, Routes
from ondot.store.connection import Connection
from ondot.store.queries import load_queries
from ondot.store.tenants import Tenants

_SQL = load_queries("pools")


WAITING_COUNTED = 10_000

_RouteEntry = tuple[PoolNo, str | None, str | None, datetime]


@dataclass(frozen=True, slots=True)
class HintedPool:
    """A pool whose hints go through a transport with beats. `is_due`: work of it became due a moment ago."""

    pool_no: PoolNo
    is_due: bool


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool as it is shown. Work that waits is counted up to a ceiling.

    `waiting`: due executions that wait for a worker. `gated`: due executions that wait for a limit of their job, of as
    many lines as the ceiling. `transport`: None is the installation's.
    """

    name: str
    created_at: datetime
    concurrency: int | None
    rate: Rate | None
    workers: int
    slots: int
    running: int
    waiting: int
    oldest_waiting_at: datetime | None
    gated: int
    transport: str | None
    now: datetime

    @property
    def oldest_waiting_s(self) -> float | None:
        return None if self.oldest_waiting_at is None else (self.now - self.oldest_waiting_at).total_seconds()


class Pools:
    """The numbers of pools. One is remembered once it is seen committed: the transaction that creates it may fail."""

    def __init__(self) -> None:
        self._tenants = Tenants()
        self._numbers: dict[str, PoolNo] = {}
        self.routes: Routes = MappingProxyType({})
        """As they were read last: with each heartbeat of a worker, and by other processes each second or two."""

    def bind(self, tenants: Tenants) -> None:
        """Say where the lists of pools are read."""
        self._tenants = tenants

    def see_routes(self, written: str | None) -> None:
        """Take over what a statement has returned as `pool_routes`; also from another thread."""
        entries = [] if written is None else msgspec.json.decode(written, type=list[_RouteEntry])
        self.routes = {pool_no: Route(transport, was, at) for pool_no, transport, was, at in entries}

    async def read_routes(self, connection: Connection) -> None:
        self.see_routes(await connection.fetchval(_SQL["read_routes"].text))

    async def numbers(self, connection: Connection, tenant_no: TenantNo, names: Collection[str]) -> dict[str, PoolNo]:
        """The number of each pool that a tenant names. Raises `InvalidBody` for one that it may not use."""
        tenant = await self._tenants.read(connection, tenant_no)
        if tenant is not None and tenant.may_create_pools:
            return await self.register(connection, names)
        granted = frozenset() if tenant is None else tenant.pools
        found = {} if granted.isdisjoint(names) else await self._find_known(connection, sorted(granted & set(names)))
        for name in names:
            if name not in found:
                known = ", ".join(sorted(granted)) or "none"
                fault = f"Unknown pool {name!r}. Use one of: {known}; or ask an owner of the installation to grant it."
                raise InvalidBody(fault, (Fault("/pool", fault),), pool=name)
        return found

    async def register(self, connection: Connection, names: Collection[str]) -> dict[str, PoolNo]:
        """The number of each pool, created where it is new; also of pools that existing jobs have."""
        found = await self._find_known(connection, names)
        if new := sorted(set(names) - found.keys()):
            await connection.execute(_SQL["add_pools"].text, new)
            found |= await self._find(connection, new)
        return found

    async def _find_known(self, connection: Connection, names: Collection[str]) -> dict[str, PoolNo]:
        known = {name: self._numbers[name] for name in names if name in self._numbers}
        missing = [name for name in names if name not in known]
        return known | await self._find(connection, missing) if missing else known

    async def _find(self, connection: Connection, names: list[str]) -> dict[str, PoolNo]:
        rows = await connection.fetch(_SQL["find_pools"].text, names)
        self._numbers |= {row["name"]: PoolNo(row["pool_no"]) for row in rows if row["committed"]}
        return {row["name"]: PoolNo(row["pool_no"]) for row in rows}


async def find_pools(connection: Connection, names: list[str]) -> dict[str, PoolNo]:
    rows = await connection.fetch(_SQL["find_pools"].text, names)
    return {row["name"]: PoolNo(row["pool_no"]) for row in rows}


async def list_pools(connection: Connection, tenant_no: TenantNo, *, name: str | None = None) -> list[PoolRow]:
    rows = await connection.fetch(_SQL["list_pools"].text, tenant_no, name, WAITING_COUNTED)
    return [
        PoolRow(
            row["name"],
            row["created_at"],
            row["concurrency"],
            Rate(limit=row["rate_limit"], per_s=row["rate_per_s"], burst=row["rate_burst"])
            if row["rate_limit"]
            else None,
            row["workers"],
            row["slots"],
            row["running"],
            row["waiting"],
            row["oldest_waiting_at"],
            row["gated"],
            row["transport"],
            row["now"],
        )
        for row in rows
    ]


async def read_pool_depths(
    connection: Connection, tenant_no: TenantNo, names: Sequence[str], ceiling: int
) -> dict[str, int]:
    """How many due executions wait for a worker in each of these pools, counted up to the ceiling."""
    rows = await connection.fetch(_SQL["read_pool_depths"].text, tenant_no, names, ceiling)
    return {row["name"]: row["depth"] for row in rows}


async def count_letters_by_pool(
    connection: Connection, tenant_no: TenantNo, ids: Sequence[ExecutionId]
) -> dict[str, int]:
    """How many of these dead letters are open, by pool."""
    rows = await connection.fetch(_SQL["count_letters_by_pool"].text, tenant_no, ids)
    return {row["name"]: row["count"] for row in rows}


async def set_pool_limits(
    connection: Connection, name: str, concurrency: int | None, rate: Rate | None
) -> PoolNo | None:
    """Set the limits of a pool and lock its row. Returns its number; None: there is no such pool."""
    pool_no: PoolNo | None = await connection.fetchval(
        _SQL["set_pool_limits"].text,
        name,
        concurrency,
        rate and rate.limit,
        rate and rate.per_s,
        rate and rate.burst,
    )
    return pool_no


async def set_pool_transport(connection: Connection, name: str, transport: str | None) -> PoolNo | None:
    """Returns its number; None: there is no such pool, or that is its transport already."""
    pool_no: PoolNo | None = await connection.fetchval(_SQL["set_pool_transport"].text, name, transport)
    return pool_no


async def find_hinted_pools(connection: Connection, transports: Sequence[str], default: str) -> list[HintedPool]:
    """The pools whose hints go through one of these transports. `default`: the installation's."""
    rows = await connection.fetch(_SQL["find_hinted_pools"].text, transports, default, BOTH_FOR.total_seconds())
    return [HintedPool(*row.values()) for row in rows]


async def block_leases(connection: Connection) -> None:
    """Block all other leases until the end of the transaction. Leases that were on their way are visible afterwards.

    Raises LOCKED if that takes too long. Lock the pool's row before: leases from a limited pool lock it first.
    """
    await connection.execute(_SQL["limit_lock_time"].text)
    await connection.execute(_SQL["block_leases"].text)


async def add_missing_slots(connection: Connection, pool_no: PoolNo | None = None) -> None:
    """Give the attempts that run in a limited pool, or in all of them, the slots that they lack."""
    await connection.execute(_SQL["add_missing_slots"].text, pool_no)
