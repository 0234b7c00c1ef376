"""Traces from the request to the handler (O3): real processes, and a collector in the test's own process."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from started import free_port

from tests.faults.fleet import Fleet, a_fleet
from tests.proves import proves
from tests.receiver import Receiver, open_receiver

CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER_SPAN = "00f067aa0ba902b7"
TRACEPARENT = f"00-{CALLER}-{CALLER_SPAN}-01"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Got:
    """A span that arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    is_error: bool
    state: str

    @property
    def operation(self) -> str:
        return str(self.attributes.get("messaging.operation.name", ""))


@dataclass
class Collector:
    url: str = ""
    spans: list[Got] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    hangs: bool = False
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Answer what hangs."""
        self.hanging.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.hangs:
            await self.hanging.wait()
        body = ExportTraceServiceRequest.FromString(await request.read())
        for resource in body.resource_spans:
            service = {entry.key: entry.value.string_value for entry in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_read(service, span) for span in scope.spans]
        self.arrived.set()
        return web.Response(status=200, content_type="application/x-protobuf")

    async def until(self, *names: str, trace_id: str | None = None) -> list[Got]:
        """The spans of a trace, or all, once these names have arrived, each as often as it is named."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                self.arrived.clear()
                found = [span for span in self.spans if trace_id is None or span.trace_id == trace_id]
                have = [span.name for span in found]
                if all(have.count(name) >= names.count(name) for name in names):
                    return found
                await self.arrived.wait()


def _read(service: str, span: Any) -> Got:
    values = {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in span.attributes}
    links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
    return Got(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        values,
        links,
        span.status.code == 2,
        span.trace_state,
    )


@asynccontextmanager
async def a_collector() -> AsyncIterator[Collector]:
    collector = Collector()
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_post("/v1/traces", collector.handle)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    collector.url = f"http://{host}:{port}"
    try:
        yield collector
    finally:
        await runner.cleanup()


