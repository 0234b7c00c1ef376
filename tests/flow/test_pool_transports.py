"""Each pool's hints go through its own transport, and one that is frozen delays no hint of another (C4, C5)."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from ondot.flow.pool_transports import PoolTransports
from ondot.model.errors import Misconfigured
from ondot.model.ids import PoolNo
from ondot.model.routes import Route
from ondot.ports.transport import Transport, Wake
from ondot.telemetry.metrics import HINTS_LOST
from ondot.transports.polling import PollingTransport
from tests.proves import proves
from tests.world import RecordingTransport, World

AT = datetime(2026, 11, 15, 12, tzinfo=UTC)
WITHIN_S = 20


class Frozen(PollingTransport):
    """It takes nothing until the test lets it."""

    def __init__(self) -> None:
        self.taken: list[list[Wake]] = []
        self.go = asyncio.Event()
        self.has_begun = asyncio.Event()

    async def publish(self, wakes: Sequence[Wake]) -> None:
        self.taken.append(list(wakes))
        self.has_begun.set()
        await self.go.wait()


def opened(world: World, **transports: Transport) -> PoolTransports:
    def open_by_name(name: str) -> Transport:
        if name not in transports:
            raise Misconfigured(f"{name} has no address")
        return transports[name]

    return PoolTransports(world.database, open_by_name, "postgres")


def route(world: World, pool_no: int, transport: str | None, was: str | None = None, *, ago_s: float = 60) -> None:
    changed_at = world.database.clock.now() - timedelta(seconds=ago_s)
    world.database.pools.routes = {
        **world.database.pools.routes,
        PoolNo(pool_no): Route(transport, was, changed_at),
    }


@proves("C4")
async def test_hints_go_through_the_transport_of_their_pool_and_both_after_a_change(world: World) -> None:
    postgres, redis = RecordingTransport(), RecordingTransport()
    transports = opened(world, postgres=postgres, redis=redis)
    route(world, 2, "redis")
    route(world, 3, "redis", ago_s=10)
    one, two, three = (Wake(PoolNo(number), AT) for number in (1, 2, 3))
    await transports.publish([one, two, three])
    async with asyncio.timeout(WITHIN_S):
        await postgres.published.wait()
        await redis.published.wait()
    assert postgres.sent == [one, three]
    assert redis.sent == [two, three]
    await transports.close()


@proves("C5", "L5")
async def test_a_frozen_transport_delays_no_other_and_its_hints_become_one_for_each_pool(world: World) -> None:
    postgres, redis = RecordingTransport(), Frozen()
    transports = opened(world, postgres=postgres, redis=redis)
    route(world, 2, "redis")
    await transports.publish([Wake(PoolNo(2), AT)])
    async with asyncio.timeout(WITHIN_S):
        await redis.has_begun.wait()
        for minutes in (3, 2, 5):
            await transports.publish([Wake(PoolNo(2), AT + timedelta(minutes=minutes)), Wake(PoolNo(1), AT)])
            await postgres.published.wait()
            postgres.published.clear()
        redis.go.set()
        while len(redis.taken) < 2:
            await asyncio.sleep(0)
    assert redis.taken == [[Wake(PoolNo(2), AT)], [Wake(PoolNo(2), AT + timedelta(minutes=2))]]
    await transports.close()


@proves("C5")
async def test_hints_of_a_transport_that_cannot_be_opened_are_counted_as_lost(world: World) -> None:
    transports = opened(world, postgres=RecordingTransport())
    route(world, 2, "kafka")
    lost = HINTS_LOST.labels("kafka").value
    await transports.publish([Wake(PoolNo(2), AT)])
    async with asyncio.timeout(WITHIN_S):
        while HINTS_LOST.labels("kafka").value == lost:
            await asyncio.sleep(0)
    with pytest.raises(Misconfigured):
        transports.open("kafka")
    await transports.close()


async def test_what_is_being_sent_ends_with_the_process(world: World) -> None:
    redis = Frozen()
    transports = PoolTransports.of(world.database, redis)
    await transports.publish([Wake(PoolNo(1), AT)])
    async with asyncio.timeout(WITHIN_S):
        await redis.has_begun.wait()
        await transports.close()
