"""Who uses how much of each pool, and who waits (T2): a tenant sees its own figures and the totals of all."""

from dataclasses import dataclass
from datetime import datetime

from ondot.model.ids import TenantNo
from ondot.model.tenant import Quotas


@dataclass(frozen=True, slots=True)
class TenantInPool:
    """`running`: attempts, exactly. `waiting`: due executions that wait for a worker, counted up to a ceiling."""

    tenant_no: TenantNo
    name: str
    weight: float
    running: int
    waiting: int
    oldest_waiting_at: datetime | None


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """`slots`: of the live workers. `tenants`: those that run or wait there, most slots first."""

    name: str
    slots: int
    tenants: tuple[TenantInPool, ...]

    @property
    def running(self) -> int:
        return sum(one.running for one in self.tenants)

    @property
    def waiting(self) -> int:
        return sum(one.waiting for one in self.tenants)

    def of(self, tenant_no: TenantNo) -> TenantInPool | None:
        return next((one for one in self.tenants if one.tenant_no == tenant_no), None)

    def fair_slots(self, tenant_no: TenantNo) -> float | None:
        """The tenant's share of the slots by weight, among those that run or wait there; None: it does neither."""
        own = self.of(tenant_no)
        if own is None:
            return None
        return self.slots * own.weight / sum(one.weight for one in self.tenants)

    def waits_for(self, tenant_no: TenantNo) -> tuple[TenantInPool, ...]:
        """Those that hold slots while this tenant has due work; it waits for them to end."""
        own = self.of(tenant_no)
        if own is None or not own.waiting:
            return ()
        return tuple(one for one in self.tenants if one.running and one.tenant_no != tenant_no)


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one tenant. `token_at`: when it may start the next attempt by its quota `starts`; None: now, or no quota."""

    tenant_no: TenantNo
    name: str
    weight: float
    quotas: Quotas
    running: int
    token_at: datetime | None
    pools: tuple[PoolUsage, ...]
    now: datetime
