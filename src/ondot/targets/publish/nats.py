"""Publishes to NATS (E3). If the subject belongs to a stream of JetStream, the stream acknowledges the message and
keeps it; otherwise the server has received it and keeps nothing, and the receipt says so.

A stream recognises a message by its id, which is the execution's: a retry within its window (2 minutes, unless the
stream says otherwise) adds no duplicate. The client never connects to servers that others advertise: only addresses
that were checked are connected to.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import ConnectionClosedError, Error, MaxPayloadError, NoServersError
from nats.js.errors import APIError, NotFoundError

from ondot.model.addresses import Reach
from ondot.model.broker import BrokerAddress, NatsPlace, Place
from ondot.ports.publisher import Answer, Message, Receipt, Refusal
from ondot.targets.addresses import PrivateAddress, UnknownHost, resolve_allowed
from ondot.targets.publish.answers import (
    CLOSE_WITHIN_S,
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

STREAM_KNOWN_S: Final = 10.0
PING_EVERY_S: Final = 5
_STREAM_WITHIN_S: Final = 5.0
_VIOLATION: Final = re.compile(r"permissions violation for publish to \"([^\"]*)\"", re.IGNORECASE)
_MOST_DENIED: Final = 1_000
_LOOK_EVERY_S: Final = 0.2
"""A wait for an answer does not end with its connection."""
_LONG_S: Final = 86_400
"""The deadline is the caller's."""


