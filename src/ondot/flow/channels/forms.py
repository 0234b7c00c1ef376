"""Messages in the forms that receivers read (O4): the JSON of a webhook, e-mail, Slack's incoming webhooks, and
PagerDuty's Events API v2. Everything is pure.

Texts come from names of jobs and errors of their handlers, so each form escapes them: a name must not become a link, a
mention of everybody in Slack, a header of an e-mail or markup.
"""

import html
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from ondot.model.channel import Email, Joined, Message, MessageKind
from ondot.model.text import hidden_in

LONGEST_TITLE: Final = 200
LONGEST_TEXT: Final = 3_000
"""Of a message for people; a webhook gets all of it."""
CAUSES_SHOWN: Final = 10
JOINED_SHOWN: Final = 20
SLACK_LONGEST: Final = 2_900
"""A section of a Slack message has at most 3,000 characters."""
PAGERDUTY_LONGEST: Final = 1_024

_WORDS: Final[Mapping[MessageKind, str]] = {
    "opened": "Open",
    "reminder": "Still open",
    "acknowledged": "Acknowledged",
    "recovered": "Recovered",
    "test": "Test",
}


def join(message: Message, joined: Sequence[Joined], more: int) -> Message:
    """The joined messages as one."""
    count = len(joined) + more
    if count == 1:
        return message
    lines = [f"{_WORDS[each.kind]}: {each.title}" for each in joined[:JOINED_SHOWN]]
    if count > len(lines):
        lines.append(f"… and {count - len(lines):,} more")
    return Message(
        kind="recovered" if all(each.kind == "recovered" for each in joined) else "reminder",
        title=f"{joined[0].title}, and {count - 1:,} more",
        text="\n".join(["More messages than a channel gets in a minute, joined:", *lines]),
        at=message.at,
        links=message.links,
    )


def webhook_body(
    id_: UUID, channel: str, message: Message, joined: Sequence[Joined] | None, more: int
) -> dict[str, Any]:
    """The JSON body of a webhook; `id` stays the same when it is sent again."""
    body: dict[str, Any] = {
        "id": str(id_),
        "type": f"incident.{message.kind}" if message.kind != "test" else "test",
        "channel": channel,
        "incident_id": None if message.incident_id is None else str(message.incident_id),
        "title": message.title,
        "text": message.text,
        "at": _instant(message.at),
        "causes": [
            {
                "kind": cause.kind,
                "message": cause.message,
                "since": None if cause.since is None else _instant(cause.since),
                "subject": cause.subject,
                "job_id": None if cause.job_id is None else str(cause.job_id),
                "job": cause.job,
                "pool": cause.pool,
                "details": cause.details,
            }
            for cause in message.causes
        ],
        "links": dict(message.links),
    }
    if joined is not None and len(joined) + more > 1:
        body["type"] = "incidents.joined"
        body["joined"] = [
            {
                "kind": each.kind,
                "title": each.title,
                "incident_id": None if each.incident_id is None else str(each.incident_id),
            }
            for each in joined
        ]
        body["joined_more"] = more
    return body


def slack_body(message: Message) -> dict[str, Any]:
    """An incoming webhook of Slack: `text` is what a notification shows, `blocks` the message."""
    title = _slack(f"{_WORDS[message.kind]}: {_line(message.title)}")
    parts = [_slack(message.text[:LONGEST_TEXT])] if message.text else []
    parts += [f"• {_slack(_line(cause.message))}" for cause in message.causes[:CAUSES_SHOWN]]
    if len(message.causes) > CAUSES_SHOWN:
        parts.append(f"… and {len(message.causes) - CAUSES_SHOWN:,} more")
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": {"type": "mrkdwn", "text": f"*{title}*"[:SLACK_LONGEST]}}
    ]
    if parts:
        text = "\n".join(parts)[:SLACK_LONGEST]
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}})
    if message.links:
        links = " · ".join(f"<{_slack_url(url)}|{_slack(name)}>" for name, url in message.links.items())
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": links[:SLACK_LONGEST]}]})
    return {"text": title, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}


