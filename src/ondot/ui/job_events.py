"""A job that events start, on its page (S11, O5): its rule, the last events of its type, and why they did not match."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from ondot.document.events import render_event
from ondot.model.event import read_event
from ondot.model.ids import TenantNo
from ondot.model.schedule import OnEvent
from ondot.model.try_filter import why_not
from ondot.store.connection import Connection
from ondot.store.event_matches import find_matches_of_job
from ondot.store.events import EventFilter, list_events
from ondot.store.jobs import JobRow

SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class LastEvent:
    id: UUID
    received_at: datetime
    source: str
    subject: str | None
    execution_id: UUID | None
    outcome: str | None
    """None: it did not match when it arrived."""
    why_not: str | None
    """The condition of today's rule that it fails."""


@dataclass(frozen=True, slots=True)
class JobEvents:
    type: str
    rule: str
    """The whole rule, as JSON."""
    events: tuple[LastEvent, ...]


async def read_job_events(connection: Connection, tenant_no: TenantNo, row: JobRow) -> JobEvents | None:
    rule = None if row.spec.schedule is None else row.spec.schedule.when
    if not isinstance(rule, OnEvent):
        return None
    events = await list_events(connection, tenant_no, EventFilter(type=rule.type), limit=SHOWN)
    matches = await find_matches_of_job(connection, tenant_no, row.id, [event.id for event in events])
    shown = []
    for event in events:
        match = matches.get(event.id)
        value = read_event(msgspec.json.decode(event.body), from_outside=False)
        shown.append(
            LastEvent(
                event.id,
                event.received_at,
                event.source,
                event.subject,
                None if match is None else match.execution_id,
                None if match is None else match.outcome,
                why_not(rule, value),
            )
        )
    text = msgspec.json.format(msgspec.json.encode(render_event(rule)), indent=2).decode()
    return JobEvents(rule.type, text, tuple(shown))
