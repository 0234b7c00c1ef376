"""Sinks (E3): where ondot's own events are sent, and which of them.

A sink names types, each in full or with a last part of `*`. A pool or a label narrows it. Its place is a webhook, or a
broker by the name of a connection.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, assert_never

import msgspec
from msgspec import Struct

from ondot.model.broker import BROKER_KINDS, Place, kind_of_place
from ondot.model.channel import Credential

SINK_FAILS: Final = "sink"
"""The kind of the condition that a sink fails or falls behind; its subject is the sink's name."""

TYPES: Final = (
    "ondot.execution.started",
    "ondot.execution.retrying",
    "ondot.execution.succeeded",
    "ondot.execution.failed",
    "ondot.execution.cancelled",
    "ondot.execution.skipped",
    "ondot.job.created",
    "ondot.job.updated",
    "ondot.job.paused",
    "ondot.job.resumed",
    "ondot.job.deleted",
)
TEST_TYPE: Final = "ondot.sink.test"
"""For one sink, whatever types it wants."""
PATTERNS: Final = ("ondot.*", "ondot.execution.*", "ondot.job.*")
MAX_BATCH: Final = 500


class WebhookPlace(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="webhook"):
    """`batch`: how many events one request has at most; above 1 it is a JSON array of them."""

    url: Credential
    headers: dict[str, Credential] = {}
    only_public: bool = False
    """Written by a caller without the scope `private-targets`."""
    batch: int = 1


class BrokerPlace(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="broker"):
    """A place in the broker of a connection."""

    connection: str
    place: Place


SinkPlace = WebhookPlace | BrokerPlace

SinkKind = Literal["webhook", "redis", "kafka", "rabbitmq", "nats"]
KINDS: Final[tuple[SinkKind, ...]] = ("webhook", *BROKER_KINDS)


class SinkSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`types` as they were written. `pools`, `labels`: only events of such jobs; empty: of all."""

    place: SinkPlace
    types: tuple[str, ...]
    pools: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    with_results: bool = False

    @property
    def all_types(self) -> tuple[str, ...]:
        """Each type spelled out."""
        return expand(self.types)

    def wants(self, pool: str | None, labels: Mapping[str, str]) -> bool:
        """Whether it wants events of a job in this pool with these labels."""
        return (not self.pools or pool in self.pools) and all(
            labels.get(name) == value for name, value in self.labels.items()
        )


def expand(patterns: Iterable[str]) -> tuple[str, ...]:
    """The types that these patterns stand for, in the order of `TYPES`."""
    written = set(patterns)
    return tuple(
        type_
        for type_ in TYPES
        if type_ in written or any(type_.startswith(pattern[:-1]) for pattern in written if pattern.endswith(".*"))
    )


def kind_of(place: SinkPlace) -> SinkKind:
    match place:
        case WebhookPlace():
            return "webhook"
        case BrokerPlace():
            return kind_of_place(place.place)
        case _:
            assert_never(place)


_DECODER: Final = msgspec.json.Decoder(SinkSpec)


def encode_sink(spec: SinkSpec) -> str:
    return msgspec.json.encode(spec).decode()


def decode_sink(text: str | bytes) -> SinkSpec:
    return _DECODER.decode(text)
