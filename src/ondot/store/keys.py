"""API keys: only their SHA-256 is stored (T1). A key has 160 random bits, so a plain hash cannot be guessed."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ondot.model.access import Caller, Right, Role, rights_of
from ondot.model.ids import TenantNo
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("keys")

PREFIX = "ondot_"


@dataclass(frozen=True, slots=True)
class KeyRow:
    id: UUID
    name: str
    created_at: datetime
    revoked_at: datetime | None


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(20)


async def add_key(connection: Connection, id_: UUID, tenant_no: TenantNo, name: str, key: str) -> None:
    await connection.execute(_SQL["add_key"].text, id_, tenant_no, name, hash_key(key))


async def find_callers(connection: Connection, hashes: Sequence[bytes]) -> dict[bytes, Caller]:
    """The callers that keys stand for, by hash. Keys that are unknown, revoked or expired are left out."""
    rows = await connection.fetch(_SQL["find_callers"].text, hashes)
    return {row["hash"]: _caller(row) for row in rows}


def _caller(row: Record) -> Caller:
    role = Role(row["role"])
    scopes = None if row["scopes"] is None else [Right(scope) for scope in row["scopes"]]
    return Caller(
        TenantNo(row["tenant_no"]),
        row["name"],
        role,
        rights_of(role, scopes),
        None if row["pools"] is None else frozenset(row["pools"]),
        key_id=row["id"],
    )


async def list_keys(connection: Connection, tenant_no: TenantNo) -> list[KeyRow]:
    return [KeyRow(*row.values()) for row in await connection.fetch(_SQL["list_keys"].text, tenant_no)]


async def revoke_key(connection: Connection, tenant_no: TenantNo, id_: UUID) -> bool:
    return await connection.fetchval(_SQL["revoke_key"].text, tenant_no, id_) is not None


def hash_key(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
