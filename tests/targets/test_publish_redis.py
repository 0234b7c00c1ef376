"""Publishing to a real Redis, and its faults: killed, frozen, full, read-only, with another password."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis as Client

from brokers import Redis
from ondot.model.addresses import EVERYWHERE, PUBLIC
from ondot.model.broker import RedisPlace, parse_broker
from ondot.ports.publisher import Message, Receipt, Refusal
from ondot.targets.publish.publishers import OpenPublishers
from ondot.targets.publish.redis import RedisPublisher
from tests.proves import proves

PATIENCE_S = 30.0
A_MESSAGE = Message(b'{"order": 7}', headers={"webhook-id": "e1", "ondot-attempt": "1"})
STREAM = RedisPlace(stream="out")


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with Redis.running() as server:
        yield server


@asynccontextmanager
async def publisher_for(url: str) -> AsyncIterator[RedisPublisher]:
    publisher = RedisPublisher(parse_broker("redis", url), EVERYWHERE)
    try:
        yield publisher
    finally:
        await publisher.close()


@asynccontextmanager
async def client_of(redis: Redis) -> AsyncIterator[Any]:
    client: Any = Client.from_url(redis.url, decode_responses=True)
    try:
        yield client
    finally:
        await client.aclose()


async def refusal_of(publisher: RedisPublisher, place: RedisPlace = STREAM, within_s: float = PATIENCE_S) -> Refusal:
    [answer] = await publisher.publish(place, [A_MESSAGE], within_s=within_s)
    assert isinstance(answer, Refusal), answer
    return answer


@proves("E3")
async def test_a_stream_a_list_and_a_channel_receive_headers_and_payload(redis: Redis) -> None:
    async with publisher_for(redis.url) as publisher, client_of(redis) as client, client.pubsub() as listening:
        await listening.subscribe("news")
        await listening.get_message(timeout=PATIENCE_S)
        in_stream, in_list, in_channel = [
            (await publisher.publish(place, [A_MESSAGE], within_s=PATIENCE_S))[0]
            for place in (RedisPlace(stream="s"), RedisPlace(list="l"), RedisPlace(channel="news"))
        ]
        [(id_, fields)] = await client.xrange("s")
        assert in_stream == Receipt({"stream": "s", "id": id_})
        assert fields == {"webhook-id": "e1", "ondot-attempt": "1", "payload": '{"order": 7}'}
        assert in_list == Receipt({"list": "l", "length": 1})
        whole = {"webhook-id": "e1", "ondot-attempt": "1", "payload": {"order": 7}}
        assert json.loads(await client.lpop("l")) == whole
        assert in_channel == Receipt({"channel": "news", "receivers": 1})
        heard = await listening.get_message(timeout=PATIENCE_S)
        assert json.loads(heard["data"]) == whole


@proves("E3")
async def test_a_batch_keeps_its_order_and_each_message_has_its_own_answer(redis: Redis) -> None:
    messages = [Message(str(number).encode()) for number in range(100)]
    async with publisher_for(redis.url) as publisher, client_of(redis) as client:
        await client.set("text", "no list")
        answers = await publisher.publish(RedisPlace(stream="batch", max_length=1_000), messages, within_s=PATIENCE_S)
        entries = await client.xrange("batch")
        assert [entry["payload"] for _, entry in entries] == [str(number) for number in range(100)]
        assert answers == [Receipt({"stream": "batch", "id": id_}) for id_, _ in entries]
        refused = await publisher.publish(RedisPlace(list="text"), messages[:2], within_s=PATIENCE_S)
        assert [(each.code, each.is_retryable) for each in refused if isinstance(each, Refusal)] == [
            ("publish_refused", False)
        ] * 2
        after = await publisher.publish(RedisPlace(stream="batch"), messages[:1], within_s=PATIENCE_S)
        assert isinstance(after[0], Receipt)


@proves("E3", "T3")
async def test_a_private_address_is_refused_before_anything_is_sent(redis: Redis) -> None:
    publisher = RedisPublisher(parse_broker("redis", redis.url), PUBLIC)
    refusal = await refusal_of(publisher)
    assert (refusal.code, refusal.is_retryable, refusal.may_be_published) == ("private_address", False, False)


@proves("E3", "T5")
async def test_a_wrong_password_is_not_retried_and_not_repeated(redis: Redis) -> None:
    async with client_of(redis) as client:
        await client.execute_command("ACL", "SETUSER", "bob", "on", ">right password", "~*", "+@all")
        await client.execute_command("ACL", "SETUSER", "eve", "on", ">right", "~*", "-@all", "+auth", "+hello")
    place = redis.url.removeprefix("redis://")
    async with publisher_for(f"redis://bob:wrong%20password@{place}") as publisher:
        refusal = await refusal_of(publisher)
        assert (refusal.code, refusal.is_retryable, refusal.may_be_published) == ("bad_credentials", False, False)
        assert "wrong" not in refusal.message.replace("WRONGPASS", "")
        assert refusal == await publisher.check(within_s=PATIENCE_S)
        assert "password" not in repr(parse_broker("redis", f"redis://bob:password@{place}"))
    async with publisher_for(f"redis://bob:right%20password@{place}") as publisher:
        assert isinstance((await publisher.publish(STREAM, [A_MESSAGE], within_s=PATIENCE_S))[0], Receipt)
        assert await publisher.check(within_s=PATIENCE_S) is None
    async with publisher_for(f"redis://eve:right@{place}") as publisher:
        assert (await refusal_of(publisher)).code == "bad_credentials"


@proves("E3")
async def test_a_full_server_and_a_replica_refuse_and_it_is_certain_that_nothing_was_published(redis: Redis) -> None:
    async with publisher_for(redis.url) as publisher, client_of(redis) as client:
        for setting in ("maxmemory", "replicaof"):
            if setting == "maxmemory":
                await client.config_set("maxmemory", "1")
            else:
                await client.execute_command("REPLICAOF", "127.0.0.1", "1")
            try:
                refusal = await refusal_of(publisher)
            finally:
                await client.config_set("maxmemory", "0")
                await client.execute_command("REPLICAOF", "NO", "ONE")
            assert (refusal.code, refusal.is_retryable, refusal.may_be_published) == ("publish_refused", True, False)
            assert ("maxmemory" if setting == "maxmemory" else "replica") in refusal.message


@proves("E3")
async def test_a_killed_and_a_frozen_server_differ_in_what_is_certain() -> None:
    with Redis.running() as redis:
        async with publisher_for(redis.url) as publisher:
            assert isinstance((await publisher.publish(STREAM, [A_MESSAGE], within_s=PATIENCE_S))[0], Receipt)
            redis.freeze()
            frozen = await refusal_of(publisher, within_s=0.2)
            assert (frozen.code, frozen.is_retryable, frozen.may_be_published) == ("timeout", True, True)
            never = await publisher.check(within_s=0.2)
            assert never is not None
            assert (never.code, never.may_be_published) == ("connect_timeout", False)
            redis.thaw()
            assert isinstance((await publisher.publish(STREAM, [A_MESSAGE], within_s=PATIENCE_S))[0], Receipt)
            redis.kill()
            await refusal_of(publisher)  # the end of the open connection may not be read yet: it may say unknown
            gone = await refusal_of(publisher)
            assert (gone.code, gone.is_retryable, gone.may_be_published) == ("connect", True, False)
            redis.start()
            assert isinstance((await publisher.publish(STREAM, [A_MESSAGE], within_s=PATIENCE_S))[0], Receipt)


@proves("E3")
async def test_a_server_that_dies_before_it_answers_may_have_published() -> None:
    """The refusal says so: a retry may be a duplicate."""

    async def take_and_hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if b"XADD" in data:
                writer.close()
                return
            writer.write(b"+OK\r\n" * data.count(b"\r\n*" if data.startswith(b"*") else b"*") + b"+OK\r\n")

    server = await asyncio.start_server(take_and_hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, publisher_for(f"redis://127.0.0.1:{port}") as publisher:
        refusal = await refusal_of(publisher)
    assert (refusal.code, refusal.is_retryable, refusal.may_be_published) == ("publish_unknown", True, True)


@proves("E3")
async def test_a_client_is_shared_closed_when_idle_and_opened_again(redis: Redis) -> None:
    publishers = OpenPublishers(kept_s=0.0)
    address = parse_broker("redis", redis.url)
    async with client_of(redis) as client:

        async def clients() -> int:
            return sum(1 for each in await client.client_list() if each["name"] == "ondot")

        async with publishers.use(address, EVERYWHERE) as first, publishers.use(address, EVERYWHERE) as second:
            assert first is second
            await first.publish(STREAM, [A_MESSAGE], within_s=PATIENCE_S)
            assert await clients() >= 1
        async with asyncio.timeout(PATIENCE_S):
            while await clients():
                await asyncio.sleep(0)
        async with publishers.use(address, EVERYWHERE) as third:
            assert third is not first
    await publishers.close()
