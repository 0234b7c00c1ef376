"""Which tenants a worker leases for (T4): functions of two tenants share its process only where the operator says so.

Without an app a worker runs no code of any tenant, so it serves all of them. With an app it serves the tenants that
`--tenant` names (`*`: all). Without `--tenant` these are the first one, and those that an owner gave all the worker's
pools by name. `default` does not count, because every new tenant has it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ondot.model.errors import Misconfigured
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.tenant import Tenant, TenantState
from ondot.store.database import Database

ALL: Final = "*"
_DEFAULT_POOL: Final = "default"

TenantNos = frozenset[TenantNo] | None
"""None: all tenants."""


class ServedTenants:
    """`numbers` are those of the last reading; the worker reads again each second if they may change."""

    def __init__(self, database: Database, names: Sequence[str], pools: Sequence[str], *, has_functions: bool) -> None:
        self._database = database
        self._names = tuple(dict.fromkeys(names))
        self._pools = tuple(pools)
        self.numbers: TenantNos = None if self._serves_all(has_functions) else frozenset({DEFAULT_TENANT})
        self.may_change = self.numbers is not None and (bool(self._names) or _DEFAULT_POOL not in self._pools)

    @property
    def registers_for(self) -> tuple[TenantNo, ...]:
        """The tenants that get the schedules of the worker's app: those that `--tenant` names, else the first."""
        return tuple(sorted(self.numbers)) if self.numbers and self._names else (DEFAULT_TENANT,)

    async def read(self) -> None:
        """Raises Misconfigured for a name that no tenant has."""
        if not self.may_change:
            return
        tenants = await self._database.tenants.snapshot()
        known = {tenant.name: no for no, tenant in tenants.items() if tenant.state is not TenantState.DELETED}
        if unknown := [name for name in self._names if name not in known]:
            raise Misconfigured(
                f"There is no tenant {unknown[0]!r}. Create it with `ondot tenant create {unknown[0]}`, or use one of:"
                f" {', '.join(sorted(known)[:10])}."
            )
        self.numbers = frozenset(known[name] for name in self._names) or _by_pools(tenants, self._pools)

    async def read_again(self) -> bool:
        """Whether they have changed. A tenant that was deleted meanwhile is served no more."""
        before = self.numbers
        try:
            await self.read()
        except Misconfigured:
            tenants = await self._database.tenants.snapshot()
            self.numbers = frozenset(no for no in before or () if tenants[no].state is not TenantState.DELETED)
        return self.numbers != before

    def _serves_all(self, has_functions: bool) -> bool:
        return ALL in self._names or not (self._names or has_functions)


def _by_pools(tenants: Mapping[TenantNo, Tenant], pools: Sequence[str]) -> frozenset[TenantNo]:
    named = (no for no, tenant in tenants.items() if tenant.pools.issuperset(pools))
    return frozenset({DEFAULT_TENANT, *named})
