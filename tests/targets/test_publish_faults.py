"""Publishing while RabbitMQ and Kafka are frozen, killed or out of memory: each refusal says what is certain, and the
same client publishes again afterwards."""

import aiormq
import pytest

from brokers import Kafka, RabbitMQ
from ondot.model.broker import KafkaPlace, RabbitMQPlace
from ondot.ports.publisher import Refusal
from tests.proves import proves
from tests.targets.test_publish_brokers import A_MESSAGE, PATIENCE_S, publisher_for, receipts, refusal_of

QUEUE = RabbitMQPlace(routing_key="q")
TOPIC = KafkaPlace(topic="t")


@pytest.mark.long
@proves("E3")
async def test_rabbitmq_with_an_alarm_frozen_and_killed() -> None:
    with RabbitMQ.running() as server:
        connection = await aiormq.connect(server.url)
        await (await connection.channel()).queue_declare("q", durable=True)
        await connection.close()
        async with publisher_for("rabbitmq", server.url) as publisher:
            receipts(await publisher.publish(QUEUE, [A_MESSAGE], within_s=PATIENCE_S))
            server.control("set_vm_memory_high_watermark", "0.0000001")
            # The server says that it is blocked only when a message comes: that one may be read later.
            [first] = await publisher.publish(QUEUE, [A_MESSAGE], within_s=2)
            [second] = await publisher.publish(QUEUE, [A_MESSAGE], within_s=2)
            assert isinstance(first, Refusal)
            assert isinstance(second, Refusal)
            assert (first.code, first.may_be_published) == ("timeout", True)
            assert (second.code, second.may_be_published) == ("timeout", False)
            assert "memory or disk alarm" in second.message
            server.control("set_vm_memory_high_watermark", "0.4")
            receipts(await publisher.publish(QUEUE, [A_MESSAGE], within_s=PATIENCE_S))
            server.freeze()
            [frozen] = await publisher.publish(QUEUE, [A_MESSAGE], within_s=1)
            server.thaw()
            assert isinstance(frozen, Refusal)
            assert (frozen.code, frozen.may_be_published) == ("timeout", True)
            receipts(await publisher.publish(QUEUE, [A_MESSAGE], within_s=PATIENCE_S))
            server.kill()
            await refusal_of(publisher, QUEUE)  # the end of the open connection may not be read yet
            gone = await refusal_of(publisher, QUEUE)
            assert (gone.code, gone.may_be_published) == ("connect", False)
            server.start()
            receipts(await publisher.publish(QUEUE, [A_MESSAGE], within_s=PATIENCE_S))


@pytest.mark.long
@proves("E3")
async def test_kafka_frozen_and_stopped() -> None:
    with Kafka.running() as server:
        async with publisher_for("kafka", server.url) as publisher:
            receipts(await publisher.publish(TOPIC, [A_MESSAGE], within_s=PATIENCE_S))
            for away, back in ((server.freeze, server.thaw), (server.stop, server.start)):
                away()
                [refused] = await publisher.publish(TOPIC, [A_MESSAGE], within_s=1)
                back()
                assert isinstance(refused, Refusal)
                assert (refused.code, refused.may_be_published) == ("timeout", True)
                receipts(await publisher.publish(TOPIC, [A_MESSAGE], within_s=PATIENCE_S))
