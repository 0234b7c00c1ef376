"""The transport redis under its own faults: cut off, emptied, restarted, frozen, failed over (C4, C5, L5)."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis as Client
from redis import RedisError

from brokers import Redis, RedisSentinel
from ondot.model.beats import Beat
from ondot.model.ids import PoolNo
from ondot.ports.transport import Wake
from ondot.store.database import Database, open_database
from ondot.telemetry.metrics import HINTS_UNREADABLE
from ondot.transports.redis import ANSWERS_WITHIN_S, KEPT, RedisTransport
from tests.conformance.test_transports import POOLS, Received, receiving, take, until_received
from tests.proves import proves
from tests.servers import settings_for

AT = datetime(2026, 11, 15, 12, tzinfo=UTC)
WITHIN_S = 30


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with Redis.running() as redis:
        yield redis


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await open_database(settings_for(database_url))
    yield database
    await database.close()


@asynccontextmanager
async def opened(database: Database, url: str) -> AsyncIterator[RedisTransport]:
    settings = settings_for(database.settings.needs_database_url, redis_url=url, transport_prefix=f"test-{uuid4()}")
    database.settings = settings
    transport = RedisTransport(database)
    try:
        yield transport
    finally:
        await transport.close()


def wake(number: int) -> Wake:
    return Wake(PoolNo(1), AT + timedelta(seconds=number))


def client(redis: Redis) -> Any:
    return Client(host="127.0.0.1", port=redis.port)


async def is_heard(transport: RedisTransport, received: Received) -> None:
    await until_received(transport, received, Wake(PoolNo(7), AT))


@proves("C5", "L5")
async def test_what_was_sent_while_a_listener_was_cut_off_arrives_when_it_is_back(
    database: Database, redis: Redis
) -> None:
    async with opened(database, redis.url) as transport, receiving(transport) as received:
        await is_heard(transport, received)
        with client(redis) as admin:
            admin.client_kill_filter(_type="normal", skipme=True)
        sent = [wake(number) for number in range(20)]
        with suppress(Exception):
            await transport.publish([])
        for each in sent:
            await _publish(transport, each)
        await take(received, sent)


async def _publish(transport: RedisTransport, each: Wake) -> None:
    """Its own connection was cut too: the first use of it fails."""
    try:
        await transport.publish([each])
    except Exception:  # noqa: BLE001
        await transport.publish([each])


@proves("L5")
async def test_after_flushall_hints_arrive_again(database: Database, redis: Redis) -> None:
    async with opened(database, redis.url) as transport, receiving(transport) as received:
        await is_heard(transport, received)
        with client(redis) as admin:
            admin.flushall()
        await transport.publish([wake(1)])
        await take(received, [wake(1)])


@proves("L5")
async def test_a_stream_that_starts_again_with_smaller_ids_is_read_from_its_beginning(
    database: Database, redis: Redis
) -> None:
    """After a failover to a server whose clock is behind."""
    async with opened(database, redis.url) as transport, receiving(transport) as received:
        stream = transport.stream(PoolNo(1))
        with client(redis) as admin:
            admin.xadd(stream, {"m": "poison"}, id="99999999999999-1")
            await is_heard(transport, received)
            admin.delete(stream)
        await transport.publish([wake(1)])
        await take(received, [wake(1)])


@proves("C4")
async def test_poison_is_counted_and_ignored_and_streams_stay_short(database: Database, redis: Redis) -> None:
    async with opened(database, redis.url) as transport, receiving(transport) as received:
        await is_heard(transport, received)
        before = HINTS_UNREADABLE.labels("redis").value
        stream = transport.stream(PoolNo(1))
        with client(redis) as admin:
            admin.xadd(stream, {"m": b"\xff" * 100_000})
            admin.xadd(stream, {"other": "field"})
            for start in range(0, 3000, 500):
                wakes = [wake(number) for number in range(start, start + 500)]
                await transport.publish(wakes)
                await take(received, wakes)
            assert admin.xlen(stream) <= KEPT + 200
            await transport.beat(Beat(uuid4(), 1), POOLS)
            assert 0 < admin.ttl(stream) <= 3600
        assert HINTS_UNREADABLE.labels("redis").value == before + 2


@proves("C5", "L5")
async def test_a_frozen_redis_costs_a_sender_a_second_and_comes_back(database: Database) -> None:
    with Redis.running() as redis:
        async with opened(database, redis.url) as transport, receiving(transport) as received:
            await is_heard(transport, received)
            redis.freeze()
            started_s = time.monotonic()
            with pytest.raises((TimeoutError, RedisError)):
                await transport.publish([wake(1)])
            with pytest.raises((TimeoutError, RedisError)):
                await transport.beat(Beat(uuid4(), 1), POOLS)
            assert time.monotonic() - started_s < 2 * ANSWERS_WITHIN_S + 3
            redis.thaw()
            await until_received(transport, received, wake(2))


@proves("C4")
async def test_a_cluster_carries_the_hints_of_all_pools(database: Database) -> None:
    redis = Redis("--cluster-enabled", "yes")
    redis.start()
    try:
        with client(redis) as admin:
            admin.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            async with asyncio.timeout(WITHIN_S):
                while admin.cluster("INFO")["cluster_state"] != "ok":
                    await asyncio.sleep(0.02)
        async with (
            opened(database, f"redis+cluster://127.0.0.1:{redis.port}") as transport,
            receiving(transport) as received,
        ):
            await is_heard(transport, received)
            sent = [Wake(pool_no, AT) for pool_no in POOLS]
            await transport.publish(sent)
            await take(received, sent)
            await transport.beat(Beat(uuid4(), 1), POOLS)
            async with asyncio.timeout(WITHIN_S):
                assert {(await received.beats.get())[1] for _ in POOLS} == set(POOLS)
    finally:
        redis.kill()


@proves("C5", "L5")
async def test_after_a_failover_by_sentinel_hints_arrive_from_the_new_master(database: Database) -> None:
    master = Redis()
    replica = Redis("--replicaof", "127.0.0.1", str(master.port))
    sentinel = RedisSentinel(master)
    try:
        for server in (master, replica, sentinel):
            server.start()
        await _until_replicating(sentinel)
        async with opened(database, sentinel.url) as transport, receiving(transport) as received:
            await is_heard(transport, received)
            master.kill()
            async with asyncio.timeout(WITHIN_S):
                await until_received(transport, received, wake(1))
            with client(replica) as admin:
                assert admin.role()[0] == b"master"
    finally:
        for server in (sentinel, replica, master):
            server.kill()


async def _until_replicating(sentinel: RedisSentinel) -> None:
    with Client(host="127.0.0.1", port=sentinel.port) as admin:
        async with asyncio.timeout(WITHIN_S):
            while not any(not found["is_disconnected"] for found in admin.sentinel_slaves("mymaster")):
                await asyncio.sleep(0.05)


def test_a_missing_client_is_named_with_the_command_that_installs_it() -> None:
    code = (
        "import sys; sys.modules['redis'] = sys.modules['redis.asyncio'] = None\n"
        "from ondot.transports.redis_client import open_redis\n"
        "from ondot.model.redis_urls import parse_redis_url\n"
        "try: open_redis(parse_redis_url('redis://h'), timeout_s=1)\n"
        "except Exception as error: print(error)\n"
    )
    said = subprocess.run(["python", "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "The transport redis needs the package redis" in said
    assert "pip install 'ondot[redis]'" in said
