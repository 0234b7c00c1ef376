"""Publishes messages to a broker (E3). Each kind of broker has one implementation of `Publisher`; `Publishers` keeps
one client for each address and credentials. Targets use it, and what delivers events.

A publish succeeds when the broker acknowledges it. Otherwise the refusal says whether it is certain that the broker has
not stored the message: if it is not, a retry may publish it twice, and that refusal is the recorded cause.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from msgspec import Struct

from ondot.model.addresses import Reach
from ondot.model.broker import BrokerAddress, Place


class Message(Struct, frozen=True):
    """`key`: Kafka chooses the partition by it, others ignore it. Where a broker has no headers, as a list of Redis,
    the message is one JSON object with the headers, and the body as `payload`."""

    body: bytes
    key: str | None = None
    headers: Mapping[str, str] = {}


class Receipt(Struct, frozen=True):
    """The broker has acknowledged the message. `facts`: where it is, in the broker's own words."""

    facts: Mapping[str, Any]


class Refusal(Struct, frozen=True):
    """The message is not acknowledged. `code` is an error code of attempts, `message` a sentence for people."""

    code: str
    message: str
    may_be_published: bool = False
    """False: it is certain that the broker has not stored it."""
    is_retryable: bool = True


Answer = Receipt | Refusal


class Publisher(Protocol):
    """One client of one broker. Many tasks may use it at a time; it connects again by itself."""

    async def publish(self, place: Place, messages: Sequence[Message], *, within_s: float) -> list[Answer]:
        """One answer for each message, in their order, after `within_s` at the latest. Raises nothing but its own
        cancellation, after which each message may or may not be published."""
        ...

    async def check(self, *, within_s: float) -> Refusal | None:
        """Connect, log in, and publish nothing. None: the broker is there and lets us in."""
        ...

    async def close(self) -> None: ...


class Publishers(Protocol):
    def use(self, address: BrokerAddress, reach: Reach) -> AbstractAsyncContextManager[Publisher]:
        """The client of this address, opened at its first use and closed a while after its last one.

        Raises Misconfigured if the package of its kind is not installed."""
        ...

    async def close(self) -> None: ...
