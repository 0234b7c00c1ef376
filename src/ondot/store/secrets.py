"""Secrets and data keys as they are stored: sealed, and wrapped (T5). Nothing here can read a value."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ondot.model.headers import SENSITIVE_SUFFIXES
from ondot.model.ids import JobId, TenantNo
from ondot.model.secret import Destinations
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("secrets")


@dataclass(frozen=True, slots=True)
class WrappedKey:
    tenant_no: TenantNo
    number: int
    master: str
    wrapped: bytes


@dataclass(frozen=True, slots=True)
class NewSecret:
    """The content of a secret's row. `by`: the caller, as in the audit log."""

    name: str
    version: int
    key_no: int
    sealed: bytes = field(repr=False)
    mark: bytes = field(repr=False)
    destinations: Destinations
    by: str


@dataclass(frozen=True, slots=True)
class UsedBy:
    id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class SecretRow:
    name: str
    version: int
    key_no: int
    sealed: bytes = field(repr=False)
    mark: bytes = field(repr=False)
    destinations: Destinations
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str
    used_by: tuple[UsedBy, ...] = ()
    """Some of the jobs that recur or have a key and refer to it, newest first."""


async def find_data_keys(connection: Connection, tenant_no: TenantNo) -> list[WrappedKey]:
    rows = await connection.fetch(_SQL["find_data_keys"].text, tenant_no)
    return [WrappedKey(tenant_no, row["key_no"], row["master"], row["wrapped"]) for row in rows]


async def add_data_key(connection: Connection, key: WrappedKey) -> None:
    """Does nothing if there is one with this number."""
    await connection.execute(_SQL["add_data_key"].text, key.tenant_no, key.number, key.master, key.wrapped)


async def count_masters(connection: Connection) -> dict[str, int]:
    """How many data keys of the installation are wrapped with each master key."""
    return {row["master"]: row["keys"] for row in await connection.fetch(_SQL["count_masters"].text)}


async def count_plain_credentials(connection: Connection, looked_at: int) -> int:
    """How many of the newest jobs of the installation have credentials in a header that is not encrypted."""
    ends = [f"%{suffix}" for suffix in SENSITIVE_SUFFIXES]
    return int(await connection.fetchval(_SQL["count_plain_credentials"].text, looked_at, ends))


async def find_other_masters(
    connection: Connection, master: str, *, after: tuple[int, int], limit: int
) -> list[WrappedKey]:
    """Data keys of the installation that are wrapped with another master key."""
    rows = await connection.fetch(_SQL["find_other_masters"].text, master, *after, limit)
    return [WrappedKey(TenantNo(row["tenant_no"]), row["key_no"], row["master"], row["wrapped"]) for row in rows]


async def rewrap_data_key(connection: Connection, key: WrappedKey, master_before: str) -> bool:
    """Returns False if another process has wrapped it again meanwhile."""
    arguments = (key.tenant_no, key.number, master_before, key.master, key.wrapped)
    return await connection.fetchval(_SQL["rewrap_data_key"].text, *arguments) is not None


async def find_secrets(connection: Connection, tenant_no: TenantNo, names: Collection[str]) -> dict[str, SecretRow]:
    """Those of these secrets that exist."""
    rows = await connection.fetch(_SQL["find_secrets"].text, tenant_no, sorted(names))
    return {row["name"]: _row(row) for row in rows}


async def lock_secret(connection: Connection, tenant_no: TenantNo, name: str) -> SecretRow | None:
    row = await connection.fetchrow(_SQL["lock_secret"].text, tenant_no, name)
    return None if row is None else _row(row)


async def list_secrets(
    connection: Connection, tenant_no: TenantNo, *, after: str = "", limit: int, name: str | None = None
) -> list[SecretRow]:
    """By name, with the jobs that refer to them."""
    rows = await connection.fetch(_SQL["list_secrets"].text, tenant_no, after, limit, name)
    return [_row(row, _used_by(row["used_by"])) for row in rows]


async def list_secret_names(connection: Connection, tenant_no: TenantNo, limit: int) -> list[str]:
    return [row["name"] for row in await connection.fetch(_SQL["list_secret_names"].text, tenant_no, limit)]


async def count_secrets(connection: Connection, tenant_no: TenantNo) -> int:
    return int(await connection.fetchval(_SQL["count_secrets"].text, tenant_no))


async def write_secret(connection: Connection, tenant_no: TenantNo, secret: NewSecret, *, is_new: bool) -> None:
    destinations = secret.destinations
    await connection.execute(
        _SQL["add_secret" if is_new else "change_secret"].text,
        tenant_no,
        secret.name,
        secret.version,
        secret.key_no,
        secret.sealed,
        secret.mark,
        destinations.hosts,
        destinations.functions,
        destinations.pools,
        secret.by,
    )


async def delete_secret(connection: Connection, tenant_no: TenantNo, name: str) -> int | None:
    """The version that was deleted; None if there was none."""
    version: int | None = await connection.fetchval(_SQL["delete_secret"].text, tenant_no, name)
    return version


async def replace_uses(
    connection: Connection, tenant_no: TenantNo, uses: Sequence[tuple[JobId, Sequence[str]]], *, are_new: bool
) -> None:
    """Record which secrets these jobs refer to."""
    if not are_new:
        await connection.execute(_SQL["forget_uses"].text, tenant_no, [job_id for job_id, _ in uses])
    pairs = [(job_id, name) for job_id, names in uses for name in names]
    if pairs:
        ids, names = [job_id for job_id, _ in pairs], [name for _, name in pairs]
        await connection.execute(_SQL["add_uses"].text, tenant_no, ids, names)


def _row(row: Record, used_by: tuple[UsedBy, ...] = ()) -> SecretRow:
    return SecretRow(
        row["name"],
        row["version"],
        row["key_no"],
        row["sealed"],
        row["mark"],
        Destinations(_tuple(row["hosts"]), _tuple(row["functions"]), _tuple(row["pools"])),
        row["created_at"],
        row["created_by"],
        row["updated_at"],
        row["updated_by"],
        used_by,
    )


def _tuple(items: list[Any] | None) -> tuple[str, ...] | None:
    return None if items is None else tuple(items)


def _used_by(text: str | None) -> tuple[UsedBy, ...]:
    return () if text is None else tuple(UsedBy(UUID(each["id"]), each["name"]) for each in msgspec.json.decode(text))
