"""Whose shell commands a worker runs, and in which pools (T4): the first tenant's, unless the operator names others.

The right `shell` of a caller decides who may write such a job; this decides which jobs a worker runs.
"""

from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.store.database import Database

ALL = "*"


class ShellRules:
    def __init__(self, database: Database) -> None:
        self._tenants = database.tenants
        self._names = database.settings.tenants_with_shell
        self._pools = database.settings.pools_with_shell

    async def why_not(self, tenant_no: TenantNo, pool: str) -> str | None:
        """Why this worker runs no shell commands of a tenant in a pool, as a sentence that says what to do."""
        if self._pools is not None and pool not in self._pools:
            return f"This worker runs no shell commands in the pool {pool!r}. Its operator sets ONDOT_SHELL_POOLS."
        if not await self._may_run(tenant_no):
            return "This worker runs no shell commands of this tenant. Its operator sets ONDOT_SHELL_TENANTS."
        return None

    async def _may_run(self, tenant_no: TenantNo) -> bool:
        if self._names is None:
            return tenant_no == DEFAULT_TENANT
        if ALL in self._names:
            return True
        tenant = await self._tenants.get(tenant_no)
        return tenant is not None and tenant.name in self._names