def pagerduty_events(
    routing_key: str, id_: UUID, message: Message, joined: Sequence[Joined] | None, *, source: str
) -> list[dict[str, Any]]:
    """Events of PagerDuty's Events API v2. All of an incident have one `dedup_key`, so that a repetition changes
    nothing, and a recovery resolves what was triggered. A joined message resolves each incident that has recovered."""
    events = []
    if joined is None or len(joined) == 1:
        action = {"acknowledged": "acknowledge", "recovered": "resolve"}.get(message.kind, "trigger")
        key = f"ondot-{message.incident_id or id_}"
        events.append(_pagerduty(routing_key, action, key, message, source))
        if message.kind == "test":
            # A test must not wake anybody up for longer than it takes to see it.
            events.append(_pagerduty(routing_key, "resolve", key, message, source))
        return events
    if any(each.kind in {"opened", "reminder"} for each in joined):
        events.append(_pagerduty(routing_key, "trigger", f"ondot-{id_}", message, source))
    for each in joined:
        if each.kind in {"recovered", "acknowledged"} and each.incident_id is not None:
            action = "resolve" if each.kind == "recovered" else "acknowledge"
            events.append(_pagerduty(routing_key, action, f"ondot-{each.incident_id}", message, source))
    return events


def _pagerduty(routing_key: str, action: str, key: str, message: Message, source: str) -> dict[str, Any]:
    event: dict[str, Any] = {"routing_key": routing_key, "event_action": action, "dedup_key": key}
    if action == "trigger":
        event["payload"] = {
            "summary": _line(message.title)[:PAGERDUTY_LONGEST] or "ondot",
            "source": source,
            "severity": "info" if message.kind == "test" else "error",
            "timestamp": _instant(message.at),
            "component": "ondot",
            "custom_details": {
                "text": message.text[:LONGEST_TEXT],
                "causes": [_line(cause.message) for cause in message.causes[:CAUSES_SHOWN]],
            },
        }
        event["client"] = "ondot"
        event["links"] = [{"href": url, "text": name} for name, url in message.links.items()]
    return event


def email(id_: UUID, channel_id: UUID, to: tuple[str, ...], message: Message, *, domain: str) -> Email:
    """All e-mails of an incident are one thread: the first has the id that the others reply to."""
    thread = (
        None if message.incident_id is None else f"<incident-{message.incident_id}.{channel_id.hex[-12:]}@{domain}>"
    )
    is_first = thread is not None and message.kind == "opened"
    title = _line(message.title)[:LONGEST_TITLE]
    # Clients join a thread by its subject too, so that it stays the same.
    subject = title if message.kind == "opened" else f"{_WORDS[message.kind]}: {title}"
    causes = [_line(cause.message) for cause in message.causes[:CAUSES_SHOWN]]
    if len(message.causes) > CAUSES_SHOWN:
        causes.append(f"… and {len(message.causes) - CAUSES_SHOWN:,} more")
    heading = f"{_WORDS[message.kind]}: {title}"
    at = message.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    text = "\n".join(
        [
            heading,
            at,
            *(["", message.text[:LONGEST_TEXT]] if message.text else []),
            *(["", *(f"- {cause}" for cause in causes)] if causes else []),
            *(["", *(f"{name}: {url}" for name, url in message.links.items())] if message.links else []),
            "",
        ]
    )
    escape = html.escape
    items = "".join(f"<li>{escape(cause)}</li>" for cause in causes)
    links = " · ".join(
        f'<a href="{escape(url)}">{escape(name)}</a>'
        for name, url in message.links.items()
        if url.startswith(("https://", "http://"))
    )
    body = (
        f"<h3>{escape(heading)}</h3><p><small>{at}</small></p>"
        + (f'<p style="white-space:pre-wrap">{escape(message.text[:LONGEST_TEXT])}</p>' if message.text else "")
        + (f"<ul>{items}</ul>" if items else "")
        + (f"<p>{links}</p>" if links else "")
    )
    return Email(
        to=to,
        subject=subject,
        text=text,
        html=f"<!doctype html><html><body>{body}</body></html>",
        message_id=thread if is_first and thread is not None else f"<{id_}@{domain}>",
        in_reply_to=None if is_first else thread,
    )


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _line(text: str) -> str:
    """One line without control and invisible characters: a header must not get a line of its own."""
    line = " ".join(text.split())
    return line if not hidden_in(line) else "".join(char for char in line if not hidden_in(char))


def _slack(text: str) -> str:
    """The three characters that Slack reads as markup: `<!channel>` would call everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _slack_url(url: str) -> str:
    return url.replace("&", "&amp;").replace("<", "%3C").replace(">", "%3E").replace("|", "%7C")
