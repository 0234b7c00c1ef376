"""What many events started, for lists and pages (S11)."""

from collections.abc import Collection
from uuid import UUID

from ondot.model.ids import JobId, TenantNo
from ondot.store.connection import Connection
from ondot.store.events import MatchRow
from ondot.store.queries import load_queries

_SQL = load_queries("event_matches")


async def find_matches_of_job(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, ids: Collection[UUID]
) -> dict[UUID, MatchRow]:
    """By event: what it did to one job."""
    if not ids:
        return {}
    rows = await connection.fetch(_SQL["find_matches_of_job"].text, tenant_no, list(ids), min(ids), max(ids), job_id)
    return {row["event_id"]: MatchRow(job_id, row["execution_id"], row["outcome"], None) for row in rows}


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
