"""The target `publish` in a request (E3): exactly one of `redis`, `kafka`, `rabbitmq`, `nats`.

A password is a field of its own, never part of an address. Like the credentials in headers it is sealed, or refers to a
secret: it stands among the target's headers under a name that no job can give (`PASSWORD_HEADER`).
"""

from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from ondot.document.broker_names import ConnectionName, RedisName, Short, Subject, Topic
from ondot.document.fields import Body, Headers, HeaderValue, sentence
from ondot.model.broker import (
    BROKER_KINDS,
    EXAMPLES,
    BrokerKind,
    KafkaPlace,
    Mechanism,
    NatsPlace,
    Place,
    RabbitMQPlace,
    RedisPlace,
    kind_of_place,
    parse_broker,
    show_broker,
)
from ondot.model.target import PASSWORD_HEADER, PublishTarget

LONGEST_KEY: Final = 1_024


Address = Annotated[str, Field(max_length=2048)]


class BrokerBody(Body):
    """What all brokers have: a connection, or an address and credentials; and headers of the message."""

    connection: ConnectionName | None = Field(
        default=None, description="A connection, which has address and credentials.", examples=["kafka-main"]
    )
    username: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        default=None, description="The user name, if there is no connection.", examples=["ondot"]
    )
    password: HeaderValue | None = Field(
        default=None,
        description="The password, if there is no connection: a reference to a secret, or text, which is encrypted.",
        examples=[{"$secret": "kafka"}],
    )
    headers: Headers = Field(
        default_factory=dict,
        description="Headers of the message, in addition to those of ondot.",
        examples=[{"x-team": "bi"}],
    )


def _check_address(body: BrokerBody, kind: BrokerKind, field: str) -> None:
    address = getattr(body, field)
    if (body.connection is None) == (address is None):
        raise sentence(
            f'`{kind}` takes exactly one of `connection` and `{field}`, for example {{"{field}": "{EXAMPLES[kind]}"}}.'
        )
    if body.connection is not None and (body.username is not None or body.password is not None):
        raise sentence("The connection has the user name and the password: leave `username` and `password` out.")
    if address is None:
        return
    try:
        found = parse_broker(kind, address)
    except ValueError as fault:
        raise sentence(f"`{field}` must be {fault}.") from None
    if found.username is not None or found.password is not None:
        # Not repeated in the message: the password would end up in logs and on screens.
        raise sentence(
            f"`{field}` must not contain a user name or password: give `username` and `password`, or a `connection`."
        )


class RedisBody(BrokerBody):
    """A stream, a list or a channel."""

    url: Address | None = Field(default=None, description="The address.", examples=["redis://redis.example.com:6379/0"])
    stream: RedisName | None = Field(default=None, description="Add an entry to this stream.", examples=["out"])
    list: RedisName | None = Field(default=None, description="Append to this list.", examples=["out"])
    channel: RedisName | None = Field(
        default=None, description="Publish to this channel, which keeps nothing.", examples=["news"]
    )
    max_length: Annotated[int, Field(ge=1, le=10**12)] | None = Field(
        default=None, description="About how many entries the stream keeps.", examples=[100000]
    )

    @model_validator(mode="after")
    def _one(self) -> "RedisBody":
        _check_address(self, "redis", "url")
        if sum(each is not None for each in (self.stream, self.list, self.channel)) != 1:
            raise sentence(
                '`redis` takes exactly one of `stream`, `list` and `channel`, for example {"stream": "out"}.'
            )
        if self.max_length is not None and self.stream is None:
            raise sentence("`max_length` is for a `stream`: leave it out.")
        return self


class KafkaBody(BrokerBody):
    """A topic."""

    servers: Address | None = Field(
        default=None, description="Hosts and ports, separated by commas.", examples=["kafka-1:9092,kafka-2:9092"]
    )
    tls: bool = Field(default=False, description="Encrypt the connection.", examples=[True])
    mechanism: Mechanism = Field(
        default="PLAIN", description="How user name and password are checked.", examples=["SCRAM-SHA-512"]
    )
    topic: Topic = Field(description="The topic.", examples=["orders"])
    key: Annotated[str, Field(max_length=LONGEST_KEY)] | None = Field(
        default=None, description="Messages with the same key go to the same partition.", examples=["customer-7"]
    )

    @model_validator(mode="after")
    def _one(self) -> "KafkaBody":
        _check_address(self, "kafka", "servers")
        return self


