"""What people do to incidents (O4): acknowledge, which ends reminders; resolve, which ends the incident; a note.

A cause that still holds when its incident is resolved by hand stays quiet until it was over once.
"""

from uuid import UUID

from ondot.flow.alerts.send import Queue, message_of
from ondot.flow.work import begin
from ondot.model.alerts.latch import Send
from ondot.model.errors import Conflict, NotFound
from ondot.model.ids import TenantNo
from ondot.store.alerts import raise_generation
from ondot.store.audit import By, record_change
from ondot.store.database import Database
from ondot.store.incidents import IncidentRow, acknowledge_incident, lock_incident, resolve_incident


async def acknowledge(database: Database, tenant_no: TenantNo, id_: UUID, note: str | None, *, by: By) -> IncidentRow:
    """A second time changes the note only."""
    async with begin(database, tenant_no) as work:
        await raise_generation(work.connection)
        row = await lock_incident(work.connection, tenant_no, id_)
        if row is None:
            raise unknown_incident(id_)
        if row.resolved_at is not None:
            raise Conflict("The incident is over, so there is nothing to acknowledge.")
        row = await acknowledge_incident(work.connection, tenant_no, id_, by.actor, note)
        await record_change(
            work.connection, tenant_no, by, "incident.acknowledge", id_, {"title": row.title, "note": note}
        )
    return row


async def resolve(
    database: Database, queue: Queue, tenant_no: TenantNo, id_: UUID, note: str | None, *, by: By
) -> IncidentRow:
    """Its channels are sent the recovery, which names who resolved it."""
    async with begin(database, tenant_no) as work:
        await raise_generation(work.connection)
        row = await lock_incident(work.connection, tenant_no, id_)
        if row is None:
            raise unknown_incident(id_)
        if row.resolved_at is not None:
            raise Conflict("The incident is over already.")
        messages = 1 if row.notified else 0
        if messages:
            why = f"resolved by {by.actor}" + (f", {note}" if note else "")
            message = message_of(
                Send.RECOVERED,
                row.latched,
                row.title,
                (),
                alert=row.alert,
                now=database.clock.now(),
                base_url=database.settings.public_url or "",
                why=why,
            )
            await queue(work.connection, tenant_no, row.notified, message)
        row = await resolve_incident(work.connection, tenant_no, id_, by.actor, note, messages)
        await record_change(work.connection, tenant_no, by, "incident.resolve", id_, {"title": row.title, "note": note})
    return row


def unknown_incident(id_: UUID) -> NotFound:
    return NotFound(f"There is no incident {id_}.")
