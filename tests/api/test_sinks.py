"""`/v1/sinks`: written, read, paused and tested; no credential is shown, and bad input says what to do (E3)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from ondot.doctor.examine import check_sinks
from ondot.kms import generate_key
from tests.api.conftest import Caller
from tests.api.test_secrets import caller_with
from tests.proves import proves
from tests.sinks import Sinks, open_sinks
from tests.world import World, job


@pytest.fixture
async def sinks(world: World) -> AsyncIterator[Sinks]:
    async with open_sinks(world) as sinks:
        yield sinks


def to(sinks: Sinks, **fields: Any) -> dict[str, Any]:
    return {"types": ["ondot.execution.*"], "webhook": {"url": sinks.receiver.url}, **fields}


@proves("E3")
async def test_a_sink_is_created_replaced_paused_resumed_and_deleted(api: Caller, sinks: Sinks) -> None:
    put = await api.http.put("/v1/sinks/events", json=to(sinks))
    assert put.status_code == 200, put.text
    assert put.json() | {"name": "events", "kind": "webhook", "version": 1, "is_paused": False} == put.json()
    await api.world.submit(job())
    await (await api.world.worker()).run_one()
    shown = await api.get("/v1/sinks/events")
    assert (shown["waiting"], shown["sent"]) == (2, 0)
    assert shown["waiting_since"] is not None
    await sinks.deliver()
    replaced = await api.http.put("/v1/sinks/events", json=to(sinks, types=["ondot.job.paused"]))
    assert replaced.json() | {"version": 2, "sent": 2, "types": ["ondot.job.paused"]} == replaced.json()
    paused = await api.http.post("/v1/sinks/events/pause", json={})
    assert paused.json()["is_paused"] is True
    made = await api.create({"name": "nightly", "function": "f", "cron": "0 3 * * *"})
    await api.http.post(f"/v1/jobs/{made['id']}/pause", json={})
    assert await sinks.deliver() == []
    assert (await api.http.post("/v1/sinks/events/resume", json={})).json()["waiting"] == 1
    [event] = await sinks.deliver()
    assert event["type"] == "ondot.job.paused"
    assert [item["name"] for item in (await api.get("/v1/sinks"))["items"]] == ["events"]
    assert (await api.http.delete("/v1/sinks/events")).json()["sent"] == 3
    assert (await api.http.get("/v1/sinks/events")).status_code == 404


@proves("E3", "T5")
async def test_credentials_of_a_sink_are_sealed_sent_and_never_shown(world: World) -> None:
    key = generate_key()
    world.database.settings = world.database.settings.model_copy(update={"secret_key": key})
    api = caller_with(world, secret_key=key)
    async with open_sinks(world) as sinks, api.http:
        body = to(sinks, webhook={"url": sinks.receiver.url, "headers": {"Authorization": "Bearer hidden"}})
        put = await api.http.put("/v1/sinks/events", json=body)
        assert put.status_code == 200, put.text
        assert put.json()["webhook"]["headers"] == {"Authorization": "•••"}
        assert "hidden" not in str(await world.fetch("SELECT spec::text FROM ondot.sink"))
        await world.submit(job())
        await (await world.worker()).run_one()
        await sinks.deliver()
        assert {each.headers["authorization"] for each in sinks.receiver.received} == {"Bearer hidden"}
        assert {each.headers["content-type"] for each in sinks.receiver.received} == {"application/cloudevents+json"}
        assert all("webhook-signature" in each.headers for each in sinks.receiver.received)


@proves("E3")
async def test_a_test_event_goes_to_this_sink_alone(api: Caller, sinks: Sinks) -> None:
    for name in ("events", "others"):
        assert (await api.http.put(f"/v1/sinks/{name}", json=to(sinks, types=["ondot.job.paused"]))).status_code == 200
    asked = asyncio.create_task(api.http.post("/v1/sinks/events/test", json={}))
    while not await api.world.count("outbox"):
        await asyncio.sleep(0.01)
    [event] = await sinks.deliver()
    assert event["type"] == "ondot.sink.test"
    assert (await asked).json() == {"state": "DELIVERED", "error": None, "waiting": 0}
    await api.http.post("/v1/sinks/events/pause", json={})
    assert (await api.http.post("/v1/sinks/events/test", json={})).status_code == 409


@proves("E3")
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"types": ["ondot.execution.created"], "webhook": {"url": "http://a"}}, "ondot.execution.started"),
        ({"types": [], "webhook": {"url": "http://a"}}, "types"),
        ({"types": ["ondot.*"]}, "exactly one of webhook"),
        ({"types": ["ondot.*"], "webhook": {"url": "ftp://a"}}, "http://"),
        ({"types": ["ondot.*"], "webhook": {"url": "http://a", "batch": 501}}, "batch"),
    ],
)
async def test_a_wrong_sink_is_refused_with_what_to_do(api: Caller, body: dict[str, Any], says: str) -> None:
    answer = await api.http.put("/v1/sinks/events", json=body)
    assert answer.status_code in {400, 422}
    assert says in answer.text


@proves("E3", "O2")
async def test_metrics_and_doctor_say_that_a_sink_fails(api: Caller, sinks: Sinks) -> None:
    await api.http.put("/v1/sinks/events", json=to(sinks))
    sinks.receiver.answer(lambda: web.Response(status=500))
    await api.world.submit(job())
    await (await api.world.worker()).run_one()
    await sinks.deliver()
    await api.world.advance(30)
    metrics = (await api.http.get("/metrics")).text
    assert 'ondot_sink_waiting_events{sink="events",tenant="default"} 2.0' in metrics
    assert 'ondot_sink_lag_seconds{sink="events",tenant="default"} 30.0' in metrics
    assert 'ondot_sink_failing{sink="events",tenant="default"} 1.0' in metrics
    async with api.world.database.connection() as connection:
        found = await check_sinks(connection, api.world.database.settings)
    assert found.level == "warning"
    assert found.message.endswith("The receiver answered 500 Internal Server Error.")


@proves("E3")
async def test_a_wrong_name_is_refused(api: Caller, sinks: Sinks) -> None:
    answer = await api.http.put("/v1/sinks/Ä b", json=to(sinks))
    assert "Wrong name" in answer.text
