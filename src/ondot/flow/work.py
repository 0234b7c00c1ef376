"""The transaction that a stage works in, on behalf of one tenant.

A stage opens it with `begin` and passes the `Work` down, so that its functions take one argument instead of three.
A pass over all tenants has no `Work` of its own: it takes a connection, and makes one where it acts for a tenant.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ondot.model.ids import PoolNo, TenantNo
from ondot.store.connection import Connection
from ondot.store.database import Database


@dataclass(frozen=True, slots=True)
class Work:
    connection: Connection
    database: Database
    tenant_no: TenantNo

    async def pool_no(self, name: str) -> PoolNo:
        """The number of a pool that the tenant names now. Raises `InvalidBody` if it may not."""
        return (await self.database.pools.numbers(self.connection, self.tenant_no, [name]))[name]

    async def pool_no_of_job(self, name: str) -> PoolNo:
        """The number of the pool that a stored job has, even if its tenant may no longer name it."""
        return (await self.database.pools.register(self.connection, [name]))[name]


@asynccontextmanager
async def begin(database: Database, tenant_no: TenantNo) -> AsyncIterator[Work]:
    """A transaction, which commits at the end."""
    async with database.transaction() as connection:
        yield Work(connection, database, tenant_no)
