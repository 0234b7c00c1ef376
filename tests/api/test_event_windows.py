"""Debounce, batch and cancel_on, over the API, with workers that lease at the same moment (S11)."""

import asyncio
import json
from typing import Any

import pytest

from ondot.model.execution import State
from ondot.model.ids import JobId
from tests.api.conftest import Caller
from tests.proves import proves
from tests.world import Worker

TYPE = "com.acme.order.paid"


async def send(api: Caller, *events: dict[str, Any], type_: str = TYPE) -> list[dict[str, Any]]:
    """Send events with these data in one batch; returns the answers."""
    batch = [
        {
            "specversion": "1.0",
            "id": api.world.database.clock.new_id().hex,
            "source": "/shop",
            "type": type_,
            "data": one,
        }
        for one in events
    ]
    answer = await api.http.post(
        "/v1/events", content=json.dumps(batch), headers={"content-type": "application/cloudevents-batch+json"}
    )
    assert answer.status_code == 202, answer.text
    answers: list[dict[str, Any]] = answer.json()["events"]
    return answers


async def job(api: Caller, **rule: Any) -> JobId:
    body = {"name": "paid", "function": "f", "schedule": {"event": {"type": TYPE, **rule}}}
    fields = {name: rule.pop(name) for name in ("overlap", "concurrency", "pool") if name in rule}
    body["schedule"] = {"event": {"type": TYPE, **rule}}
    return JobId((await api.create(body | fields))["id"])


async def payloads(api: Caller) -> list[Any]:
    rows = await api.world.fetch("SELECT payload FROM ondot.execution ORDER BY id")
    return [json.loads(row["payload"]) for row in rows]


@proves("S11")
async def test_a_debounced_job_runs_once_with_the_latest_event(api: Caller) -> None:
    await job(api, debounce={"key": "data.customer", "period": "5m"})
    [first] = await send(api, {"customer": "ada", "n": 1})
    await api.world.advance(200)
    [second] = await send(api, {"customer": "ada", "n": 2})
    [other] = await send(api, {"customer": "bob", "n": 3})
    assert first["executions"] == second["executions"] != other["executions"]
    assert (first["matched"], second["matched"]) == (1, 1)
    worker = await api.world.worker()
    await api.world.advance(299)
    assert await worker.lease() == []
    await api.world.advance(2)
    leased = await worker.lease()
    assert sorted(json.loads(one.payload)["data"]["n"] for one in leased) == [2, 3]


@proves("S11")
async def test_a_debounce_is_not_put_off_beyond_its_timeout(api: Caller) -> None:
    await job(api, debounce={"period": "5m", "timeout": "10m"})
    worker = await api.world.worker()
    for number in range(3):
        await send(api, {"n": number})
        await api.world.advance(170)
        assert await worker.lease() == []
    await send(api, {"n": "at 510 s"})
    await api.world.advance(95)
    # It is due since 600 s: an event replaces its payload, and does not move it.
    await send(api, {"n": "last"})
    [leased] = await worker.lease()
    assert json.loads(leased.payload)["data"]["n"] == "last"


@proves("S11")
async def test_once_it_is_leased_a_new_window_opens(api: Caller) -> None:
    await job(api, debounce={"period": "1s"})
    [first] = await send(api, {"n": 1})
    await api.world.advance(2)
    worker = await api.world.worker()
    [leased] = await worker.lease()
    [second] = await send(api, {"n": 2})
    assert first["executions"] != second["executions"]
    await worker.complete(leased)
    assert json.loads(leased.payload)["data"]["n"] == 1
    assert [payload["data"]["n"] for payload in await payloads(api)] == [2]


@proves("S11")
async def test_an_event_that_meets_a_lease_waits_for_it_and_opens_a_new_window(api: Caller) -> None:
    await job(api, debounce={"period": "1s"})
    [first] = await send(api, {"n": 1})
    await api.world.advance(2)
    async with api.world.second_connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        # As a lease does: the row of the queue, then the execution.
        await connection.execute("DELETE FROM ondot.ready")
        await connection.execute("UPDATE ondot.execution SET state = 'RUNNING', attempt_no = 1")
        sending = asyncio.create_task(send(api, {"n": 2}))
        await api.world.until_a_lock_is_awaited()
        await transaction.commit()
    [second] = await sending
    assert first["executions"] != second["executions"]
    rows = await api.world.fetch("SELECT state, payload FROM ondot.execution ORDER BY id")
    assert [(row["state"], json.loads(row["payload"])["data"]["n"]) for row in rows] == [("RUNNING", 1), ("PENDING", 2)]


@proves("S11")
async def test_a_batch_starts_when_it_is_full_or_has_waited(api: Caller) -> None:
    await job(api, batch={"size": 3, "wait": "5s"})
    answers = [(await send(api, {"n": number}))[0]["executions"] for number in range(5)]
    assert answers[0] == answers[1] == answers[2] != answers[3] == answers[4]
    worker = await api.world.worker()
    [full] = await worker.lease()
    assert [event["data"]["n"] for event in json.loads(full.payload)] == [0, 1, 2]
    await api.world.advance(6)
    [rest] = await worker.lease()
    assert [event["data"]["n"] for event in json.loads(rest.payload)] == [3, 4]


