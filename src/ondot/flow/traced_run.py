"""⑤b Attempts with traces (O3): a `Runner` that records the spans of the attempts whose trace is sampled.

    submit (by the API) → plan → queue, attempt → handler

A worker has this runner only if tracing is on. The decision comes first: an attempt that is not sampled runs as without
tracing. All spans are made at the attempt's end, from the database's instants: nothing is held for them. A worker that
dies records nothing of its attempts; the number of the next one shows that there was one before.

The plan span is recorded with the first attempt that neither failed before nor was lost, so that it exists once.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Any, Final, assert_never
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, structs

from ondot.flow.complete import end_attempt
from ondot.flow.lease import Assignment
from ondot.flow.run import Runner
from ondot.flow.sampled import sample_trace
from ondot.model.broker import kind_of_place
from ondot.model.completion import Completion
from ondot.model.execution import RECOVER, RETURN, State
from ondot.model.grpc import parse_address
from ondot.model.ids import ExecutionId, WorkerId, instant_of
from ondot.model.job import JobSpec
from ondot.model.target import FunctionTarget, GrpcTarget, HttpTarget, PublishTarget, ShellTarget
from ondot.model.trace import Part, TraceContext, derive_span_id, parse_traceparent
from ondot.model.workflow.spec import WorkflowTarget
from ondot.ports.target import Call
from ondot.store.queue import Leased
from ondot.telemetry.trace import Kind, Span, Tracer
from ondot.telemetry.trace_context import enter_trace

SYSTEM: Final = "ondot"
_ERRORS: Final = frozenset({State.FAILED, State.RETRYING})


class _Facts(Struct):
    """What a span shows of a result or an error."""

    status: int | None = None
    code: str | None = None


_FACTS: Final = msgspec.json.Decoder(_Facts)


@dataclass(slots=True)
class _Traced:
    """A sampled attempt that runs. `parent_id`: of its plan span."""

    trace_id: str
    parent_id: str | None
    state: str | None
    called_s: float | None = None


class TracedRunner(Runner):
    def __init__(self, *given: Any, tracer: Tracer, worker_id: WorkerId, now: Callable[[], datetime], **named: Any):
        super().__init__(*given, **named)
        self._tracer = tracer
        self._worker_id = worker_id
        self._now = now
        self._traced: dict[tuple[ExecutionId, int], _Traced] = {}

    def start(self, group: asyncio.TaskGroup, assignment: Assignment) -> None:
        sampled = sample_trace(self._tracer, assignment)
        if sampled is None:
            super().start(group, assignment)
            return
        leased = assignment.leased
        traced = self._traced[leased.id, leased.attempt_no] = _Traced(
            sampled.trace_id, sampled.parent_id, sampled.state
        )
        context = copy_context()
        context.run(enter_trace, _span_of(leased, traced.trace_id, Part.ATTEMPT).traceparent, traced.state)
        context.run(super().start, group, assignment)

    def complete(self, assignment: Assignment, completion: Completion) -> None:
        leased = assignment.leased
        traced = self._traced.pop((leased.id, leased.attempt_no), None)
        if traced is None:
            super().complete(assignment, completion)
            return
        if not self.is_committed(assignment, completion):
            self._completer.add(end_attempt(assignment, completion, traced.trace_id))
        if completion.transition is not RETURN:
            self._record(assignment, traced, completion)

    def _build_call(self, assignment: Assignment, spec: JobSpec, *given: Any, **named: Any) -> Call:
        call = super()._build_call(assignment, spec, *given, **named)
        leased = assignment.leased
        traced = self._traced.get((leased.id, leased.attempt_no))
        if traced is None:
            return call
        traced.called_s = self._now().timestamp()
        handler = _span_of(leased, traced.trace_id, Part.HANDLER)
        return structs.replace(call, traceparent=handler.traceparent)

    async def _begin(self, assignment: Assignment, spec: JobSpec) -> Completion | None:
        completion = await super()._begin(assignment, spec)
        if completion is None:
            leased = assignment.leased
            traced = self._traced.pop((leased.id, leased.attempt_no), None)
            if traced is not None:
                self._record(assignment, traced, None)
        return completion

    def _record(self, assignment: Assignment, traced: _Traced, completion: Completion | None) -> None:
        """All spans of an attempt that has ended. `completion`: None if it has begun a run."""
        leased, spec = assignment.leased, assignment.spec
        assert spec is not None
        now_s = self._now().timestamp()
        planned_s = instant_of(leased.id).timestamp()
        plan_id = derive_span_id(leased.id, Part.PLAN)
        queued_s = max(leased.ready_s, planned_s)
        facts, ended = self._describe(assignment, spec), _describe_end(completion)
        error = None
        if completion is not None and completion.state in _ERRORS:
            error = ended.get("error.type") or completion.outcome.value.lower()
        is_lost = completion is not None and completion.transition is RECOVER

        def record(
            operation: str,
            part: Part,
            parent_id: str | None,
            start_s: float,
            end_s: float,
            kind: Kind = "INTERNAL",
            links: Sequence[tuple[TraceContext, str]] = (),
            more: dict[str, Any] | None = None,
            name: str | None = None,
            error: str | None = None,
        ) -> None:
            attributes = {**facts, "messaging.operation.name": operation, **(more or {})}
            span_id = plan_id if part is Part.PLAN else derive_span_id(leased.id, part, leased.attempt_no)
            self._tracer.record(
                Span(
                    name or f"{operation} {spec.pool}",
                    kind,
                    traced.trace_id,
                    span_id,
                    parent_id,
                    start_s,
                    end_s,
                    attributes,
                    links,
                    traced.state,
                    error,
                )
            )

        if leased.failures == 0 and not is_lost:
            until_s = leased.ready_s if leased.attempt_no == 1 else leased.fire_s
            links = _links_of(assignment, spec)
            record("plan", Part.PLAN, traced.parent_id, planned_s, max(until_s, planned_s), links=links)
        record("queue", Part.QUEUE, plan_id, queued_s, max(leased.started_s, queued_s))
        before: list[tuple[TraceContext, str]] = []
        if leased.attempt_no > 1:
            span_id = derive_span_id(leased.id, Part.ATTEMPT, leased.attempt_no - 1)
            before = [(TraceContext(traced.trace_id, span_id, is_sampled=True), "previous attempt")]
        record(
            "process",
            Part.ATTEMPT,
            plan_id,
            leased.started_s,
            now_s,
            "CONSUMER",
            before,
            {"messaging.operation.type": "process", **ended},
            error=error,
        )
        if traced.called_s is not None:
            name, kind, more = _describe_handler(spec)
            if isinstance(spec.target, HttpTarget):
                more |= _describe_answer(completion)
            attempt_id = derive_span_id(leased.id, Part.ATTEMPT, leased.attempt_no)
            if error is not None:
                more["error.type"] = error
            record("call", Part.HANDLER, attempt_id, traced.called_s, now_s, kind, (), more, name, error)

    def _describe(self, assignment: Assignment, spec: JobSpec) -> dict[str, str | int | float | bool]:
        leased, step = assignment.leased, assignment.step
        facts: dict[str, str | int | float | bool] = {
            "messaging.system": SYSTEM,
            "messaging.destination.name": spec.pool,
            "messaging.message.id": str(leased.id),
            "messaging.client.id": str(self._worker_id),
            "ondot.execution.id": str(leased.id),
            "ondot.job.id": str(leased.job_id if step is None else step.job_id),
            "ondot.job.name": spec.name,
            "ondot.job.version": leased.job_version,
            "ondot.attempt": leased.attempt_no,
            "ondot.failures": leased.failures,
            "ondot.losses": leased.losses,
            "ondot.origin": leased.origin,
            "ondot.fire_at": leased.fire_at.isoformat(),
            "ondot.tenant.no": leased.tenant_no,
        }
        if step is not None:
            facts |= {
                "messaging.message.conversation_id": str(step.run_id),
                "ondot.run.id": str(step.run_id),
                "ondot.step": step.step,
            }
            if step.item_no is not None:
                facts["ondot.item"] = step.item_no
        return facts


def _span_of(leased: Leased, trace_id: str, part: Part) -> TraceContext:
    return TraceContext(trace_id, derive_span_id(leased.id, part, leased.attempt_no), is_sampled=True)


def _links_of(assignment: Assignment, spec: JobSpec) -> list[tuple[TraceContext, str]]:
    links = list(assignment.links or ())
    if (
        spec.recurs
        and spec.trace is not None
        and (created := parse_traceparent(spec.trace, spec.tracestate)) is not None
    ):
        links.append((created, "last change of the job"))
    return links


def _describe_end(completion: Completion | None) -> dict[str, Any]:
    if completion is None:
        return {"ondot.outcome": "begun"}
    ended: dict[str, Any] = {
        "ondot.outcome": completion.outcome.value.lower(),
        "ondot.state": completion.state.value,
    }
    if completion.error is not None and (code := _read_facts(completion.error).code) is not None:
        ended["error.type"] = code
    return ended


def _describe_handler(spec: JobSpec) -> tuple[str, Kind, dict[str, Any]]:
    target = spec.target
    match target:
        case HttpTarget():
            parts = urlsplit(target.url)
            address: dict[str, Any] = {
                "http.request.method": target.method,
                # Without user, password and query: they may hold secrets.
                "url.full": f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
                "server.address": parts.hostname or "",
            }
            if (port := parts.port or {"https": 443, "http": 80}.get(parts.scheme)) is not None:
                address["server.port"] = port
            return target.method, "CLIENT", address
        case GrpcTarget():
            service, _, method = target.method.partition("/")
            called: dict[str, Any] = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
            if target.connection is None:
                called["server.address"], called["server.port"] = parse_address(target.address)
            return target.method, "CLIENT", called
        case PublishTarget():
            kind = kind_of_place(target.place)
            sent = {"messaging.system": kind, "messaging.operation.type": "send"}
            return f"publish {kind}", "PRODUCER", {**sent, "messaging.destination.name": str(target.place)}
        case FunctionTarget():
            return target.name, "INTERNAL", {"code.function.name": target.name}
        case ShellTarget():
            program = PurePath(target.command[0]).name if target.command else "shell"
            return program, "INTERNAL", {"process.executable.name": program}
        case WorkflowTarget():
            return "run", "INTERNAL", {}
        case _:
            assert_never(target)


def _describe_answer(completion: Completion | None) -> dict[str, Any]:
    text = None if completion is None else completion.result or completion.error
    status = None if text is None else _read_facts(text).status
    return {} if status is None else {"http.response.status_code": status}


def _read_facts(text: str) -> _Facts:
    try:
        return _FACTS.decode(text)
    except msgspec.MsgspecError:
        # A function's result may be anything.
        return _Facts()
