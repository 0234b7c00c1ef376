"""Sinks as people write them (E3): which events, and exactly one place that they are sent to."""

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from ondot.document.channels import SecretUrl
from ondot.document.fields import Body, Headers, Labels, PoolName
from ondot.document.reading import read_form
from ondot.document.rules import POOL_NAME
from ondot.model.channel import WebhookChannel, render_channel
from ondot.model.errors import Fault, InvalidBody, InvalidParameters
from ondot.model.sink import KINDS, MAX_BATCH, PATTERNS, TYPES, SinkSpec, WebhookPlace, kind_of

EXAMPLE: Final = 'for example {"types": ["ondot.execution.failed"], "webhook": {"url": "https://example.com/events"}}'
MOST_POOLS: Final = 50
_NAME: Final = re.compile(POOL_NAME)


def _type(text: str) -> str:
    if text not in TYPES and text not in PATTERNS:
        raise ValueError(f"one of {', '.join((*PATTERNS, *TYPES))}")
    return text


def _each_once(items: list[str]) -> list[str]:
    return list(dict.fromkeys(items))


EventType = Annotated[str, AfterValidator(_type), Field(json_schema_extra={"enum": [*PATTERNS, *TYPES]})]


class SinkWebhookBody(Body):
    url: SecretUrl = Field(description="Where the events are sent.", examples=["https://example.com/events"])
    headers: Headers = Field(
        default_factory=dict,
        description="Sent with each request; credentials are encrypted.",
        examples=[{"authorization": {"$secret": "events", "prefix": "Bearer "}}],
    )
    batch: Annotated[int, Field(ge=1, le=MAX_BATCH)] = Field(
        default=1,
        description="How many events a request has at most. Above 1 its body is a JSON array of events.",
        examples=[100],
    )


class SinkBody(Body):
    """A sink: `types`, and exactly one place."""

    types: Annotated[list[EventType], Field(min_length=1, max_length=50), AfterValidator(_each_once)] = Field(
        description="Which events are sent.", examples=[["ondot.execution.*", "ondot.job.paused"]]
    )
    pools: Annotated[list[PoolName], Field(max_length=MOST_POOLS), AfterValidator(_each_once)] = Field(
        default_factory=list, description="Only events of jobs in these pools; empty: of all.", examples=[["gpu"]]
    )
    labels: Labels = Field(
        default_factory=dict, description="Only events of jobs with these labels.", examples=[{"team": "bi"}]
    )
    results: bool = Field(
        default=False, description="Whether events of successes have the result, up to 64 KiB.", examples=[True]
    )
    webhook: SinkWebhookBody | None = Field(
        default=None, description="A signed HTTP call.", examples=[{"url": "https://example.com/events"}]
    )


def check_name(name: str) -> str:
    """The name of a new sink. Raises InvalidParameters."""
    if not _NAME.fullmatch(name):
        raise InvalidParameters(
            f"Wrong name {name!r}: use at most 63 lower-case letters, digits, _ . and -, a letter or digit first."
        )
    return name


def read_sink(raw: object) -> SinkSpec:
    """Raises InvalidBody."""
    body = read_form(SinkBody, raw, EXAMPLE)
    given = [kind for kind in KINDS if getattr(body, kind) is not None]
    if len(given) != 1:
        got = f"got {' and '.join(given)}" if given else "got none of them"
        message = f"A sink has exactly one of {', '.join(KINDS)}, {got}."
        raise InvalidBody(message, (Fault("", message),))
    assert body.webhook is not None
    place = WebhookPlace(url=body.webhook.url, headers=body.webhook.headers, batch=body.webhook.batch)
    return SinkSpec(
        place=place,
        types=tuple(body.types),
        pools=tuple(body.pools),
        labels=dict(body.labels),
        with_results=body.results,
    )


def render_sink(spec: SinkSpec) -> dict[str, Any]:
    """The sink as outputs show it: references by name, other credentials as `•••`."""
    place = spec.place
    channel = WebhookChannel(url=place.url, headers=place.headers)
    shown = render_channel(channel) | ({"batch": place.batch} if place.batch > 1 else {})
    return {
        "types": list(spec.types),
        "pools": list(spec.pools),
        "labels": dict(spec.labels),
        "results": spec.with_results,
        kind_of(place): shown,
    }


def render_place(spec: SinkSpec) -> str:
    """Where it sends, in one line."""
    url = render_sink(spec)["webhook"]["url"]
    return url if isinstance(url, str) else f"secret {url['$secret']}"