@proves("S11")
async def test_a_request_larger_than_a_batch_fills_several(api: Caller) -> None:
    await job(api, batch={"size": 3, "wait": "5s"})
    await send(api, {"n": -1})
    answers = await send(api, *({"n": number} for number in range(9)))
    assert len({one["executions"][0] for one in answers}) == 4
    worker = await api.world.worker()
    await api.world.advance(6)
    lists = [[event["data"]["n"] for event in json.loads(one.payload)] for one in await worker.lease()]
    assert sorted(lists) == [[-1, 0, 1], [2, 3, 4], [5, 6, 7], [8]]


@proves("S11")
@pytest.mark.parametrize("more", [{}, {"overlap": "skip"}, {"concurrency": 1}])
async def test_many_senders_at_once_lose_no_event_and_double_none(api: Caller, more: dict[str, Any]) -> None:
    await job(api, batch={"size": 7, "wait": "1s"}, **more)
    await asyncio.gather(*(send(api, {"n": number}) for number in range(40)))
    seen: list[int] = []
    worker = await api.world.worker()
    for _ in range(40):
        await api.world.advance(2)
        for leased in await worker.lease():
            items = [event["data"]["n"] for event in json.loads(leased.payload)]
            assert 1 <= len(items) <= 7
            seen += items
            await worker.complete(leased)
    if more.get("overlap") != "skip":
        assert sorted(seen) == list(range(40))
    assert len(seen) == len(set(seen))


@proves("S11")
async def test_senders_and_workers_at_once_lose_no_event_and_double_none(api: Caller) -> None:
    """Windows of no length: each event may meet the lease of the one before."""
    await job(api, batch={"size": 50, "wait": "100ms"})
    workers = [await api.world.worker() for _ in range(3)]
    seen: list[int] = []
    is_over = False

    async def work(worker: Worker) -> None:
        while not is_over:
            for leased in await worker.lease(3):
                seen.extend(event["data"]["n"] for event in json.loads(leased.payload))
                await worker.complete(leased)
            await api.world.advance(0.2)

    tasks = [asyncio.create_task(work(worker)) for worker in workers]
    for start in range(0, 120, 6):
        await asyncio.gather(*(send(api, {"n": number}) for number in range(start, start + 6)))
    async with asyncio.timeout(30):
        while len(seen) < 120:
            await asyncio.sleep(0)
    is_over = True
    await asyncio.gather(*tasks)
    assert sorted(seen) == list(range(120))
    assert await api.world.count("execution") == 0


async def order(api: Caller, number: object, type_: str = TYPE) -> dict[str, Any]:
    return (await send(api, {"order_id": number}, type_=type_))[0]


CANCEL = [{"type": "com.acme.order.cancelled", "same": "data.order_id"}]
CANCELLED = "com.acme.order.cancelled"


@proves("S11")
async def test_an_event_cancels_what_an_event_with_the_same_value_started(api: Caller) -> None:
    job_id = await job(api, cancel_on=CANCEL)
    await order(api, 1)
    await order(api, 2)
    answer = await order(api, 1, CANCELLED)
    assert answer["matched"] == 0
    states = [(row.state, row.reason or "") for row in await api.world.executions(job_id)]
    assert [state for state, _ in states] == [State.CANCELLED, State.PENDING]
    assert CANCELLED in states[0][1]
    # The value as it is: 2.0 is 2, "2" is not.
    await order(api, "2", CANCELLED)
    assert await api.world.states(job_id) == [State.CANCELLED, State.PENDING]
    await order(api, 2.0, CANCELLED)
    assert await api.world.states(job_id) == [State.CANCELLED, State.CANCELLED]


@proves("S11")
async def test_a_running_execution_is_asked_to_end_and_later_ones_are_not(api: Caller) -> None:
    job_id = await job(api, cancel_on=CANCEL)
    await order(api, 1)
    worker = await api.world.worker()
    await worker.lease()
    await order(api, 1, CANCELLED)
    [row] = await api.world.fetch("SELECT cancel_at, cancel_reason FROM ondot.execution")
    assert row["cancel_at"] is not None
    assert CANCELLED in row["cancel_reason"]
    await order(api, 1)
    assert await api.world.states(job_id) == [State.RUNNING, State.PENDING]


@proves("S11")
async def test_a_filter_of_cancel_on_is_obeyed(api: Caller) -> None:
    rule = CANCEL[0] | {"filter": {"data": {"by": ["customer"]}}}
    job_id = await job(api, cancel_on=[rule])
    await order(api, 1)
    await order(api, 1, CANCELLED)
    assert await api.world.states(job_id) == [State.PENDING]
    await send(api, {"order_id": 1, "by": "customer"}, type_=CANCELLED)
    assert await api.world.states(job_id) == [State.CANCELLED]


