"""Incidents and their causes as they are stored (O4). The flow locks the state of alerts before it writes them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ondot.model.alerts.cause import Cause
from ondot.model.alerts.latch import Incident, Tracked
from ondot.model.ids import JobId, TenantNo, first_id_at
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("incidents")


@dataclass(frozen=True, slots=True)
class IncidentRow:
    id: UUID
    tenant_no: TenantNo
    alert_id: UUID
    alert: str
    """The name of the alert that opened it."""
    kind: str
    reason: str
    title: str
    job_id: UUID | None
    since: datetime
    opened_at: datetime
    clear_at: datetime | None
    remind_at: datetime | None
    resolved_at: datetime | None
    resolved_by: str | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    note: str | None
    notified: tuple[str, ...]
    reopened: int
    causes: int
    messages: int

    @property
    def state(self) -> str:
        if self.resolved_at is not None:
            return "resolved"
        return "open" if self.acknowledged_at is None else "acknowledged"

    @property
    def latched(self) -> Incident:
        """As the latch knows it."""
        return Incident(
            id=self.id,
            tenant_no=self.tenant_no,
            alert_id=self.alert_id,
            kind=self.kind,
            reason=self.reason,
            since=self.since,
            opened_at=self.opened_at,
            job_id=self.job_id,
            clear_at=self.clear_at,
            remind_at=self.remind_at,
            resolved_at=self.resolved_at,
            is_by_hand=self.resolved_by is not None,
            is_acknowledged=self.acknowledged_at is not None,
            notified=self.notified,
            reopened=self.reopened,
            causes=self.causes,
        )


@dataclass(frozen=True, slots=True)
class CauseRow:
    id: UUID
    tenant_no: TenantNo
    alert_id: UUID
    incident_id: UUID | None
    job_id: UUID | None
    since: datetime
    ended_at: datetime | None
    times: int
    kind: str
    key: str
    reason: str
    subject: str
    message: str
    details: dict[str, Any]

    @property
    def tracked(self) -> Tracked:
        cause = Cause(
            kind=self.kind,
            key=self.key,
            reason=self.reason,
            subject=self.subject,
            message=self.message,
            since=self.since,
            job_id=self.job_id,
            details=self.details,
        )
        return Tracked(
            self.id, self.tenant_no, self.alert_id, cause, self.since, self.incident_id, self.ended_at, times=self.times
        )


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    is_open: bool | None = None
    alert_id: UUID | None = None
    job_id: UUID | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class OpenIncident:
    """An open incident of a job."""

    job_id: JobId
    id: UUID
    title: str
    opened_at: datetime
    acknowledged_by: str | None


@dataclass(frozen=True, slots=True)
class NewIncident:
    """An incident of the latch with what only people read. `messages`: how many it sends now."""

    incident: Incident
    alert: str
    title: str
    messages: int = 0


async def load_incidents(connection: Connection, recovered_within_s: float) -> list[IncidentRow]:
    return [_incident(row) for row in await connection.fetch(_SQL["load_incidents"].text, recovered_within_s)]


async def load_causes(connection: Connection) -> list[CauseRow]:
    return [_cause(row) for row in await connection.fetch(_SQL["load_causes"].text)]


async def put_incidents(connection: Connection, incidents: Iterable[NewIncident]) -> None:
    rows = [
        {
            **{
                name: getattr(new.incident, name)
                for name in (
                    *("id", "tenant_no", "alert_id", "kind", "reason", "job_id", "since", "opened_at", "clear_at"),
                    *("remind_at", "resolved_at", "notified", "reopened", "causes"),
                )
            },
            "alert": new.alert,
            "title": new.title,
            "messages": new.messages,
        }
        for new in incidents
    ]
    await connection.execute(_SQL["put_incidents"].text, msgspec.json.encode(rows).decode())


async def put_causes(connection: Connection, causes: Collection[Tracked]) -> None:
    await connection.execute(
        _SQL["put_causes"].text,
        [tracked.id for tracked in causes],
        [tracked.alert_id for tracked in causes],
        [tracked.incident_id for tracked in causes],
        [tracked.cause.job_id for tracked in causes],
        [tracked.since for tracked in causes],
        [tracked.ended_at for tracked in causes],
        [tracked.tenant_no for tracked in causes],
        [tracked.times for tracked in causes],
        [tracked.cause.kind for tracked in causes],
        [tracked.cause.key for tracked in causes],
        [tracked.cause.reason for tracked in causes],
        [tracked.cause.subject for tracked in causes],
        [tracked.cause.message for tracked in causes],
        [msgspec.json.encode(tracked.cause.details).decode() for tracked in causes],
    )


async def remove_causes(connection: Connection, ids: Collection[UUID]) -> None:
    await connection.execute(_SQL["remove_causes"].text, list(ids))


async def list_incidents(
    connection: Connection, tenant_no: TenantNo, where: IncidentFilter, *, before: UUID | None = None, limit: int
) -> list[IncidentRow]:
    rows = await connection.fetch(
        _SQL["list_incidents"].text,
        tenant_no,
        where.is_open,
        where.alert_id,
        where.job_id,
        where.kind,
        before,
        limit,
    )
    return [_incident(row) for row in rows]


async def get_incident(connection: Connection, tenant_no: TenantNo, id_: UUID) -> IncidentRow | None:
    row = await connection.fetchrow(_SQL["get_incident"].text, tenant_no, id_)
    return None if row is None else _incident(row)


async def lock_incident(connection: Connection, tenant_no: TenantNo, id_: UUID) -> IncidentRow | None:
    row = await connection.fetchrow(_SQL["lock_incident"].text, tenant_no, id_)
    return None if row is None else _incident(row)


async def list_causes(
    connection: Connection, tenant_no: TenantNo, incident_ids: Collection[UUID], limit: int
) -> list[CauseRow]:
    rows = await connection.fetch(_SQL["list_causes"].text, tenant_no, list(incident_ids), limit)
    return [_cause(row) for row in rows]


async def count_causes(connection: Connection, tenant_no: TenantNo, incident_id: UUID) -> tuple[int, int]:
    """How many causes hold, and how many jobs the incident has."""
    row = await connection.fetchrow(_SQL["count_causes"].text, tenant_no, incident_id)
    assert row is not None
    return row["holding"], row["jobs"]


async def count_open_incidents(connection: Connection, tenant_no: TenantNo) -> int:
    return int(await connection.fetchval(_SQL["count_open_incidents"].text, tenant_no))


async def count_incidents_since(connection: Connection, tenant_no: TenantNo, kind: str, since: datetime) -> int:
    return int(await connection.fetchval(_SQL["count_incidents_since"].text, tenant_no, kind, first_id_at(since)))


async def count_incidents_by_kind(connection: Connection) -> list[tuple[str, bool, int]]:
    """Open ones of all tenants: kind, whether acknowledged, how many."""
    rows = await connection.fetch(_SQL["count_incidents_by_kind"].text)
    return [(row["kind"], row["is_acknowledged"], row["count"]) for row in rows]


async def open_incidents_of_jobs(
    connection: Connection, tenant_no: TenantNo, job_ids: Collection[JobId]
) -> list[OpenIncident]:
    rows = await connection.fetch(_SQL["open_incidents_of_jobs"].text, tenant_no, list(job_ids))
    return [OpenIncident(*row.values()) for row in rows]


async def acknowledge_incident(
    connection: Connection, tenant_no: TenantNo, id_: UUID, by: str, note: str | None, messages: int
) -> IncidentRow:
    row = await connection.fetchrow(_SQL["acknowledge_incident"].text, tenant_no, id_, by, note, messages)
    assert row is not None
    return _incident(row)


async def resolve_incident(
    connection: Connection, tenant_no: TenantNo, id_: UUID, by: str, note: str | None, messages: int
) -> IncidentRow:
    row = await connection.fetchrow(_SQL["resolve_incident"].text, tenant_no, id_, by, note, messages)
    assert row is not None
    return _incident(row)


async def forget_incidents(connection: Connection, days: int, limit: int) -> int:
    """Remove those that were resolved `days` ago; returns how many."""
    return int(await connection.fetchval(_SQL["forget_incidents"].text, days, limit))


def _incident(row: Record) -> IncidentRow:
    return IncidentRow(**{**dict(row), "notified": tuple(row["notified"])})


def _cause(row: Record) -> CauseRow:
    return CauseRow(**{**dict(row), "details": msgspec.json.decode(row["details"])})
