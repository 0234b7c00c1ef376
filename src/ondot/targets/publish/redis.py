"""Publishes to Redis (E3): entries of a stream, elements at the end of a list, messages of a channel.

A stream's entry has the headers as fields, and the body as `payload`. A list and a channel carry one JSON object with
the same names. A batch is one pipeline on one connection. A channel keeps nothing: its receipt says how many received
the message.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from redis.asyncio.connection import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError

from ondot.model.addresses import Reach
from ondot.model.broker import BrokerAddress, Place, RedisPlace
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

MAX_CONNECTIONS: Final = 8
_NO_RETRY: Final = Retry(NoBackoff(), 0)
_OF_ACCESS: Final = ("NOAUTH", "WRONGPASS", "NOPERM")
_ADVICE: Final = {
    "READONLY": "it is a replica, which takes no messages: name the primary",
    "MOVED": "it is a cluster, and the name belongs to another node: name that node",
    "CROSSSLOT": "it is a cluster: name the node that has this name",
    "WRONGTYPE": "this name holds a value of another type: choose another name",
    "OOM": "it has reached its maxmemory: free memory, or let the stream have a max_length",
}
_FOR_GOOD: Final = frozenset({"MOVED", "CROSSSLOT", "WRONGTYPE", *_OF_ACCESS})


class _Checked(Connection):
    """Connects to the address that was checked, and compares the certificate with the name."""

    def __init__(self, arguments: Mapping[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self._arguments = arguments

    def _connection_arguments(self) -> Mapping[str, Any]:
        return self._arguments


class RedisPublisher:
    def __init__(self, address: BrokerAddress, reach: Reach) -> None:
        self._address = address
        self._reach = reach
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: list[_Checked] = []

    async def publish(self, place: Place, messages: Sequence[Message], *, within_s: float) -> list[Answer]:
        assert isinstance(place, RedisPlace)
        answers: list[Answer] = []
        was_sent = False
        refusal: Refusal
        try:
            async with asyncio.timeout(within_s), self._connection() as connection:
                packed = connection.pack_commands([_command(place, message) for message in messages])
                was_sent = True
                await connection.send_packed_command(packed)
                for _ in messages:
                    answers.append(await self._read(connection, place))
                return answers
        except TimeoutError:
            refusal = over_time(self._address, place, within_s, was_sent=was_sent)
        except NotConnected as error:
            refusal = error.refusal
        except (RedisError, OSError) as error:
            refusal = not_acknowledged(self._address, place, f"the connection broke ({_first_line(error)})")
        return [*answers, *[refusal] * (len(messages) - len(answers))]

    async def check(self, *, within_s: float) -> Refusal | None:
        try:
            async with asyncio.timeout(within_s), self._connection() as connection:
                await connection.send_command("PING")
                await connection.read_response()
        except TimeoutError as error:
            return not_connected(self._address, error, within_s)
        except NotConnected as error:
            return error.refusal
        except ResponseError as error:
            return self._refused(str(error), "the command PING")
        except (RedisError, OSError) as error:
            return not_connected(self._address, error)
        return None

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await close_within(connection.disconnect())

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[_Checked]:
        """An idle connection, or a new one. After any failure it is closed: answers may still come through it."""
        async with self._room:
            connection = await self._take_idle() or await self._connect()
            try:
                yield connection
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            self._idle.append(connection)

    async def _take_idle(self) -> _Checked | None:
        while self._idle:
            connection = self._idle.pop()
            try:
                if not await connection.can_read_destructive():  # type: ignore[no-untyped-call]
                    return connection
            except (RedisError, OSError):
                pass
            await connection.disconnect(nowait=True)  # the server has closed it
        return None

    async def _connect(self) -> _Checked:
        address = self._address
        [server] = address.servers
        error: Exception
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                hosts = await resolve_allowed(self._reach, server.host, server.port)
                for tries_left, host in zip(reversed(range(len(hosts))), hosts, strict=True):
                    try:
                        return await self._connect_to(host)
                    except RedisError as failure:
                        if not tries_left or isinstance(failure, AuthenticationError):
                            raise
        except (AuthenticationError, AuthorizationError, NoPermissionError) as denied:
            raise NotConnected(bad_credentials(address, _first_line(denied))) from denied
        except ResponseError as answered:
            raise NotConnected(self._refused(str(answered), "the login")) from answered
        except (RedisError, PrivateAddress, UnknownHost, OSError) as failed:
            error = failed
        else:
            error = UnknownHost(f"The name {server.host} has no address.")
        inner = error.__cause__ or error.__context__ if isinstance(error, RedisError) else error
        raise NotConnected(not_connected(address, inner or error)) from error

    async def _connect_to(self, host: str) -> _Checked:
        address = self._address
        [server] = address.servers
        arguments: dict[str, Any] = {"host": host, "port": server.port}
        if address.tls:
            arguments |= {"ssl": tls_context(address), "server_hostname": server.host}
        connection = _Checked(
            arguments,
            host=server.host,
            port=server.port,
            db=int(address.path or 0),
            username=address.username,
            password=address.password,
            retry=_NO_RETRY,
            client_name="ondot",
        )
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _read(self, connection: _Checked, place: RedisPlace) -> Answer:
        try:
            answer = await connection.read_response()
        except ResponseError as error:
            return self._refused(str(error), f"the message to {place}")
        if place.stream is not None:
            return Receipt({"stream": place.stream, "id": answer.decode()})
        if place.list is not None:
            return Receipt({"list": place.list, "length": answer})
        return Receipt({"channel": place.channel, "receivers": answer})

    def _refused(self, text: str, what: str) -> Refusal:
        """An error that Redis answered: the message is not stored."""
        code = text.partition(" ")[0]
        if code in _OF_ACCESS:
            return bad_credentials(self._address, text)
        advice = f" ({_ADVICE[code]})" if code in _ADVICE else ""
        message = one_line(f"{self._address} refused {what}: {text}{advice}.")
        return Refusal("publish_refused", message, is_retryable=code not in _FOR_GOOD)


def _command(place: RedisPlace, message: Message) -> tuple[Any, ...]:
    if place.stream is not None:
        limit = () if place.max_length is None else ("MAXLEN", "~", place.max_length)
        fields = [part for pair in message.headers.items() for part in pair]
        return ("XADD", place.stream, *limit, "*", *fields, "payload", message.body)
    body = msgspec.json.encode({**message.headers, "payload": msgspec.Raw(message.body)})
    return ("RPUSH", place.list, body) if place.list is not None else ("PUBLISH", place.channel, body)


def _first_line(error: BaseException) -> str:
    return one_line(str(error)) or type(error).__name__
