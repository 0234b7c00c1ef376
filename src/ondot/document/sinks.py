"""Sinks as people write them (E3): which events, and exactly one place that they are sent to."""

import re
from typing import Annotated, Any, Final

from msgspec import structs
from pydantic import AfterValidator, Field, model_validator

from ondot.document.broker_names import ConnectionName, RedisName, Short, Subject, Topic
from ondot.document.channels import SecretUrl
from ondot.document.fields import Body, Headers, Labels, PoolName, sentence
from ondot.document.reading import read_form
from ondot.document.rules import POOL_NAME
from ondot.model.broker import KafkaPlace, NatsPlace, RabbitMQPlace, RedisPlace
from ondot.model.channel import WebhookChannel, render_channel
from ondot.model.errors import Fault, InvalidBody, InvalidParameters
from ondot.model.sink import KINDS, MAX_BATCH, PATTERNS, TYPES, BrokerPlace, SinkPlace, SinkSpec, WebhookPlace, kind_of

_NAME: Final = re.compile(POOL_NAME)
EXAMPLE: Final = 'for example {"types": ["ondot.execution.failed"], "webhook": {"url": "https://example.com/events"}}'
MOST_POOLS: Final = 50


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


class SinkBrokerBody(Body):
    connection: ConnectionName = Field(
        description="The connection that has the address and the credentials.", examples=["kafka-main"]
    )


class SinkRedisBody(SinkBrokerBody):
    """A stream, a list or a channel."""

    stream: RedisName | None = Field(default=None, description="Add an entry to this stream.", examples=["events"])
    list: RedisName | None = Field(default=None, description="Append to this list.", examples=["events"])
    channel: RedisName | None = Field(
        default=None, description="Publish to this channel, which keeps nothing.", examples=["events"]
    )
    max_length: Annotated[int, Field(ge=1, le=10**12)] | None = Field(
        default=None, description="About how many entries the stream keeps.", examples=[100000]
    )

    @model_validator(mode="after")
    def _one(self) -> "SinkRedisBody":
        if sum(each is not None for each in (self.stream, self.list, self.channel)) != 1:
            raise sentence('`redis` takes exactly one of `stream`, `list` and `channel`, such as {"stream": "events"}.')
        if self.max_length is not None and self.stream is None:
            raise sentence("`max_length` is for a `stream`: leave it out.")
        return self


class SinkKafkaBody(SinkBrokerBody):
    """A topic. The key of a message is the execution or the job."""

    topic: Topic = Field(description="The topic.", examples=["ondot-events"])


class SinkRabbitMQBody(SinkBrokerBody):
    """An exchange and a routing key; without an exchange the name of a queue."""

    exchange: Short = Field(default="", description="The exchange. Empty: the default one.", examples=["events"])
    routing_key: Short = Field(default="", description="The routing key, or the queue.", examples=["ondot.events"])

    @model_validator(mode="after")
    def _some(self) -> "SinkRabbitMQBody":
        if not self.exchange and not self.routing_key:
            raise sentence('`rabbitmq` needs an `exchange`, or a queue as `routing_key`, such as "ondot.events".')
        return self


class SinkNatsBody(SinkBrokerBody):
    """A subject."""

    subject: Subject = Field(description="The subject.", examples=["ondot.events"])


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
    redis: SinkRedisBody | None = Field(
        default=None, description="Redis.", examples=[{"connection": "redis-main", "stream": "events"}]
    )
    kafka: SinkKafkaBody | None = Field(
        default=None, description="Kafka.", examples=[{"connection": "kafka-main", "topic": "ondot-events"}]
    )
    rabbitmq: SinkRabbitMQBody | None = Field(
        default=None, description="RabbitMQ.", examples=[{"connection": "rabbit", "routing_key": "ondot.events"}]
    )
    nats: SinkNatsBody | None = Field(
        default=None, description="NATS.", examples=[{"connection": "nats-main", "subject": "ondot.events"}]
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
    return SinkSpec(
        place=_place(body),
        types=tuple(body.types),
        pools=tuple(body.pools),
        labels=dict(body.labels),
        with_results=body.results,
    )


def _place(body: SinkBody) -> SinkPlace:
    if body.redis is not None:
        redis = body.redis
        redis_place = RedisPlace(
            stream=redis.stream, list=redis.list, channel=redis.channel, max_length=redis.max_length
        )
        return BrokerPlace(connection=redis.connection, place=redis_place)
    if body.kafka is not None:
        return BrokerPlace(connection=body.kafka.connection, place=KafkaPlace(topic=body.kafka.topic))
    if body.rabbitmq is not None:
        rabbitmq = RabbitMQPlace(exchange=body.rabbitmq.exchange, routing_key=body.rabbitmq.routing_key)
        return BrokerPlace(connection=body.rabbitmq.connection, place=rabbitmq)
    if body.nats is not None:
        return BrokerPlace(connection=body.nats.connection, place=NatsPlace(subject=body.nats.subject))
    assert body.webhook is not None
    return WebhookPlace(url=body.webhook.url, headers=body.webhook.headers, batch=body.webhook.batch)


def render_sink(spec: SinkSpec) -> dict[str, Any]:
    """The sink as outputs show it: references by name, other credentials as `•••`."""
    place = spec.place
    if isinstance(place, WebhookPlace):
        channel = WebhookChannel(url=place.url, headers=place.headers)
        shown = render_channel(channel) | ({"batch": place.batch} if place.batch > 1 else {})
    else:
        fields = structs.asdict(place.place)
        shown = {"connection": place.connection} | {name: value for name, value in fields.items() if value}
    return {
        "types": list(spec.types),
        "pools": list(spec.pools),
        "labels": dict(spec.labels),
        "results": spec.with_results,
        kind_of(place): shown,
    }


def render_place(spec: SinkSpec) -> str:
    """Where it sends, in one line."""
    if isinstance(spec.place, BrokerPlace):
        return f"{spec.place.place} of {spec.place.connection}"
    url = render_sink(spec)["webhook"]["url"]
    return url if isinstance(url, str) else f"secret {url['$secret']}"
