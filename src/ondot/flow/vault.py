"""The data keys of tenants, in memory for a bounded time (T5).

A tenant's data key is created when its first secret is stored, wrapped by the master key (`ports.kms`), and unwrapped
by the processes that need it. What is sealed stays sealed in every cache; only data keys and the values of a running
attempt are in memory in plain.
"""

import time
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ondot.flow.sealing import DataKey, from_text, new_data_key, to_text, wrapping_context
from ondot.flow.shared_reads import SharedReads
from ondot.model.errors import NoSecretKey
from ondot.model.ids import TenantNo
from ondot.model.secret import Hidden
from ondot.ports.kms import Kms
from ondot.store.database import Database
from ondot.store.secrets import WrappedKey, add_data_key, find_data_keys

KEPT_S: Final = 300.0
KEPT: Final = 1_000
FIRST: Final = 1

NO_KEY: Final = (
    "This installation has no master key for secrets. Create one with `ondot secret generate-key`, set it as"
    " ONDOT_SECRET_KEY (or in a file that ONDOT_SECRET_KEY_FILE names) for every API and worker, and start them again."
)


class Vault:
    def __init__(self, database: Database, kms: Kms | None, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`kms`: None if this process has no master key."""
        self.database: Final = database
        self.kms: Final = kms
        self._now_s = now_s
        self._keys: OrderedDict[TenantNo, tuple[float, dict[int, DataKey]]] = OrderedDict()
        self._loads: SharedReads[TenantNo, dict[int, DataKey]] = SharedReads()

    async def writing_key(self, tenant_no: TenantNo) -> DataKey:
        """The data key that seals new values, created if the tenant has none. Raises NoSecretKey."""
        keys = await self._find(tenant_no)
        if not keys:
            kms = self._needs_kms()
            wrapped = await kms.wrap(new_data_key(), wrapping_context(tenant_no, FIRST))
            async with self.database.connection() as connection:
                await add_data_key(connection, WrappedKey(tenant_no, FIRST, kms.master, wrapped))
            # Of two processes that create one at once, the first one's stays.
            keys = await self._load(tenant_no)
        return keys[max(keys)]

    async def key(self, tenant_no: TenantNo, number: int) -> DataKey:
        keys = await self._find(tenant_no)
        if number not in keys:
            keys = await self._load(tenant_no)
        if number not in keys:
            raise NoSecretKey(
                f"The data key {number} of this tenant is gone from ondot.data_key: set its secrets again."
            )
        return keys[number]

    async def open_header(self, tenant_no: TenantNo, name: str, sealed: str) -> str:
        number, content = from_text(sealed)
        return (await self.key(tenant_no, number)).open(content, "header", name.lower())

    async def _find(self, tenant_no: TenantNo) -> dict[int, DataKey]:
        kept = self._keys.get(tenant_no)
        if kept is not None and kept[0] > self._now_s():
            return kept[1]
        return await self._loads.read(tenant_no, self._load)

    async def _load(self, tenant_no: TenantNo) -> dict[int, DataKey]:
        kms = self._needs_kms()
        async with self.database.connection() as connection:
            rows = await find_data_keys(connection, tenant_no)
        keys = {}
        for row in rows:
            plain = await kms.unwrap(row.master, row.wrapped, wrapping_context(tenant_no, row.number))
            keys[row.number] = DataKey(tenant_no, row.number, plain)
        self._keys.pop(tenant_no, None)
        if keys:
            self._keys[tenant_no] = self._now_s() + KEPT_S, keys
            if len(self._keys) > KEPT:
                self._keys.popitem(last=False)
        return keys

    def _needs_kms(self) -> Kms:
        if self.kms is None:
            raise NoSecretKey(NO_KEY)
        return self.kms


def seal_header(key: DataKey, name: str, value: str) -> Hidden:
    place = ("header", name.lower())
    return Hidden(sealed=to_text(key.number, key.seal(value, *place)), mark=b64encode(key.mark(value, *place)).decode())
