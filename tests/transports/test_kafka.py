"""The transport kafka: topics that are made, deleted and poisoned (C4, C5). On the session's Kafka, with topics of its
own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from ondot.ports.transport import Wake
from ondot.telemetry.metrics import HINTS_UNREADABLE
from ondot.transports import listening
from ondot.transports.kafka import KafkaTransport, client_settings
from tests.proves import proves
from tests.servers import settings_for
from tests.transports.receiving import AT, POOL, opened, receiving, until_received


@pytest.fixture
async def transport(database_url: str, kafka_servers: str) -> AsyncIterator[KafkaTransport]:
    async with opened("kafka", database_url, kafka_servers=kafka_servers) as transport:
        assert isinstance(transport, KafkaTransport)
        yield transport


@pytest.fixture
def admin(kafka_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_servers})


@proves("C4")
async def test_a_topic_has_one_partition_and_is_kept_for_a_minute(
    transport: KafkaTransport, admin: AdminClient
) -> None:
    await transport.publish([Wake(POOL, AT)])
    topic = transport.topic(POOL)
    described = await asyncio.to_thread(admin.list_topics, topic, 10)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    [configured] = admin.describe_configs([resource]).values()
    values: dict[str, Any] = await asyncio.to_thread(configured.result, 10)
    assert (len(described.topics[topic].partitions), values["retention.ms"].value) == (1, "60000")


@proves("C5")
async def test_a_topic_that_is_deleted_under_way_is_made_again(
    transport: KafkaTransport, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "CHECK_EVERY_S", 0.2)
    async with receiving(transport) as received:
        await until_received(transport, received)
        [deleted] = admin.delete_topics([transport.topic(POOL)]).values()
        await asyncio.to_thread(deleted.result, 10)
        await until_received(transport, received)


@proves("C4", "C5")
async def test_what_others_write_into_a_topic_is_counted_and_ignored(
    transport: KafkaTransport, kafka_servers: str
) -> None:
    unreadable = HINTS_UNREADABLE.labels("kafka")
    before = unreadable.value
    poison = (b"", b"nonsense", b"\xff\xfe\x00", b"wake 0 2026-11-15T12:00:00+00:00", b"beat 1 x y", b"9" * 900_000)
    async with receiving(transport) as received:
        await until_received(transport, received)
        producer = Producer({"bootstrap.servers": kafka_servers})
        for body in poison:
            producer.produce(transport.topic(POOL), body)
        producer.produce(transport.topic(POOL), None, key=b"a tombstone")
        assert await asyncio.to_thread(producer.flush, 20) == 0
        await until_received(transport, received)
    assert unreadable.value - before == len(poison) + 1


@proves("C4")
async def test_hints_arrive_behind_a_flood_of_other_messages(transport: KafkaTransport, kafka_servers: str) -> None:
    async with receiving(transport) as received:
        await until_received(transport, received)
        producer = Producer({"bootstrap.servers": kafka_servers, "linger.ms": 5})
        for _ in range(20_000):
            producer.produce(transport.topic(POOL), b"nonsense")
        assert await asyncio.to_thread(producer.flush, 30) == 0
        await until_received(transport, received)


@proves("C4")
async def test_servers_that_do_not_exist_fail_by_the_deadline(database_url: str) -> None:
    async with opened("kafka", database_url, kafka_servers="127.0.0.1:1") as transport:
        async with asyncio.timeout(10):
            with pytest.raises((OSError, KafkaException)):
                await transport.publish([Wake(POOL, AT)])


def test_the_user_and_tls_reach_the_client() -> None:
    settings = settings_for(
        "postgresql:///x", kafka_servers="a:9093", kafka_user="u", kafka_password="p", kafka_tls=True, kafka_ca="/ca"
    )
    client = client_settings(settings)
    assert client["security.protocol"] == "SASL_SSL"
    assert (client["sasl.mechanism"], client["sasl.username"], client["sasl.password"], client["ssl.ca.location"]) == (
        *("SCRAM-SHA-512", "u", "p", "/ca"),
    )
