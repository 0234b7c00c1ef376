"""What an alert would find now, before it exists (O4). Reads only."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from ondot.document.alerts import AlertBody
from ondot.flow.alerts.known_jobs import KnownJobs
from ondot.flow.alerts.sources import Look, find_source, source_of
from ondot.model.alerts.cause import Cause
from ondot.model.ids import TenantNo
from ondot.store.alerts import AlertRow, read_state
from ondot.store.database import Database
from ondot.store.incidents import count_incidents_since

SHOWN: Final = 20
DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Preview:
    count: int
    """Of causes that hold now."""
    due: int
    """Of those that have held for the alert's `for` already."""
    causes: tuple[Cause, ...]
    """The first of them."""
    incidents: int
    """Of the same kind that opened in the last day."""


async def preview_alert(database: Database, tenant_no: TenantNo, body: AlertBody) -> Preview:
    now = database.clock.now()
    alert = AlertRow(
        id=database.clock.new_id(),
        tenant_no=tenant_no,
        name=body.name,
        when=body.thresholds,
        scope=body.covers,
        for_s=body.for_,
        repeat_s=body.repeat,
        notify=tuple(body.notify),
        muted_until=None,
        version=1,
        created_at=now,
        created_by="",
        updated_at=now,
    )
    async with database.connection() as connection:
        now = (await read_state(connection)).now
        found = await find_source(source_of(body.kind))(Look(connection, now, KnownJobs()), [alert])
        incidents = await count_incidents_since(connection, tenant_no, body.kind, now - DAY)
    causes = list(found.get(alert.id, {}).values())
    due = sum((now - cause.since).total_seconds() >= body.for_ for cause in causes)
    return Preview(len(causes), due, tuple(causes[:SHOWN]), incidents)
