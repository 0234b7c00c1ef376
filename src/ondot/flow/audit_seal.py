"""Seal the audit log (T6): each second, one pass of housekeeping.

An entry waits in `audit_open` from its own commit on. A pass takes the oldest ones, writes one seal for each of their
tenants, and removes them from `audit_open`, in one transaction. So an entry is sealed once or waits; a sealer that
is killed leaves nothing behind; and a transaction that commits late is sealed late, without delaying others. An
advisory lock lets one sealer of the installation work at a time. The number of a seal is part of the primary key, so
that not even a sealer without the lock could fork a chain.

The newest hashes go to the log, at a bounded rate: what is written there cannot be changed in the database.
"""

import hmac
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Final

from ondot.model.audit_chain import REMOVED, Seal, SealKey, make_seal
from ondot.model.ids import TenantNo
from ondot.settings import Settings, split_keys
from ondot.store.audit_seals import (
    Head,
    close_entries,
    insert_seals,
    list_open_entries,
    list_sealed_tenants,
    read_entries,
    read_heads,
    try_seal_lock,
)
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.telemetry.log import get_logger

ENTRIES_A_PASS: Final = 2_000
TENANTS_A_PASS: Final = 1_000
LOGGED_EVERY_S: Final = 60.0
"""The head of a tenant is logged at most once in this time."""
LOGGED_A_PASS: Final = 20
DERIVED_FOR: Final = b"ondot audit seal\x01"
FIRST_TENANT: Final = TenantNo(-1)

log = get_logger()


def seal_keys(settings: Settings) -> list[SealKey]:
    """The keys of this process: the first one signs, all of them verify. Without ONDOT_AUDIT_KEY, the first master key
    of secrets signs, by a key derived from it (HKDF-Expand)."""
    own = [key.encode() for key in settings.audit_keys]
    derived = [hmac.digest(b64decode(key), DERIVED_FOR, "sha256") for key in split_keys(settings.secret_key)]
    return [SealKey(key) for key in (*own, *derived)]


class Sealer:
    def __init__(
        self, database: Database, key: SealKey | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._key = key
        self._heads = _HeadLog(monotonic)
        self._to_sign: TenantNo | None = FIRST_TENANT
        """After which tenant to look for chains that this key has not signed yet; None: all have been looked at."""

    async def one_pass(self) -> int:
        """Seal a bounded number of entries; returns how many, or 1 if chains are left to sign."""
        deleted = {no for no, tenant in (await self._database.tenants.snapshot()).items() if not tenant.exists}
        async with self._database.transaction() as connection:
            if not await try_seal_lock(connection):
                return 0
            now = await connection.fetchval("SELECT ondot.clock()")
            opened = await list_open_entries(connection, ENTRIES_A_PASS)
            to_sign, next_to_sign = await self._find_unsigned(connection)
            heads = await read_heads(connection, {*opened, *to_sign})
            ids = [id_ for of_tenant in opened.values() for id_ in of_tenant]
            entries = await read_entries(connection, ids)
            seals: list[Seal] = []
            # The rows of a deleted tenant are being removed, also those that wait for a seal.
            for tenant_no in sorted({*opened, *to_sign} - deleted):
                head = heads.get(tenant_no)
                listed = [
                    (id_, entries[id_].digest if id_ in entries else REMOVED) for id_ in opened.get(tenant_no, ())
                ]
                before = None if head is None else (head.seq, head.hash)
                seals.append(make_seal(tenant_no, before, now, listed, self._key))
            if seals:
                await insert_seals(connection, seals)
            if ids:
                await close_entries(connection, ids)
        self._to_sign = next_to_sign
        missing = [id_ for no in opened.keys() - deleted for id_ in opened[no] if id_ not in entries]
        if missing:
            log.error("audit.removed", count=len(missing), first=str(missing[0]), then="run `ondot audit verify`")
        self._heads.log(seals)
        return len(ids) or int(next_to_sign is not None)

    async def _find_unsigned(self, connection: Connection) -> tuple[list[TenantNo], TenantNo | None]:
        """Tenants whose newest seal has another key, or none: an empty seal signs their chain with this one."""
        if self._to_sign is None or self._key is None:
            return [], None
        tenants = await list_sealed_tenants(connection, self._to_sign, TENANTS_A_PASS)
        heads = await read_heads(connection, tenants)
        unsigned = [tenant_no for tenant_no, head in heads.items() if _is_unsigned(head, self._key)]
        return unsigned, tenants[-1] if len(tenants) == TENANTS_A_PASS else None


def _is_unsigned(head: Head, key: SealKey) -> bool:
    return head.key_id != key.id


class _HeadLog:
    """Logs the newest seal of each tenant: soon after the first, then once in a while if there are new ones."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._waiting: dict[TenantNo, Seal] = {}
        self._logged_s: dict[TenantNo, float] = {}

    def log(self, seals: Sequence[Seal]) -> None:
        now_s = self._monotonic()
        self._logged_s = {tenant: at_s for tenant, at_s in self._logged_s.items() if now_s - at_s < LOGGED_EVERY_S}
        self._waiting.update((seal.tenant_no, seal) for seal in seals)
        due = [tenant_no for tenant_no in self._waiting if tenant_no not in self._logged_s]
        for tenant_no in due[:LOGGED_A_PASS]:
            seal = self._waiting.pop(tenant_no)
            self._logged_s[tenant_no] = now_s
            log.info("audit.sealed", tenant_no=tenant_no, seal=seal.seq, head=seal.hash.hex(), key=seal.key_id)
