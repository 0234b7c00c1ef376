"""Channels as people write them (O4): a name, and one of `webhook`, `email`, `slack`, `pagerduty`."""

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from ondot.document.fields import Body, Headers, HeaderValue, Url, check_header_value, check_url, sentence
from ondot.document.reading import read_form
from ondot.document.rules import POOL_NAME
from ondot.model.channel import (
    KINDS,
    PAGERDUTY_URL,
    ChannelSpec,
    EmailChannel,
    PagerDutyChannel,
    SlackChannel,
    WebhookChannel,
    kind_of,
    render_channel,
)
from ondot.model.email import is_email_address
from ondot.model.errors import Fault, InvalidBody
from ondot.model.secret import A_REFERENCE, Hidden

EXAMPLE: Final = 'for example {"name": "ops", "slack": {"url": {"$secret": "slack"}}}'
MOST_ADDRESSES: Final = 50
_URL_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string", "format": "uri", "maxLength": 2048},
        {"type": "object", "properties": {"$secret": {"type": "string"}}, "required": ["$secret"]},
    ],
    "description": "An address, or a reference to a secret that has it.",
}
_NAME: Final = re.compile(POOL_NAME)


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("a name: at most 63 lower-case letters, digits, _ . and -, a letter or digit first")
    return name


def _url(value: object) -> str | Hidden:
    """A message never repeats the address: it may be a secret."""
    found = check_header_value(value)
    if isinstance(found, Hidden):
        return found
    try:
        return check_url(found)
    except ValueError:
        raise sentence(
            f"`url` must be an address that begins with http:// or https://, or refer to a secret: {A_REFERENCE}."
        ) from None


def _address(text: str) -> str:
    if not is_email_address(text):
        raise ValueError('a plain e-mail address, for example "ops@example.com"')
    return text


def _each_once(items: list[str]) -> list[str]:
    return list(dict.fromkeys(items))


ChannelName = Annotated[str, AfterValidator(_name), Field(json_schema_extra={"pattern": f"^{POOL_NAME}$"})]
SecretUrl = Annotated[Any, BeforeValidator(_url), WithJsonSchema(_URL_SCHEMA)]


class WebhookBody(Body):
    url: SecretUrl = Field(description="Where the messages are sent.", examples=["https://example.com/alerts"])
    headers: Headers = Field(
        default_factory=dict,
        description="Sent with each message; credentials are encrypted.",
        examples=[{"authorization": {"$secret": "alerts", "prefix": "Bearer "}}],
    )


class EmailBody(Body):
    to: Annotated[
        list[Annotated[str, AfterValidator(_address)]],
        Field(min_length=1, max_length=MOST_ADDRESSES),
        AfterValidator(_each_once),
    ] = Field(description="The recipients.", examples=[["ops@example.com"]])


class SlackBody(Body):
    url: SecretUrl = Field(description="The address of an incoming webhook.", examples=[{"$secret": "slack"}])


class PagerDutyBody(Body):
    routing_key: HeaderValue = Field(
        description="The integration key of a service, or a reference to it.", examples=[{"$secret": "pagerduty"}]
    )
    url: Url = Field(
        default=PAGERDUTY_URL,
        description="Of the Events API v2; in Europe https://events.eu.pagerduty.com/v2/enqueue.",
        examples=[PAGERDUTY_URL],
    )


class ChannelPatchBody(Body):
    """What a channel sends to: exactly one of `webhook`, `email`, `slack`, `pagerduty`."""

    webhook: WebhookBody | None = Field(
        default=None, description="A signed HTTP call.", examples=[{"url": "https://example.com/alerts"}]
    )
    email: EmailBody | None = Field(default=None, description="E-mails.", examples=[{"to": ["ops@example.com"]}])
    slack: SlackBody | None = Field(
        default=None, description="An incoming webhook of Slack.", examples=[{"url": {"$secret": "slack"}}]
    )
    pagerduty: PagerDutyBody | None = Field(
        default=None, description="A service of PagerDuty.", examples=[{"routing_key": {"$secret": "pagerduty"}}]
    )


class ChannelBody(ChannelPatchBody):
    """A new channel."""

    name: ChannelName = Field(description="Alerts name the channel by it.", examples=["ops"])


def read_channel(raw: object) -> tuple[str, ChannelSpec]:
    """The name and the content of a new channel. Raises InvalidBody."""
    body = read_form(ChannelBody, raw, EXAMPLE)
    return body.name, _spec(body)


def patch_channel(raw: object, stored: ChannelSpec) -> ChannelSpec:
    """The stored channel with the fields that a body has. Another kind replaces all of it."""
    kind = kind_of(stored)
    if isinstance(raw, dict) and isinstance(given := raw.get(kind), dict):
        raw = {**raw, kind: {**render_channel(stored), **given}}
    return _spec(read_form(ChannelPatchBody, raw, 'for example {"email": {"to": ["ops@example.com"]}}'))


def _spec(body: ChannelPatchBody) -> ChannelSpec:
    given = [kind for kind in KINDS if getattr(body, kind) is not None]
    if len(given) != 1:
        got = f"got {' and '.join(given)}" if given else "got none of them"
        message = f"A channel has exactly one of {', '.join(KINDS)}, {got}."
        raise InvalidBody(message, (Fault("", message),))
    if body.webhook is not None:
        return WebhookChannel(url=body.webhook.url, headers=body.webhook.headers)
    if body.email is not None:
        return EmailChannel(to=tuple(body.email.to))
    if body.slack is not None:
        return SlackChannel(url=body.slack.url)
    assert body.pagerduty is not None
    return PagerDutyChannel(routing_key=body.pagerduty.routing_key, url=body.pagerduty.url)
