"""API keys (T1): only their SHA-256 is stored. A key has 160 random bits, so a plain hash cannot be guessed."""

import hashlib
import hmac
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from ondot.model.access import Caller, Right, Role, rights_of
from ondot.model.ids import TenantNo
from ondot.model.keys import PREFIX, id_in
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("keys")

_WITH_ID: Final = b"a key with an id\n"


class KeyState(StrEnum):
    ACTIVE = "ACTIVE"
    EXPIRED = "EXPIRED"
    REVOKED = "REVOKED"


@dataclass(frozen=True, slots=True)
class Access:
    """Who has access. `expiring`: keys without a successor, each with its name, its tenant and its last instant."""

    is_shared: bool
    """Several tenants, or people who sign in: requests without a key are refused."""
    owners: int
    expiring: tuple[tuple[str, str, datetime], ...] = ()


@dataclass(frozen=True, slots=True)
class KeyRow:
    id: UUID
    tenant_no: TenantNo
    name: str
    role: Role
    scopes: tuple[Right, ...] | None
    pools: tuple[str, ...] | None
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    last_used_at: datetime | None
    """At most a minute too early: it is not written with each use."""
    revoked_at: datetime | None
    replaced_by: UUID | None
    """The key that it was rotated to."""
    state: KeyState


@dataclass(frozen=True, slots=True)
class Presented:
    """A key that a request sends: its id, which keys of earlier releases do not contain, and its hash."""

    id: UUID | None
    hash: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """The caller that a key stands for. `left_s`: until the key expires; None: it does not."""

    caller: Caller
    left_s: float | None


async def add_key(
    connection: Connection,
    id_: UUID,
    tenant_no: TenantNo,
    name: str,
    key: str,
    *,
    role: Role = Role.ADMIN,
    scopes: Collection[Right] | None = None,
    pools: Collection[str] | None = None,
    expires_in_s: float | None = None,
    created_by: str | None = None,
) -> KeyRow:
    row = await connection.fetchrow(
        _SQL["add_key"].text,
        id_,
        tenant_no,
        name,
        hash_key(key),
        role,
        None if scopes is None else sorted(scopes),
        None if pools is None else sorted(pools),
        expires_in_s,
        created_by,
    )
    assert row is not None
    return _row(row)


async def find_callers(connection: Connection, presented: Collection[Presented]) -> dict[Presented, Found]:
    """The callers that keys stand for. Keys that are unknown, revoked or expired are left out, and those of
    deleted tenants."""
    ids = [one.id for one in presented if one.id is not None]
    hashes = [one.hash for one in presented if one.id is None]
    rows = await connection.fetch(_SQL["find_callers"].text, ids, hashes)
    by_id = {row["id"]: row for row in rows}
    by_hash = {row["hash"]: row for row in rows}
    found = {}
    for one in presented:
        row = by_hash.get(one.hash) if one.id is None else by_id.get(one.id)
        if row is not None and hmac.compare_digest(row["hash"], one.hash):
            found[one] = _found(row)
    return found


async def list_keys(
    connection: Connection, tenant_no: TenantNo, *, before: UUID | None = None, limit: int = 1_000
) -> list[KeyRow]:
    """Newest first; also those that no longer work."""
    return [_row(row) for row in await connection.fetch(_SQL["list_keys"].text, tenant_no, before, limit)]


async def get_key(connection: Connection, tenant_no: TenantNo, id_: UUID) -> KeyRow | None:
    row = await connection.fetchrow(_SQL["get_key"].text, tenant_no, id_)
    return _row(row) if row else None


async def lock_key(connection: Connection, tenant_no: TenantNo, id_: UUID) -> KeyRow | None:
    row = await connection.fetchrow(_SQL["lock_key"].text, tenant_no, id_)
    return _row(row) if row else None


async def replace_key(
    connection: Connection, tenant_no: TenantNo, id_: UUID, replaced_by: UUID, overlap_s: float
) -> None:
    await connection.execute(_SQL["replace_key"].text, tenant_no, id_, replaced_by, overlap_s)


async def revoke_key(connection: Connection, tenant_no: TenantNo, id_: UUID) -> bool:
    return await connection.fetchval(_SQL["revoke_key"].text, tenant_no, id_) is not None


async def lock_owner_keys(connection: Connection, tenant_no: TenantNo) -> list[UUID]:
    """The keys of owners that work and were not rotated."""
    return [row["id"] for row in await connection.fetch(_SQL["lock_owner_keys"].text, tenant_no)]


async def record_uses(connection: Connection, ids: Iterable[UUID]) -> None:
    await connection.execute(_SQL["record_uses"].text, list(ids))


def present(key: str) -> Presented:
    return Presented(id_in(key), hash_key(key))


def hash_key(key: str) -> bytes:
    """An API of the release before looks keys up by their plain SHA-256, and takes each for an admin's that never ends.
    Keys with an id have another hash, so that it refuses them."""
    return hashlib.sha256(_WITH_ID + key.encode() if key.startswith(PREFIX) else key.encode()).digest()


def _found(row: Record) -> Found:
    role = Role(row["role"])
    caller = Caller(
        TenantNo(row["tenant_no"]),
        row["name"],
        role,
        rights_of(role, _scopes(row)),
        None if row["pools"] is None else frozenset(row["pools"]),
        key_id=row["id"],
    )
    return Found(caller, row["left_s"])


def _row(row: Record) -> KeyRow:
    return KeyRow(
        id=row["id"],
        tenant_no=TenantNo(row["tenant_no"]),
        name=row["name"],
        role=Role(row["role"]),
        scopes=_scopes(row),
        pools=None if row["pools"] is None else tuple(row["pools"]),
        created_at=row["created_at"],
        created_by=row["created_by"],
        expires_at=row["expires_at"],
        last_used_at=row["last_used_at"],
        revoked_at=row["revoked_at"],
        replaced_by=row["replaced_by"],
        state=KeyState.REVOKED if row["revoked_at"] else KeyState.EXPIRED if row["is_expired"] else KeyState.ACTIVE,
    )


def _scopes(row: Record) -> tuple[Right, ...] | None:
    """Scopes of a later release, which this one does not know, grant nothing here."""
    known = set(Right)
    return None if row["scopes"] is None else tuple(Right(scope) for scope in row["scopes"] if scope in known)


async def read_access(connection: Connection, limit: int) -> Access:
    """Whether access is shared, how many owners there are, and the first keys that expire within two weeks."""
    row = await connection.fetchrow(_SQL["read_access"].text, limit)
    assert row is not None
    expiring = zip(row["names"], row["tenants"], row["expiries"], strict=True)
    return Access(row["is_shared"], row["owners"], tuple(expiring))
