"""Incidents as people see them (O4): open ones first, each with its causes and its messages."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ondot.model.errors import InvalidParameters
from ondot.model.ids import TenantNo
from ondot.store.channels import DeliveryRow, list_deliveries_of_incident
from ondot.store.connection import Connection
from ondot.store.incidents import (
    CauseRow,
    IncidentFilter,
    IncidentRow,
    count_causes,
    get_incident,
    list_causes,
    list_incidents,
)

CAUSES: Final = 20
DELIVERIES: Final = 100
_OPEN, _RESOLVED = "open", "resolved"


@dataclass(frozen=True, slots=True)
class IncidentView:
    row: IncidentRow
    holding: int
    jobs: int
    causes: tuple[CauseRow, ...]
    deliveries: tuple[DeliveryRow, ...]


async def read_incidents(
    connection: Connection, tenant_no: TenantNo, where: IncidentFilter, *, cursor: str | None, limit: int
) -> tuple[list[IncidentRow], str | None]:
    """A page, and the cursor of the next. A cursor says in which part the page before ended, and after which id."""
    part, before = _parse(cursor)
    rows: list[IncidentRow] = []
    for name, is_open in ((_OPEN, True), (_RESOLVED, False)):
        if where.is_open is (not is_open) or (name == _OPEN and part == _RESOLVED):
            continue
        wanted = IncidentFilter(is_open, where.alert_id, where.job_id, where.kind)
        after = before if part == name else None
        rows += await list_incidents(connection, tenant_no, wanted, before=after, limit=limit + 1 - len(rows))
        if len(rows) > limit:
            last = rows[limit - 1]
            return rows[:limit], f"{_RESOLVED if last.resolved_at else _OPEN}.{last.id}"
    return rows, None


async def read_incident(connection: Connection, tenant_no: TenantNo, id_: UUID) -> IncidentView | None:
    row = await get_incident(connection, tenant_no, id_)
    if row is None:
        return None
    holding, jobs = await count_causes(connection, tenant_no, id_)
    return IncidentView(
        row,
        holding,
        jobs,
        tuple(await list_causes(connection, tenant_no, [id_], CAUSES)),
        tuple(await list_deliveries_of_incident(connection, tenant_no, id_, row.opened_at, DELIVERIES)),
    )


def _parse(cursor: str | None) -> tuple[str | None, UUID | None]:
    if cursor is None:
        return None, None
    part, _, written = cursor.partition(".")
    try:
        if part in (_OPEN, _RESOLVED):
            return part, UUID(written)
    except ValueError:
        pass
    raise InvalidParameters("The cursor is not valid. Pass `next_cursor` of the page before.")
