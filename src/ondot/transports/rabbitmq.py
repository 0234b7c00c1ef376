"""Wake-ups through RabbitMQ (C4): a topic exchange, and for each process that listens an exclusive queue of its own,
bound to its pools.

It goes with its connection, so nothing piles up for a process that is gone; a process that connects again, to another
broker of a cluster too, makes another one. A quorum queue would survive its broker for nobody, and one that was made
just before a `kill -9` came back broken in RabbitMQ 3.10 and held up every confirm. Publishing waits for the broker's
confirm. A broker that is short of memory or disk stops reading from publishers, so publishing has a
deadline and fails by it.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from ondot.extras import needs_extra
from ondot.model.beats import Beat
from ondot.model.errors import Misconfigured
from ondot.model.ids import PoolNo
from ondot.ports.transport import OnBeat, OnWake, Wake
from ondot.store.database import Database
from ondot.transports import listening
from ondot.transports.listening import OnAnswer, keep_listening
from ondot.transports.wire import encode_beat, encode_wake, receive

if TYPE_CHECKING:
    from aio_pika.abc import (
        AbstractConnection,
        AbstractExchange,
        AbstractIncomingMessage,
        AbstractQueue,
    )

ANSWERS_WITHIN_S: Final = 1.0
CONNECTS_WITHIN_S: Final = 5.0
HEARTBEAT_S: Final = 10
QUEUE: Final[Mapping[str, str | int]] = {
    "x-message-ttl": 10_000,
    "x-max-length": 10_000,
    "x-max-priority": 1,
}
"""Times in ms. Messages that do not fit push out the oldest."""
URGENT, NORMAL = 1, 0


class RabbitmqTransport:
    name = "rabbitmq"

    def __init__(self, database: Database) -> None:
        """Raises Misconfigured without an address, or without the client."""
        with needs_extra("rabbitmq", "The transport rabbitmq"):
            import aio_pika  # noqa: F401
        self._database = database
        if database.settings.rabbitmq_url is None:
            raise Misconfigured("The transport rabbitmq needs its server: set ONDOT_RABBITMQ_URL")
        self._url = database.settings.rabbitmq_url
        self.place = f"{database.settings.transport_prefix}.wake"
        self._publisher: _Publisher | None = None
        self._opening = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    async def publish(self, wakes: Sequence[Wake]) -> None:
        now = self._database.clock.now()
        await self._send(
            [(wake.pool_no, encode_wake(wake), URGENT if wake.ready_at <= now else NORMAL) for wake in wakes]
        )

    async def beat(self, beat: Beat, pool_nos: Sequence[PoolNo]) -> None:
        """Below urgent hints, beside the others: it must not overtake any."""
        await self._send([(pool_no, encode_beat(beat, pool_no), NORMAL) for pool_no in pool_nos])

    async def _send(self, messages: Sequence[tuple[PoolNo, bytes, int]]) -> None:
        from aio_pika import Message

        publisher = None
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                publisher = await self._to_publish()
                exchange = publisher.exchange
                await asyncio.gather(
                    *(
                        exchange.publish(Message(body, priority=priority), str(pool_no), mandatory=False)
                        for pool_no, body, priority in messages
                    )
                )
        except BaseException:
            # A broker that blocks publishers keeps what was written, and would send it much later.
            if publisher is not None:
                if self._publisher is publisher:
                    self._publisher = None
                closing = asyncio.create_task(_close(publisher.connection))  # whose goodbye may wait for its deadline
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            raise

    async def _to_publish(self) -> "_Publisher":
        async with self._opening:
            if self._publisher is None or self._publisher.connection.is_closed:
                connection = await _connect(self._url, f"{self.place} publisher")
                try:
                    channel = await connection.channel(publisher_confirms=True)
                    exchange = await channel.declare_exchange(self.place, "topic", durable=True)
                except BaseException:
                    await _close(connection)
                    raise
                self._publisher = _Publisher(connection, exchange)
            return self._publisher

    async def listen(self, pool_nos: Sequence[PoolNo], on_wake: OnWake, on_beat: OnBeat) -> None:
        async def on_message(message: "AbstractIncomingMessage") -> None:
            receive(self.name, message.body, on_wake, on_beat)

        async def listen_once(on_answer: OnAnswer) -> None:
            connection = await _connect(self._url, f"{self.place} listener")
            try:
                queue_name = f"{self.place}.{uuid4()}"  # each time a new one: a cluster may have lost the old one
                channel = await connection.channel(publisher_confirms=False)
                lost = asyncio.Event()
                channel.close_callbacks.add(lambda *_: lost.set())
                underlay = await channel.get_underlay_channel()
                underlay.on_consumer_cancel_callbacks.add(lambda *_: lost.set())  # its queue was deleted

                async def bind() -> "AbstractQueue":
                    """All of it again and again: a person may have deleted the exchange, and another process made it
                    again, without our bindings."""
                    async with asyncio.timeout(CONNECTS_WITHIN_S):
                        exchange = await channel.declare_exchange(self.place, "topic", durable=True)
                        queue = await channel.declare_queue(queue_name, exclusive=True, arguments={**QUEUE})
                        for pool_no in pool_nos:
                            await queue.bind(exchange, str(pool_no))
                    return queue

                await (await bind()).consume(on_message, no_ack=True)
                while not lost.is_set():
                    on_answer()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(listening.CHECK_EVERY_S):
                            await lost.wait()
                            break
                    await bind()
                raise ConnectionError("the connection or the queue is gone")
            finally:
                await _close(connection)

        await keep_listening(self.name, self._database, listen_once)

    async def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await _close(publisher.connection)
        await asyncio.gather(*self._closing)


@dataclass(frozen=True, slots=True)
class _Publisher:
    connection: "AbstractConnection"
    exchange: "AbstractExchange"


async def _connect(url: str, name: str) -> "AbstractConnection":
    from aio_pika import Connection
    from yarl import URL

    for library in ("aiormq", "aio_pika"):  # they log each failed connection; `transport.away` says it once
        logging.getLogger(library).setLevel(logging.CRITICAL)
    address = URL(url)
    if "heartbeat" not in address.query:
        address = address.update_query(heartbeat=str(HEARTBEAT_S))
    connection = Connection(address, client_properties={"connection_name": name})
    try:
        async with asyncio.timeout(CONNECTS_WITHIN_S):
            await connection.connect()
    except BaseException:
        await _close(connection)
        raise
    return connection


async def _close(connection: "AbstractConnection") -> None:
    """A broker that is frozen, or blocks publishers, does not answer the goodbye."""
    with suppress(Exception):
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            await connection.close()