@dataclass
class Traced:
    """A whole ondot whose roles send traces."""

    fleet: Fleet
    url: str
    collector: Collector
    receiver: Receiver

    async def call(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        def send() -> Any:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(self.url + path, data, dict(headers or {}), method=method)
            with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
                return json.load(answer)

        return await asyncio.to_thread(send)

    async def create(self, body: Mapping[str, Any], **headers: str) -> dict[str, Any]:
        job: dict[str, Any] = await self.call("POST", "/v1/jobs", body, headers)
        return job

    async def execution(self, job_id: str) -> dict[str, Any]:
        """The execution of a job, once it has ended."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                items = (await self.call("GET", f"/v1/jobs/{job_id}/executions"))["items"]
                if items and items[0]["ended_at"]:
                    found: dict[str, Any] = await self.call("GET", f"/v1/executions/{items[0]['id']}")
                    return found
                await asyncio.sleep(0.03)


@pytest.fixture
async def traced(database_url: str, tmp_path: Path) -> AsyncIterator[Traced]:
    port = free_port()
    async with a_collector() as collector, open_receiver() as receiver, a_fleet(database_url, tmp_path) as fleet:
        fleet.settings |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_SERVICE_NAME": "",
            "ONDOT_TRACE_URL": "https://traces.example.com/trace/{trace_id}",
        }
        api = fleet.api(port)
        worker = fleet.start("worker", "--slots", "20", "--allow-shell", "tests.telemetry.traced_app:app")
        await fleet.wait_until_up(api, worker, fleet.scheduler())
        yield Traced(fleet, f"http://127.0.0.1:{port}", collector, receiver)


def tree(spans: list[Got]) -> dict[str, str]:
    """The operation of each span, and that of its parent."""
    by_id = {span.span_id: span for span in spans}
    names = {span.span_id: span.operation or span.name for span in spans}
    return {names[id_]: names.get(span.parent_id, span.parent_id) for id_, span in by_id.items()}


@pytest.mark.timeout(180)
@proves("O3")
async def test_an_execution_is_one_trace_from_its_caller_to_its_handler(traced: Traced) -> None:
    collector = traced.collector

    # An HTTP job of a caller that is traced.
    sent = {"traceparent": TRACEPARENT, "tracestate": STATE}
    job = await traced.create({"name": "hello", "url": f"{traced.receiver.url}/a?key=1"}, **sent)
    execution = await traced.execution(job["id"])
    spans = await collector.until(
        "submit default", "plan default", "queue default", "process default", "POST", trace_id=CALLER
    )
    assert tree(spans) == {
        "submit": CALLER_SPAN,
        "plan": "submit",
        "queue": "plan",
        "process": "plan",
        "call": "process",
    }
    assert execution["trace_id"] == CALLER
    by = {span.operation: span for span in spans}
    assert traced.receiver.received[-1].headers["traceparent"] == f"00-{CALLER}-{by['call'].span_id}-01"
    assert traced.receiver.received[-1].headers["tracestate"] == STATE
    assert {span.state for span in spans} == {STATE}
    assert {span.service for span in spans} == {"ondot-api", "ondot-worker"}
    attributes = by["process"].attributes
    assert attributes["messaging.system"] == "ondot"
    assert attributes["messaging.operation.type"] == "process"
    assert attributes["messaging.message.id"] == execution["id"]
    assert attributes["ondot.job.id"] == job["id"]
    assert attributes["ondot.outcome"] == "succeeded"
    call = by["call"].attributes
    assert call["http.response.status_code"] == 204
    assert call["url.full"] == f"{traced.receiver.url}/a", "a query may hold a secret"
    assert by["submit"].start_ns <= by["plan"].end_ns <= by["queue"].end_ns == by["process"].start_ns
    page = await asyncio.to_thread(_read_page, f"{traced.url}/executions/{execution['id']}")
    assert f"https://traces.example.com/trace/{CALLER}" in page

    # A function that fails once: its second attempt is a sibling, linked to the first, and its library's span a child.
    job = await traced.create(
        {"name": "flaky", "target": {"function": "flaky"}, "retry": {"max_retries": 2, "initial": "50ms"}}
    )
    execution = await traced.execution(job["id"])
    trace_id = execution["trace_id"]
    assert trace_id == job["id"].replace("-", ""), "the trace of a job without a caller has the job's id"
    spans = await collector.until("process default", "process default", "flaky", "inner", trace_id=trace_id)
    first, second = sorted((span for span in spans if span.operation == "process"), key=lambda span: span.start_ns)
    assert first.parent_id == second.parent_id
    assert [span.name for span in spans].count("plan default") == 1
    assert (first.is_error, second.is_error) == (True, False)
    assert first.attributes["error.type"] == "exception"
    assert second.links == [(trace_id, first.span_id)]
    assert second.attributes["ondot.attempt"] == 2
    handler = next(span for span in spans if span.name == "flaky" and span.parent_id == second.span_id)
    inner = next(span for span in spans if span.name == "inner")
    assert inner.parent_id == handler.span_id
    assert execution["result"] == f"00-{trace_id}-{handler.span_id}-01"
    [retrying] = await traced.fleet.logged(traced.fleet.members[1], "execution.retrying", within_s=WITHIN_S)
    assert retrying["trace_id"] == trace_id

    # A program finds it in its environment, as does a function in a thread.
    script = {"shell": {"command": ["sh", "-c", 'printf "%s %s" "$TRACEPARENT" "$TRACESTATE"']}}
    for number, (target, name) in enumerate(((script, "sh"), ({"function": "plain"}, "plain"))):
        own = f"00-{f'{number:02}' * 15}ff-{CALLER_SPAN}-01"
        job = await traced.create({"name": "t", "target": target}, traceparent=own, tracestate=STATE)
        execution = await traced.execution(job["id"])
        spans = await collector.until(name, trace_id=execution["trace_id"])
        handler = next(span for span in spans if span.name == name)
        expected = f"00-{execution['trace_id']}-{handler.span_id}-01 {STATE}"
        result = execution["result"]
        assert (result if isinstance(result, str) else result["stdout"]) == expected

    # A replay is another execution of the job, linked to the one that it repeats.
    replay = await traced.call("POST", f"/v1/executions/{execution['id']}/retry", {})
    spans = await collector.until(*["process default"] * 2, trace_id=execution["trace_id"])
    [plan] = [
        span for span in spans if span.operation == "plan" and span.attributes["ondot.execution.id"] == replay["id"]
    ]
    assert plan.links[0][0] == execution["trace_id"]

    # A fire of a schedule begins a trace of its own, linked to that of the change of its job.
    cron = {"name": "beat", "cron": "* * * * * *", "url": traced.receiver.url}
    job = await traced.create(cron, traceparent=TRACEPARENT)
    execution = await traced.execution(job["id"])
    assert execution["trace_id"] == execution["id"].replace("-", "")
    spans = await collector.until("process default", trace_id=execution["trace_id"])
    plan = next(span for span in spans if span.operation == "plan")
    submit = next(
        span
        for span in await collector.until(*["submit default"] * 2, trace_id=CALLER)
        if span.attributes["ondot.job.id"] == job["id"]
    )
    assert plan.links == [(CALLER, submit.span_id)]
    assert not plan.parent_id
    await traced.call("DELETE", f"/v1/jobs/{job['id']}")

    # Run by hand, it belongs to the trace of that request, below its span.
    nightly = await traced.create({"name": "nightly", "cron": "0 0 1 1 *", "url": traced.receiver.url})
    by_hand = {"traceparent": f"00-{'cd' * 16}-{CALLER_SPAN}-01", "tracestate": STATE}
    await traced.call("POST", f"/v1/jobs/{nightly['id']}/run", {}, by_hand)
    spans = await collector.until("process default", "POST", trace_id="cd" * 16)
    assert tree(spans) == {"plan": CALLER_SPAN, "queue": "plan", "process": "plan", "call": "process"}
    assert {span.state for span in spans} == {STATE}
    headers = traced.receiver.received[-1].headers
    assert (headers["traceparent"][3:35], headers["tracestate"]) == ("cd" * 16, STATE)

    # A run of a workflow is one trace, with its steps below it.
    steps = {
        "first": {"function": "plain"},
        "second": {"function": "plain", "depends_on": ["first"]},
        "third": {"url": traced.receiver.url, "depends_on": ["second"]},
    }
    job = await traced.create({"name": "flow", "steps": steps})
    spans = await collector.until(*["process default"] * 4, "POST", trace_id=job["id"].replace("-", ""))
    of_run = next(span for span in spans if span.operation == "plan" and "ondot.step" not in span.attributes)
    of_steps = {span.attributes["ondot.step"]: span for span in spans if "ondot.step" in span.attributes}
    assert set(of_steps) == set(steps)
    plans = [span for span in spans if span.operation == "plan" and "ondot.step" in span.attributes]
    assert {span.parent_id for span in plans} == {of_run.span_id}
    assert {span.attributes["messaging.message.conversation_id"] for span in plans} == {
        of_run.attributes["ondot.execution.id"]
    }

    # Hostile headers are ignored: the job has a trace of its own.
    for hostile in (f"00-{'0' * 32}-{CALLER_SPAN}-01", "x" * 5000, f"00-{CALLER.upper()}-{CALLER_SPAN}-01"):
        job = await traced.create({"name": "h", "target": {"function": "plain"}}, traceparent=hostile)
        assert (await traced.execution(job["id"]))["trace_id"] == job["id"].replace("-", "")

    # A caller that is not sampled: its trace goes on, and nothing is recorded.
    quiet = f"00-{'ab' * 16}-{CALLER_SPAN}-00"
    job = await traced.create({"name": "q", "url": traced.receiver.url}, traceparent=quiet)
    assert (await traced.execution(job["id"]))["trace_id"] == "ab" * 16
    assert traced.receiver.received[-1].headers["traceparent"] == quiet

    # A collector that hangs delays nothing, and a stop does not wait for it.
    collector.hangs = True
    for _ in range(3):
        job = await traced.create({"name": "on", "target": {"function": "plain"}})
        assert (await traced.execution(job["id"]))["state"] == "SUCCEEDED"
    assert [await member.stop() for member in traced.fleet.members] == [0, 0, 0]
    assert not any(span.trace_id == "ab" * 16 for span in collector.spans)


def _read_page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WITHIN_S) as answer:
        return str(answer.read().decode())
