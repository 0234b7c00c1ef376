"""Every request that starts an execution keeps the trace of its caller, with its `tracestate` (O3). The spans that are
sent: tests/telemetry/test_traces.py."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from ondot.flow.bulk.turns import bulk_pass
from ondot.flow.lease import Assignment
from ondot.flow.retain import Retention
from ondot.flow.sampled import find_caller
from ondot.flow.trace_links import Links, find_links
from ondot.flow.workflows.begin import begin
from ondot.model.ids import ExecutionId, JobId
from ondot.model.trace import Part, TraceContext, derive_span_id
from tests.api.conftest import Caller
from tests.api.workflow_runs import BROKEN, start_run
from tests.flow.workflows import run_steps
from tests.proves import proves
from tests.world import Worker, failed

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER = "ab" * 16
SPAN = "00f067aa0ba902b7"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
CALLER = TraceContext(TRACE, SPAN, is_sampled=True, state=STATE)
HEADERS = {"traceparent": CALLER.traceparent, "tracestate": STATE}
CRON = {"name": "beat", "cron": "30 * * * *", "function": "f", "max_retries": 0}


async def send(api: Caller, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
    answer = await api.http.request(method, path, json=body, headers=headers or HEADERS)
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def lease_one(worker: Worker) -> Assignment:
    [assignment] = await worker.lease()
    return assignment


async def links_of(api: Caller, assignment: Assignment) -> Links:
    """The links of its plan."""
    leased = assignment.leased
    assert assignment.spec is not None
    specs = {(UUID(int=leased.job_id.int), leased.job_version): assignment.spec}
    async with api.world.database.connection() as connection:
        found = await find_links(connection, api.world.database.specs, [leased], specs)
    return found.get(leased.id, ())


def plan_of(id_: UUID, trace_id: str | None = None) -> TraceContext:
    return TraceContext(trace_id or id_.hex, derive_span_id(id_, Part.PLAN), is_sampled=True)


async def expect_trace(api: Caller, assignment: Assignment, trace: TraceContext = CALLER) -> None:
    """What runs, one execution and the list show it."""
    assert find_caller(assignment) == trace
    shown = await api.get(f"/v1/executions/{assignment.leased.id}")
    assert shown["trace_id"] == trace.trace_id
    job = f"/v1/jobs/{assignment.leased.job_id}"
    lists = [
        await api.get("/v1/executions"),
        await api.get("/v1/executions", q="since:1d"),
        await api.get(f"{job}/executions"),
    ]
    for found in lists:
        assert [item["trace_id"] for item in found["items"] if item["id"] == shown["id"]] == [trace.trace_id]


@proves("O3")
async def test_what_a_person_runs_retries_or_replays_belongs_to_the_trace_of_that_request(api: Caller) -> None:
    job = await api.create(CRON)
    worker = await api.world.worker()
    await send(api, "POST", f"/v1/jobs/{job['id']}/run")
    ran = await lease_one(worker)
    await expect_trace(api, ran)
    assert await links_of(api, ran) == ()
    await worker.complete(ran, failed(retryable=False))
    # It has ended: history and its letter.
    assert (await api.get(f"/v1/executions/{ran.leased.id}"))["trace_id"] == TRACE

    again = {"traceparent": f"00-{OTHER}-{SPAN}-00"}
    await send(api, "POST", "/v1/dead-letters/replay", {"ids": [str(ran.leased.id)]}, **again)
    replayed = await lease_one(worker)
    await expect_trace(api, replayed, TraceContext(OTHER, SPAN, is_sampled=False))
    assert await links_of(api, replayed) == ((plan_of(ran.leased.id, TRACE), "the execution that it repeats"),)
    await worker.complete(replayed)

    await send(api, "POST", f"/v1/executions/{replayed.leased.id}/retry", {})
    retried = await lease_one(worker)
    await expect_trace(api, retried)
    assert await links_of(api, retried) == ((plan_of(replayed.leased.id, OTHER), "the execution that it repeats"),)
    await worker.complete(retried)

    # Without a trace of the request: as any other execution of a schedule, one of its own.
    await api.http.post(f"/v1/jobs/{job['id']}/run")
    own = await lease_one(worker)
    assert find_caller(own) is None
    assert (await api.get(f"/v1/executions/{own.leased.id}"))["trace_id"] == own.leased.id.hex
    assert await api.world.value("SELECT count(*) FROM ondot.trace") == 3


@proves("O3", "O8")
async def test_an_operation_on_many_runs_them_in_the_trace_of_its_request(api: Caller) -> None:
    jobs = [await api.create(CRON | {"name": f"j{n}"}) for n in range(2)]
    body = {"of": "jobs", "action": "run", "ids": [job["id"] for job in jobs]}
    await send(api, "POST", "/v1/bulk", body)
    await bulk_pass(api.world.database, api.world.dispatcher)
    worker = await api.world.worker()
    assignments = await worker.lease()
    assert [find_caller(assignment) for assignment in assignments] == [CALLER] * 2


@proves("O3", "S11")
async def test_events_and_hooks_carry_the_trace_of_their_request(api: Caller) -> None:
    rule = {"type": "com.acme.paid"}
    job = await api.create({"name": "ship", "function": "f", "schedule": {"event": rule}})
    worker = await api.world.worker()
    event = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "com.acme.paid"}
    sent = await send(api, "POST", "/v1/events", event)
    assert (await api.get(f"/v1/events/{sent['id']}"))["event"] == event | HEADERS
    started = await lease_one(worker)
    linked = ((TraceContext(TRACE, SPAN, is_sampled=True), "the event that started it"),)
    assert await links_of(api, started) == linked
    await worker.complete(started)

    # One of its own counts more: the event may have waited in a broker.
    own = f"00-{OTHER}-{SPAN}-01"
    sent = await send(api, "POST", "/v1/events", event | {"id": "2", "traceparent": own})
    assert (await api.get(f"/v1/events/{sent['id']}"))["event"] == event | {"id": "2", "traceparent": own}
    await worker.complete(await lease_one(worker))

    await send(api, "POST", f"/v1/events/{sent['id']}/replay", {"job_id": job["id"]})
    replayed = await lease_one(worker)
    await expect_trace(api, replayed)
    await worker.complete(replayed)

    hook = await send(api, "POST", "/v1/hooks", {"name": "shop", "type": "com.acme.paid"})
    await send(api, "POST", f"/v1/hooks/{hook['token']}", {"a": 1})
    assert await links_of(api, await lease_one(worker)) == linked


@proves("O3", "S8")
async def test_a_change_of_a_job_keeps_the_trace_of_its_request_or_the_one_before(api: Caller) -> None:
    at = (api.world.now + timedelta(seconds=1)).isoformat()
    job = await api.create({"name": "once", "at": at, "function": "f", "key": "k"}, **HEADERS)
    path = f"/v1/jobs/{job['id']}"
    await api.http.patch(path, json={"labels": {"a": "1"}})
    await api.http.put(path, json={"name": "once", "at": at, "function": "f", "priority": "high"})
    worker = await api.world.worker()
    await api.world.advance(1)
    changed = await lease_one(worker)
    assert changed.leased.job_version == 3
    assert find_caller(changed) == CALLER
    assert (await api.get(f"/v1/executions/{changed.leased.id}"))["trace_id"] == TRACE

    cron = await api.create(CRON)
    path = f"/v1/jobs/{cron['id']}"
    await send(api, "PATCH", path, {"priority": "high"})
    await send(api, "PATCH", path, {"priority": "high"}, traceparent=f"00-{OTHER}-{SPAN}-01")
    stored = await api.world.job(JobId(UUID(cron["id"])))
    assert (stored.version, stored.spec.trace, stored.spec.tracestate) == (2, CALLER.traceparent, STATE)
    assert "trace" not in str((await api.get("/v1/audit", subject=cron["id"]))["items"])


@proves("O3", "W8")
async def test_a_run_by_hand_and_a_rerun_have_their_steps_in_the_trace_of_the_request(api: Caller) -> None:
    worker = await api.world.worker()
    run = await start_run(api, worker)
    await run_steps(api.world, worker, run, {"b": BROKEN})
    await api.http.post(f"/v1/runs/{run}/give-up", json={"reason": "over"})
    await send(api, "POST", f"/v1/runs/{run}/rerun", {})
    assignment = await lease_one(worker)
    await expect_trace(api, assignment)
    assert await links_of(api, assignment) == ((plan_of(run), "the execution that it repeats"),)
    assert await begin(api.world.database, api.world.dispatcher, worker.id, assignment.leased) is True
    step = await lease_one(worker)
    assert step.step is not None
    assert (step.step.run_id, find_caller(step)) == (assignment.leased.id, CALLER)
    assert (await api.get(f"/v1/executions/{step.leased.id}"))["trace_id"] == TRACE


@proves("O3", "W4")
async def test_a_run_that_a_step_makes_is_linked_to_the_run_of_that_step(api: Caller) -> None:
    worker = await api.world.worker()
    steps = {"only": {"function": "f"}}
    at = (api.world.now + timedelta(days=1)).isoformat()
    await api.create({"name": "child", "key": "child", "at": at, "target": {"workflow": {"steps": steps}}})
    parent = await start_run(api, worker, {"sub": {"workflow": "child"}})
    child = await lease_one(worker)
    assert child.leased.origin == "child"
    trace_id = (await api.get(f"/v1/executions/{parent}"))["trace_id"]
    assert await links_of(api, child) == ((plan_of(parent, trace_id), "the run that made it"),)


@proves("O3", "S7")
async def test_executions_of_a_backfill_are_linked_to_its_request(api: Caller) -> None:
    job = await api.create(CRON)
    now = api.world.now
    body = {"from_at": (now - timedelta(hours=2)).isoformat(), "to_at": now.isoformat(), "concurrency": 5}
    await send(api, "POST", f"/v1/jobs/{job['id']}/backfill", body)
    await api.world.work_off()
    worker = await api.world.worker()
    made = await worker.lease()
    assert len(made) == 2
    linked = ((TraceContext(TRACE, SPAN, is_sampled=True), "the request for its backfill"),)
    assert [await links_of(api, one) for one in made] == [linked] * 2
    assert [find_caller(one) for one in made] == [None] * 2


@proves("O3")
@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        ([("traceparent", f"00-{TRACE.upper()}-{SPAN}-01")], None),
        ([("traceparent", f"ff-{TRACE}-{SPAN}-01")], None),
        ([("traceparent", f"00-{'0' * 32}-{SPAN}-01")], None),
        ([("traceparent", f"00-{TRACE}-{'0' * 16}-01")], None),
        ([("traceparent", "x" * 5000)], None),
        ([("traceparent", ""), ("tracestate", STATE)], None),
        ([("traceparent", CALLER.traceparent), ("traceparent", CALLER.traceparent)], None),
        ([("tracestate", STATE)], None),
        ([("traceparent", f"00-{TRACE}-{SPAN}-00")], TraceContext(TRACE, SPAN, is_sampled=False)),
        ([("Traceparent", f"01-{TRACE}-{SPAN}-01-later")], TraceContext(TRACE, SPAN, is_sampled=True)),
        (
            [("traceparent", CALLER.traceparent), ("tracestate", "a=1"), ("tracestate", "b=2")],
            TraceContext(TRACE, SPAN, is_sampled=True, state="a=1,b=2"),
        ),
        (
            [("traceparent", CALLER.traceparent), ("tracestate", "a=1,,A=2")],
            TraceContext(TRACE, SPAN, is_sampled=True),
        ),
    ],
)
async def test_what_is_not_valid_is_ignored_and_no_error(
    api: Caller, headers: list[tuple[str, str]], caller: TraceContext | None
) -> None:
    body = {"name": "hello", "function": "f"}
    created = await api.http.post("/v1/jobs", json=body, headers=headers)
    assert created.status_code == 201, created.text
    ran = await api.http.post(f"/v1/jobs/{created.json()['id']}/run", headers=headers)
    assert ran.status_code == 201, ran.text
    worker = await api.world.worker()
    assert [find_caller(assignment) for assignment in await worker.lease()] == [caller] * 2


@proves("O3")
async def test_traces_go_with_the_history_of_their_executions(api: Caller) -> None:
    job = await api.create(CRON)
    await send(api, "POST", f"/v1/jobs/{job['id']}/run")
    await send(api, "POST", f"/v1/jobs/{job['id']}/run")
    worker = await api.world.worker()
    first, _ = await worker.lease()
    await worker.complete(first)
    await api.world.advance(timedelta(days=40).total_seconds())
    retention = Retention(api.world.database)
    while await retention.one_pass():
        pass
    # One runs still, and the history of the other has not been rewritten.
    assert await api.world.value("SELECT count(*) FROM ondot.trace") == 2
    await api.world.fetch("TRUNCATE ondot.history")
    while await retention.one_pass():
        pass
    [kept] = await api.world.fetch("SELECT execution_id FROM ondot.trace")
    assert ExecutionId(kept["execution_id"]) != first.leased.id
