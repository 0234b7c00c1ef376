"""`/v1/connections`: credentials are never shown or stored in plain, and a test says what is wrong."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from brokers import Redis
from ondot.doctor.brokers import examine_brokers
from ondot.kms import generate_key
from ondot.model.secret import MASK
from tests.api.conftest import Caller
from tests.api.test_secrets import caller_with, dump
from tests.proves import proves
from tests.world import World

PASSWORD = "very-secret-canary"


@pytest.fixture
async def api(world: World) -> AsyncIterator[Caller]:
    caller = caller_with(world, secret_key=generate_key())
    async with caller.http:
        yield caller


async def put(api: Caller, name: str = "main", status: int = 201, **body: Any) -> dict[str, Any]:
    answer = await api.http.put(f"/v1/connections/{name}", json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


@proves("E3", "T5")
async def test_credentials_are_sealed_never_shown_and_kept_for_the_same_address_only(api: Caller) -> None:
    made = await put(api, kind="redis", url=f"redis://bob:{PASSWORD}@redis.example.com/2")
    assert (made["url"], made["username"], made["password"]) == ("redis://redis.example.com:6379/2", "bob", MASK)
    same = await put(api, status=200, kind="redis", url=made["url"], username="bob", password=PASSWORD)
    assert same["version"] == 1, "the same content makes no new version"
    kept = await put(api, status=200, kind="redis", url=made["url"], username="eve", password=MASK)
    assert (kept["version"], kept["username"], kept["password"]) == (2, "eve", MASK)
    moved = await put(api, status=422, kind="redis", url="redis://evil.example.com", username="eve", password=MASK)
    assert "only for the address" in moved["detail"]
    await api.http.put("/v1/secrets/kafka", json={"value": f"{PASSWORD}-2", "hosts": ["kafka.example.com"]})
    by_name: dict[str, Any] = {"kind": "kafka", "username": "u", "password": {"$secret": "kafka"}, "tls": True}
    shown = await put(api, "bus", servers="kafka.example.com:9093", **by_name)
    assert (shown["servers"], shown["password"], shown["tls"]) == ("kafka.example.com:9093", {"$secret": "kafka"}, True)
    elsewhere = await put(api, "bus", 422, servers="kafka.example.com,evil.example.com", **by_name)
    assert "may not be sent to evil.example.com" in elsewhere["detail"]
    unknown = await put(api, "bus", 422, servers="k:1", **by_name | {"password": {"$secret": "kafak"}})
    assert "ondot secret set kafak" in unknown["detail"]
    page = await api.http.get("/v1/connections")
    assert [each["name"] for each in page.json()["items"]] == ["bus", "main"]
    assert PASSWORD not in page.text + await dump(api.world)


@proves("E3")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"kind": "redis"}, "needs `url`"),
        ({"kind": "kafka", "url": "redis://x"}, "needs `servers`"),
        ({"kind": "redis", "url": "redis://x", "servers": "x:1"}, "in `url`, not in `servers`"),
        ({"kind": "redis", "url": f"http://u:{PASSWORD}@x"}, "redis://"),
        ({"kind": "redis", "url": f"redis://u:{PASSWORD}@x/one"}, "redis://"),
        ({"kind": "nats", "url": f"nats://u:{PASSWORD}@h:99999"}, "nats://"),
        ({"kind": "rabbitmq", "url": f"amqp://u:{PASSWORD}@h", "password": PASSWORD}, "once"),
        ({"kind": "kafka", "servers": "a b"}, "without blanks"),
        ({"kind": "kafka", "servers": "h:9092", "headers": {"x": "y"}}, "takes no `headers`"),
        ({"kind": "kafka", "servers": "h:9092", "mechanism": "NTLM"}, "mechanism"),
        ({"kind": "kafka", "servers": "h", "private_key": PASSWORD}, "belong together"),
        ({"kind": "redis", "url": "rediss://h", "ca": "no pem"}, "PEM"),
        ({"kind": "webhook", "url": f"https://u:{PASSWORD}@h"}, "must not contain a user name"),
        ({"kind": "grpc", "address": "h"}, "host and port"),
        ({"kind": "mysql", "url": "x"}, "kind"),
        ({"kind": "redis", "url": "redis://h", "passwort": PASSWORD}, "did you mean `password`"),
        ({"kind": "redis", "url": "redis://h", "password": MASK}, "no value is stored"),
    ],
)
async def test_a_wrong_connection_is_refused_with_what_to_do_and_without_its_password(
    api: Caller, body: dict[str, Any], words: str
) -> None:
    refused = await put(api, status=422, **body)
    assert words in refused["detail"]
    assert PASSWORD not in str(refused)


@proves("E3", "T3")
async def test_a_test_connects_says_what_is_wrong_and_is_kept_until_the_connection_changes(world: World) -> None:
    for allowed in (False, True):
        settings = world.database.settings.model_copy(update={"allow_private_targets": allowed})
        world.database.settings = settings
        api = caller_with(world, secret_key=generate_key())
        async with api.http:
            with Redis.running() as redis:
                made = await put(api, status=200 if allowed else 201, kind="redis", url=redis.url)
                assert (made["tested_at"], made["test_error"]) == (None, None)
                tested = (await api.http.post("/v1/connections/main/test")).json()
            assert tested["tested_at"] is not None
            if allowed:
                assert tested["test_error"] is None
            else:
                assert "ONDOT_ALLOW_PRIVATE_TARGETS" in tested["test_error"]
            assert (await api.http.get("/v1/connections/main")).json()["test_error"] == tested["test_error"]
    assert "Connection refused" in (await api_test(world))["test_error"]


@proves("E3")
async def test_the_doctor_tests_every_connection(world: World) -> None:
    update = {"allow_private_targets": True, "secret_key": generate_key()}
    world.database.settings = world.database.settings.model_copy(update=update)
    assert await examine_brokers(world.database) == []
    api = caller_with(world, secret_key=world.database.settings.secret_key)
    async with api.http:
        with Redis.running() as redis:
            await put(api, kind="redis", url=redis.url)
            [fine] = await examine_brokers(world.database)
            assert (fine.level, fine.message) == ("ok", "1 connection works, tested from here.")
        await put(api, "other", kind="redis", url=f"redis://u:{PASSWORD}@127.0.0.1:1")
        [found] = await examine_brokers(world.database)
    assert found.level == "warning"
    assert "main: No connection" in found.message
    assert "other: No connection" in found.message
    assert PASSWORD not in found.message


async def api_test(world: World) -> dict[str, Any]:
    api = caller_with(world, secret_key=generate_key())
    async with api.http:
        found: dict[str, Any] = (await api.http.post("/v1/connections/main/test")).json()
        return found


@proves("E3")
async def test_an_unknown_connection_is_404_with_the_near_name(api: Caller) -> None:
    await put(api, "kafka-main", kind="kafka", servers="h:9092")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/test")):
        answer = await api.http.request(method, f"/v1/connections/kafka-mian{path}")
        assert answer.status_code == 404
        assert "Did you mean 'kafka-main'?" in answer.json()["detail"]
    assert (await put(api, "Not A Name", 422, kind="redis", url="redis://h"))["detail"].startswith("'Not A Name'")
    assert (await api.http.delete("/v1/connections/kafka-main")).status_code == 200
    assert (await api.http.get("/v1/connections")).json()["items"] == []
