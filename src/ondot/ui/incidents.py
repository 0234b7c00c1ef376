"""`/incidents` and `/incidents/{id}`: what went wrong, open ones first (O4). The buttons call `/v1/incidents`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from ondot.flow.alerts.incidents import unknown_incident
from ondot.flow.alerts.reads import IncidentView, read_incident, read_incidents
from ondot.model.errors import InvalidParameters, NotFound
from ondot.model.ids import TenantNo
from ondot.store.alerts import count_alerts
from ondot.store.database import Database
from ondot.store.incidents import IncidentFilter, IncidentRow

ROWS: Final = 50
DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class IncidentsView:
    now: datetime
    rows: tuple[IncidentRow, ...]
    more: str | None
    address: str
    """Of this page."""
    are_watched: bool
    """There are alerts."""

    @property
    def mark(self) -> str:
        """A hash of the view, which stays the same while only the time changes."""
        return sha256(repr(replace(self, now=DATE)).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class IncidentPage:
    now: datetime
    view: IncidentView

    @property
    def mark(self) -> str:
        return sha256(repr(replace(self, now=DATE)).encode()).hexdigest()[:12]


async def read_incidents_page(database: Database, tenant_no: TenantNo, parameters: Mapping[str, str]) -> IncidentsView:
    job_id = _uuid(parameters.get("job"))
    where = IncidentFilter(job_id=job_id)
    try:
        async with database.connection() as connection:
            rows, following = await read_incidents(
                connection, tenant_no, where, cursor=parameters.get("cursor"), limit=ROWS
            )
            are_watched = bool(rows) or await count_alerts(connection, tenant_no) > 0
    except InvalidParameters:
        raise NotFound("There is no such page of incidents.") from None
    more = None if following is None else _address(job_id, following)
    address = _address(job_id, parameters.get("cursor"))
    return IncidentsView(database.clock.now(), tuple(rows), more, address, are_watched)


async def read_incident_page(database: Database, tenant_no: TenantNo, id_: UUID) -> IncidentPage:
    async with database.connection() as connection:
        view = await read_incident(connection, tenant_no, id_)
    if view is None:
        raise unknown_incident(id_)
    return IncidentPage(database.clock.now(), view)


def _address(job_id: UUID | None, cursor: str | None) -> str:
    query = urlencode({name: str(value) for name, value in (("job", job_id), ("cursor", cursor)) if value})
    return f"/incidents?{query}" if query else "/incidents"


def _uuid(text: str | None) -> UUID | None:
    try:
        return None if not text else UUID(text)
    except ValueError:
        raise NotFound("There is no such job.") from None
