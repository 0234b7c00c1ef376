"""Schedulers and workers with Redis as transport: it carries hints and beats, PostgreSQL is the truth (C4, C5, L5)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest

from brokers import Redis
from ondot.flow.dispatch import Dispatcher
from ondot.flow.lease import Batch, Leaser
from ondot.flow.submit import submit
from ondot.model.beats import Beat
from ondot.model.ids import DEFAULT_TENANT, PoolNo
from ondot.roles.pool_listener import PoolListener
from ondot.store.pools import set_pool_transport
from ondot.transports.polling import PollingTransport
from tests.proves import proves
from tests.roles.test_fleet import PATIENCE_S, Fleet, open_fleet
from tests.world import job

TRUSTS = "SELECT trusts FROM ondot.worker WHERE state = 'ALIVE'"
SIX_BEATS = 6
"""Three seconds, in which a worker without trust asks three times."""


@pytest.fixture
async def redis() -> AsyncIterator[Redis]:
    with Redis.running() as redis:
        yield redis


def of(redis: Redis, **changed: Any) -> dict[str, Any]:
    return {"transport": "redis", "redis_url": redis.url, "transport_prefix": f"test-{uuid4()}", **changed}


async def start(fleet: Fleet) -> None:
    fleet.scheduler()
    fleet.worker()
    await fleet.until(TRUSTS, ["redis"])


async def store_unhinted(fleet: Fleet) -> None:
    """As a caller's own transaction does: the work is stored, and no hint is sent."""
    await submit(fleet.database, Dispatcher(PollingTransport()), DEFAULT_TENANT, [job()], render=lambda _: "")


async def until_started(fleet: Fleet, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        await fleet.handler.calls.get()


@pytest.fixture
def count_asks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    asks = 0
    one_pass = Leaser.one_pass

    async def counted(self: Leaser, free: int, free_for_suspects: int | None = None) -> Batch:
        nonlocal asks
        asks += 1
        return await one_pass(self, free, free_for_suspects)

    monkeypatch.setattr(Leaser, "one_pass", counted)
    return lambda: asks


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> "asyncio.Queue[int]":
    """The numbers of the beats that arrive at the worker."""
    numbers: asyncio.Queue[int] = asyncio.Queue()
    hear = PoolListener._hear

    def note(self: PoolListener, name: str, beat: Beat, pool_no: PoolNo) -> None:
        hear(self, name, beat, pool_no)
        if pool_no == 1:
            numbers.put_nowait(beat.number)

    monkeypatch.setattr(PoolListener, "_hear", note)
    return numbers


@proves("C4", "L5")
async def test_while_beats_arrive_a_worker_asks_rarely_and_work_starts_at_once_also_without_a_hint(
    database_url: str, redis: Redis, count_asks: Callable[[], int], heard: "asyncio.Queue[int]"
) -> None:
    async with open_fleet(database_url, **of(redis)) as fleet:
        await start(fleet)
        before = count_asks()
        async with asyncio.timeout(PATIENCE_S):
            numbers = [await heard.get() for _ in range(heard.qsize() + SIX_BEATS)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert count_asks() - before <= 1
        await fleet.submit(job())
        await until_started(fleet, 1.0)
        # The scheduler looks at all pools each second; the worker's own next poll is 15 s away.
        await store_unhinted(fleet)
        await until_started(fleet, 5.0)


@proves("C5", "L5")
async def test_a_frozen_redis_costs_a_poll_and_is_trusted_again_when_it_answers(
    database_url: str, redis: Redis
) -> None:
    async with open_fleet(database_url, **of(redis)) as fleet:
        await start(fleet)
        redis.freeze()
        await fleet.submit(job())
        await store_unhinted(fleet)
        for _ in range(2):
            await until_started(fleet, 5.0)
        await fleet.until(TRUSTS, [])
        redis.thaw()
        await fleet.until(TRUSTS, ["redis"])


@proves("C5", "L5")
async def test_a_redis_that_is_killed_and_comes_back_empty_is_trusted_again(database_url: str, redis: Redis) -> None:
    async with open_fleet(database_url, **of(redis)) as fleet:
        await start(fleet)
        redis.kill()
        await fleet.submit(job())
        await until_started(fleet, 5.0)
        await fleet.until(TRUSTS, [])
        for path in redis.directory.glob("appendonlydir/*"):
            path.unlink()
        redis.start()
        await fleet.until(TRUSTS, ["redis"])
        await fleet.submit(job())
        await until_started(fleet, 1.0)


@proves("C4")
async def test_the_transport_of_a_pool_changes_while_everything_runs(database_url: str, redis: Redis) -> None:
    async with open_fleet(database_url, **of(redis, transport="postgres")) as fleet:
        fleet.scheduler()
        fleet.worker()
        await fleet.until(TRUSTS, [])
        for transport, trusts in (("redis", ["redis"]), (None, [])):
            async with fleet.database.connection() as connection:
                assert await set_pool_transport(connection, "default", transport) == 1
                assert await set_pool_transport(connection, "default", transport) is None
            await fleet.submit(job())
            await until_started(fleet, 5.0)
            await fleet.until(TRUSTS, trusts)
            await fleet.submit(job())
            await until_started(fleet, 5.0)


@proves("C5")
async def test_a_pool_with_a_transport_that_a_process_cannot_open_polls(database_url: str) -> None:
    async with open_fleet(database_url, transport="postgres") as fleet:
        async with fleet.database.connection() as connection:
            await set_pool_transport(connection, "default", "redis")
            await fleet.database.pools.read_routes(connection)
        fleet.scheduler()
        fleet.worker()
        await fleet.submit(job())
        await until_started(fleet, PATIENCE_S)