class NatsPublisher:
    def __init__(self, address: BrokerAddress, reach: Reach) -> None:
        self._address = address
        self._reach = reach
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._streams: dict[str, tuple[float, str | None]] = {}
        """The stream of each subject, and until when that is believed."""
        self._flushes: set[asyncio.Future[None]] = set()
        self._denied: dict[str, str] = {}
        """Subjects that the user may not publish to: the server says so beside its answers."""

    async def publish(self, place: Place, messages: Sequence[Message], *, within_s: float) -> list[Answer]:
        assert isinstance(place, NatsPlace)
        was_sent = False
        answers: list[Answer] = []
        refusal: Refusal
        try:
            async with asyncio.timeout(within_s):
                client = await self._open()
                stream = await self._stream_of(client, place.subject)
                was_sent = True
                if stream is not None:
                    return list(await asyncio.gather(*(self._to_stream(client, place, each) for each in messages)))
                answers = [await self._to_server(client, place, message) for message in messages]
                # The first ping of the client overtakes messages that it has yet to write, the second is behind them.
                await self._flush(client)
                await self._flush(client)
                if (denied := self._denied.pop(place.subject, None)) is not None:
                    return [bad_credentials(self._address, denied)] * len(messages)
                return answers
        except TimeoutError:
            refusal = over_time(self._address, place, within_s, was_sent=was_sent)
            if (denied := self._denied.pop(place.subject, None)) is not None:
                refusal = bad_credentials(self._address, denied)
        except NotConnected as error:
            refusal = error.refusal
        except (Error, OSError) as error:
            refusal = not_acknowledged(self._address, place, f"the connection broke ({_words(error)})")
        answers += [refusal] * (len(messages) - len(answers))
        return [answer if isinstance(answer, Refusal) else refusal for answer in answers]

    async def check(self, *, within_s: float) -> Refusal | None:
        try:
            async with asyncio.timeout(within_s):
                await self._flush(await self._open())
        except TimeoutError as error:
            return not_connected(self._address, error, within_s)
        except NotConnected as error:
            return error.refusal
        except (Error, OSError) as error:
            return not_connected(self._address, error)
        return None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await close_within(client.close())
        for flush in [*self._flushes]:
            flush.cancel()

    async def _flush(self, client: Client) -> None:
        """Until the server has received all that was sent. The library breaks when its own wait is cancelled and the
        answer comes after that, so it waits on in a task."""
        flush = asyncio.ensure_future(client.flush(timeout=_LONG_S))
        self._flushes.add(flush)
        flush.add_done_callback(self._end_flush)
        while not flush.done():
            if not client.is_connected:
                raise ConnectionClosedError
            await asyncio.wait([flush], timeout=_LOOK_EVERY_S)
        await flush

    def _end_flush(self, flush: asyncio.Future[None]) -> None:
        self._flushes.discard(flush)
        if not flush.cancelled():
            flush.exception()  # asked for, so that asyncio does not log it

    async def _to_stream(self, client: Client, place: NatsPlace, message: Message) -> Answer:
        headers = dict(message.headers)
        if (id_ := headers.get("webhook-id")) is not None:
            headers["Nats-Msg-Id"] = id_
        try:
            ack = await client.jetstream().publish(place.subject, message.body, timeout=_LONG_S, headers=headers)
        except MaxPayloadError:
            return self._too_large(client, message)
        except APIError as error:
            why = error.description or _words(error)
            return Refusal("publish_refused", one_line(f"{self._address} refused the message to {place}: {why}."))
        facts: dict[str, Any] = {"subject": place.subject, "stream": ack.stream, "sequence": ack.seq}
        return Receipt({**facts, "duplicate": True} if ack.duplicate else facts)

    async def _to_server(self, client: Client, place: NatsPlace, message: Message) -> Answer:
        try:
            await client.publish(place.subject, message.body, headers=dict(message.headers) or None)
        except MaxPayloadError:
            return self._too_large(client, message)
        return Receipt({"subject": place.subject, "stream": None})

    def _too_large(self, client: Client, message: Message) -> Refusal:
        most = f"at most {client.max_payload:,} are accepted"
        words = f"The message has {len(message.body):,} bytes without its headers; by {self._address} {most}."
        return Refusal("too_large", one_line(words), is_retryable=False)

    async def _stream_of(self, client: Client, subject: str) -> str | None:
        known = self._streams.get(subject)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        stream: str | None
        try:
            async with asyncio.timeout(_STREAM_WITHIN_S):
                stream = await client.jetstream().find_stream_name_by_subject(subject)
        except NotFoundError:
            stream = None
        except (APIError, Error, TimeoutError):
            # Without JetStream, or without the right to ask. A closed connection fails at the publish.
            stream = None
        if len(self._streams) >= 1_000:
            self._streams.clear()
        self._streams[subject] = time.monotonic() + STREAM_KNOWN_S, stream
        return stream

    async def _open(self) -> Client:
        async with self._opening:
            if self._client is None or not self._client.is_connected:
                await self.close()
                self._streams.clear()
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> Client:
        address = self._address
        [server] = address.servers
        error: BaseException = UnknownHost(f"The name {server.host} has no address.")
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                for host in await resolve_allowed(self._reach, server.host, server.port):
                    try:
                        return await self._connect_to(host)
                    except NoServersError as failed:
                        error = failed.__cause__ or failed.__context__ or failed
                    except (Error, OSError) as failed:
                        error = failed
                    if "authorization" in _words(error).lower():
                        raise NotConnected(bad_credentials(address, _words(error))) from error
        except (PrivateAddress, UnknownHost, TimeoutError) as failed:
            error = failed
        raise NotConnected(not_connected(address, error)) from error

    async def _connect_to(self, host: str) -> Client:
        address = self._address
        [server] = address.servers
        place = f"[{host}]" if ":" in host else host
        options: dict[str, Any] = {}
        if address.tls:
            options |= {"tls": tls_context(address), "tls_hostname": server.host}

        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def note(error: Exception) -> None:
            """The library tries a refused connection again and again, whatever its options say: the first failure
            counts. Later ones come back from the calls that meet them."""
            if not failed.done():
                failed.set_exception(error)
            elif (found := _VIOLATION.search(str(error))) is not None and len(self._denied) < _MOST_DENIED:
                self._denied[found[1]] = _words(error)

        client = Client()
        connecting = asyncio.ensure_future(
            client.connect(
                f"{'tls' if address.tls else 'nats'}://{place}:{server.port}",
                name="ondot",
                user=address.username,
                password=address.password,
                allow_reconnect=False,
                connect_timeout=round(CONNECT_WITHIN_S),
                ping_interval=PING_EVERY_S,
                max_outstanding_pings=2,
                error_cb=note,
                **options,
            )
        )
        try:
            await asyncio.wait([connecting, failed], return_when=asyncio.FIRST_COMPLETED)
            await (failed if failed.done() else connecting)
        except BaseException:
            connecting.cancel()
            await asyncio.wait([connecting], timeout=CLOSE_WITHIN_S)
            if connecting.done() and not connecting.cancelled():
                connecting.exception()  # asked for, so that asyncio does not log it
            await close_within(client.close())
            raise
        finally:
            if not failed.done():
                failed.set_result(None)
        return client


def _words(error: BaseException) -> str:
    return one_line(str(error)) or type(error).__name__
