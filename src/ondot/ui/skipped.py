"""`/skipped`: fires that did not run lately, by job, with the reason and the command that runs them (S6, O5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from ondot.model.ids import TenantNo
from ondot.model.missed import what_to_do
from ondot.store.database import Database
from ondot.store.executions import MissedRow, list_missed
from ondot.words.job import WHY_SKIPPED, zone_of_job

PAGE_SIZE: Final = 100
OUTAGE: Final = ("misfire", "coalesced")
"""The reasons for which fires are missed in an outage."""


@dataclass(frozen=True, slots=True)
class SkippedLine:
    job_id: UUID
    name: str
    fires: str
    from_at: datetime
    to_at: datetime
    recorded_at: datetime
    why: str
    is_backfilled: bool
    command: str | None
    zone: str | None


@dataclass(frozen=True, slots=True)
class SkippedView:
    """`only_missed`: only fires missed in outages; `is_cut`: there are more."""

    now: datetime
    only_missed: bool
    rows: tuple[SkippedLine, ...]
    is_cut: bool


async def read_skipped(database: Database, tenant_no: TenantNo, query: Mapping[str, str]) -> SkippedView:
    now = database.clock.now()
    only_missed = query.get("all") != "1"
    async with database.reading(tenant_no) as connection:
        rows = await list_missed(
            connection, database.specs, tenant_no, limit=PAGE_SIZE + 1, reasons=OUTAGE if only_missed else None
        )
        specs = await database.specs.find(
            connection, {(row.job_id, row.job_version) for row in rows if row.job_version is not None}
        )
    zones = {job_id: zone_of_job(spec) for (job_id, _), spec in specs.items()}
    return SkippedView(
        now, only_missed, tuple(_line(row, zones.get(row.job_id)) for row in rows[:PAGE_SIZE]), len(rows) > PAGE_SIZE
    )


def _line(row: MissedRow, zone: str | None) -> SkippedLine:
    return SkippedLine(
        job_id=row.job_id,
        name=row.job_name or f"job {row.job_id}",
        fires="many" if row.count is None else f"{row.count:,}",
        from_at=row.from_at,
        to_at=row.to_at,
        recorded_at=row.recorded_at,
        why=WHY_SKIPPED.get(row.reason, row.reason),
        is_backfilled=row.is_backfilled,
        command=what_to_do(row.job_id, row.from_at, row.to_at, is_backfilled=row.is_backfilled),
        zone=zone,
    )
