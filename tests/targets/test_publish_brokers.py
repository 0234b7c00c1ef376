"""Publishing to a real Kafka, RabbitMQ and NATS: what arrives, and what is refused without a retry."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiormq
import nats
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from brokers import Nats
from ondot.model.addresses import EVERYWHERE, PUBLIC
from ondot.model.broker import BrokerKind, KafkaPlace, NatsPlace, Place, RabbitMQPlace, parse_broker
from ondot.ports.publisher import Message, Publisher, Receipt, Refusal
from ondot.targets.publish.publishers import open_publisher
from tests.proves import proves

PATIENCE_S = 60.0
HEADERS = {"webhook-id": "e1", "ondot-attempt": "1", "x-team": "bi"}
A_MESSAGE = Message(b'{"order": 7}', "customer-7", HEADERS)


@asynccontextmanager
async def publisher_for(kind: BrokerKind, url: str) -> AsyncIterator[Publisher]:
    publisher = open_publisher(parse_broker(kind, url), EVERYWHERE)
    try:
        yield publisher
    finally:
        await publisher.close()


async def refusal_of(publisher: Publisher, place: Place, message: Message = A_MESSAGE) -> Refusal:
    [answer] = await publisher.publish(place, [message], within_s=PATIENCE_S)
    assert isinstance(answer, Refusal), answer
    return answer


def receipts(answers: list[Any]) -> list[dict[str, Any]]:
    assert all(isinstance(answer, Receipt) for answer in answers), answers
    return [dict(answer.facts) for answer in answers]


# Kafka ---------------------------------------------------------------------------------------------------------------


def create_topic(servers: str, partitions: int = 3, **config: str) -> str:
    topic = f"t-{uuid4().hex}"
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": servers})  # until its answer is here
    [made] = admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values()
    made.result(PATIENCE_S)
    return topic


def read_at(servers: str, topic: str, partition: int, offset: int) -> Any:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic})
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        return consumer.poll(PATIENCE_S)
    finally:
        consumer.close()


@proves("E3")
async def test_kafka_gets_key_headers_and_body_and_equal_keys_share_a_partition(kafka_servers: str) -> None:
    topic = create_topic(kafka_servers)
    async with publisher_for("kafka", kafka_servers) as publisher:
        assert await publisher.check(within_s=PATIENCE_S) is None
        answers = await publisher.publish(KafkaPlace(topic=topic), [A_MESSAGE] * 20, within_s=PATIENCE_S)
    facts = receipts(answers)
    [partition] = {each["partition"] for each in facts}
    assert [each["offset"] for each in facts] == list(range(20)), "in the order of the batch"
    found = await asyncio.to_thread(read_at, kafka_servers, topic, partition, 7)
    assert (found.key(), found.value()) == (b"customer-7", A_MESSAGE.body)
    assert {name: value.decode() for name, value in found.headers()} == HEADERS


@proves("E3", "T3")
async def test_kafka_refuses_what_is_too_large_and_a_worker_refuses_a_private_address(kafka_servers: str) -> None:
    topic = create_topic(kafka_servers, 1, max_message_bytes="1000")
    async with publisher_for("kafka", kafka_servers) as publisher:
        large = await refusal_of(publisher, KafkaPlace(topic=topic), Message(b"x" * 5_000))
        assert (large.code, large.is_retryable, large.may_be_published) == ("too_large", False, False)
    private = open_publisher(parse_broker("kafka", kafka_servers), PUBLIC)
    assert (await refusal_of(private, KafkaPlace(topic=topic))).code == "private_address"
    async with publisher_for("kafka", "127.0.0.1:1") as publisher:
        refusal = await publisher.check(within_s=0.5)
        assert refusal is not None
        assert not refusal.may_be_published


# RabbitMQ ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def channel(rabbitmq_url: str) -> AsyncIterator[Any]:
    connection = await aiormq.connect(rabbitmq_url)
    try:
        yield await connection.channel()
    finally:
        await connection.close()


@proves("E3")
async def test_rabbitmq_confirms_persistent_messages_with_headers_and_priority(rabbitmq_url: str, channel: Any) -> None:
    queue = f"q-{uuid4().hex}"
    await channel.queue_declare(queue, durable=True, arguments={"x-max-priority": 10})
    place = RabbitMQPlace(routing_key=queue, priority=5)
    async with publisher_for("rabbitmq", rabbitmq_url) as publisher:
        assert await publisher.check(within_s=PATIENCE_S) is None
        answers = await publisher.publish(place, [A_MESSAGE] * 20, within_s=PATIENCE_S)
    assert receipts(answers) == [{"exchange": "", "routing_key": queue, "confirmed": True}] * 20
    got = await channel.basic_get(queue, no_ack=True)
    properties = got.header.properties
    assert (got.body, properties.headers) == (A_MESSAGE.body, HEADERS)
    assert (properties.delivery_mode, properties.priority, properties.message_id) == (2, 5, "e1")


@proves("E3")
async def test_rabbitmq_refuses_what_no_queue_takes_a_full_queue_and_a_wrong_password(
    rabbitmq_url: str, channel: Any
) -> None:
    full = f"q-{uuid4().hex}"
    await channel.queue_declare(full, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    async with publisher_for("rabbitmq", rabbitmq_url) as publisher:
        nowhere = await refusal_of(publisher, RabbitMQPlace(routing_key="no such queue"))
        assert (nowhere.code, nowhere.is_retryable, nowhere.may_be_published) == ("unroutable", False, False)
        missing = await refusal_of(publisher, RabbitMQPlace(exchange="no-such-exchange", routing_key="x"))
        assert (missing.code, missing.is_retryable) == ("unroutable", False)
        assert "no-such-exchange" in missing.message
        refused = await refusal_of(publisher, RabbitMQPlace(routing_key=full))
        assert (refused.code, refused.is_retryable, refused.may_be_published) == ("publish_refused", True, False)
    wrong = rabbitmq_url.replace("guest:guest", "guest:s3cret-canary")
    async with publisher_for("rabbitmq", wrong) as publisher:
        denied = await refusal_of(publisher, RabbitMQPlace(routing_key=full))
        assert (denied.code, denied.is_retryable) == ("bad_credentials", False)
        assert "s3cret" not in denied.message
    async with publisher_for("rabbitmq", "amqp://127.0.0.1:1/") as publisher:
        gone = await refusal_of(publisher, RabbitMQPlace(routing_key=full))
        assert (gone.code, gone.is_retryable, gone.may_be_published) == ("connect", True, False)


# NATS ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nats_server() -> Iterator[Nats]:
    with Nats.running() as server:
        yield server


@proves("E3")
async def test_nats_says_which_stream_keeps_a_message_or_that_none_does(nats_server: Nats) -> None:
    client = await nats.connect(nats_server.url)
    stream = client.jetstream()
    await stream.add_stream(name="orders", subjects=["orders.>"])
    heard = await client.subscribe("news")
    async with publisher_for("nats", nats_server.url) as publisher:
        assert await publisher.check(within_s=PATIENCE_S) is None
        batch = [A_MESSAGE, A_MESSAGE, Message(b"2", None, {"webhook-id": "e2"})]
        answers = await publisher.publish(NatsPlace(subject="orders.paid"), batch, within_s=PATIENCE_S)
        first, again, other = receipts(answers)
        assert (first["stream"], {first["sequence"], other["sequence"]}) == ("orders", {1, 2})
        assert again["duplicate"], "the stream recognises the execution"
        kept = await stream.get_msg("orders", first["sequence"])
        assert (kept.data, {**(kept.headers or {})}) == (A_MESSAGE.body, {**HEADERS, "Nats-Msg-Id": "e1"})
        [plain] = receipts(await publisher.publish(NatsPlace(subject="news"), [A_MESSAGE], within_s=PATIENCE_S))
        assert plain == {"subject": "news", "stream": None}
        received = await heard.next_msg(PATIENCE_S)
        assert (received.data, received.headers) == (A_MESSAGE.body, HEADERS)
        large = await refusal_of(publisher, NatsPlace(subject="news"), Message(b"x" * 2_000_000))
        assert (large.code, large.is_retryable, large.may_be_published) == ("too_large", False, False)
    await client.close()


@proves("E3")
async def test_nats_refuses_a_wrong_password_and_a_subject_that_the_user_may_not_publish_to() -> None:
    class Guarded(Nats):
        def command(self) -> Sequence[str]:
            users = '{user: bob, password: right, permissions: {publish: {allow: ["news", "$JS.>", "_INBOX.>"]}}}'
            (self.directory / "conf").write_text(f"authorization: {{users: [{users}]}}\n")
            return (*super().command(), "-c", str(self.directory / "conf"))

    with Guarded.running() as server:
        place = server.url.removeprefix("nats://")
        async with publisher_for("nats", f"nats://bob:s3cret-canary@{place}") as publisher:
            wrong = await refusal_of(publisher, NatsPlace(subject="news"))
            assert (wrong.code, wrong.is_retryable, wrong.may_be_published) == ("bad_credentials", False, False)
            assert "s3cret" not in wrong.message
        async with publisher_for("nats", f"nats://bob:right@{place}") as publisher:
            receipts(await publisher.publish(NatsPlace(subject="news"), [A_MESSAGE], within_s=PATIENCE_S))
            denied = await refusal_of(publisher, NatsPlace(subject="orders"))
            assert (denied.code, denied.is_retryable) == ("bad_credentials", False)
            receipts(await publisher.publish(NatsPlace(subject="news"), [A_MESSAGE], within_s=PATIENCE_S))


@proves("E3")
async def test_nats_that_freezes_or_dies_says_what_is_certain_and_is_used_again() -> None:
    place = NatsPlace(subject="news")
    with Nats.running() as server:
        async with publisher_for("nats", server.url) as publisher:
            receipts(await publisher.publish(place, [A_MESSAGE], within_s=PATIENCE_S))
            server.freeze()
            [frozen] = await publisher.publish(place, [A_MESSAGE], within_s=0.3)
            assert isinstance(frozen, Refusal)
            assert (frozen.code, frozen.may_be_published) == ("timeout", True)
            server.thaw()
            receipts(await publisher.publish(place, [A_MESSAGE], within_s=PATIENCE_S))
            server.kill()
            gone = await refusal_of(publisher, place)
            if gone.may_be_published:  # the end of the connection was not read yet
                gone = await refusal_of(publisher, place)
            assert (gone.code, gone.may_be_published) == ("connect", False)
            server.start()
            receipts(await publisher.publish(place, [A_MESSAGE], within_s=PATIENCE_S))
