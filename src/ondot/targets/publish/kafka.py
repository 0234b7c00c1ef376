"""Publishes to Kafka (E3): an idempotent producer that waits for all in-sync replicas, and partitions by key.

librdkafka sends in threads of its own; one thread of ours asks it for delivery reports, which resolve the calls. The
addresses that are given are resolved and checked. Kafka then names its brokers itself: they are checked before the
first message to a topic, and each minute. Between two checks the library connects to what the cluster names, with no
further check; over TLS it connects to names, because certificates have names.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage

from ondot.model.addresses import Reach
from ondot.model.broker import BrokerAddress, KafkaPlace, Place
from ondot.ports.publisher import Answer, Message, Receipt, Refusal
from ondot.targets.addresses import PrivateAddress, UnknownHost, resolve_allowed
from ondot.targets.publish.answers import (
    CONNECT_WITHIN_S,
    NotConnected,
    bad_credentials,
    not_acknowledged,
    not_connected,
    over_time,
)
from ondot.targets.text import one_line

LONGEST_S: Final = 30.0
"""How long librdkafka tries to deliver a message. A message that was given up must not arrive much later."""
CHECKED_S: Final = 60.0
POLL_S: Final = 0.1
MOST_BYTES: Final = 64 * 1024 * 1024
"""Larger than any payload: the broker's own limit decides."""

_UNKNOWN: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION})
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
_REFUSED: Final = frozenset(
    {KafkaError.INVALID_RECORD, KafkaError.POLICY_VIOLATION, KafkaError.NOT_ENOUGH_REPLICAS, KafkaError._QUEUE_FULL}
)
"""It is certain that the message was not stored."""


