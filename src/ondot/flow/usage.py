"""Who uses how much of each pool (T2): read for a person, on behalf of a caller."""

from ondot.flow.tenants import unknown_tenant
from ondot.model.access import Caller
from ondot.model.usage import Usage
from ondot.store.database import Database
from ondot.store.usage import read_usage


async def read_tenant_usage(database: Database, caller: Caller, name: str) -> Usage:
    """Raises `NotFound` for another tenant than the caller's, unless the caller is an owner."""
    tenant = await database.tenants.by_name(name, by_stranger=not caller.is_owner)
    if tenant is None or (tenant.tenant_no != caller.tenant_no and not caller.is_owner):
        raise unknown_tenant(name)
    async with database.connection() as connection:
        return await read_usage(connection, tenant)
