"""Publishes to RabbitMQ (E3): persistent, mandatory messages, each confirmed by the server.

One connection, and a channel for each exchange: the server closes a channel for an unknown exchange, and messages to
others must not end with it. A message that no queue takes comes back, and fails with a clear error. A server with a
memory or disk alarm reads nothing: once it has said so, a message fails without being sent.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import aiormq
from aiormq.abc import AbstractChannel
from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    ProbableAuthenticationError,
    PublishError,
)
from pamqp.commands import Basic
from yarl import URL

from ondot.model.addresses import Reach
from ondot.model.broker import BrokerAddress, Place, RabbitMQPlace
from ondot.ports.publisher import Answer, Message, Receipt, Refusal
from ondot.targets.addresses import PrivateAddress, UnknownHost, resolve_allowed
from ondot.targets.publish.answers import (
    CONNECT_WITHIN_S,
    NotConnected,
    bad_credentials,
    close_within,
    not_acknowledged,
    not_connected,
    over_time,
    tls_context,
)
from ondot.targets.text import one_line

HEARTBEAT_S: Final = 5
"""A server that is silent is given up after three of them."""
_PERSISTENT: Final = 2


class RabbitMQPublisher:
    def __init__(self, address: BrokerAddress, reach: Reach) -> None:
        self._address = address
        self._reach = reach
        self._connection: aiormq.Connection | None = None
        self._channels: dict[str, AbstractChannel] = {}
        self._opening = asyncio.Lock()

    async def publish(self, place: Place, messages: Sequence[Message], *, within_s: float) -> list[Answer]:
        assert isinstance(place, RabbitMQPlace)
        return list(await asyncio.gather(*(self._publish(place, message, within_s) for message in messages)))

    async def check(self, *, within_s: float) -> Refusal | None:
        try:
            async with asyncio.timeout(within_s):
                await self._open()
        except TimeoutError as error:
            return not_connected(self._address, error, within_s)
        except NotConnected as error:
            return error.refusal
        return None

    async def close(self) -> None:
        self._channels.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_within(connection.close())

    async def _publish(self, place: RabbitMQPlace, message: Message, within_s: float) -> Answer:
        was_sent = False
        try:
            async with asyncio.timeout(within_s):
                channel = await self._channel(place.exchange)
                was_sent = True
                await channel.basic_publish(
                    message.body,
                    exchange=place.exchange,
                    routing_key=place.routing_key,
                    mandatory=True,
                    properties=_properties(place, message),
                )
        except TimeoutError:
            return self._over_time(place, within_s, was_sent=was_sent)
        except NotConnected as error:
            return error.refusal
        except (AMQPError, OSError, RuntimeError, asyncio.InvalidStateError) as error:
            return self._refused(place, error)
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            return not_acknowledged(self._address, place, "the connection broke")  # aiormq cancels its own tasks
        return Receipt({"exchange": place.exchange, "routing_key": place.routing_key, "confirmed": True})

    def _over_time(self, place: RabbitMQPlace, within_s: float, *, was_sent: bool) -> Refusal:
        refusal = over_time(self._address, place, within_s, was_sent=was_sent)
        connection = self._connection
        if was_sent or connection is None or connection.is_closed:
            return refusal
        why = f"{self._address} takes no messages: it has a memory or disk alarm. Nothing was sent."
        return Refusal("timeout", one_line(why))

    def _refused(self, place: RabbitMQPlace, error: BaseException) -> Refusal:
        match error:
            case PublishError():
                message = f"No queue takes the message: {self._address} has no binding for {place}."
                return Refusal(
                    "unroutable", one_line(f"{message} Create the queue or the binding."), is_retryable=False
                )
            case DeliveryError():
                why = "the queue is full, or could not store it"
                return Refusal("publish_refused", one_line(f"{self._address} refused the message to {place}: {why}."))
            case ChannelNotFoundEntity():
                words = f"{self._address} has no exchange {place.exchange!r}: create it. {_words(error)}"
                return Refusal("unroutable", one_line(words), is_retryable=False)
            case ChannelAccessRefused():
                return bad_credentials(self._address, _words(error))
            case ChannelPreconditionFailed() if "size" in _words(error):
                words = f"The message is too large for {self._address}: {_words(error)}"
                return Refusal("too_large", one_line(words), is_retryable=False)
        return not_acknowledged(self._address, place, f"the connection broke ({_words(error)})")

    async def _channel(self, exchange: str) -> AbstractChannel:
        connection = await self._open()
        await connection.ready()  # until there is no alarm
        async with self._opening:
            channel = self._channels.get(exchange)
            if channel is None or channel.is_closed:
                try:
                    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
                except (AMQPError, OSError, RuntimeError) as error:
                    raise NotConnected(not_connected(self._address, error)) from error
                self._channels[exchange] = channel
        return channel

    async def _open(self) -> aiormq.Connection:
        async with self._opening:
            if self._connection is None or self._connection.is_closed:
                self._channels.clear()
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> aiormq.Connection:
        address = self._address
        [server] = address.servers
        error: BaseException = UnknownHost(f"The name {server.host} has no address.")
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                for host in await resolve_allowed(self._reach, server.host, server.port):
                    try:
                        return await self._connect_to(host)
                    except (ProbableAuthenticationError, AuthenticationError) as denied:
                        raise NotConnected(bad_credentials(address, _words(denied))) from denied
                    except (AMQPError, OSError) as failed:
                        error = failed
        except (PrivateAddress, UnknownHost, TimeoutError) as failed:
            error = failed
        inner = error.__cause__ if isinstance(error, AMQPError) and error.__cause__ is not None else error
        raise NotConnected(not_connected(address, inner)) from error

    async def _connect_to(self, host: str) -> aiormq.Connection:
        address = self._address
        [server] = address.servers
        url = URL.build(
            scheme="amqps" if address.tls else "amqp",
            user=address.username or "guest",
            password=address.password or "guest",
            host=host,
            port=server.port,
            path=f"/{address.path}",
            query={"heartbeat": str(HEARTBEAT_S), "name": "ondot"},
        )
        options: dict[str, Any] = {"server_hostname": server.host} if address.tls else {}
        connection = aiormq.Connection(url, context=tls_context(address) if address.tls else None, **options)
        try:
            await connection.connect()
        except BaseException:
            await close_within(connection.close())
            raise
        return connection


def _properties(place: RabbitMQPlace, message: Message) -> Basic.Properties:
    return Basic.Properties(
        content_type="application/json",
        delivery_mode=_PERSISTENT,
        priority=place.priority,
        headers=dict(message.headers),
        message_id=message.headers.get("webhook-id"),
    )


def _words(error: BaseException) -> str:
    return one_line(" ".join(str(part) for part in error.args)) or type(error).__name__
