"""The target `publish` as people write it: each broker, what is refused, and what an answer shows."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from ondot.document.merge_patch import base_of
from ondot.document.parse import job_spec, patched_spec
from ondot.model.broker import KafkaPlace, NatsPlace, RabbitMQPlace, RedisPlace
from ondot.model.errors import InvalidBody
from ondot.model.ids import JobId
from ondot.model.job import JobSpec, fill_in_schedule, list_connections_named
from ondot.model.secret import MASK, Hidden
from ondot.model.target import PASSWORD_HEADER, PublishTarget
from tests.proves import proves

NOW = datetime(2030, 1, 31, 9, 0, tzinfo=UTC)
JOB = JobId(UUID(int=1))


def read(**publish: Any) -> JobSpec:
    return job_spec({"name": "n", "target": {"publish": publish}}, NOW)


def shown(spec: JobSpec) -> Any:
    return base_of(fill_in_schedule(spec, JOB, NOW))["target"]["publish"]


@proves("E3")
@pytest.mark.parametrize(
    ("publish", "target"),
    [
        (
            {"redis": {"url": "redis://h/1", "stream": "s", "max_length": 5}},
            PublishTarget(place=RedisPlace(stream="s", max_length=5), address="redis://h:6379/1"),
        ),
        ({"redis": {"connection": "c", "list": "l"}}, PublishTarget(place=RedisPlace(list="l"), connection="c")),
        (
            {"kafka": {"servers": "a:1,b", "topic": "t", "key": "k", "headers": {"x-a": "1"}, "tls": True}},
            PublishTarget(place=KafkaPlace(topic="t"), address="a:1,b:9092", key="k", headers={"x-a": "1"}, tls=True),
        ),
        (
            {"rabbitmq": {"url": "amqps://h/v%2F1", "exchange": "e", "routing_key": "r", "priority": 3}},
            PublishTarget(
                place=RabbitMQPlace(exchange="e", routing_key="r", priority=3), address="amqps://h:5671/v%2F1"
            ),
        ),
        (
            {"nats": {"url": "nats://h", "subject": "a.b"}},
            PublishTarget(place=NatsPlace(subject="a.b"), address="nats://h:4222"),
        ),
    ],
)
def test_each_broker_is_read_shown_and_read_again(publish: dict[str, Any], target: PublishTarget) -> None:
    spec = read(**publish)
    assert spec.target == target
    assert read(**shown(spec)).target == target


@proves("E3", "T5")
def test_a_password_is_a_credential_and_a_connection_is_named() -> None:
    spec = read(redis={"url": "redis://h", "username": "u", "password": {"$secret": "r"}, "stream": "s"})
    assert spec.secrets == ("r",)
    assert isinstance(spec.target, PublishTarget)
    assert spec.target.headers == {PASSWORD_HEADER: Hidden(secret="r")}
    assert shown(spec)["redis"]["password"] == {"$secret": "r"}
    plain = read(redis={"url": "redis://h", "password": "s3cret-canary", "stream": "s"})
    assert plain.secrets == ()
    assert shown(plain)["redis"]["password"] == MASK
    named = read(nats={"connection": "bus", "subject": "s"})
    assert named.secrets == ()
    assert list_connections_named(named) == {"bus"}


@proves("E3")
def test_a_patch_changes_one_field_or_the_broker() -> None:
    stored = fill_in_schedule(read(kafka={"servers": "h:1", "topic": "t", "key": "k"}), JOB, NOW)
    other = patched_spec(stored, {"target": {"publish": {"kafka": {"topic": "u"}}}}, NOW)
    assert other.target == PublishTarget(place=KafkaPlace(topic="u"), address="h:1", key="k")
    moved = patched_spec(stored, {"target": {"publish": {"nats": {"url": "nats://h", "subject": "s"}}}}, NOW)
    assert moved.target == PublishTarget(place=NatsPlace(subject="s"), address="nats://h:4222")


@proves("E3", "T5")
@pytest.mark.parametrize(
    ("publish", "words"),
    [
        ({}, "exactly one of redis, kafka, rabbitmq, nats, got none"),
        (
            {"redis": {"url": "redis://h", "stream": "s"}, "nats": {"url": "nats://h", "subject": "s"}},
            "got `redis` and `nats`",
        ),
        ({"redis": {"stream": "s"}}, "exactly one of `connection` and `url`"),
        ({"redis": {"url": "redis://h", "connection": "c", "stream": "s"}}, "exactly one of `connection` and `url`"),
        ({"redis": {"url": "redis://h"}}, "exactly one of `stream`, `list` and `channel`"),
        ({"redis": {"url": "redis://h", "stream": "s", "list": "l"}}, "exactly one of `stream`, `list` and `channel`"),
        ({"redis": {"url": "redis://h", "list": "l", "max_length": 1}}, "`max_length` is for a `stream`"),
        ({"redis": {"url": "redis://u:s3cret-canary@h", "stream": "s"}}, "must not contain a user name or password"),
        ({"redis": {"url": "redis://h?password=s3cret-canary", "stream": "s"}}, "without ? and #"),
        ({"redis": {"url": "unix:///tmp/x", "stream": "s"}}, "redis://"),
        (
            {"redis": {"connection": "c", "password": "s3cret-canary", "stream": "s"}},
            "leave `username` and `password` out",
        ),
        ({"redis": {"connection": "No Name", "stream": "s"}}, "name of a connection"),
        ({"kafka": {"servers": "h:1", "topic": "a b"}}, "a topic"),
        ({"kafka": {"servers": "h:1", "topic": ".."}}, "a topic"),
        ({"kafka": {"servers": "h:99999", "topic": "t"}}, "servers such as"),
        ({"kafka": {"servers": "h:1"}}, "`target.publish.kafka.topic` is missing"),
        ({"kafka": {"servers": "h:1", "topic": "t", "partition": 1}}, "no field `partition`"),
        ({"kafka": {"servers": "h:1", "topic": "t", "headers": {"ondot-attempt": "1"}}}, "ondot sets the header"),
        ({"rabbitmq": {"url": "amqp://h"}}, "Give `routing_key`"),
        ({"rabbitmq": {"url": "amqp://h", "routing_key": "ü" * 200}}, "at most 255 bytes"),
        ({"rabbitmq": {"url": "amqp://h", "routing_key": "q", "priority": 256}}, "at most 255"),
        ({"nats": {"url": "nats://h", "subject": "a.*"}}, "wildcards"),
        ({"nats": {"url": "nats://h", "subject": "a..b"}}, "wildcards"),
    ],
)
def test_what_cannot_be_published_is_refused_with_what_to_do(publish: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidBody) as refused:
        read(**publish)
    assert words in refused.value.message
    assert "s3cret-canary" not in str(refused.value.faults) + refused.value.message
