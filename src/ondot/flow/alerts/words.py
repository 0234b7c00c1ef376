"""What a message about an incident says (O4): what, since when, how many, why, and how to repair it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ondot.model.alerts.cause import Cause
from ondot.model.alerts.latch import VARIOUS, Incident, Send
from ondot.model.explain_facts import pluralize

SHOWN: Final = 20
"""Causes that a message names; the others are counted."""
LONGEST_TITLE: Final = 300
_WORDS: Final = {Send.OPENED: "Opened", Send.REMINDER: "Still open", Send.RECOVERED: "Recovered"}


@dataclass(frozen=True, slots=True)
class Words:
    title: str
    text: str
    links: dict[str, str]


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


def words_of(
    kind: Send,
    incident: Incident,
    title: str,
    causes: Sequence[Cause],
    *,
    alert: str,
    now: datetime,
    base_url: str,
    why: str | None = None,
) -> Words:
    """`causes`: the first `SHOWN` of those that hold. `why`: why it is over, if not by itself."""
    since = f"{incident.since:%Y-%m-%d %H:%M} UTC"
    lines = [f"{title}."]
    if kind is Send.RECOVERED:
        lines.append(f"It is over after {_length(incident.since, now)}{f': {why}' if why else ''}.")
    else:
        again = f" It came back {pluralize(incident.reopened, 'time')}." if incident.reopened else ""
        lines.append(f"Since {since}, {_length(incident.since, now)}.{again}")
        if incident.causes > 1:
            lines += [f"- {cause.message}" for cause in causes[:SHOWN]]
            if incident.causes > min(len(causes), SHOWN):
                lines.append(f"- and {incident.causes - min(len(causes), SHOWN):,} more")
        command = next((cause.details["command"] for cause in causes if cause.details.get("command")), None)
        if command:
            lines.append(f"To look into it: {command}")
    lines.append(f"Alert: {alert}. Acknowledge: ondot incident ack {incident.id}")
    base = base_url.rstrip("/")
    links = {"incident": f"{base}/incidents/{incident.id}"} if base else {}
    path = next((cause.details["path"] for cause in causes if cause.details.get("path")), None)
    if base and path:
        links["repair"] = f"{base}{path}"
    return Words(f"{_WORDS[kind]}: {title}"[:LONGEST_TITLE], "\n".join(lines), links)


def _length(since: datetime, now: datetime) -> str:
    seconds = max(int((now - since).total_seconds()), 0)
    for unit_s, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= 2 * unit_s or seconds == unit_s:
            return pluralize(seconds // unit_s, unit)
    return pluralize(seconds, "second")
