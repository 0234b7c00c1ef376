"""Wake-ups through NATS (C4): a subject for each pool, without JetStream. A message that nobody hears is gone, which is
what a hint needs.

One connection publishes, another listens. The client's own reconnecting is off: it keeps messages meanwhile, and would
send hints that are long over.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

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
    from nats.aio.client import Client
    from nats.aio.msg import Msg

ANSWERS_WITHIN_S = 1.0
CONNECTS_WITHIN_S = 3.0


class NatsTransport:
    name = "nats"

    def __init__(self, database: Database) -> None:
        """Raises Misconfigured without an address, or without the client."""
        with needs_extra("nats", "The transport nats"):
            import nats  # noqa: F401
        self._database = database
        if database.settings.nats_url is None:
            raise Misconfigured("The transport nats needs its server: set ONDOT_NATS_URL")
        self._url = database.settings.nats_url
        self._prefix = f"{database.settings.transport_prefix}.wake"
        self._publishing: _Connection | None = None
        self._opening = asyncio.Lock()

    async def publish(self, wakes: Sequence[Wake]) -> None:
        await self._send([(wake.pool_no, encode_wake(wake)) for wake in wakes])

    async def beat(self, beat: Beat, pool_nos: Sequence[PoolNo]) -> None:
        await self._send([(pool_no, encode_beat(beat, pool_no)) for pool_no in pool_nos])

    async def _send(self, messages: Sequence[tuple[PoolNo, bytes]]) -> None:
        connection = None
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                connection = await self._to_publish()
                for pool_no, body in messages:
                    await connection.client.publish(self._subject(pool_no), body)
                await connection.is_answered()
        except BaseException:
            if connection is not None:
                if self._publishing is connection:
                    self._publishing = None
                await connection.close()
            raise

    async def _to_publish(self) -> "_Connection":
        async with self._opening:
            if self._publishing is None or self._publishing.lost.is_set():
                self._publishing = await _connect(self._url, f"{self._prefix} publisher")
            return self._publishing

    async def listen(self, pool_nos: Sequence[PoolNo], on_wake: OnWake, on_beat: OnBeat) -> None:
        async def on_message(message: "Msg") -> None:
            receive(self.name, message.data, on_wake, on_beat)

        async def listen_once(on_answer: OnAnswer) -> None:
            connection = await _connect(self._url, f"{self._prefix} listener")
            try:
                for pool_no in pool_nos:
                    await connection.client.subscribe(self._subject(pool_no), cb=on_message)
                while True:
                    async with asyncio.timeout(CONNECTS_WITHIN_S):
                        await connection.is_answered()
                    on_answer()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(listening.CHECK_EVERY_S):
                            await connection.lost.wait()
            finally:
                await connection.close()

        await keep_listening(self.name, self._database, listen_once)

    def _subject(self, pool_no: PoolNo) -> str:
        return f"{self._prefix}.{pool_no}"

    async def close(self) -> None:
        connection, self._publishing = self._publishing, None
        if connection is not None:
            await connection.close()


class _Connection:
    """A client, when it was lost, and what the server has refused: it reports that later, and answers pings as ever."""

    def __init__(self) -> None:
        self.client: Client
        self.lost = asyncio.Event()
        self.refused: Exception | None = None

    async def on_closed(self) -> None:
        self.lost.set()

    async def on_error(self, error: Exception) -> None:
        self.refused = error

    async def is_answered(self) -> None:
        """The server has received all that was sent, and refused nothing. The caller's deadline bounds the wait."""
        # The first ping of the client overtakes messages that it has yet to write, the second is behind them.
        for _ in range(2):
            await self.client.flush(timeout=CONNECTS_WITHIN_S)  # type: ignore[arg-type]  # seconds, also parts of one
        if self.refused is not None:
            raise self.refused

    async def close(self) -> None:
        """A server that is frozen takes no more bytes, which closing would wait for."""
        with suppress(Exception):
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                await self.client.close()


async def _connect(url: str, name: str) -> _Connection:
    from nats.aio.client import Client

    connection = _Connection()
    connection.client = Client()
    try:
        async with asyncio.timeout(CONNECTS_WITHIN_S):
            await connection.client.connect(
                [part.strip() for part in url.split(",")],
                name=name,
                allow_reconnect=False,
                closed_cb=connection.on_closed,
                error_cb=connection.on_error,
            )
    except BaseException:
        await connection.close()  # a server that is frozen accepts the connection, and says nothing
        raise
    connection.refused = None  # of other servers, or of other tries
    return connection
