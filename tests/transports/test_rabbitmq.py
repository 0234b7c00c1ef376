"""The transport rabbitmq: queues and exchanges that are deleted, memory that runs out, poison (C4, C5). On the
session's RabbitMQ, with names of its own."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq.exceptions import ChannelLockedResource

from brokers import Missing, RabbitMQ
from ondot.model.beats import Beat
from ondot.ports.transport import Wake
from ondot.telemetry.metrics import HINTS_UNREADABLE
from ondot.transports import listening, rabbitmq
from ondot.transports.rabbitmq import RabbitmqTransport
from tests.proves import proves
from tests.transports.receiving import AT, POOL, WITHIN_S, opened, receiving, until_received, until_refused


@pytest.fixture
async def transport(database_url: str, rabbitmq_url: str) -> AsyncIterator[RabbitmqTransport]:
    async with opened("rabbitmq", database_url, rabbitmq_url=rabbitmq_url) as transport:
        assert isinstance(transport, RabbitmqTransport)
        yield transport


@pytest.fixture
async def channel(rabbitmq_url: str) -> AsyncIterator[AbstractChannel]:
    """Of another program."""
    async with await aio_pika.connect(rabbitmq_url) as connection:
        yield await connection.channel()


@pytest.fixture
def queue_name(monkeypatch: pytest.MonkeyPatch, transport: RabbitmqTransport) -> str:
    """Of the next listener."""
    number = uuid4()
    monkeypatch.setattr(rabbitmq, "uuid4", lambda: number)
    return f"{transport.place}.{number}"


@proves("C5")
async def test_no_other_connection_can_delete_or_read_the_queue_of_a_listener(
    transport: RabbitmqTransport, channel: AbstractChannel, queue_name: str
) -> None:
    async with receiving(transport) as received:
        await until_received(transport, received)
        with pytest.raises(ChannelLockedResource):
            await channel.queue_delete(queue_name)
        await until_received(transport, received)


@proves("C5")
async def test_an_exchange_that_is_deleted_under_way_is_made_again_with_its_bindings(
    transport: RabbitmqTransport, channel: AbstractChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "CHECK_EVERY_S", 0.1)
    async with receiving(transport) as received:
        await until_received(transport, received)
        await channel.exchange_delete(transport.place)
        await until_received(transport, received)


@proves("C4")
async def test_the_queue_of_a_listener_goes_with_it(
    transport: RabbitmqTransport, channel: AbstractChannel, queue_name: str
) -> None:
    async with receiving(transport) as received:
        await until_received(transport, received)
    async with asyncio.timeout(WITHIN_S):
        while await _exists(channel, queue_name):
            await asyncio.sleep(0.05)


async def _exists(channel: AbstractChannel, queue_name: str) -> bool:
    try:
        await channel.declare_queue(queue_name, passive=True)
    except aio_pika.exceptions.ChannelNotFoundEntity:
        return False
    return True


@proves("C4", "C5")
async def test_what_others_send_to_the_exchange_is_counted_and_ignored(
    transport: RabbitmqTransport, channel: AbstractChannel
) -> None:
    unreadable = HINTS_UNREADABLE.labels("rabbitmq")
    before = unreadable.value
    poison = (b"", b"nonsense", b"\xff\xfe\x00", b"wake 1 yesterday", b"9" * 2_000_000)
    async with receiving(transport) as received:
        await until_received(transport, received)
        exchange = await channel.get_exchange(transport.place)
        for body in poison:
            await exchange.publish(aio_pika.Message(body, headers={"x": "y"}), str(POOL))
        await until_received(transport, received)
    assert unreadable.value - before == len(poison)


@proves("C4")
async def test_hints_that_are_due_go_before_others_and_before_beats(
    transport: RabbitmqTransport, channel: AbstractChannel
) -> None:
    exchange = await channel.declare_exchange(transport.place, "topic", durable=True)
    queue = await channel.declare_queue("", exclusive=True)
    await queue.bind(exchange, "#")
    now = datetime.now(UTC)
    await transport.publish([Wake(POOL, now - timedelta(minutes=1)), Wake(POOL, now + timedelta(hours=1))])
    await transport.beat(Beat(uuid4(), 1), [POOL])
    messages: list[AbstractIncomingMessage | None] = [await queue.get(no_ack=True) for _ in range(3)]
    assert [message and message.priority for message in messages] == [1, 0, 0]


@proves("C5", "L5")
@pytest.mark.long
async def test_a_broker_without_memory_fails_publishing_by_its_deadline(database_url: str) -> None:
    try:
        with RabbitMQ.running() as broker:
            async with (
                opened("rabbitmq", database_url, rabbitmq_url=broker.url) as transport,
                receiving(transport) as received,
            ):
                await until_received(transport, received)
                await asyncio.to_thread(broker.control, "set_vm_memory_high_watermark", "absolute", "1000000")
                assert await until_refused(transport) < 3
                assert await until_refused(transport) < 3
                await asyncio.to_thread(broker.control, "set_vm_memory_high_watermark", "0.4")
                await until_received(transport, received)
    except Missing as missing:
        pytest.skip(str(missing))


@proves("C4")
async def test_a_wrong_password_is_refused_and_not_shown(database_url: str, rabbitmq_url: str) -> None:
    wrong = rabbitmq_url.replace("guest:guest", "guest:s3cr3t")
    async with opened("rabbitmq", database_url, rabbitmq_url=wrong) as transport:
        with pytest.raises(Exception, match=r"(?i)refused|auth") as refused:
            await transport.publish([Wake(POOL, AT)])
    assert "s3cr3t" not in str(refused.value)
