"""A tenant (T1, T2): its state, its share, the pools that it may name, and its quotas.

Pools belong to the installation; a tenant has a list of those that it may name, `*` for all. Only a tenant with `*`
creates a pool by naming it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec import Struct

from ondot.model.gates import Rate
from ondot.model.ids import TenantNo

ALL_POOLS: Final = "*"
TENANTS_SHOWN: Final = 100
"""The most tenants with series of their own in the metrics."""


class TenantState(StrEnum):
    ACTIVE = "ACTIVE"
    SUSPENDED = "SUSPENDED"
    """It can be read. Nothing is planned or leased; running work finishes."""
    DELETED = "DELETED"
    """Its keys are dead and its work is stopped; its rows are removed in the background."""


class Quotas(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """None: no quota. `reserved`: slots of each pool that are kept free for the tenant."""

    jobs: int | None = None
    payload_bytes: int | None = None
    concurrent: int | None = None
    reserved: int | None = None
    starts: Rate | None = None
    creates: Rate | None = None
    events: Rate | None = None


NO_QUOTAS: Final = Quotas()


class TargetRules(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where its HTTP calls may go. `allow`: if it lists any hosts or networks, nothing else is called."""

    private_networks: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


PUBLIC_TARGETS: Final = TargetRules()


@dataclass(frozen=True, slots=True)
class Tenant:
    tenant_no: TenantNo
    name: str
    state: TenantState = TenantState.ACTIVE
    weight: float = 1.0
    pools: frozenset[str] = frozenset({"default"})
    quotas: Quotas = NO_QUOTAS
    version: int = 1
    targets: TargetRules = PUBLIC_TARGETS
    retention_days: int | None = None
    """How long its history is kept; None: as long as the installation keeps it."""

    @property
    def is_active(self) -> bool:
        return self.state is TenantState.ACTIVE

    @property
    def exists(self) -> bool:
        return self.state is not TenantState.DELETED

    @property
    def may_create_pools(self) -> bool:
        return ALL_POOLS in self.pools

    def may_name(self, pool: str) -> bool:
        return ALL_POOLS in self.pools or pool in self.pools

    def refused_pools(self, pools: Iterable[str]) -> list[str]:
        return sorted(pool for pool in pools if not self.may_name(pool))
