"""Jobs that publish, from the API to a real Redis: by address and by connection, with retries that say why."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis as Client

from brokers import Redis
from ondot.model.errors import Conflict, InvalidBody
from ondot.model.secret import MASK
from ondot.testing import World, open_world
from tests.flow.test_secrets import texts
from tests.proves import proves

AT = "2031-03-03T12:00:00Z"
PASSWORD = "very-secret-canary"


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with Redis.running() as server:
        yield server


@pytest.fixture
async def client(redis: Redis) -> AsyncIterator[Any]:
    client: Any = Client.from_url(redis.url, decode_responses=True)
    await client.flushall()
    await client.execute_command("ACL", "SETUSER", "bob", "on", "resetpass", f">{PASSWORD}", "~*", "+@all")
    yield client
    await client.aclose()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world(at=AT, network=True) as world:
        yield world


def publish(name: str = "out", **broker: Any) -> dict[str, Any]:
    return {"name": name, "target": {"publish": {"redis": {"stream": name, **broker}}}}


async def ended(world: World, job: str = "out") -> Any:
    await world.run_due()
    [*_, execution] = await world.executions(job)
    return execution


@proves("E3", "E11")
async def test_a_job_publishes_its_payload_and_its_result_says_where(world: World, redis: Redis, client: Any) -> None:
    made = await world.create({**publish(url=redis.url, headers={"x-team": "bi"}), "payload": {"order": 7}})
    execution = await ended(world)
    [(entry, fields)] = await client.xrange("out")
    assert (execution.state, execution.result) == ("SUCCEEDED", {"broker": "redis", "stream": "out", "id": entry})
    assert (fields["payload"], fields["x-team"]) == ('{"order":7}', "bi")
    assert (fields["webhook-id"], fields["ondot-job-id"]) == (str(execution.id), made["id"])
    assert (fields["ondot-attempt"], fields["ondot-fencing-token"]) == ("1", "1")
    assert fields["traceparent"].startswith("00-")


@proves("E3", "T5")
async def test_credentials_come_from_a_connection_a_secret_or_the_job_and_are_stored_sealed(
    world: World, redis: Redis, client: Any
) -> None:
    await world.set_secret("redis", PASSWORD)
    place = {"url": redis.url, "username": "bob"}
    made = await world.client.put_connection("main", {"kind": "redis", **place, "password": PASSWORD})
    assert made["password"] == MASK
    await world.create(publish("by-connection", connection="main"))
    await world.create(publish("by-secret", **place, password={"$secret": "redis"}))
    await world.create(publish("by-value", **place, password=PASSWORD))
    for name in ("by-connection", "by-secret", "by-value"):
        execution = await ended(world, name)
        assert execution.state == "SUCCEEDED", execution.error
        assert await client.xlen(name) == 1
    assert PASSWORD not in await texts(world)


@proves("E3")
async def test_a_connection_must_exist_and_fit_and_is_deleted_only_by_force_while_jobs_name_it(world: World) -> None:
    await world.client.put_connection("main", {"kind": "nats", "url": "nats://127.0.0.1:1"})
    with pytest.raises(InvalidBody, match="Did you mean 'main'"):
        await world.create(publish(connection="mian"))
    with pytest.raises(InvalidBody, match="leads to nats, and the target is redis"):
        await world.create(publish(connection="main"))
    steps = {"send": {"target": {"publish": {"nats": {"connection": "gone", "subject": "s"}}}}}
    with pytest.raises(InvalidBody, match="no connection 'gone'"):
        await world.create({"name": "steps", "steps": steps})
    nats = {"target": {"publish": {"nats": {"connection": "main", "subject": "s"}}}}
    job = await world.create({"name": "out", "every": "1h", **nats})
    with pytest.raises(Conflict, match="Jobs name the connection 'main': out"):
        await world.client.delete_connection("main")
    users = (await world.client.get_connection("main"))["used_by"]
    assert [user["id"] for user in users] == [job["id"]]
    await world.client.delete_connection("main", force=True)
    await world.advance(hours=1)
    execution = await ended(world)
    assert (execution.state, execution.error["code"], execution.attempts) == ("FAILED", "no_connection", 1)
    assert "ondot connection add main" in execution.error["message"]


@proves("E3")
async def test_a_job_that_leaves_its_connection_no_longer_holds_it(world: World) -> None:
    await world.client.put_connection("main", {"kind": "redis", "url": "redis://127.0.0.1:1"})
    job = await world.create({**publish(connection="main"), "every": "1h"})
    redis = {"connection": None, "url": "redis://127.0.0.1:2"}
    await world.client.patch_job(job["id"], {"target": {"publish": {"redis": redis}}}, job["version"])
    await world.client.delete_connection("main")


@proves("E3", "E4")
async def test_each_attempt_without_an_acknowledgement_says_whether_it_may_be_published(
    world: World, redis: Redis, client: Any
) -> None:
    """A frozen broker takes the message and answers nobody: the retry is a duplicate, and the record says so."""
    await world.create(publish("warm", url=redis.url))
    assert (await ended(world, "warm")).state == "SUCCEEDED"
    await world.create({**publish(url=redis.url), "timeout": "0.3s", "retry": {"max_retries": 1, "initial": "1m"}})
    redis.freeze()
    try:
        await world.run_due()
    finally:
        redis.thaw()
    await world.advance(minutes=5)
    execution = await ended(world)
    assert (execution.state, execution.attempts) == ("SUCCEEDED", 2)
    [first, _] = world.calls("out")
    assert first.error is not None
    assert (first.error["code"], first.error["may_be_published"]) == ("timeout", True)
    published = [(fields["webhook-id"], fields["ondot-attempt"]) for _, fields in await client.xrange("out")]
    assert published == [(str(execution.id), "1"), (str(execution.id), "2")]


@proves("E3")
async def test_a_world_without_a_network_says_how_to_publish(redis: Redis) -> None:
    async with open_world(at=AT) as world:
        await world.create({**publish(url=redis.url), "retry": {"max_retries": 0}})
        execution = await ended(world)
        assert "network=True" in execution.error["message"]
