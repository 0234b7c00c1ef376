"""The clients of all brokers that this process publishes to (E3): one for each address, credentials and reach.

A client is closed a minute after its last use. Credentials that change make another client: the old one is closed when
it is idle.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, assert_never

from ondot.extras import needs_extra
from ondot.model.addresses import Reach
from ondot.model.broker import BrokerAddress
from ondot.ports.publisher import Publisher

KEPT_S: Final = 60.0


@dataclass(slots=True)
class _Client:
    publisher: Publisher
    uses: int = 0
    closing: asyncio.TimerHandle | None = None


class OpenPublishers:
    """Implements `ports.publisher.Publishers`."""

    def __init__(self, *, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._clients: dict[tuple[BrokerAddress, Reach], _Client] = {}
        self._closes: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def use(self, address: BrokerAddress, reach: Reach) -> AsyncIterator[Publisher]:
        key = address, reach
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _Client(open_publisher(address, reach))
        if client.closing is not None:
            client.closing.cancel()
            client.closing = None
        client.uses += 1
        try:
            yield client.publisher
        finally:
            client.uses -= 1
            if not client.uses and self._clients.get(key) is client:
                client.closing = asyncio.get_running_loop().call_later(self._kept_s, self._close_idle, key)

    async def close(self) -> None:
        clients = [*self._clients.values()]
        self._clients.clear()
        for client in clients:
            if client.closing is not None:
                client.closing.cancel()
        await asyncio.gather(*(client.publisher.close() for client in clients), *self._closes)

    def _close_idle(self, key: tuple[BrokerAddress, Reach]) -> None:
        task = asyncio.get_running_loop().create_task(self._clients.pop(key).publisher.close())
        self._closes.add(task)
        task.add_done_callback(self._closes.discard)


def open_publisher(address: BrokerAddress, reach: Reach) -> Publisher:
    """It connects at its first use. Raises Misconfigured if its package is not installed."""
    with needs_extra(address.kind, f"To publish to {address.kind}"):
        match address.kind:
            case "redis":
                from ondot.targets.publish.redis import RedisPublisher

                return RedisPublisher(address, reach)
            case "kafka":
                from ondot.targets.publish.kafka import KafkaPublisher

                return KafkaPublisher(address, reach)
            case "rabbitmq":
                from ondot.targets.publish.rabbitmq import RabbitMQPublisher

                return RabbitMQPublisher(address, reach)
            case "nats":
                from ondot.targets.publish.nats import NatsPublisher

                return NatsPublisher(address, reach)
            case _:
                assert_never(address.kind)
