"""The keys that sign a tenant's calls (T3): a root key for each tenant, from which each host's key is derived.

A root key is created when it is first needed, sealed with the tenant's data key, and known to a process for a few
seconds. A rotation adds a new one; calls are signed with both until the old one ends. Without a master key there is no
root key: calls are not signed, rather than with a key that a reader of the database could take. A job may have a secret
of its own instead.
"""

import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Final

from ondot.flow.shared_reads import SharedReads
from ondot.flow.vault import NO_KEY, Vault
from ondot.flow.work import begin
from ondot.model.errors import Conflict, NoSecretKey, Unavailable
from ondot.model.ids import TenantNo
from ondot.model.signature import SIGNING_HEADER, derive_key, parse_secret, signing_host
from ondot.model.target import HttpTarget
from ondot.store.audit import By, record_change
from ondot.store.signing_keys import SigningKeyRow, add_signing_key, end_signing_keys, list_signing_keys

ROOT_BYTES: Final = 32
OVERLAP_S: Final = 24 * 3600.0
READ_EVERY_S: Final = 5.0
MOST_KEYS: Final = 4
"""In force at once: each call carries a signature with each of them."""
_PLACE: Final = "signing key"


@dataclass(frozen=True, slots=True)
class HostKey:
    """The key of one host, derived from one root key."""

    version: int
    key: bytes
    created_at: datetime
    ends_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Root:
    row: SigningKeyRow
    key: bytes


class Signing:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._roots: dict[TenantNo, tuple[float, list[_Root]]] = {}
        self._reads: SharedReads[TenantNo, list[_Root]] = SharedReads()

    async def keys_for(self, tenant_no: TenantNo, target: HttpTarget, host: str) -> Sequence[bytes]:
        """The keys that sign a call: the job's own, else those of the host. None without a master key.

        Raises ValueError for a job's secret of another form, NoSecretKey if this process cannot read the keys.
        """
        own = target.headers.get(SIGNING_HEADER)
        if isinstance(own, str):
            return [parse_secret(secret) for secret in own.split()]
        roots = await self._find(tenant_no)
        now = self._vault.database.clock.now()
        in_force = [root for root in roots if root.row.ends_at is None or root.row.ends_at > now]
        host = signing_host(host)
        return [derive_key(root.key, host) for root in in_force]

    async def read_host_keys(self, tenant_no: TenantNo, host: str, *, by: By | None) -> list[HostKey]:
        """The keys of a host, for its operator; the current one first. Recorded in the audit log."""
        if self._vault.kms is None:
            raise NoSecretKey(NO_KEY)
        roots = await self._read(tenant_no)
        async with begin(self._vault.database, tenant_no) as work:
            await record_change(work.connection, tenant_no, by, "webhook.read_secret", None, {"host": host})
        return [
            HostKey(root.row.version, derive_key(root.key, host), root.row.created_at, root.row.ends_at)
            for root in roots
        ]

    async def rotate(self, tenant_no: TenantNo, overlap_s: float = OVERLAP_S, *, by: By | None) -> list[SigningKeyRow]:
        """Add a root key. Those before it sign beside it for `overlap_s`. Returns all in force."""
        if self._vault.kms is None:
            raise NoSecretKey(NO_KEY)
        current = await self._read(tenant_no)
        if len(current) >= MOST_KEYS and overlap_s > 0:
            raise Conflict(
                f"{len(current)} secrets are in force already, of earlier rotations. Wait until one ends, or rotate"
                " with an overlap of 0, which ends them at once."
            )
        version = current[0].row.version + 1
        data_key = await self._vault.writing_key(tenant_no)
        sealed = data_key.seal(_new_root(), _PLACE, version)
        async with begin(self._vault.database, tenant_no) as work:
            if not await add_signing_key(work.connection, tenant_no, version, data_key.number, sealed):
                raise Conflict(
                    "The secrets are being rotated by another request. Read them, and rotate again if needed."
                )
            await end_signing_keys(work.connection, tenant_no, version, overlap_s)
            detail = {"version": version, "overlap_s": overlap_s}
            await record_change(work.connection, tenant_no, by, "webhook.rotate", None, detail)
            rows = await list_signing_keys(work.connection, tenant_no)
        self._roots.pop(tenant_no, None)
        return rows

    async def _find(self, tenant_no: TenantNo) -> list[_Root]:
        kept = self._roots.get(tenant_no)
        if kept is not None and monotonic() - kept[0] < READ_EVERY_S:
            return kept[1]
        try:
            return await self._reads.read(tenant_no, self._read)
        except Unavailable:
            # The database is away for a moment: the keys that were read last are most likely those in force.
            if kept is None:
                raise
            return kept[1]

    async def _read(self, tenant_no: TenantNo) -> list[_Root]:
        """Those in force, the newest first; the first one is created."""
        rows = await self._list(tenant_no)
        if not rows and self._vault.kms is not None:
            data_key = await self._vault.writing_key(tenant_no)
            sealed = data_key.seal(_new_root(), _PLACE, 1)
            async with self._vault.database.connection() as connection:
                await add_signing_key(connection, tenant_no, 1, data_key.number, sealed)
            rows = await self._list(tenant_no)
        roots = []
        for row in rows:
            data_key = await self._vault.key(tenant_no, row.key_no)
            roots.append(_Root(row, b64decode(data_key.open(row.sealed, _PLACE, row.version))))
        self._roots[tenant_no] = monotonic(), roots
        return roots

    async def _list(self, tenant_no: TenantNo) -> list[SigningKeyRow]:
        async with self._vault.database.connection() as connection:
            return await list_signing_keys(connection, tenant_no)


def _new_root() -> str:
    return b64encode(secrets.token_bytes(ROOT_BYTES)).decode()
