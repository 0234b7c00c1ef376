"""A message about an incident (O4), before a channel gives it its form."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime

from ondot.flow.alerts.words import SHOWN, links_of, text_of
from ondot.model.alerts.cause import Cause
from ondot.model.alerts.latch import Incident, Send
from ondot.model.channel import Message, MessageCause
from ondot.model.ids import TenantNo
from ondot.store.connection import Connection

Queue = Callable[[Connection, TenantNo, Collection[str], Message], Awaitable[object]]
"""Queues a message for channels, in the caller's transaction: `flow.channels.send.queue_message`."""


def message_of(
    kind: Send,
    incident: Incident,
    title: str,
    causes: Sequence[Cause],
    *,
    alert: str,
    now: datetime,
    base_url: str,
    why: str | None = None,
) -> Message:
    shown = causes[:SHOWN]
    return Message(
        kind=kind.value,
        title=title,
        text=text_of(kind, incident, shown, alert=alert, now=now, why=why),
        at=now,
        incident_id=incident.id,
        causes=tuple(
            MessageCause(
                kind=cause.kind,
                message=cause.message,
                since=cause.since,
                subject=cause.subject,
                job_id=cause.job_id,
                job=cause.subject if cause.job_id is not None else None,
                pool=cause.pool,
                details=cause.details,
            )
            for cause in shown
        ),
        links=links_of(incident, shown, base_url),
    )
