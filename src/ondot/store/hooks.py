"""Hooks as they are stored (S11): the hash of a token, and a signing secret that is sealed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from ondot.model.hook import Signature
from ondot.model.ids import TenantNo
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("hooks")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A signing secret: the number of its data key, and its sealed text."""

    key_no: int
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class HookRow:
    id: UUID
    tenant_no: TenantNo
    name: str
    type: str
    source: str
    signature: Signature
    header: str
    """Of the signature, for `hmac`."""
    sealed: Sealed | None
    sealed_before: Sealed | None
    """The signing secret before the last rotation, while it is accepted."""
    token_before_until: datetime | None
    """Until when the token before the last rotation is accepted."""
    secret_before_until: datetime | None
    created_at: datetime
    created_by: str
    rotated_at: datetime | None
    last_used_at: datetime | None
    """At most a minute too early: it is not written with each use."""


@dataclass(frozen=True, slots=True)
class FoundHook:
    """A hook by its token. `left_s`: how long the token is accepted; None: until it is rotated."""

    row: HookRow
    left_s: float | None


async def add_hook(
    connection: Connection,
    id_: UUID,
    tenant_no: TenantNo,
    name: str,
    *,
    event_type: str,
    source: str,
    signature: Signature,
    header: str,
    hash_: bytes,
    sealed: Sealed | None,
    created_by: str,
) -> HookRow | None:
    """None: the tenant has a hook with this name."""
    row = await connection.fetchrow(
        _SQL["add_hook"].text,
        id_,
        tenant_no,
        name,
        event_type,
        source,
        signature,
        header,
        hash_,
        None if sealed is None else sealed.key_no,
        None if sealed is None else sealed.content,
        created_by,
    )
    return None if row is None else _row(row)


async def count_hooks(connection: Connection, tenant_no: TenantNo) -> int:
    count: int = await connection.fetchval(_SQL["count_hooks"].text, tenant_no)
    return count


async def list_hooks(connection: Connection, tenant_no: TenantNo, *, after: str = "", limit: int) -> list[HookRow]:
    return [_row(row) for row in await connection.fetch(_SQL["list_hooks"].text, tenant_no, after, limit)]


async def get_hook(connection: Connection, tenant_no: TenantNo, id_: UUID) -> HookRow | None:
    row = await connection.fetchrow(_SQL["get_hook"].text, tenant_no, id_)
    return None if row is None else _row(row)


async def lock_hook(connection: Connection, tenant_no: TenantNo, id_: UUID) -> HookRow | None:
    row = await connection.fetchrow(_SQL["lock_hook"].text, tenant_no, id_)
    return None if row is None else _row(row)


async def find_hooks(connection: Connection, hashes: Collection[bytes]) -> Mapping[bytes, FoundHook]:
    """Hooks by the hashes of their tokens; unknown ones are left out."""
    found: dict[bytes, FoundHook] = {}
    for row in await connection.fetch(_SQL["find_hooks"].text, list(hashes)):
        hook = _row(row)
        found[row["hash"]] = FoundHook(hook, None)
        if hook.token_before_until is not None:
            found[row["hash_before"]] = FoundHook(hook, row["hash_left_s"])
    return found


async def rotate_hook(
    connection: Connection,
    tenant_no: TenantNo,
    id_: UUID,
    *,
    hash_: bytes | None,
    sealed: Sealed | None,
    overlap_s: float,
) -> HookRow:
    """Replace the token, or the signing secret; None leaves it as it is."""
    key_no, content = (None, None) if sealed is None else (sealed.key_no, sealed.content)
    row = await connection.fetchrow(_SQL["rotate_hook"].text, tenant_no, id_, hash_, key_no, content, overlap_s)
    assert row is not None
    return _row(row)


async def delete_hook(connection: Connection, tenant_no: TenantNo, id_: UUID) -> HookRow | None:
    row = await connection.fetchrow(_SQL["delete_hook"].text, tenant_no, id_)
    return None if row is None else _row(row)


async def record_hook_use(connection: Connection, tenant_no: TenantNo, id_: UUID) -> None:
    await connection.execute(_SQL["record_hook_use"].text, tenant_no, id_)


def _row(row: Record) -> HookRow:
    return HookRow(
        id=row["id"],
        tenant_no=TenantNo(row["tenant_no"]),
        name=row["name"],
        type=row["type"],
        source=row["source"],
        signature=Signature(row["signature"]),
        header=row["header"],
        sealed=None if row["sealed"] is None else Sealed(row["key_no"], row["sealed"]),
        sealed_before=Sealed(row["key_no_before"], row["sealed_before"]) if row["sealed_before"] is not None else None,
        token_before_until=row["hash_until"],
        secret_before_until=row["sealed_until"],
        created_at=row["created_at"],
        created_by=row["created_by"],
        rotated_at=row["rotated_at"],
        last_used_at=row["last_used_at"],
    )
