"""`/v1/skipped-fires`: the fires that did not run, their jobs, and the command that runs them now (S9)."""

import re
from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from ondot.api import responses
from ondot.api.dependencies import RequestServices, Tenant, needs
from ondot.api.parameters import Instant, Limit, check_instant, invalid_cursor, only_known_parameters
from ondot.model.access import Right
from ondot.model.ids import JobId
from ondot.model.missed import what_to_do
from ondot.store.executions import Position, list_missed

router = APIRouter(tags=["jobs"], dependencies=[Depends(only_known_parameters)])


@router.get("/skipped-fires", dependencies=[needs(Right.JOBS_READ)], response_model=responses.SkippedList)
async def skipped_fires(
    services: RequestServices,
    tenant_no: Tenant,
    since: Instant = None,
    reason: Annotated[
        list[str] | None,
        Query(max_length=10, description="`misfire`, `coalesced`, `paused` or `deleted`; may be given several times."),
    ] = None,
    job_id: Annotated[UUID | None, Query(description="Only of this job.")] = None,
    limit: Limit = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> responses.SkippedList:
    """Skipped fires, latest first: since an instant, by default in the last 7 days.

    Fires that a calendar excludes are not listed. Each range has the command that runs its fires now.
    """
    async with services.database.reading(tenant_no) as connection:
        rows = await list_missed(
            connection,
            services.database.specs,
            tenant_no,
            since=check_instant("since", since),
            before=_parse_position(cursor),
            limit=limit + 1,
            reasons=reason,
            job_id=None if job_id is None else JobId(job_id),
        )
    return responses.SkippedList(
        items=[
            responses.SkippedFires(
                from_at=row.from_at,
                to_at=row.to_at,
                reason=row.reason,
                count=row.count,
                job_id=row.job_id,
                job_name=row.job_name,
                recorded_at=row.recorded_at,
                is_backfilled=row.is_backfilled,
                what_to_do=what_to_do(row.job_id, row.from_at, row.to_at, is_backfilled=row.is_backfilled),
            )
            for row in rows[:limit]
        ],
        next_cursor=_render_cursor(rows[limit - 1].position) if len(rows) > limit else None,
    )


def _render_cursor(position: Position) -> str:
    at, job_id, from_at = position
    return f"{at.isoformat()}.{job_id}.{from_at.isoformat()}".replace("+00:00", "Z")


def _parse_position(cursor: str | None) -> Position | None:
    if cursor is None:
        return None
    try:
        at, job_id, from_at = re.fullmatch(r"(.+?Z)\.([0-9a-f-]{36})\.(.+Z)", cursor).groups()  # type: ignore[union-attr]
        return datetime.fromisoformat(at), JobId(UUID(job_id)), datetime.fromisoformat(from_at)
    except (AttributeError, ValueError):
        raise invalid_cursor() from None
