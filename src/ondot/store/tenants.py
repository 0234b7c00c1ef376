"""The tenants, remembered by each process (T1, T2): a change holds everywhere within a second. And their rows.

A process reads all tenants once, and then only those that changed: a row has the transaction that wrote it, and each
reading remembers the oldest transaction that was still open, so that no late commit is missed.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Final

import msgspec

from ondot.model.ids import TenantNo
from ondot.model.tenant import PUBLIC_TARGETS, Quotas, TargetRules, Tenant, TenantState
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("tenants")

CACHED_S: Final = 0.5

Connect = Callable[[], AbstractAsyncContextManager[Connection]]


class Tenants:
    """All tenants, deleted ones too, as they were at most `CACHED_S` before they were asked for."""

    def __init__(self) -> None:
        self._connect: Connect | None = None
        self._by_no: dict[TenantNo, Tenant] = {}
        self._by_name: dict[str, Tenant] = {}
        self._stopped: frozenset[TenantNo] = frozenset()
        self._changed_since = "0"
        self._read_s: float | None = None
        self._reading = asyncio.Lock()

    def bind(self, connect: Connect) -> None:
        """Say how to reach the database; the first call counts."""
        self._connect = self._connect or connect

    async def get(self, tenant_no: TenantNo) -> Tenant | None:
        tenant = (await self.snapshot()).get(tenant_no)
        if tenant is None:
            self.forget()  # it may have been created since
            tenant = (await self.snapshot()).get(tenant_no)
        return tenant

    async def by_name(self, name: str, *, by_stranger: bool = False) -> Tenant | None:
        """The tenant of a name that is not deleted. `by_stranger`: the name comes from a caller who must not learn
        which tenants there are. Then an unknown name costs no statement that a known one does not cost, and a new
        tenant is found within half a second."""
        await self.snapshot()
        if name not in self._by_name and not by_stranger:
            self.forget()
            await self.snapshot()
        return self._by_name.get(name)

    async def snapshot(self) -> Mapping[TenantNo, Tenant]:
        """All tenants by number; the mapping changes with the next reading."""
        if self._is_old():
            assert self._connect is not None, "Database binds it"
            async with self._reading:
                if self._is_old():  # else another caller has read them meanwhile
                    async with self._connect() as connection:
                        await self.refresh(connection)
        return self._by_no

    async def read(self, connection: Connection, tenant_no: TenantNo) -> Tenant | None:
        """As `get`, for a caller that has a connection already: waiting for a second one, while all are in use by
        callers that wait for theirs, would block them all."""
        if self._is_old() or tenant_no not in self._by_no:
            await self.refresh(connection)
        return self._by_no.get(tenant_no)

    async def stopped(self) -> frozenset[TenantNo]:
        """Those of which nothing is planned or started: suspended and deleted ones."""
        await self.snapshot()
        return self._stopped

    async def are_several(self) -> bool:
        """Whether there is another tenant beside the first."""
        await self.snapshot()
        return len(self._by_name) > 1

    @property
    def known(self) -> Mapping[TenantNo, Tenant]:
        """As they were read last: for callers that refresh by themselves."""
        return self._by_no

    async def refresh(self, connection: Connection) -> None:
        """Read the tenants that changed since the last reading."""
        read_s = monotonic()
        rows = await connection.fetch(_SQL["list_changed_tenants"].text, self._changed_since)
        for row in rows:
            self._changed_since = row["oldest_open"]
            if row["tenant_no"] is not None:
                self._remember(_tenant(row))
        if any(row["tenant_no"] is not None for row in rows):
            self._stopped = frozenset(no for no, tenant in self._by_no.items() if not tenant.is_active)
        self._read_s = read_s

    def _remember(self, tenant: Tenant) -> None:
        before = self._by_no.get(tenant.tenant_no)
        if before is not None and before.version > tenant.version:
            return  # another reading that started later has ended sooner
        if before is not None and self._by_name.get(before.name) is before:
            del self._by_name[before.name]
        self._by_no[tenant.tenant_no] = tenant
        if tenant.state is not TenantState.DELETED:
            self._by_name[tenant.name] = tenant

    def forget(self) -> None:
        """Read them again at the next use: this process has changed one."""
        self._read_s = None

    def _is_old(self) -> bool:
        return self._read_s is None or monotonic() - self._read_s >= CACHED_S


def _tenant(row: Record) -> Tenant:
    return Tenant(
        TenantNo(row["tenant_no"]),
        row["name"],
        TenantState(row["state"]),
        row["weight"],
        frozenset(row["pools"]),
        msgspec.json.decode(row["quotas"], type=Quotas),
        row["version"],
        msgspec.json.decode(row["targets"], type=TargetRules),
        row["retention_days"],
    )


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant as it is shown. Of a deleted one `removed` rows are gone; `removed_share` of the tables was read."""

    tenant: Tenant
    created_at: datetime
    updated_at: datetime | None
    deleted_at: datetime | None
    purged_at: datetime | None
    removed: int
    removed_share: float


async def list_tenants(
    connection: Connection, *, state: TenantState | None = None, after: int = 0, limit: int
) -> list[TenantRow]:
    """By number. Deleted ones only if `state` asks for them."""
    rows = await connection.fetch(_SQL["list_tenants"].text, state, after, limit)
    return [_tenant_row(row) for row in rows]


async def find_tenant(connection: Connection, name: str) -> TenantRow | None:
    """The tenant of a name, else the one of that name that was deleted last."""
    row = await connection.fetchrow(_SQL["find_tenant"].text, name)
    return _tenant_row(row) if row else None


async def lock_tenant(connection: Connection, name: str) -> TenantRow | None:
    """None: there is no tenant of this name, or it is deleted."""
    row = await connection.fetchrow(_SQL["lock_tenant"].text, name)
    return _tenant_row(row) if row else None


async def add_tenant(
    connection: Connection,
    name: str,
    weight: float,
    pools: frozenset[str],
    quotas: Quotas,
    targets: TargetRules = PUBLIC_TARGETS,
    retention_days: int | None = None,
) -> TenantNo:
    """Raises TAKEN if there is one of this name."""
    texts = (msgspec.json.encode(each).decode() for each in (quotas, targets))
    values = (name, weight, sorted(pools), *texts, retention_days)
    return TenantNo(await connection.fetchval(_SQL["add_tenant"].text, *values))


async def change_tenant(connection: Connection, tenant: Tenant) -> None:
    """Write a tenant that the caller has locked; its version rises by one."""
    await connection.execute(
        _SQL["change_tenant"].text,
        tenant.tenant_no,
        tenant.state,
        tenant.weight,
        sorted(tenant.pools),
        msgspec.json.encode(tenant.quotas).decode(),
        msgspec.json.encode(tenant.targets).decode(),
        tenant.retention_days,
    )


async def revoke_keys(connection: Connection, tenant_no: TenantNo) -> None:
    await connection.execute(_SQL["revoke_keys_of_tenant"].text, tenant_no)


def _tenant_row(row: Record) -> TenantRow:
    return TenantRow(
        _tenant(row),
        row["created_at"],
        row["updated_at"],
        row["deleted_at"],
        row["purged_at"],
        row["removed"],
        row["removed_share"],
    )
