"""Channels and the messages that go out through them (O4).

A channel says where messages go: a webhook, e-mail addresses, Slack or PagerDuty. A message is about one incident. Its
credentials are references to secrets, or sealed (`Hidden`); nothing here knows a value.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, assert_never
from uuid import UUID

import msgspec
from msgspec import Struct

from ondot.model.secret import Hidden

POOL: Final = ":deliveries"
"""The pool of deliveries. No user can name it: the name of a pool has no colon."""
FUNCTION: Final = "ondot.deliver"
"""The target of a delivery's job: a function that only schedulers have."""
PAGERDUTY_URL: Final = "https://events.pagerduty.com/v2/enqueue"

GIVE_UP_AFTER_S: Final = 6 * 3600.0
"""A message that is this old is not sent any more: nobody waits for it."""
MOST_A_MINUTE: Final = 10
"""Messages of one channel; further ones are joined into one."""
JOINED_FOR_S: Final = 60.0
MOST_JOINED: Final = 1_000
"""Messages of which a joined one keeps the title; further ones are counted."""
FAILED_DELIVERY: Final = "delivery"
"""The kind of the condition that a channel fails; its subject is the channel's name."""

MessageKind = Literal["opened", "reminder", "acknowledged", "recovered", "test"]


class MessageCause(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason for an incident. `subject`: what it is about, if that is no job: a pool, a channel, a ping."""

    kind: str
    message: str
    since: datetime | None = None
    subject: str | None = None
    job_id: UUID | None = None
    job: str | None = None
    pool: str | None = None
    details: dict[str, Any] = {}


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is sent. `links`: addresses of pages, by what they show."""

    kind: MessageKind
    title: str
    text: str
    at: datetime
    incident_id: UUID | None = None
    causes: tuple[MessageCause, ...] = ()
    links: dict[str, str] = {}

    @property
    def failing_channels(self) -> frozenset[str]:
        """The channels that it says fail: it does not go through them."""
        return frozenset(each.subject for each in self.causes if each.kind == FAILED_DELIVERY and each.subject)


class Joined(Struct, frozen=True, omit_defaults=True):
    """One of the messages that were joined into one."""

    kind: MessageKind
    title: str
    incident_id: UUID | None = None


Credential = str | Hidden


class WebhookChannel(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="webhook"):
    url: Credential
    headers: dict[str, Credential] = {}
    only_public: bool = False
    """Written by a caller without the scope `private-targets`."""


class EmailChannel(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="email"):
    to: tuple[str, ...]


class SlackChannel(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="slack"):
    url: Credential
    only_public: bool = False


class PagerDutyChannel(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="pagerduty"):
    routing_key: Credential
    url: str = PAGERDUTY_URL
    only_public: bool = False


ChannelSpec = WebhookChannel | EmailChannel | SlackChannel | PagerDutyChannel

ChannelKind = Literal["webhook", "email", "slack", "pagerduty"]
KINDS: Final[tuple[ChannelKind, ...]] = ("webhook", "email", "slack", "pagerduty")


class DeliveryState(StrEnum):
    QUEUED = "QUEUED"
    SENDING = "SENDING"
    RETRYING = "RETRYING"
    DELIVERED = "DELIVERED"
    FAILED = "FAILED"
    DROPPED = "DROPPED"
    """It was not sent, because nobody needs it any more: the incident is over, or its channel or tenant is gone."""


class Email(Struct, frozen=True, kw_only=True):
    """One e-mail, as it goes to the SMTP server."""

    to: tuple[str, ...]
    subject: str
    text: str
    html: str
    message_id: str
    in_reply_to: str | None = None


_DECODER: Final[msgspec.json.Decoder[ChannelSpec]] = msgspec.json.Decoder(ChannelSpec)
_MESSAGE: Final = msgspec.json.Decoder(Message)


def encode(value: ChannelSpec | Message) -> str:
    return msgspec.json.encode(value).decode()


def decode_channel(text: str | bytes) -> ChannelSpec:
    return _DECODER.decode(text)


def decode_message(text: str | bytes) -> Message:
    return _MESSAGE.decode(text)


def kind_of(spec: ChannelSpec) -> ChannelKind:
    match spec:
        case WebhookChannel():
            return "webhook"
        case EmailChannel():
            return "email"
        case SlackChannel():
            return "slack"
        case PagerDutyChannel():
            return "pagerduty"
        case _:
            assert_never(spec)


def render_channel(spec: ChannelSpec) -> dict[str, Any]:
    """The channel as outputs show it: references by name, other credentials as `•••`."""
    match spec:
        case WebhookChannel():
            shown: dict[str, Any] = {"url": _shown(spec.url, is_secret=False)}
            if spec.headers:
                shown["headers"] = {name: _shown(value, is_secret=False) for name, value in spec.headers.items()}
            return shown
        case EmailChannel():
            return {"to": list(spec.to)}
        case SlackChannel():
            return {"url": _shown(spec.url, is_secret=True)}
        case PagerDutyChannel():
            return {"routing_key": _shown(spec.routing_key, is_secret=True), "url": spec.url}
        case _:
            assert_never(spec)


def _shown(value: Credential, *, is_secret: bool) -> object:
    if isinstance(value, Hidden):
        return value.render()
    return Hidden().render() if is_secret else value