@proves("S11")
async def test_an_event_is_removed_from_a_list_that_has_not_started(api: Caller) -> None:
    job_id = await job(api, cancel_on=CANCEL, batch={"size": 10, "wait": "5s"})
    for number in (1, 2, 1, 3):
        await order(api, number)
    await order(api, 1, CANCELLED)
    [items] = await payloads(api)
    assert [event["data"]["order_id"] for event in items] == [2, 3]
    await order(api, 4)
    await order(api, 3, CANCELLED)
    [items] = await payloads(api)
    assert [event["data"]["order_id"] for event in items] == [2, 4]
    for number in (2, 4):
        await order(api, number, CANCELLED)
    assert await api.world.states(job_id) == [State.CANCELLED]
    await order(api, 5)
    assert await api.world.states(job_id) == [State.CANCELLED, State.PENDING]


@proves("S11")
async def test_a_debounced_execution_is_cancelled_by_the_value_of_its_last_event(api: Caller) -> None:
    job_id = await job(api, cancel_on=CANCEL, debounce={"period": "5s"})
    await order(api, 1)
    await order(api, 2)
    await order(api, 1, CANCELLED)
    assert await api.world.states(job_id) == [State.PENDING]
    await order(api, 2, CANCELLED)
    assert await api.world.states(job_id) == [State.CANCELLED]


@proves("S11")
async def test_a_cancel_that_meets_a_lease_waits_for_it_and_asks_it_to_end(api: Caller) -> None:
    await job(api, cancel_on=CANCEL)
    await order(api, 1)
    async with api.world.second_connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("DELETE FROM ondot.ready")
        await connection.execute("UPDATE ondot.execution SET state = 'RUNNING', attempt_no = 1")
        cancelling = asyncio.create_task(order(api, 1, CANCELLED))
        await api.world.until_a_lock_is_awaited()
        await transaction.commit()
    await cancelling
    [row] = await api.world.fetch("SELECT state, cancel_at FROM ondot.execution")
    assert row["state"] == "RUNNING"
    assert row["cancel_at"] is not None


@proves("S11")
async def test_the_example_of_the_reference_is_accepted(api: Caller) -> None:
    event = {
        "type": TYPE,
        "source": {"prefix": "/shop"},
        "filter": {"data": {"amount": [{"numeric": [">=", 100]}], "region": [{"prefix": "eu"}]}},
        "debounce": {"key": "data.customer", "period": "5m", "timeout": "10m"},
        "batch": {"size": 100, "wait": "5s"},
        "cancel_on": [{"type": CANCELLED, "same": "data.order_id"}],
    }
    made = await api.create({"name": "paid", "function": "f", "schedule": {"event": event}})
    shown = (await api.get(f"/v1/jobs/{made['id']}"))["schedule"]["event"]
    assert shown["debounce"] == {"key": "data.customer", "period": 300, "timeout": 600}
    assert shown["batch"] == {"size": 100, "wait": 5}
    assert [rule["same"] for rule in shown["cancel_on"]] == ["data.order_id"]
    await send(api, {"amount": 100, "region": "eu-1", "customer": "ada", "order_id": 1})
    await send(api, {"amount": 200, "region": "eu-2", "customer": "ada", "order_id": 2})
    await send(api, {"order_id": 1}, type_=CANCELLED)
    [items] = await payloads(api)
    assert [item["data"]["order_id"] for item in items] == [2]


@proves("S11")
@pytest.mark.parametrize(
    ("rule", "pointer"),
    [
        ({"debounce": {}}, "/schedule/event/debounce/period"),
        ({"debounce": {"period": "0s"}}, "/schedule/event/debounce/period"),
        ({"debounce": {"period": "5m", "timeout": "1m"}}, "/schedule/event/debounce/timeout"),
        ({"debounce": {"period": "5m", "key": "a..b"}}, "/schedule/event/debounce/key"),
        ({"batch": {"size": 0, "wait": "5s"}}, "/schedule/event/batch/size"),
        ({"batch": {"size": 1001, "wait": "5s"}}, "/schedule/event/batch/size"),
        ({"batch": {"size": 10}}, "/schedule/event/batch/wait"),
        ({"cancel_on": [{"type": "a.b"}]}, "/schedule/event/cancel_on/0/same"),
        ({"cancel_on": [{"type": "ondot.execution.failed", "same": "data.x"}]}, "/schedule/event/cancel_on/0/type"),
        ({"cancel_on": [{"type": "a", "same": "data.x", "filter": {"data": 1}}]}, "/schedule/event/cancel_on/0/filter"),
    ],
)
async def test_a_rule_that_is_not_right_gets_a_pointer(api: Caller, rule: dict[str, Any], pointer: str) -> None:
    body = {"name": "paid", "function": "f", "schedule": {"event": {"type": TYPE} | rule}}
    answer = await api.http.post("/v1/jobs", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"].startswith(pointer), answer.text
