"""What the tests of single transports share: a transport on a server, and what its listeners receive."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from uuid import uuid4

from ondot.app import TRANSPORTS
from ondot.model.beats import Beat
from ondot.model.ids import PoolNo
from ondot.ports.transport import Transport, Wake
from ondot.store.database import open_database
from tests.servers import settings_for

AT = datetime(2026, 11, 15, 12, 0, 0, 250, tzinfo=UTC)
POOL = PoolNo(1)
WITHIN_S = 30


@dataclass
class Received:
    wakes: asyncio.Queue[Wake] = field(default_factory=asyncio.Queue)
    beats: asyncio.Queue[tuple[Beat, PoolNo]] = field(default_factory=asyncio.Queue)


@asynccontextmanager
async def opened(name: str, database_url: str, **settings: object) -> AsyncIterator[Transport]:
    """A transport with a prefix of its own on its server."""
    prefix = {"transport_prefix": f"test-{uuid4()}"}
    database = await open_database(settings_for(database_url, transport=name, **prefix | settings))
    try:
        await database.read_clock()
        transport = TRANSPORTS[name](database)
        yield transport
        await transport.close()
    finally:
        await database.close()


@asynccontextmanager
async def receiving(transport: Transport, pool_nos: Sequence[PoolNo] = (POOL,)) -> AsyncIterator[Received]:
    received = Received()
    listening = asyncio.create_task(
        transport.listen(
            pool_nos, received.wakes.put_nowait, lambda beat, pool_no: received.beats.put_nowait((beat, pool_no))
        )
    )
    try:
        yield received
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def until_received(transport: Transport, received: Received, pool_no: PoolNo = POOL) -> None:
    """Publish until it arrives."""
    wake = Wake(pool_no, datetime.now(UTC))
    async with asyncio.timeout(WITHIN_S):
        while True:
            with suppress(Exception):
                await transport.publish([wake])
            try:
                async with asyncio.timeout(0.2):
                    while await received.wakes.get() != wake:
                        pass
            except TimeoutError:
                continue
            return


async def until_refused(transport: Transport) -> float:
    """Publish until it fails; return how long that attempt took."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            began_s = monotonic()
            try:
                await transport.publish([Wake(POOL, AT)])
            except Exception:  # noqa: BLE001 - each library has its own
                return monotonic() - began_s


@contextmanager
def watched_loop() -> Iterator[list[float]]:
    """The longest time for which the loop did nothing else."""
    longest = [0.0]

    async def tick() -> None:
        before_s = monotonic()
        while True:
            await asyncio.sleep(0.02)
            longest[0] = max(longest[0], monotonic() - before_s)
            before_s = monotonic()

    ticking = asyncio.create_task(tick())
    try:
        yield longest
    finally:
        ticking.cancel()
