"""Brokers that messages are published to (E3): where one is, and where in it a message goes.

An address is parsed here once, so that every client connects to the hosts that were checked. A user name and a password
in it are kept apart: a job may not contain them, a connection seals them.
"""

import re
from typing import Final, Literal
from urllib.parse import SplitResult, quote, unquote, urlsplit

from msgspec import Struct

BrokerKind = Literal["redis", "kafka", "rabbitmq", "nats"]
BROKER_KINDS: Final[tuple[BrokerKind, ...]] = ("redis", "kafka", "rabbitmq", "nats")
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

MAX_ADDRESS: Final = 2048
EXAMPLES: Final[dict[BrokerKind, str]] = {
    "redis": "redis://host:6379/0",
    "kafka": "host:9092,other:9092",
    "rabbitmq": "amqp://host:5672/",
    "nats": "nats://host:4222",
}
_SCHEMES: Final[dict[str, dict[str, tuple[int, bool]]]] = {
    "redis": {"redis": (6379, False), "rediss": (6379, True)},
    "rabbitmq": {"amqp": (5672, False), "amqps": (5671, True)},
    "nats": {"nats": (4222, False), "tls": (4222, True)},
}
"""The port of each scheme, and whether it means TLS."""
_KAFKA_PORT: Final = 9092
_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?")
_BLANK_OR_CONTROL: Final = re.compile(r"[\s\x00-\x20\x7f\\]")


class Server(Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BrokerAddress(Struct, frozen=True, kw_only=True):
    """Where a broker is, and what it lets in. `path`: the number of Redis' database, or RabbitMQ's virtual host."""

    kind: BrokerKind
    servers: tuple[Server, ...]
    path: str = ""
    tls: bool = False
    username: str | None = None
    password: str | None = None
    mechanism: Mechanism = "PLAIN"
    ca: str | None = None
    """Certificates that it trusts, as PEM, instead of the system's."""
    certificate: str | None = None
    private_key: str | None = None

    def __repr__(self) -> str:
        """Without its credentials: it may stand in a log."""
        return f"{self.kind} on {self.place}"

    @property
    def place(self) -> str:
        return ",".join(map(str, self.servers))


def parse_broker(kind: BrokerKind, text: str) -> BrokerAddress:
    """Raises ValueError with the end of a sentence, which never repeats the text: it may contain a password."""
    if len(text) > MAX_ADDRESS or _BLANK_OR_CONTROL.search(text):
        raise ValueError(f"at most {MAX_ADDRESS:,} characters without blanks, for example {EXAMPLES[kind]}")
    if kind == "kafka":
        return BrokerAddress(kind=kind, servers=tuple(_parse_server(part) for part in text.split(",")))
    expected = f"an address such as {EXAMPLES[kind]} ({' or '.join(f'{scheme}://' for scheme in _SCHEMES[kind])})"
    parts = _split(text)
    if parts is None or parts.scheme not in _SCHEMES[kind] or not parts.hostname:
        raise ValueError(expected)
    if parts.query or parts.fragment:
        raise ValueError(f"{expected} without ? and #")
    port, tls = _SCHEMES[kind][parts.scheme]
    path = unquote(parts.path.removeprefix("/"))
    if (kind == "redis" and not (path.isascii() and (path.isdigit() or not path))) or (kind == "nats" and path):
        raise ValueError(expected)
    return BrokerAddress(
        kind=kind,
        servers=(Server(parts.hostname, parts.port or port),),
        path=path,
        tls=tls,
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
    )


def show_broker(address: BrokerAddress) -> str:
    """The address as a person writes it, without credentials."""
    if address.kind == "kafka":
        return address.place
    scheme = next(name for name, (_, tls) in _SCHEMES[address.kind].items() if tls == address.tls)
    path = quote(address.path, safe="")
    return f"{scheme}://{address.place}{f'/{path}' if path else ''}"


def _parse_server(text: str) -> Server:
    found = _SERVER.fullmatch(text)
    if found is None or int(found[2] or _KAFKA_PORT) > 65_535:
        raise ValueError(f"servers such as {EXAMPLES['kafka']}, separated by commas")
    return Server(found[1].strip("[]"), int(found[2] or _KAFKA_PORT))


def _split(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None  # its message quotes a part of the text
    return parts


class RedisPlace(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="redis"):
    """Exactly one of the three. `max_length`: about how many entries a stream keeps."""

    stream: str | None = None
    list: str | None = None
    channel: str | None = None
    max_length: int | None = None

    def __str__(self) -> str:
        if self.stream is not None:
            return f"the stream {self.stream}"
        return f"the list {self.list}" if self.list is not None else f"the channel {self.channel}"


class KafkaPlace(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="kafka"):
    topic: str

    def __str__(self) -> str:
        return f"the topic {self.topic}"


class RabbitMQPlace(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="rabbitmq"):
    exchange: str = ""
    routing_key: str = ""
    priority: int | None = None

    def __str__(self) -> str:
        if not self.exchange:
            return f"the queue {self.routing_key}"
        return f"the exchange {self.exchange} with the routing key {self.routing_key!r}"


class NatsPlace(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="nats"):
    subject: str

    def __str__(self) -> str:
        return f"the subject {self.subject}"


Place = RedisPlace | KafkaPlace | RabbitMQPlace | NatsPlace
"""Where in a broker a message goes."""


def kind_of_place(place: Place) -> BrokerKind:
    return {RedisPlace: "redis", KafkaPlace: "kafka", RabbitMQPlace: "rabbitmq", NatsPlace: "nats"}[type(place)]  # type: ignore[return-value]
