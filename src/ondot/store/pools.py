"""Pools by name: a pool comes to be when a job or a worker first names it."""

from collections.abc import Iterable

from ondot.model.ids import PoolNo, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("pools")


class Pools:
    """The numbers of pools, remembered once they are seen committed: one made in a transaction that fails never was."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[TenantNo, str], PoolNo] = {}

    async def numbers(self, connection: Connection, tenant_no: TenantNo, names: Iterable[str]) -> dict[str, PoolNo]:
        """The number of each pool, made where it is new."""
        wanted = sorted(set(names))
        known = {name: self._numbers[tenant_no, name] for name in wanted if (tenant_no, name) in self._numbers}
        missing = [name for name in wanted if name not in known]
        if not missing:
            return known
        found = await self._find(connection, tenant_no, missing)
        new = [name for name in missing if name not in found]
        if new:
            await connection.execute(_SQL["add_pools"].text, tenant_no, new)
            found |= await self._find(connection, tenant_no, new)
        return known | found

    async def _find(self, connection: Connection, tenant_no: TenantNo, names: list[str]) -> dict[str, PoolNo]:
        rows = await connection.fetch(_SQL["find_pools"].text, tenant_no, names)
        self._numbers |= {(tenant_no, row["name"]): PoolNo(row["pool_no"]) for row in rows if row["committed"]}
        return {row["name"]: PoolNo(row["pool_no"]) for row in rows}


async def find_pools(connection: Connection, tenant_no: TenantNo, names: list[str]) -> dict[str, PoolNo]:
    rows = await connection.fetch(_SQL["find_pools"].text, tenant_no, names)
    return {row["name"]: PoolNo(row["pool_no"]) for row in rows}