class RabbitMQBody(BrokerBody):
    """An exchange and a routing key. The default exchange, "", routes to the queue that the key names."""

    url: Address | None = Field(default=None, description="The address.", examples=["amqp://rabbit.example.com/"])
    exchange: Short = Field(default="", description="The exchange.", examples=["orders"])
    routing_key: Short = Field(default="", description="The routing key, or the queue.", examples=["mail"])
    priority: Annotated[int, Field(ge=0, le=255)] | None = Field(
        default=None, description="The priority of the message.", examples=[5]
    )

    @model_validator(mode="after")
    def _one(self) -> "RabbitMQBody":
        _check_address(self, "rabbitmq", "url")
        if not self.exchange and not self.routing_key:
            raise sentence('Give `routing_key`, for example {"routing_key": "mail"} for the queue mail.')
        return self


class NatsBody(BrokerBody):
    """A subject. If it belongs to a stream of JetStream, the stream acknowledges the message."""

    url: Address | None = Field(default=None, description="The address.", examples=["nats://nats.example.com:4222"])
    subject: Subject = Field(description="The subject.", examples=["orders.paid"])

    @model_validator(mode="after")
    def _one(self) -> "NatsBody":
        _check_address(self, "nats", "url")
        return self


class PublishBody(Body):
    """A message to a broker: exactly one of `redis`, `kafka`, `rabbitmq`, `nats`. Its body is the payload."""

    redis: RedisBody | None = Field(
        default=None, description="Redis.", examples=[{"url": "redis://redis.example.com", "stream": "out"}]
    )
    kafka: KafkaBody | None = Field(
        default=None, description="Kafka.", examples=[{"connection": "kafka-main", "topic": "orders", "key": "c7"}]
    )
    rabbitmq: RabbitMQBody | None = Field(
        default=None, description="RabbitMQ.", examples=[{"connection": "rabbit", "routing_key": "mail"}]
    )
    nats: NatsBody | None = Field(
        default=None, description="NATS.", examples=[{"connection": "nats", "subject": "orders.paid"}]
    )

    @model_validator(mode="after")
    def _one(self) -> "PublishBody":
        given = [kind for kind in BROKER_KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            got = " and ".join(f"`{kind}`" for kind in given) or "none"
            raise sentence(f"`publish` takes exactly one of {', '.join(BROKER_KINDS)}, got {got}.")
        return self


def publish_target_of(body: PublishBody) -> PublishTarget:
    """The target of the model."""
    place: Place
    broker: BrokerBody
    key, tls = None, False
    if (redis := body.redis) is not None:
        broker, address = redis, redis.url
        place = RedisPlace(stream=redis.stream, list=redis.list, channel=redis.channel, max_length=redis.max_length)
    elif (kafka := body.kafka) is not None:
        broker, address, key, tls = kafka, kafka.servers, kafka.key, kafka.tls
        place = KafkaPlace(topic=kafka.topic)
    elif (rabbitmq := body.rabbitmq) is not None:
        broker, address = rabbitmq, rabbitmq.url
        place = RabbitMQPlace(exchange=rabbitmq.exchange, routing_key=rabbitmq.routing_key, priority=rabbitmq.priority)
    else:
        assert body.nats is not None, "its form has checked that there is one"
        broker, address = body.nats, body.nats.url
        place = NatsPlace(subject=body.nats.subject)
    own: dict[str, Any] = {} if broker.password is None else {PASSWORD_HEADER: broker.password}
    return PublishTarget(
        place=place,
        connection=broker.connection,
        address=None if address is None else show_broker(parse_broker(kind_of_place(place), address)),
        username=broker.username,
        tls=tls,
        mechanism="PLAIN" if body.kafka is None else body.kafka.mechanism,
        key=key,
        headers={**broker.headers, **own},
    )


def render_publish(target: PublishTarget, headers: dict[str, Any]) -> dict[str, Any]:
    """The target as a body has it; `headers` are those that an output may show."""
    place = target.place
    kind = kind_of_place(place)
    password = headers.pop(PASSWORD_HEADER, None)
    fields: dict[str, Any] = {
        "connection": target.connection,
        "servers" if kind == "kafka" else "url": target.address,
        "username": target.username,
        "password": password,
    }
    match place:
        case RedisPlace():
            fields |= {"stream": place.stream, "list": place.list, "channel": place.channel}
            fields["max_length"] = place.max_length
        case KafkaPlace():
            fields |= {"tls": target.tls or None, "topic": place.topic, "key": target.key}
            fields["mechanism"] = None if target.mechanism == "PLAIN" else target.mechanism
        case RabbitMQPlace():
            fields |= {"exchange": place.exchange, "routing_key": place.routing_key, "priority": place.priority}
        case NatsPlace():
            fields["subject"] = place.subject
    fields["headers"] = headers or None
    return {kind: {name: value for name, value in fields.items() if value is not None}}