class _Client:
    """One producer and the thread that asks it for reports."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.denied: str | None = None
        self.error: str | None = None
        self.is_broken = False
        self.producer = Producer({**settings, "error_cb": self._note})
        self._is_closing = False
        self._thread = threading.Thread(target=self._poll, name="kafka publisher", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._is_closing:
            self.producer.poll(POLL_S)

    def _note(self, error: KafkaError) -> None:
        if error.code() in _DENIED:
            self.denied = error.str()
        self.error = error.str()
        self.is_broken = self.is_broken or error.fatal()

    def close(self) -> None:
        """Blocks for a moment."""
        self._is_closing = True
        self._thread.join(1)
        self.producer.purge()
        self.producer.flush(0.1)


class KafkaPublisher:
    def __init__(self, address: BrokerAddress, reach: Reach) -> None:
        self._address = address
        self._reach = reach
        self._client: _Client | None = None
        self._checked: dict[str, float] = {}
        """Topics whose brokers were checked, and until when that counts."""
        self._opening = asyncio.Lock()

    async def publish(self, place: Place, messages: Sequence[Message], *, within_s: float) -> list[Answer]:
        assert isinstance(place, KafkaPlace)
        try:
            async with asyncio.timeout(within_s):
                client = await self._open(place.topic, within_s)
        except TimeoutError:
            return [over_time(self._address, place, within_s, was_sent=False) for _ in messages]
        except NotConnected as error:
            return [error.refusal for _ in messages]
        return list(await asyncio.gather(*(self._produce(client, place, each, within_s) for each in messages)))

    async def check(self, *, within_s: float) -> Refusal | None:
        try:
            async with asyncio.timeout(within_s):
                await self._open(None, within_s)
        except TimeoutError as error:
            return not_connected(self._address, error, within_s)
        except NotConnected as error:
            return error.refusal
        return None

    async def close(self) -> None:
        client, self._client = self._client, None
        self._checked.clear()
        if client is not None:
            await asyncio.to_thread(client.close)

    async def _produce(self, client: _Client, place: KafkaPlace, message: Message, within_s: float) -> Answer:
        loop = asyncio.get_running_loop()
        reported: asyncio.Future[tuple[KafkaError | None, KafkaMessage]] = loop.create_future()

        def settle(report: tuple[KafkaError | None, KafkaMessage]) -> None:
            if not reported.done():
                reported.set_result(report)

        def on_delivery(error: KafkaError | None, delivered: KafkaMessage) -> None:
            """In the thread of the reports."""
            try:
                loop.call_soon_threadsafe(settle, (error, delivered))
            except RuntimeError:
                return  # the loop has ended

        try:
            client.producer.produce(
                place.topic,
                value=message.body,
                key=message.key,
                headers=[(name, value.encode()) for name, value in message.headers.items()],
                on_delivery=on_delivery,
            )
        except BufferError:
            return Refusal("publish_refused", f"Too many messages wait for {self._address}. Nothing was sent.")
        except KafkaException as failure:
            return self._refused(client, place, failure.args[0])
        try:
            async with asyncio.timeout(within_s):
                error, delivered = await reported
        except TimeoutError:
            return over_time(self._address, place, within_s, was_sent=True)
        if error is not None:
            return self._refused(client, place, error)
        return Receipt({"topic": delivered.topic(), "partition": delivered.partition(), "offset": delivered.offset()})

    def _refused(self, client: _Client, place: KafkaPlace, error: KafkaError) -> Refusal:
        code, words = error.code(), error.str()
        if error.fatal():
            client.is_broken = True
        if code in _UNKNOWN:
            message = f"{self._address} has no topic {place.topic}: {words}. Create it, or allow that it is created."
            return Refusal("unknown_topic", one_line(message), is_retryable=False)
        if code in _TOO_LARGE:
            message = f"The message is too large for {self._address}: {words}."
            return Refusal("too_large", one_line(message), is_retryable=False)
        if code in _DENIED or client.denied is not None:
            return bad_credentials(self._address, client.denied or words)
        if code in _REFUSED:
            return Refusal("publish_refused", one_line(f"{self._address} refused the message to {place}: {words}."))
        return not_acknowledged(self._address, place, words)

    async def _open(self, topic: str | None, within_s: float) -> _Client:
        """The client, whose brokers are known and were checked."""
        async with self._opening:
            if self._client is not None and self._client.is_broken:
                await self.close()
            if self._client is None:
                self._client = _Client(await self._settings())
            client = self._client
            if topic is None or self._checked.get(topic, 0.0) < time.monotonic():
                await self._check_brokers(client, topic, min(within_s, CONNECT_WITHIN_S))
            return client

    async def _settings(self) -> dict[str, Any]:
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                resolved = [
                    (server, await resolve_allowed(self._reach, server.host, server.port)) for server in address.servers
                ]
        except (PrivateAddress, UnknownHost, TimeoutError) as error:
            raise NotConnected(not_connected(address, error)) from error
        # A certificate has the name, so TLS needs it.
        places = [str(server) for server, _ in resolved]
        if not address.tls:
            hosts = [(host, server.port) for server, found in resolved for host in found]
            places = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts]
        has_login = address.username is not None
        settings: dict[str, Any] = {
            "bootstrap.servers": ",".join(places),
            "client.id": "ondot",
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 1,
            "message.timeout.ms": round(LONGEST_S * 1000),
            "message.max.bytes": MOST_BYTES,
            "topic.metadata.propagation.max.ms": 5_000,
            "socket.connection.setup.timeout.ms": round(CONNECT_WITHIN_S * 1000),
            "security.protocol": f"{'SASL_' if has_login else ''}{'SSL' if address.tls else 'PLAINTEXT'}",
            "log_level": 0,
        }
        if has_login:
            settings |= {
                "sasl.mechanism": address.mechanism,
                "sasl.username": address.username,
                "sasl.password": address.password or "",
            }
        pems = {"ca": address.ca, "certificate": address.certificate, "key": address.private_key}
        return settings | {f"ssl.{name}.pem": pem for name, pem in pems.items() if pem is not None}

    async def _check_brokers(self, client: _Client, topic: str | None, within_s: float) -> None:
        """Ask for the brokers of a topic, which connects and logs in, and check where they are."""
        address = self._address
        try:
            ask = partial(client.producer.list_topics, timeout=within_s)
            found = await asyncio.to_thread(ask if topic is None else partial(ask, topic))
        except KafkaException as failure:
            if client.denied is not None:
                denied = client.denied
                await self.close()  # it would not try another time
                raise NotConnected(bad_credentials(address, denied)) from failure
            words = client.error or failure.args[0].str()
            raise NotConnected(Refusal("connect", one_line(f"No connection to {address}: {words}"))) from failure
        for broker in found.brokers.values():
            try:
                await resolve_allowed(self._reach, broker.host, broker.port)
            except (PrivateAddress, UnknownHost) as error:
                await self.close()
                raise NotConnected(not_connected(address, error)) from error
        if topic is not None:
            if len(self._checked) >= 1_000:
                self._checked.clear()
            self._checked[topic] = time.monotonic() + CHECKED_S
