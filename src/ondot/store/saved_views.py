"""Saved views as they are stored (O1): queries with a name."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from ondot.model.ids import TenantNo
from ondot.model.query import Of
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("saved_views")

SHARED: Final = ""
"""The owner of a view that the whole tenant has."""


@dataclass(frozen=True, slots=True)
class ViewRow:
    id: UUID
    kind: Of
    name: str
    q: str
    owner: str
    created_at: datetime
    created_by: str
    updated_at: datetime

    @property
    def is_shared(self) -> bool:
        return self.owner == SHARED


async def add_view(
    connection: Connection, tenant_no: TenantNo, id_: UUID, *, owner: str, kind: Of, name: str, q: str, created_by: str
) -> ViewRow | None:
    """None: the owner has a view of this kind with this name."""
    row = await connection.fetchrow(_SQL["add_view"].text, id_, tenant_no, owner, kind, name, q, created_by)
    return None if row is None else ViewRow(*row.values())


async def count_views(connection: Connection, tenant_no: TenantNo, owner: str) -> int:
    count: int = await connection.fetchval(_SQL["count_views"].text, tenant_no, owner)
    return count


async def list_views(
    connection: Connection,
    tenant_no: TenantNo,
    owners: Sequence[str],
    *,
    kind: Of | None = None,
    name: str | None = None,
    after: UUID | None = None,
    limit: int,
) -> list[ViewRow]:
    """Oldest first."""
    rows = await connection.fetch(_SQL["list_views"].text, tenant_no, list(owners), kind, name, after, limit)
    return [ViewRow(*row.values()) for row in rows]


async def find_view(connection: Connection, tenant_no: TenantNo, id_: UUID) -> ViewRow | None:
    row = await connection.fetchrow(_SQL["find_view"].text, tenant_no, id_)
    return None if row is None else ViewRow(*row.values())


async def lock_view(connection: Connection, tenant_no: TenantNo, id_: UUID) -> ViewRow | None:
    row = await connection.fetchrow(_SQL["lock_view"].text, tenant_no, id_)
    return None if row is None else ViewRow(*row.values())


async def change_view(
    connection: Connection, tenant_no: TenantNo, id_: UUID, *, owner: str, name: str, q: str
) -> ViewRow:
    """Raises TAKEN if the owner has another view with this name."""
    row = await connection.fetchrow(_SQL["change_view"].text, tenant_no, id_, owner, name, q)
    assert row is not None
    return ViewRow(*row.values())


async def delete_view(connection: Connection, tenant_no: TenantNo, id_: UUID) -> None:
    await connection.execute(_SQL["delete_view"].text, tenant_no, id_)
