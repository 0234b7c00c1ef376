"""What to answer about executions and fires that are older than kept history (O1, P3)."""

from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from ondot.model.errors import Fault, InvalidBody, NotFound
from ondot.model.explain_facts import pluralize
from ondot.model.ids import ExecutionId, JobId, TenantNo, instant_of
from ondot.store.database import Database
from ondot.store.day_rewrite import read_kept_from

KEPT: Final = {
    "execution": "History is kept for {} after an execution has ended.",
    "job": "One-time jobs are kept for {} after they have ended, others after they have ended or were deleted.",
    "run": "Runs are kept for {} after they have ended.",
}


async def unknown_execution(database: Database, tenant_no: TenantNo, id_: ExecutionId) -> NotFound:
    return await find_why_unknown(database, tenant_no, "execution", id_)


async def find_why_unknown(
    database: Database, tenant_no: TenantNo, noun: Literal["execution", "job", "run"], id_: UUID
) -> NotFound:
    """A 404 that says so if its history may be gone."""
    async with database.connection() as connection:
        kept_from, own_days = await read_kept_from(connection, tenant_no)
    message = f"There is no {noun} {id_}."
    if kept_from is not None and instant_of(id_) < kept_from:
        message += f" {KEPT[noun].format(pluralize(own_days or database.settings.retention_days, 'day'))}"
    return NotFound(message)


def check_kept(from_at: datetime, job_id: JobId, kept_from: datetime | None) -> None:
    """Raises InvalidBody for fires whose executions may be gone: they could run twice. A job that is younger than that
    has lost nothing, so any fire may be backfilled."""
    if kept_from is None or from_at >= kept_from or instant_of(job_id) >= kept_from:
        return
    message = (
        f"`from_at`: the history of this job before {kept_from:%Y-%m-%d %H:%M} UTC is not kept any more, so fires that"
        f" ran could run again; use {kept_from.isoformat()} or later."
    )
    raise InvalidBody(message, faults=(Fault("/from_at", message),))
