"""Wake-ups over Redis (C4, C5): a stream for each pool, which every process that listens for the pool reads.

A listener remembers the last entry that it read of each stream, so a short disconnect loses nothing. Streams are
trimmed to their newest entries, and expire when no beat comes any more. If Redis is emptied, or comes back without its
data, workers notice the gap in the beats and poll (`model.beats`). All streams of an installation have one hash tag, so
that in a cluster one command reads them all.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from ondot.model.beats import Beat
from ondot.model.errors import Misconfigured
from ondot.model.ids import PoolNo
from ondot.model.redis_urls import parse_redis_url
from ondot.ports.transport import OnBeat, OnWake, Wake
from ondot.store.database import Database
from ondot.transports.listening import OnAnswer, keep_listening
from ondot.transports.redis_client import close_redis, open_redis
from ondot.transports.wire import encode_beat, encode_wake, receive

KEPT: Final = 1000
"""Entries of a stream, about: what a listener may miss and still read later."""
EXPIRES_S: Final = 3600
"""A stream without a beat for this long is of a pool that uses it no more."""
ANSWERS_WITHIN_S: Final = 1.0
"""A frozen Redis must not delay the hints of other transports for long."""
BLOCKED_MS: Final = 1000
"""How long a read waits for an entry: twice the time between two beats."""
AT_ONCE: Final = 200
FIELD: Final = b"m"
FROM_THE_BEGINNING: Final = b"0-0"

Id = bytes


class RedisTransport:
    name = "redis"

    def __init__(self, database: Database) -> None:
        """Raises Misconfigured without an address, or without the client."""
        settings = database.settings
        if settings.redis_url is None:
            raise Misconfigured(f"The transport redis needs its server: set {settings.missing_for(self.name)}")
        self._address = parse_redis_url(settings.redis_url)
        self._database = database
        self._prefix = settings.transport_prefix
        self._client: Any = open_redis(self._address, timeout_s=ANSWERS_WITHIN_S)

    async def publish(self, wakes: Sequence[Wake]) -> None:
        await self._add([(wake.pool_no, encode_wake(wake)) for wake in wakes])

    async def beat(self, beat: Beat, pool_nos: Sequence[PoolNo]) -> None:
        await self._add([(pool_no, encode_beat(beat, pool_no)) for pool_no in pool_nos], expires_s=EXPIRES_S)

    async def listen(self, pool_nos: Sequence[PoolNo], on_wake: OnWake, on_beat: OnBeat) -> None:
        reading = _Reading(self, [self.stream(pool_no) for pool_no in pool_nos], on_wake, on_beat)
        await keep_listening(self.name, self._database, reading.read)

    async def close(self) -> None:
        await close_redis(self._client)

    def stream(self, pool_no: PoolNo) -> bytes:
        return f"{{{self._prefix}}}:pool:{pool_no}".encode()

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Any]:
        """A client of its own for reads that wait: it is closed with whatever is on its way."""
        client: Any = open_redis(self._address, timeout_s=ANSWERS_WITHIN_S + BLOCKED_MS / 1000)
        try:
            yield client
        finally:
            await close_redis(client)

    async def _add(self, messages: Sequence[tuple[PoolNo, bytes]], expires_s: int | None = None) -> None:
        if not messages:
            return
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            pipeline = self._client.pipeline(transaction=False)
            for pool_no, message in messages:
                stream = self.stream(pool_no)
                pipeline.xadd(stream, {FIELD: message}, maxlen=KEPT, approximate=True)
                if expires_s is not None:
                    pipeline.expire(stream, expires_s)
            await pipeline.execute()


class _Reading:
    """What one listener has read of each stream, over all its connections."""

    def __init__(self, transport: RedisTransport, streams: Sequence[bytes], on_wake: OnWake, on_beat: OnBeat) -> None:
        self._transport = transport
        self._last: dict[bytes, Id | None] = dict.fromkeys(streams)
        self._on_wake = on_wake
        self._on_beat = on_beat

    async def read(self, on_answer: OnAnswer) -> None:
        """Until the connection is lost."""
        async with self._transport.reader() as client:
            await self._find_ends(client)
            on_answer()
            while True:
                found = await client.xread(dict(self._last), count=AT_ONCE, block=BLOCKED_MS)
                _end_if_cancelled()
                on_answer()
                for stream, entries in found:
                    for entry_id, fields in entries:
                        self._last[stream] = entry_id
                        receive("redis", fields.get(FIELD, b""), self._on_wake, self._on_beat)
                if not found:
                    await self._find_ends(client)

    async def _find_ends(self, client: Any) -> None:
        """Where to read on: at first behind the last entry of a stream, later behind the last one that was read.

        A stream that was emptied may start again with smaller ids, if the clock of its server was set back: then it is
        read from its beginning.
        """
        for stream, last in self._last.items():
            newest = await client.xrevrange(stream, count=1)
            end = newest[0][0] if newest else FROM_THE_BEGINNING
            if last is None or _as_numbers(end) < _as_numbers(last):
                self._last[stream] = end if last is None else FROM_THE_BEGINNING


def _end_if_cancelled() -> None:
    """The client sends by `asyncio.wait_for`, which in Python 3.11 swallows a cancellation that comes while it ends."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _as_numbers(entry_id: Id) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)
