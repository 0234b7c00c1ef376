"""What a message about an incident says (O4): what, since when, how many, why, and how to repair it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from ondot.model.alerts.cause import Cause
from ondot.model.alerts.latch import VARIOUS, Incident, Send
from ondot.model.explain_facts import pluralize

SHOWN: Final = 20
"""Causes that a message names; the others are counted."""
LONGEST_TITLE: Final = 300


def title_of(incident: Incident, causes: Sequence[Cause]) -> str:
    """One sentence, without a full stop. `causes`: the first of those that hold."""
    if not causes:
        return incident.reason[:LONGEST_TITLE] or incident.kind
    first, number = causes[0], incident.causes
    if number <= 1:
        title = first.message
    elif incident.job_id is not None:
        title = f"{pluralize(number, 'cause')} on one job, first: {first.message}"
    elif incident.reason == VARIOUS:
        title = f"{number:,} more causes of various reasons, first: {first.message}"
    elif first.many and all(cause.kind == first.kind for cause in causes):
        title = f"{pluralize(number, 'job')} {first.many}"
    else:
        title = f"{pluralize(number, 'cause')}, first: {first.message}"
    return title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1]}…"


def text_of(
    kind: Send, incident: Incident, causes: Sequence[Cause], *, alert: str, now: datetime, why: str | None = None
) -> str:
    """A few lines under the title; the form of a channel adds the causes. `causes`: the first `SHOWN` of those that
    hold. `why`: why it is over, if not by itself, or who acknowledged it."""
    lasted = _length(incident.since, now)
    if kind is Send.RECOVERED:
        return f"It is over after {lasted}{f': {why}' if why else ''}. Alert: {alert}."
    if kind is Send.ACKNOWLEDGED:
        return f"{why or 'It is acknowledged'}. Reminders end. Alert: {alert}."
    again = f" It came back {pluralize(incident.reopened, 'time')}." if incident.reopened else ""
    lines = [f"Since {incident.since:%Y-%m-%d %H:%M} UTC, {lasted}.{again} Alert: {alert}."]
    if incident.causes > len(causes):
        lines.append(f"{incident.causes:,} causes in all, the first {len(causes)} are listed.")
    if command := next((cause.details["command"] for cause in causes if cause.details.get("command")), None):
        lines.append(f"To look into it: {command}")
    lines.append(f"To end the reminders: ondot incident ack {incident.id}")
    return "\n".join(lines)


def links_of(incident: Incident, causes: Sequence[Cause], base_url: str) -> dict[str, str]:
    base = base_url.rstrip("/")
    if not base:
        return {}
    path = next((cause.details["path"] for cause in causes if cause.details.get("path")), None)
    return {"incident": f"{base}/incidents/{incident.id}"} | ({"repair": f"{base}{path}"} if path else {})


def _length(since: datetime, now: datetime) -> str:
    seconds = max(int((now - since).total_seconds()), 0)
    for unit_s, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= 2 * unit_s or seconds == unit_s:
            return pluralize(seconds // unit_s, unit)
    return pluralize(seconds, "second")
