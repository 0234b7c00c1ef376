"""The tenants, remembered by each process (T1, T2): a change holds everywhere within a second.

A process reads all tenants once, and then only those that changed: a row has the transaction that wrote it, and each
reading remembers the oldest transaction that was still open, so that no late commit is missed.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import Final

import msgspec

from ondot.model.ids import TenantNo
from ondot.model.tenant import Quotas, TargetRules, Tenant, TenantState
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
        self._changed_since = "0"
        self._read_s: float | None = None
        self._reading = asyncio.Lock()

    def bind(self, connect: Connect) -> None:
        """Say how to reach the database; the first call counts."""
        self._connect = self._connect or connect

    async def get(self, tenant_no: TenantNo) -> Tenant | None:
        return (await self.snapshot()).get(tenant_no)

    async def by_name(self, name: str) -> Tenant | None:
        """The tenant of a name that is not deleted."""
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
        self._read_s = read_s

    def _remember(self, tenant: Tenant) -> None:
        before = self._by_no.get(tenant.tenant_no)
        if before is not None and self._by_name.get(before.name) is before:
            del self._by_name[before.name]
        self._by_no[tenant.tenant_no] = tenant
        if tenant.state is not TenantState.DELETED:
            self._by_name[tenant.name] = tenant

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
    )
