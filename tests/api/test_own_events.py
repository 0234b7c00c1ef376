"""ondot's own events: one job follows another, exactly once, and circles end (S11)."""

import json
from typing import Any

import pytest

from ondot.flow.events.own import OwnEvents
from ondot.flow.events.receive import EventReceiver
from ondot.flow.workflows.begin import begin
from ondot.model.own_events import MAX_HOPS
from tests.api.conftest import Caller
from tests.proves import proves
from tests.world import World, failed

STRUCTURED = {"content-type": "application/cloudevents+json"}


@pytest.fixture
async def own(world: World) -> OwnEvents:
    return OwnEvents(world.database, EventReceiver(world.database, world.dispatcher))


async def follow(api: Caller, state: str, name: str = "follower", **fields: Any) -> str:
    event = {"type": f"ondot.execution.{state}", **fields}
    body = {"name": name, "function": "g", "schedule": {"event": event}, "max_retries": 0}
    return str((await api.create(body))["id"])


@proves("S11")
async def test_a_success_starts_the_job_that_follows_it(api: Caller, own: OwnEvents) -> None:
    follower = await follow(api, "succeeded", filter={"data": {"job": ["first"]}})
    first = await api.create({"name": "first", "function": "f"})
    other = await api.create({"name": "other", "function": "f"})
    worker = await api.world.worker()
    for assignment in await worker.lease():
        await worker.complete(assignment)
    assert await api.world.count("own_event") == 2
    assert await own.one_pass() == 2
    assert await api.world.count("own_event") == 0
    assert await own.one_pass() == 0
    rows = await api.world.fetch("SELECT job_id, origin, payload FROM ondot.execution")
    assert [(str(row["job_id"]), row["origin"]) for row in rows] == [(follower, "event")]
    event = json.loads(rows[0]["payload"])
    assert event["type"] == "ondot.execution.succeeded"
    assert event["source"] == f"/jobs/{first['id']}"
    assert event["data"] | {"job": "first", "state": "SUCCEEDED", "result": "done", "attempt": 1} == event["data"]
    assert event["ondothops"] == 1
    assert other["id"] != first["id"]


@proves("S11")
async def test_nothing_is_written_if_nobody_subscribes(api: Caller) -> None:
    await follow(api, "failed")
    await api.create({"name": "first", "function": "f"})
    worker = await api.world.worker()
    await worker.run_one()
    assert await api.world.count("own_event") == 0


@proves("S11", "P12")
async def test_other_tenants_do_not_hear_of_it(api: Caller) -> None:
    await api.create({"name": "first", "function": "f"})
    await follow(api, "succeeded")
    await api.world.fetch("UPDATE ondot.subscription SET tenant_no = 2")
    worker = await api.world.worker()
    await worker.run_one()
    assert await api.world.count("own_event") == 0


@proves("S11")
async def test_ends_that_no_worker_writes_count_too(api: Caller, own: OwnEvents) -> None:
    for state in ("failed", "cancelled", "skipped"):
        await follow(api, state, name=f"after {state}", filter={"data": {"job": ["watched"]}})
    job = await api.create({"name": "watched", "function": "f", "in": "1h"})
    run = await api.http.post(f"/v1/jobs/{job['id']}/run")
    cancelled = await api.http.post(f"/v1/executions/{run.json()['execution_id']}/cancel")
    assert cancelled.status_code in {200, 202}, cancelled.text
    await api.http.post(f"/v1/jobs/{job['id']}/run")
    worker = await api.world.worker()
    assert await own.one_pass() == 1
    broken = await api.create({"name": "watched", "function": "f", "max_retries": 0})
    leased = {str(one.leased.job_id): one for one in await worker.lease()}
    await worker.complete(leased[broken["id"]], failed("it broke"))
    late = await api.create({"name": "watched", "function": "f", "start_deadline": "10s"})
    await api.world.advance(20)
    assert await own.one_pass() >= 1
    names = {
        json.loads(row["payload"])["data"]["state"]
        for row in await api.world.fetch("SELECT payload FROM ondot.execution WHERE origin = 'event'")
    }
    assert {"CANCELLED", "FAILED"} <= names
    assert late["id"]


