"""Every broker may stop, be killed and freeze: publishing fails by its deadline, and hints flow again by themselves
afterwards (C5, L5). Each test has a server of its own."""

import asyncio

import pytest

from brokers import Broker, Kafka, Missing, Nats, RabbitMQ, Redis
from tests.proves import proves
from tests.transports.receiving import opened, receiving, until_received, until_refused, watched_loop

SOON_S = 3.0
"""Well above the deadline of a second: other tests use the processors too."""

BROKERS = [
    pytest.param("redis", "redis_url", Redis),
    pytest.param("nats", "nats_url", Nats),
    pytest.param("kafka", "kafka_servers", Kafka, marks=pytest.mark.long),
    pytest.param("rabbitmq", "rabbitmq_url", RabbitMQ, marks=pytest.mark.long),
]


@proves("C5", "L5")
@pytest.mark.parametrize(("name", "setting", "kind"), BROKERS)
async def test_hints_flow_again_after_the_broker_was_killed_stopped_and_frozen(
    database_url: str, name: str, setting: str, kind: type[Broker]
) -> None:
    try:
        with kind.running() as broker:
            async with opened(name, database_url, **{setting: broker.url}) as transport:
                async with receiving(transport) as received:
                    await until_received(transport, received)
                    with watched_loop() as longest_s:
                        broker.freeze()
                        assert await until_refused(transport) < SOON_S
                        assert await until_refused(transport) < SOON_S
                        broker.thaw()
                        await until_received(transport, received)
                    assert longest_s[0] < SOON_S, "the loop waited for a server that does not answer"
                    for end in (broker.kill, broker.stop):
                        await asyncio.to_thread(end)
                        assert await until_refused(transport) < SOON_S
                        await asyncio.to_thread(broker.start)
                        await until_received(transport, received)
                broker.freeze()  # closing must not wait for it either
    except Missing as missing:
        pytest.skip(str(missing))
