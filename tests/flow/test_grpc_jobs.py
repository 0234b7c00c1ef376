"""Jobs that call gRPC servers, from the request to the result: secrets, descriptor sets, steps, retries."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo

from ondot import Ondot
from ondot.model.errors import InvalidBody
from ondot.model.execution import Outcome
from ondot.testing import World, open_world
from tests.conformance.test_grpc_target import details
from tests.flow.test_secrets import texts
from tests.grpc_shop.certificates import Authority
from tests.grpc_shop.server import SERVICE, Shop, descriptor_text, open_shop
from tests.proves import proves

VALUE = "sk_live_51Hq8canary"
AT = "2031-03-03T12:00:00Z"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world(at=AT, network=True) as world:
        yield world


def job(shop: Shop, method: str = "Place", *, payload: Any = None, **fields: Any) -> dict[str, Any]:
    of_job: dict[str, Any] = {name: fields.pop(name) for name in ("retry", "every", "key") if name in fields}
    target = {"address": shop.url, "method": f"{SERVICE}/{method}", "tls": False, **fields}
    return {"name": "call", "target": {"grpc": target}, "payload": payload, **of_job}


async def ended(world: World, name: str = "call") -> Any:
    await world.run_due()
    [*_, execution] = await world.executions(name)
    return execution


@proves("E3", "T5")
async def test_certificates_key_and_metadata_come_from_secrets_and_nothing_stored_has_them(world: World) -> None:
    authority = Authority()
    certificate, key = authority.issue("shop.internal")
    own, own_key = authority.issue("worker.internal")
    credentials = grpc.ssl_server_credentials(
        [(key.encode(), certificate.encode())], authority.pem.encode(), require_client_auth=True
    )
    for name, value in (("token", VALUE), ("our-ca", authority.pem), ("certificate", own), ("key", own_key)):
        await world.set_secret(name, value)
    async with open_shop(credentials=credentials) as shop:
        tls = {
            "ca": {"$secret": "our-ca"},
            "certificate": own,
            "key": {"$secret": "key"},
            "server_name": "shop.internal",
        }
        metadata = {"authorization": {"$secret": "token", "prefix": "Bearer "}, "x-team": "bi"}
        made = await world.create(job(shop, tls=tls, metadata=metadata, every="1h", key="k"))
        assert made["target"]["grpc"]["tls"] == tls
        assert made["target"]["grpc"]["metadata"] == metadata
        await world.run_now("call")
        execution = await ended(world)
        assert execution.state == "SUCCEEDED", execution.error
        assert shop.seen[0]["authorization"] == f"Bearer {VALUE}"
        assert execution.result["metadata"]["authorization"] == "•••"
        # A key that was given in plain is sealed, shown as •••, and kept by it for the same server only.
        in_plain = {**metadata, "x-api-key": f"{VALUE}-2"}
        plain = await world.create(job(shop, tls={**tls, "key": own_key}, metadata=in_plain, every="1h", key="k"))
        shown = plain["target"]["grpc"]
        assert shown["tls"]["key"] == shown["metadata"]["x-api-key"] == "•••"
        assert await world.update("call", {"target": {"grpc": {"metadata": {"x-team": "qa"}}}})
        await world.run_now("call")
        assert (await ended(world)).state == "SUCCEEDED"
        assert (shop.seen[1]["x-team"], shop.seen[1]["x-api-key"]) == ("qa", f"{VALUE}-2")
        with pytest.raises(InvalidBody, match="only for the address that it was given for"):
            await world.update("call", {"target": {"grpc": {"address": "evil.example.com:443"}}})
        with pytest.raises(InvalidBody, match="only for the address that it was given for"):
            await world.update("call", {"target": {"grpc": {"tls": False}}})
    stored = await texts(world)
    assert VALUE not in stored
    assert own_key.splitlines()[1] not in stored
    await world.set_secret("token", VALUE, hosts=["api.stripe.com"])
    with pytest.raises(InvalidBody, match=r"may not be sent to 127\.0\.0\.1"):
        await world.create(job(shop, metadata=metadata))


@proves("E3", "T5")
async def test_a_connection_has_the_address_the_credentials_and_the_certificates(world: World) -> None:
    authority = Authority()
    certificate, key = authority.issue("127.0.0.1")
    own, own_key = authority.issue("worker.internal")
    pair = [(key.encode(), certificate.encode())]
    credentials = grpc.ssl_server_credentials(pair, authority.pem.encode(), require_client_auth=True)
    async with open_shop(credentials=credentials) as shop:
        fields: dict[str, Any] = {"kind": "grpc", "address": shop.url, "ca": authority.pem, "certificate": own}
        headers = {"authorization": f"Bearer {VALUE}", "x-team": "bi"}
        made = await world.client.put_connection("shop", {**fields, "private_key": own_key, "headers": headers})
        assert made["tls"] is True
        target = {"connection": "shop", "method": f"{SERVICE}/Place", "metadata": {"x-team": "qa"}}
        created = await world.create({"name": "call", "target": {"grpc": target}})
        whole = {"address": None, "tls": True, "descriptor_set": None}
        assert created["target"]["grpc"] == {**target, **whole}
        execution = await ended(world)
        assert execution.state == "SUCCEEDED", execution.error
        assert (shop.seen[0]["authorization"], shop.seen[0]["x-team"]) == (f"Bearer {VALUE}", "qa")
        assert "•••" in execution.result["metadata"]["authorization"]
    stored = await texts(world)
    assert VALUE not in stored
    assert own_key.splitlines()[1] not in stored
    await world.client.put_connection("bus", {"kind": "redis", "url": "redis://127.0.0.1:1"})
    for wrong, words in (
        ({"connection": "shpo", "method": "a.B/C"}, "no connection 'shpo'"),
        ({"connection": "bus", "method": "a.B/C"}, "leads to redis, and the target is grpc"),
        ({"connection": "shop", "address": "a:1", "method": "a.B/C"}, "exactly one of `connection` and `address`"),
        ({"method": "a.B/C"}, "exactly one of `connection` and `address`"),
        ({"connection": "shop", "method": "a.B/C", "tls": False}, "leave `tls` out"),
    ):
        with pytest.raises(InvalidBody, match=words):
            await world.create({"name": "call", "target": {"grpc": wrong}})
    for headers, words in (({"Authorization": "x"}, "in lower case"), ({"x": "ü"}, "printable ASCII")):
        with pytest.raises(InvalidBody, match=words):
            await world.client.put_connection("other", {"kind": "grpc", "address": "a:1", "headers": headers})


@proves("E3")
async def test_a_descriptor_set_is_checked_when_the_job_is_written(world: World) -> None:
    async with open_shop(reflection=()) as shop:
        given = {"descriptor_set": descriptor_text()}
        for body, words in (
            (job(shop, descriptor_set="%"), "`descriptor_set`: It is not the base64 of a FileDescriptorSet"),
            (job(shop, descriptor_set="A" * 600_000), "at most 524288 characters"),
            (job(shop, "Plase", **given), "no method Plase. Did you mean Place?"),
            (job(shop, "Watch", **given), "streaming method"),
            (job(shop, payload={"n": "x"}, **given), r"payload\.n must be a whole number"),
            ({"steps": {"a": {"target": job(shop, "Plase", **given)["target"]}}}, "Did you mean Place?"),
        ):
            with pytest.raises(InvalidBody, match=words):
                await world.create(body)
        made = await world.create(job(shop, payload={"n": 1}, every="1h", **given))
        assert made["target"]["grpc"]["descriptor_set"] == descriptor_text()
        with pytest.raises(InvalidBody, match="has no field"):
            await world.update("call", {"payload": {"m": 1}})
        await world.run_now("call")
        assert (await ended(world)).result["request"] == '{"n":1}'


@proves("E3", "W1")
async def test_a_step_reads_the_reply_of_a_grpc_call(world: World) -> None:
    async with open_shop() as shop:
        target = job(shop)["target"]
        first = {"target": target, "payload": {"region": "eu"}}
        second = {"target": target, "payload": {"n": {"$from": "a.result.total"}}, "depends_on": ["a"]}
        await world.create({"name": "call", "steps": {"a": first, "b": second}})
        await world.run_due()
        assert [seen["ondot-step"] for seen in shop.seen] == ["a", "b"]
        assert [call.result["request"] for call in world.calls()] == ['{"region":"eu"}', "{}"]


@proves("E3", "E4")
async def test_a_status_is_retried_after_the_delay_that_the_server_asks_for(world: World) -> None:
    async with open_shop() as shop:
        wait = details(RetryInfo(retry_delay=Duration(seconds=600)))
        await world.create(job(shop, "Fail", metadata={"x-details-bin": wait}, retry={"max_retries": 1}))
        await world.advance(minutes=9)
        assert len(world.calls("call")) == 1
        await world.advance(minutes=2)
        assert len(world.calls("call")) == 2
        metadata = {"x-status": "NOT_FOUND"}
        await world.create({**job(shop, "Fail", metadata=metadata), "name": "gone"})
        await world.advance(hours=1)
        assert len(world.calls("gone")) == 1
        retry = {"max_retries": 2, "retry_on": ["NOT_FOUND"]}
        await world.create({**job(shop, "Fail", metadata=metadata, retry=retry), "name": "found"})
        await world.advance(hours=1)
        assert len(world.calls("found")) == 3


app = Ondot()


@app.job
async def add(a: int, b: int) -> int:
    return a + b


@proves("E3")
async def test_grpc_calls_programs_and_functions_run_beside_each_other() -> None:
    """Programs are started by fork and exec while grpcio's threads run."""
    async with open_shop() as shop, open_world(app, at=AT, network=True, allow_shell=True) as world:
        for n in range(10):
            await world.create({**job(shop, payload={"n": n}), "name": f"grpc-{n}"})
            await world.create({"command": ["sh", "-c", "cat"], "payload": n, "name": f"shell-{n}"})
            await world.create({"function": "add", "payload": {"a": n, "b": 1}, "name": f"function-{n}"})
        await world.run_due()
        assert [call.outcome for call in world.calls()] == [Outcome.SUCCEEDED] * 30
        assert len(shop.seen) == 10


@proves("E3")
async def test_a_world_without_a_network_says_how_to_call_a_server() -> None:
    async with open_world(at=AT) as world:
        grpc_target = {"address": "api.example.com:443", "method": "a.B/C"}
        await world.create({"name": "call", "target": {"grpc": grpc_target}, "max_retries": 0})
        assert "network=True" in (await ended(world)).error["message"]