@proves("S11")
async def test_an_event_and_its_executions_are_written_together_or_not_at_all(
    api: Caller, own: OwnEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    await follow(api, "succeeded", filter={"data": {"job": ["first"]}})
    await api.create({"name": "first", "function": "f"})
    worker = await api.world.worker()
    await worker.run_one()

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the process ends here")

    with monkeypatch.context() as patched:
        patched.setattr("ondot.flow.events.own.take_own_events", fail)
        with pytest.raises(RuntimeError):
            await own.one_pass()
    assert await api.world.count("own_event") == 1
    assert await own.one_pass() == 1
    assert await api.world.count("execution") == 1


@proves("S11")
async def test_jobs_that_send_events_to_each_other_end_too(api: Caller) -> None:
    schedule = {"event": {"type": "com.acme.ping"}}
    await api.create({"name": "itself", "function": "f", "schedule": schedule})
    steps = {"a": {"function": "f"}, "b": {"function": "f"}}
    made = await api.http.post("/v1/workflows", json={"name": "flow", "steps": steps, "schedule": schedule})
    assert made.status_code == 201, made.text
    worker = await api.world.worker()
    sent: dict[str, Any] = {"specversion": "1.0", "id": "0", "type": "com.acme.ping", "source": "/acme"}
    for hops in range(1, MAX_HOPS + 2):
        answer = await api.http.post("/v1/events", json=sent, headers=STRUCTURED)
        assert answer.json()["matched"] == 2
        by_job = {one.spec.name if one.spec else "": one for one in await worker.lease(2)}
        assert by_job["itself"].hops == hops
        assert await begin(api.world.database, api.world.dispatcher, worker.id, by_job["flow"].leased) is True
        worker.completer.release(by_job["flow"].lease_id)
        await worker.complete(by_job["itself"])
        steps_leased = await worker.lease()
        assert [one.hops for one in steps_leased] == [hops, hops]
        await worker.complete_all(steps_leased)
        sent |= {"id": str(hops), "ondothops": hops}
    answer = await api.http.post("/v1/events", json=sent, headers=STRUCTURED)
    assert answer.status_code == 422
    assert "in a circle" in answer.text


@proves("S11")
async def test_an_attempt_that_no_event_started_passes_no_hops_on(api: Caller) -> None:
    await api.create({"name": "first", "function": "f"})
    worker = await api.world.worker()
    assert [one.hops for one in await worker.lease()] == [None]


@proves("S11")
async def test_jobs_that_start_each_other_in_a_circle_end(api: Caller, own: OwnEvents) -> None:
    await follow(api, "succeeded", name="itself")
    await api.create({"name": "first", "function": "f"})
    worker = await api.world.worker()
    rounds = 0
    while leased := await worker.lease():
        await worker.complete_all(leased)
        await own.one_pass()
        rounds += 1
        assert rounds <= MAX_HOPS + 5
    assert rounds == MAX_HOPS + 1
    [row] = await api.world.fetch("SELECT matched, body FROM ondot.event ORDER BY id DESC LIMIT 1")
    assert (row["matched"], json.loads(row["body"])["ondothops"]) == (0, MAX_HOPS + 1)


@proves("S11")
async def test_a_paused_job_starts_another(api: Caller, own: OwnEvents) -> None:
    body = {"name": "alarm", "function": "g", "schedule": {"event": {"type": "ondot.job.paused"}}}
    await api.create(body)
    job = await api.create({"name": "hourly", "function": "f", "every": "1h"})
    assert (await api.http.post(f"/v1/jobs/{job['id']}/pause?reason=maintenance")).status_code == 200
    assert await own.one_pass() == 1
    [row] = await api.world.fetch("SELECT payload FROM ondot.execution WHERE origin = 'event'")
    data = json.loads(row["payload"])["data"]
    assert (data["job"], data["job_id"]) == ("hourly", job["id"])
