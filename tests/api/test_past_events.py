"""Past events again: a filter tried on them, a replay to a job, and steps of workflows that wait for one (S11, W8)."""

import asyncio
import json
from typing import Any

import pytest

from ondot.flow.events.own import OwnEvents
from ondot.flow.events.receive import EventReceiver
from ondot.flow.workflows.begin import begin
from ondot.model.ids import ExecutionId
from ondot.model.own_events import MAX_HOPS
from ondot.model.retry import Retry
from tests.api.conftest import Caller
from tests.flow.workflows import run_steps, start, step, step_states
from tests.proves import proves
from tests.world import failed

TYPE = "com.acme.order.paid"
STRUCTURED = {"content-type": "application/cloudevents+json"}


async def send(api: Caller, id_: str, data: Any, **fields: Any) -> dict[str, Any]:
    event = {"specversion": "1.0", "id": id_, "source": "/shop", "type": TYPE, "data": data, **fields}
    answer = await api.http.post("/v1/events", json=event, headers=STRUCTURED)
    assert answer.status_code == 202, answer.text
    sent: dict[str, Any] = answer.json()
    return sent


@proves("S11")
async def test_a_filter_is_tried_on_past_events_and_names_the_condition_that_fails(api: Caller) -> None:
    large = await send(api, "1", {"amount": 100, "region": "eu"})
    small = await send(api, "2", {"amount": 1, "region": "eu"})
    await send(api, "3", {"amount": 1}, type="another.type")
    rule = {"type": TYPE, "source": {"prefix": "/s"}, "filter": {"data": {"amount": [{"numeric": [">=", 100]}]}}}
    tried = (await api.http.post("/v1/events/try", json={"event": rule})).json()
    assert (tried["tried"], tried["matched"]) == (2, 1)
    assert [item["id"] for item in tried["items"]] == [small["id"], large["id"]]
    assert [item["why"] is None for item in tried["items"]] == [False, True]
    assert "data.amount" in tried["items"][0]["why"]
    elsewhere = (await api.http.post("/v1/events/try", json={"event": rule | {"source": "/x"}, "limit": 1})).json()
    assert (elsewhere["tried"], elsewhere["matched"]) == (1, 0)
    assert "source" in elsewhere["items"][0]["why"]


@proves("S11")
@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/event"),
        ({"event": {}}, "/event/type"),
        ({"event": {"type": TYPE, "filter": {"data": {"x": 1}}}}, "/event/filter/data/x"),
        ({"event": {"type": TYPE}, "limit": 1001}, "/limit"),
    ],
)
async def test_a_rule_that_cannot_be_tried_gets_a_pointer(api: Caller, body: Any, pointer: str) -> None:
    answer = await api.http.post("/v1/events/try", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer


@proves("S11")
async def test_a_replay_starts_a_job_with_the_event_whatever_its_filter_says(api: Caller) -> None:
    sent = await send(api, "1", {"amount": 1})
    rule = {"type": TYPE, "filter": {"data": {"amount": [100]}}}
    body = {"name": "ship", "function": "f", "payload": {"n": {"$from": "event.data.amount"}}}
    job = await api.create(body | {"schedule": {"event": rule}})
    key = {"idempotency-key": "once"}
    path = f"/v1/events/{sent['id']}/replay"
    first = await api.http.post(path, json={"job_id": job["id"]}, headers=key)
    again = await api.http.post(path, json={"job_id": job["id"]}, headers=key)
    assert first.status_code == 201, first.text
    assert first.json() == again.json()
    [row] = await api.world.fetch("SELECT id, origin, payload FROM ondot.execution")
    assert (str(row["id"]), row["origin"]) == (first.json()["execution_id"], "event")
    assert json.loads(row["payload"]) == {"n": 1}


@proves("S11")
async def test_a_replay_that_is_not_possible_is_rejected_in_words(api: Caller) -> None:
    sent = await send(api, "1", {})
    timed = await api.create({"name": "timed", "function": "f", "every": "1h"})
    gone = await api.create({"name": "gone", "function": "f", "schedule": {"event": {"type": TYPE}}})
    await api.http.delete(f"/v1/jobs/{gone['id']}")
    unknown = "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"
    for event_id, job_id, status in (
        (sent["id"], timed["id"], 409),
        (sent["id"], gone["id"], 409),
        (sent["id"], unknown, 404),
        (unknown, timed["id"], 404),
    ):
        answer = await api.http.post(f"/v1/events/{event_id}/replay", json={"job_id": job_id})
        assert answer.status_code == status, answer.text


@proves("S11")
async def test_an_event_that_too_many_led_to_is_refused(api: Caller) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/shop", "type": TYPE}
    for hops, status in ((MAX_HOPS, 202), (MAX_HOPS + 1, 422), ("17", 422)):
        answer = await api.http.post(
            "/v1/events", json=event | {"id": f"{hops}", "ondothops": hops}, headers=STRUCTURED
        )
        assert answer.status_code == status, answer.text
    assert await api.world.count("event") == 1


@proves("S11", "W8")
async def test_a_step_waits_for_the_first_event_that_matches(api: Caller) -> None:
    steps = {
        "paid": {"wait": {"event": {"type": TYPE, "source": {"prefix": "/s"}, "filter": {"data": {"order": [7]}}}}},
        "ship": {"depends_on": ["paid"], "function": "f", "payload": {"by": {"$from": "paid.result.data.by"}}},
    }
    await send(api, "before", {"order": 7, "by": "too early"})
    made = await api.http.post("/v1/workflows", json={"name": "order", "steps": steps})
    assert made.status_code == 201, made.text
    run_id = await begin_only(api)
    assert await api.world.count("event_wait") == 1
    await send(api, "other", {"order": 8})
    assert await api.world.count("event_wait") == 1
    await send(api, "right", {"order": 7, "by": "ada"})
    await send(api, "late", {"order": 7, "by": "eve"})
    assert await api.world.count("event_wait") == 0
    # The process that received the event advances the run: nothing waits for housekeeping.
    assert await step_states(api.world, run_id) == {"paid": "RELEASED", "ship": "WAITING"}
    advancer = api.services.advancer
    advancing = asyncio.create_task(advancer.run())
    await advancer.drained()
    advancing.cancel()
    [row] = await api.world.fetch("SELECT payload FROM ondot.execution WHERE origin = 'step'")
    assert json.loads(row["payload"]) == {"by": "ada"}


async def begin_only(api: Caller) -> ExecutionId:
    """Begin the run that is due; returns it."""
    worker = await api.world.worker()
    [assignment] = await worker.lease(1)
    assert await begin(api.world.database, api.world.dispatcher, worker.id, assignment.leased) is True
    worker.completer.release(assignment.lease_id)
    return assignment.leased.id


@proves("S11", "W5")
async def test_a_blocked_run_starts_the_job_that_waits_for_it(api: Caller) -> None:
    body = {"name": "page", "function": "g", "schedule": {"event": {"type": "ondot.run.blocked"}}}
    await api.create(body)
    worker = await api.world.worker()
    run_id = await start(api.world, worker, {"only": step(retry=Retry(max_retries=0))})
    await run_steps(api.world, worker, run_id, {"only": failed(retryable=False)})
    own = OwnEvents(api.world.database, EventReceiver(api.world.database, api.world.dispatcher))
    assert await own.one_pass() == 1
    [row] = await api.world.fetch("SELECT payload FROM ondot.execution WHERE origin = 'event'")
    data = json.loads(row["payload"])["data"]
    assert (data["execution_id"], data["job"]) == (str(run_id), "flow")
    assert "only" in data["reason"]
