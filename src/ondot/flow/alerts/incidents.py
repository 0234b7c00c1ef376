"""What people do to incidents (O4): acknowledge, which ends reminders; resolve, which ends the incident; a note.

A cause that still holds when its incident is resolved by hand stays quiet until it was over once.
"""

from uuid import UUID

from ondot.flow.alerts.send import Queue, message_of
from ondot.flow.work import begin
from ondot.model.alerts.latch import Send
from ondot.model.channel import Message, PagerDutyChannel, WebhookChannel
from ondot.model.errors import Conflict, NotFound
from ondot.model.ids import TenantNo
from ondot.store.alerts import raise_generation
from ondot.store.audit import By, record_change
from ondot.store.channels import find_channels
from ondot.store.database import Database
from ondot.store.incidents import IncidentRow, acknowledge_incident, lock_incident, resolve_incident


async def acknowledge(
    database: Database, queue: Queue, tenant_no: TenantNo, id_: UUID, note: str | None, *, by: By
) -> IncidentRow:
    """Programs among its channels get a message, so that PagerDuty calls nobody else; people do not. A second time
    changes the note only."""
    async with begin(database, tenant_no) as work:
        await raise_generation(work.connection)
        row = await lock_incident(work.connection, tenant_no, id_)
        if row is None:
            raise unknown_incident(id_)
        if row.resolved_at is not None:
            raise Conflict("The incident is over, so there is nothing to acknowledge.")
        known = await find_channels(work.connection, tenant_no, row.notified) if row.notified else {}
        programs = [name for name, each in known.items() if isinstance(each.spec, PagerDutyChannel | WebhookChannel)]
        messages = 1 if programs and row.acknowledged_at is None else 0
        if messages:
            why = f"Acknowledged by {by.actor}" + (f", {note}" if note else "")
            await queue(work.connection, tenant_no, programs, _message(database, Send.ACKNOWLEDGED, row, why))
        row = await acknowledge_incident(work.connection, tenant_no, id_, by.actor, note, messages)
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
            await queue(work.connection, tenant_no, row.notified, _message(database, Send.RECOVERED, row, why))
        row = await resolve_incident(work.connection, tenant_no, id_, by.actor, note, messages)
        await record_change(work.connection, tenant_no, by, "incident.resolve", id_, {"title": row.title, "note": note})
    return row


def _message(database: Database, kind: Send, row: IncidentRow, why: str) -> Message:
    return message_of(
        kind,
        row.latched,
        row.title,
        (),
        alert=row.alert,
        now=database.clock.now(),
        base_url=database.settings.public_url or "",
        why=why,
    )


def unknown_incident(id_: UUID) -> NotFound:
    return NotFound(f"There is no incident {id_}.")
