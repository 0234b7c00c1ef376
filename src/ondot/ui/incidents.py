"""`/incidents` and `/incidents/{id}`: what went wrong, open ones first (O4). The buttons call `/v1/incidents`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote
from uuid import UUID

from ondot.flow.alerts.incidents import unknown_incident
from ondot.flow.alerts.reads import IncidentView, read_incident, read_incidents
from ondot.model.errors import InvalidParameters, NotFound
from ondot.model.ids import TenantNo
from ondot.store.database import Database
from ondot.store.incidents import IncidentFilter, IncidentRow

ROWS: Final = 50


@dataclass(frozen=True, slots=True)
class IncidentsView:
    now: datetime
    rows: tuple[IncidentRow, ...]
    more: str | None


@dataclass(frozen=True, slots=True)
class IncidentPage:
    now: datetime
    view: IncidentView


async def read_incidents_page(database: Database, tenant_no: TenantNo, parameters: Mapping[str, str]) -> IncidentsView:
    job_id = _uuid(parameters.get("job"))
    where = IncidentFilter(job_id=job_id)
    try:
        async with database.connection() as connection:
            rows, following = await read_incidents(
                connection, tenant_no, where, cursor=parameters.get("cursor"), limit=ROWS
            )
    except InvalidParameters:
        raise NotFound("There is no such page of incidents.") from None
    of_job = "" if job_id is None else f"job={job_id}&"
    more = None if following is None else f"/incidents?{of_job}cursor={quote(following, safe='')}"
    return IncidentsView(database.clock.now(), tuple(rows), more)


async def read_incident_page(database: Database, tenant_no: TenantNo, id_: UUID) -> IncidentPage:
    async with database.connection() as connection:
        view = await read_incident(connection, tenant_no, id_)
    if view is None:
        raise unknown_incident(id_)
    return IncidentPage(database.clock.now(), view)


def _uuid(text: str | None) -> UUID | None:
    try:
        return None if not text else UUID(text)
    except ValueError:
        raise NotFound("There is no such job.") from None
