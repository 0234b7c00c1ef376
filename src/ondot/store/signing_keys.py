"""The root keys of tenants' signatures, sealed (T3)."""

from dataclasses import dataclass
from datetime import datetime

from ondot.model.ids import TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("signing_keys")


@dataclass(frozen=True, slots=True)
class SigningKeyRow:
    """`key_no`: the data key that sealed it. `ends_at` None: the current one."""

    version: int
    key_no: int
    sealed: bytes
    created_at: datetime
    ends_at: datetime | None


async def list_signing_keys(connection: Connection, tenant_no: TenantNo) -> list[SigningKeyRow]:
    """Those in force, the newest first."""
    rows = await connection.fetch(_SQL["list_signing_keys"].text, tenant_no)
    return [SigningKeyRow(*row.values()) for row in rows]


async def add_signing_key(
    connection: Connection, tenant_no: TenantNo, version: int, key_no: int, sealed: bytes
) -> bool:
    """Whether it was added: False if there is one of this version."""
    return await connection.fetchval(_SQL["add_signing_key"].text, tenant_no, version, key_no, sealed) is not None


async def end_signing_keys(connection: Connection, tenant_no: TenantNo, version: int, after_s: float) -> None:
    """Let the keys before a version end after a while."""
    await connection.execute(_SQL["end_signing_keys"].text, tenant_no, version, after_s)
