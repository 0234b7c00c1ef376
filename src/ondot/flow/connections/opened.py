"""Connections as attempts use them (E3): read with their credentials, and kept for a few seconds.

A change counts within `KEPT_S`. Many attempts that need the same connection at the same moment read it once.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ondot.flow.connections.credentials import OpenedConnection, open_credentials
from ondot.flow.connections.manage import describe_unknown
from ondot.flow.shared_reads import SharedReads
from ondot.flow.vault import Vault
from ondot.model.connection import NoConnection
from ondot.model.ids import TenantNo
from ondot.store.connections import find_connections

KEPT_S: Final = 5.0
KEPT: Final = 1_000

_Key = tuple[TenantNo, str]


class OpenedConnections:
    def __init__(self, vault: Vault, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._vault = vault
        self._now_s = now_s
        self._kept: OrderedDict[_Key, tuple[float, OpenedConnection]] = OrderedDict()
        self._reads: SharedReads[_Key, OpenedConnection] = SharedReads()

    async def open(self, tenant_no: TenantNo, name: str) -> OpenedConnection:
        """Raises NoConnection if there is none of this name, or a secret of it is missing; NoSecretKey, Unavailable."""
        key = tenant_no, name
        kept = self._kept.get(key)
        if kept is not None and kept[0] > self._now_s():
            return kept[1]
        return await self._reads.read(key, self._read)

    async def _read(self, key: _Key) -> OpenedConnection:
        tenant_no, name = key
        self._kept.pop(key, None)
        async with self._vault.database.connection() as connection:
            found = await find_connections(connection, tenant_no, [name])
            if name not in found:
                raise NoConnection(await describe_unknown(connection, tenant_no, name))
        opened = await open_credentials(self._vault, tenant_no, name, found[name].spec)
        self._kept[key] = self._now_s() + KEPT_S, opened
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return opened
