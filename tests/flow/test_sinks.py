"""Events for sinks: written with their cause, sent in order, at least once (E3)."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from ondot.flow.change.change import delete, pause, resume, update
from ondot.model.execution import CANCEL
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.retry import Retry
from ondot.store.endings import end_queued
from ondot.store.outcomes import complete_executions
from ondot.store.sinks import advance_sink, delete_sink, set_sink_paused
from tests.proves import proves
from tests.sinks import Sinks, open_sinks
from tests.world import World, done, every, failed, job


@pytest.fixture
async def sinks(world: World) -> AsyncIterator[Sinks]:
    async with open_sinks(world) as sinks:
        yield sinks


def types_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("ondot.") for event in events]


@proves("E3")
async def test_the_life_of_an_execution_is_sent_in_order(world: World, sinks: Sinks) -> None:
    await sinks.add()
    await world.submit(job("nightly", labels={"team": "bi"}, retry=Retry(max_retries=1)))
    worker = await world.worker()
    await worker.run_one(failed("no disk"))
    await world.advance(3600)
    await worker.run_one()
    events = await sinks.deliver()
    assert types_of(events) == [
        "execution.started",
        "execution.retrying",
        "execution.started",
        "execution.succeeded",
    ]
    assert len({event["id"] for event in events}) == 4
    assert [event["sequence"] for event in events] == sorted(event["sequence"] for event in events)
    retrying, succeeded = events[1], events[3]
    assert retrying["data"]["error"]["message"] == "no disk"
    assert datetime.fromisoformat(retrying["data"]["retry_at"]) > datetime.fromisoformat(retrying["time"])
    execution = succeeded["data"]["execution_id"]
    assert (
        succeeded
        | {
            "specversion": "1.0",
            "subject": execution,
            "partitionkey": execution,
            "ondottenant": "default",
            "source": f"/jobs/{succeeded['data']['job_id']}",
        }
        == succeeded
    )
    data = {"job": "nightly", "labels": {"team": "bi"}, "state": "SUCCEEDED", "attempt": 2, "pool": "default"}
    assert succeeded["data"] | data == succeeded["data"]
    assert "result" not in succeeded["data"]
    assert (await sinks.get()).sent == 4


@proves("E3")
async def test_nothing_is_written_that_no_sink_of_the_tenant_wants(world: World, sinks: Sinks) -> None:
    await sinks.add("ondot.execution.failed")
    await sinks.add("ondot.*", tenant_no=await world.add_tenant("acme"))
    await world.submit(job())
    await (await world.worker()).run_one()
    assert await world.count("outbox") == 0


@proves("E3")
async def test_changes_of_a_job_are_sent_in_order(world: World, sinks: Sinks) -> None:
    await sinks.add("ondot.job.*")
    made = await world.submit(job("nightly", schedule=every(60, world.now)))

    async def rename(row: Any, _: Any) -> Any:
        return replace(row.spec, name="weekly")

    await pause(world.database, DEFAULT_TENANT, made.id)
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, made.id)
    await update(world.database, world.dispatcher, DEFAULT_TENANT, made.id, rename)
    await delete(world.database, DEFAULT_TENANT, made.id)
    events = await sinks.deliver()
    assert types_of(events) == ["job.created", "job.paused", "job.resumed", "job.updated", "job.deleted"]
    assert [event["data"]["job"] for event in events] == ["nightly"] * 3 + ["weekly"] * 2
    assert {event["subject"] for event in events} == {str(made.id)}
    assert len({event["id"] for event in events}) == 5


@proves("E3")
async def test_a_row_that_commits_late_is_not_skipped_and_holds_back_what_came_after_it(
    world: World, sinks: Sinks
) -> None:
    """Two connections: the first row has the lower number, and commits last."""
    await sinks.add("ondot.execution.succeeded")
    await world.submit_all([job("first"), job("second")])
    worker = await world.worker()
    first, second = [done(each).completion for each in await worker.lease()]
    async with world.second_connection() as slow:
        transaction = slow.transaction()
        await transaction.start()
        await complete_executions(slow, worker.id, [first], [])
        async with world.second_connection() as fast:
            await complete_executions(fast, worker.id, [second], [])
        assert await sinks.delivery.one_pass() == 0
        await transaction.commit()
    assert [event["subject"] for event in await sinks.deliver()] == [str(first.execution_id), str(second.execution_id)]


@proves("E3")
async def test_events_of_an_execution_are_in_order_though_the_later_one_has_the_older_transaction(
    world: World, sinks: Sinks
) -> None:
    """Three connections. Ordered by transactions, the cancel would be sent while the retry before it cannot be."""
    await sinks.add("ondot.execution.retrying", "ondot.execution.cancelled")
    await world.submit(job(retry=Retry(max_retries=5)))
    worker = await world.worker()
    [assignment] = await worker.lease()
    async with world.second_connection() as older, world.second_connection() as between:
        cancelling, held = older.transaction(), between.transaction()
        for connection, transaction in ((older, cancelling), (between, held)):
            await transaction.start()
            await connection.execute("SELECT pg_current_xact_id()")
        await worker.complete(assignment, failed())
        await end_queued(older, DEFAULT_TENANT, {assignment.leased.id: "by a test"}, CANCEL)
        await cancelling.commit()
        assert await sinks.delivery.one_pass() == 0
        await held.rollback()
    assert types_of(await sinks.deliver()) == ["execution.retrying", "execution.cancelled"]


@proves("E3")
async def test_a_transaction_that_rolls_back_leaves_no_event_and_holds_nothing_up(world: World, sinks: Sinks) -> None:
    await sinks.add("ondot.execution.succeeded")
    await world.submit_all([job("first"), job("second")])
    worker = await world.worker()
    first, second = await worker.lease()
    async with world.second_connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await complete_executions(connection, worker.id, [done(first).completion], [])
        await transaction.rollback()
    await worker.complete(second)
    assert [event["subject"] for event in await sinks.deliver()] == [str(second.leased.id)]


@proves("E3")
async def test_a_lost_reply_repeats_events_with_the_same_ids(world: World, sinks: Sinks) -> None:
    """The receiver has stored it, and the connection breaks before its answer."""
    await sinks.add("ondot.execution.succeeded")
    await world.submit(job())
    await (await world.worker()).run_one()

    async def break_off(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    answering, sinks.receiver.answering = sinks.receiver.answering, break_off
    await sinks.deliver()
    row = await sinks.get()
    assert (row.sent, row.tries) == (0, 1)
    assert row.error == "The connection broke before the answer was complete."
    sinks.receiver.answering = answering
    await world.advance(2)
    assert len(await sinks.deliver()) == 1
    once, twice = sinks.events()
    assert once == twice
    assert sinks.receiver.received[0].headers["webhook-id"] == sinks.receiver.received[1].headers["webhook-id"]
    assert (await sinks.get()).failing_since is None


@proves("E3")
async def test_a_sink_that_fails_does_not_hold_up_others_and_is_a_condition(world: World, sinks: Sinks) -> None:
    await sinks.add("ondot.execution.*", name="broken", path="/broken")
    await sinks.add("ondot.execution.*", name="fine", path="/fine")

    async def answering(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500 if request.path == "/broken" else 204)

    sinks.receiver.answering = answering
    await world.submit(job())
    await (await world.worker()).run_one()
    await sinks.deliver()
    assert (await sinks.get("fine")).sent == 2
    assert (await sinks.get("broken")).sent == 0
    for _ in range(8):
        await world.advance(60)
        await sinks.deliver()
    broken = await sinks.get("broken")
    assert broken.error == "The receiver answered 500 Internal Server Error."
    [condition] = await world.fetch("SELECT subject, message FROM ondot.condition WHERE kind = 'sink'")
    assert condition["subject"] == "broken"
    sinks.receiver.answer(lambda: web.Response(status=204))
    await world.advance(60)
    assert types_of(await sinks.deliver()) == ["execution.started", "execution.succeeded"]
    assert await world.count("condition") == 0
    assert await sinks.delivery.tidy_pass() == 2
    assert await world.count("outbox") == 0


@proves("E3")
async def test_an_event_that_is_too_large_is_sent_in_short_and_one_that_is_refused_is_counted(
    world: World, sinks: Sinks
) -> None:
    await sinks.add("ondot.execution.failed", name="small", path="/small")
    await sinks.add("ondot.execution.failed", name="strict", path="/strict")

    async def answering(request: web.Request) -> web.StreamResponse:
        if request.path == "/strict":
            return web.Response(status=422)
        return web.Response(status=413 if (request.content_length or 0) > 1_500 else 204)

    sinks.receiver.answering = answering
    await world.submit(job(retry=Retry(max_retries=0)))
    await (await world.worker()).run_one(failed("x" * 50_000))
    events = await sinks.deliver()
    [short] = [event for event in events if "shortened" in event["data"]]
    assert len(short["data"]["error"]["message"]) == 200
    small, strict = await sinks.get("small"), await sinks.get("strict")
    assert (small.sent, small.shortened, small.refused) == (1, 1, 0)
    assert (strict.sent, strict.refused) == (0, 1)
    assert strict.error is not None
    assert "422" in strict.error


@proves("E3")
async def test_events_that_are_too_old_are_dropped_and_counted(world: World, sinks: Sinks) -> None:
    await sinks.add("ondot.execution.succeeded", name="away")
    sinks.receiver.answer(lambda: web.Response(status=503))
    await world.submit_all([job(), job()])
    worker = await world.worker()
    await worker.complete_all(await worker.lease())
    await world.advance(72 * 3600 - 60)
    await sinks.deliver()
    await sinks.delivery.tidy_pass()
    assert (await sinks.get("away")).dropped == 0
    await world.advance(120)
    await sinks.delivery.tidy_pass()
    assert (await sinks.get("away")).dropped == 2
    assert await world.count("outbox") == 0


@proves("E3")
async def test_a_sink_that_is_far_behind_is_a_condition_before_anything_is_dropped(world: World, sinks: Sinks) -> None:
    await sinks.add("ondot.execution.succeeded", name="slow")
    await sinks.add("ondot.execution.succeeded", name="paused")
    async with world.database.connection() as connection:
        await set_sink_paused(connection, DEFAULT_TENANT, (await sinks.get("paused")).id, is_paused=True, by="test")
    await world.submit(job())
    await (await world.worker()).run_one()
    behind = "SELECT subject FROM ondot.condition WHERE kind = 'sink' ORDER BY subject"
    for after_s, subjects in ((200, []), (200, ["slow"]), (36 * 3600, ["paused", "slow"])):
        await world.advance(after_s)
        await sinks.delivery.watch_pass()
        assert [row["subject"] for row in await world.fetch(behind)] == subjects


@proves("E3")
async def test_many_events_are_sent_in_batches_once_each_and_in_order(world: World, sinks: Sinks) -> None:
    await sinks.add("ondot.execution.*", batch=500)
    for _ in range(3):
        await world.submit_all([job()] * 500)
    worker = await world.worker()
    while leased := await worker.lease(700):
        await worker.complete_all(leased)
    assert await world.count("outbox") <= 6
    events = await sinks.deliver()
    assert len({event["id"] for event in events}) == len(events) == 3_000
    by_key: dict[str, list[str]] = {}
    for event in events:
        by_key.setdefault(event["partitionkey"], []).append(event["type"])
    assert {tuple(types) for types in by_key.values()} == {("ondot.execution.started", "ondot.execution.succeeded")}
    assert len(sinks.receiver.received) <= 9
    assert {each.headers["content-type"] for each in sinks.receiver.received} == {"application/cloudevents-batch+json"}


@proves("E3")
async def test_a_sink_gets_only_what_its_pools_and_labels_name_and_results_if_it_asks(
    world: World, sinks: Sinks
) -> None:
    await sinks.add("ondot.execution.succeeded", labels={"team": "bi"}, with_results=True)
    await sinks.add("ondot.execution.succeeded", name="gpu", pools=("gpu",))
    await world.submit_all([job("wanted", labels={"team": "bi", "a": "b"}), job("other", labels={"team": "ops"})])
    worker = await world.worker()
    await worker.complete_all(await worker.lease())
    [event] = await sinks.deliver()
    assert event["data"] | {"job": "wanted", "result": "done"} == event["data"]
    assert (await sinks.get("gpu")).position == (await sinks.get()).position


@proves("E3")
async def test_what_waits_for_a_sink_that_is_removed_goes(world: World, sinks: Sinks) -> None:
    await sinks.add()
    await world.submit(job())
    await (await world.worker()).run_one()
    row = await sinks.get()
    async with world.database.connection() as connection:
        await delete_sink(connection, DEFAULT_TENANT, row.id)
        assert not await advance_sink(connection, row, 1, sent=1)
    assert await sinks.deliver() == []
    await sinks.delivery.tidy_pass()
    assert await world.count("outbox") == 0
