"""What many events started, for lists and pages (S11)."""

from collections.abc import Collection
from uuid import UUID

from ondot.model.ids import TenantNo
from ondot.store.connection import Connection
from ondot.store.events import MatchRow
from ondot.store.queries import load_queries

_SQL = load_queries("event_matches")


async def find_matches(
    connection: Connection, tenant_no: TenantNo, ids: Collection[UUID], most: int
) -> dict[UUID, list[MatchRow]]:
    """By event: the first `most` jobs that it matched."""
    if not ids:
        return {}
    found: dict[UUID, list[MatchRow]] = {}
    for event_id, *fields in await connection.fetch(
        _SQL["find_matches"].text, tenant_no, list(ids), min(ids), max(ids), most
    ):
        found.setdefault(event_id, []).append(MatchRow(*fields))
    return found
