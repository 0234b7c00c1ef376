"""A message about an incident (O4), before a channel gives it its form."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ondot.flow.alerts.words import SHOWN, words_of
from ondot.model.alerts.cause import Cause
from ondot.model.alerts.latch import Incident, Send
from ondot.model.ids import TenantNo
from ondot.store.connection import Connection


@dataclass(frozen=True, slots=True)
class Draft:
    kind: Send
    incident_id: UUID
    title: str
    text: str
    causes: tuple[Cause, ...]
    links: dict[str, str]
    at: datetime


Queue = Callable[[Connection, TenantNo, Sequence[str], Draft], Awaitable[object]]
"""Queues a message for channels, in the caller's transaction."""


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
) -> Draft:
    words = words_of(kind, incident, title, causes, alert=alert, now=now, base_url=base_url, why=why)
    return Draft(kind, incident.id, words.title, words.text, tuple(causes[:SHOWN]), words.links, now)
