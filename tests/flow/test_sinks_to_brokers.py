"""Events in a real Redis: in order, through a freeze and a kill, and what the connection has to be (E3)."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis as Client

from brokers import Redis
from ondot.flow.sinks import by_broker
from ondot.model.broker import KafkaPlace, Place, RedisPlace
from ondot.model.connection import ConnectionSpec
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.sink import BrokerPlace, SinkSpec
from ondot.store.connections import write_connection
from ondot.store.sinks import put_sink
from tests.proves import proves
from tests.sinks import Sinks, open_sinks
from tests.world import World, job


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Any]:
    client: Any = Client.from_url(url, decode_responses=True)
    try:
        yield client
    finally:
        await client.aclose()


@pytest.fixture
async def sinks(world: World) -> AsyncIterator[Sinks]:
    async with open_sinks(world) as sinks:
        yield sinks


async def add(world: World, url: str, place: Place, *types: str) -> None:
    spec = SinkSpec(place=BrokerPlace(connection="main", place=place), types=types or ("ondot.execution.*",))
    async with world.database.transaction() as connection:
        await write_connection(connection, DEFAULT_TENANT, "main", ConnectionSpec(kind="redis", address=url), by="test")
        await put_sink(connection, world.database.clock.new_id(), DEFAULT_TENANT, "all", spec, by="test")


async def work_off(world: World, count: int) -> None:
    await world.submit_all([job()] * count)
    worker = await world.worker()
    while leased := await worker.lease(100):
        await worker.complete_all(leased)


async def events_in(client: Any, stream: str) -> list[dict[str, Any]]:
    return [json.loads(fields["payload"]) for _, fields in await client.xrange(stream)]


@proves("E3")
async def test_a_stream_gets_events_of_each_execution_in_order(world: World, sinks: Sinks, redis_url: str) -> None:
    stream = f"events-{world.database.clock.new_id()}"
    await add(world, redis_url, RedisPlace(stream=stream))
    await work_off(world, 250)
    await sinks.deliver()
    async with client_of(redis_url) as client:
        events = await events_in(client, stream)
    by_key: dict[str, list[str]] = {}
    for event in events:
        by_key.setdefault(event["partitionkey"], []).append(event["type"].rpartition(".")[2])
    assert len(by_key) == 250
    assert {tuple(types) for types in by_key.values()} == {("started", "succeeded")}
    assert (await sinks.get()).sent == 500


@proves("E3")
async def test_a_frozen_and_a_killed_redis_lose_nothing_and_keep_the_order(
    world: World, sinks: Sinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_broker, "WITHIN_S", 0.3)
    with Redis.running() as redis:
        await add(world, redis.url, RedisPlace(stream="events"))
        await work_off(world, 20)
        redis.freeze()
        await sinks.deliver()
        row = await sinks.get()
        assert (row.sent, row.tries) == (0, 1)
        assert row.error is not None
        redis.thaw()
        redis.kill()
        await world.advance(5)
        await sinks.deliver()
        assert (await sinks.get()).sent == 0
        redis.start()
        await world.advance(60)
        await sinks.deliver()
        async with client_of(redis.url) as client:
            events = await events_in(client, "events")
    first: dict[str, str] = {}
    for event in events:
        first.setdefault(event["id"], event["type"].rpartition(".")[2])
    assert len(first) == 40
    for key in {event["partitionkey"] for event in events}:
        order = [id_ for id_ in first if id_.startswith(key)]
        assert [first[id_] for id_ in order] == ["started", "succeeded"]


@proves("E3")
async def test_a_connection_that_is_gone_or_of_another_kind_is_the_error_of_the_sink(
    world: World, sinks: Sinks, redis_url: str
) -> None:
    await add(world, redis_url, KafkaPlace(topic="t"))
    await work_off(world, 1)
    await sinks.deliver()
    assert (await sinks.get()).error == "The connection 'main' is of the kind redis, not kafka."
    await world.fetch("DELETE FROM ondot.connection")
    await world.advance(60)
    async with open_sinks(world) as sinks:  # it has not read the connection
        await sinks.deliver()
    assert str((await sinks.get()).error).startswith("There is no connection 'main'.")
