"""The trace that the running code belongs to (O3): set for a request, an attempt and its handler, read by log lines and
by requests that the handler sends.

OpenTelemetry is never imported here. If the process has imported it, its current span counts first, and the trace of an
attempt becomes its current context, so that spans of a handler's libraries are children of the attempt.
"""

import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from ondot.model.trace import TraceContext, parse_traceparent, parse_tracestate

TRACEPARENT: Final[ContextVar[str | None]] = ContextVar("ondot_traceparent", default=None)
TRACESTATE: Final[ContextVar[str | None]] = ContextVar("ondot_tracestate", default=None)


def enter_trace(traceparent: str, tracestate: str | None = None) -> None:
    """Make it current in this context, until the context ends."""
    TRACEPARENT.set(traceparent)
    TRACESTATE.set(tracestate)
    if "opentelemetry.trace" in sys.modules:
        _attach(traceparent, tracestate)


def enter_trace_of(variables: Mapping[str, str]) -> None:
    """That of the program that started this one, if it has passed one on: `TRACEPARENT` and `TRACESTATE`."""
    if (found := parse_traceparent(variables.get("TRACEPARENT", ""))) is not None:
        enter_trace(found.traceparent, parse_tracestate([variables.get("TRACESTATE", "")]))


def current_traceparent() -> str | None:
    if "opentelemetry.trace" in sys.modules and (traceparent := _read_current_span()) is not None:
        return traceparent
    return TRACEPARENT.get()


def current_trace() -> TraceContext | None:
    """The same with its `tracestate`, to be sent along."""
    if "opentelemetry.trace" in sys.modules and (traceparent := _read_current_span()) is not None:
        return parse_traceparent(traceparent, _read_current_state())
    traceparent = TRACEPARENT.get()
    return None if traceparent is None else parse_traceparent(traceparent, TRACESTATE.get())


def current_trace_id() -> str | None:
    traceparent = current_traceparent()
    return None if traceparent is None else traceparent[3:35]


def add_trace(_logger: object, _method: str, event: Any) -> Any:
    """A processor of structlog: adds the ids of the current trace to a line, unless it names its own."""
    if "trace_id" not in event and (traceparent := current_traceparent()) is not None:
        event["trace_id"], event["span_id"] = traceparent[3:35], traceparent[36:52]
    return event


def _attach(traceparent: str, tracestate: str | None) -> None:
    from opentelemetry import context, trace

    found = parse_traceparent(traceparent)
    if found is not None:
        span = trace.NonRecordingSpan(
            trace.SpanContext(
                int(found.trace_id, 16),
                int(found.span_id, 16),
                is_remote=True,
                trace_flags=trace.TraceFlags(int(found.is_sampled)),
                trace_state=None if tracestate is None else trace.TraceState.from_header([tracestate]),
            )
        )
        context.attach(trace.set_span_in_context(span))


def _read_current_span() -> str | None:
    from opentelemetry import trace

    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags & 1:02x}"


def _read_current_state() -> str | None:
    from opentelemetry import trace

    return parse_tracestate([trace.get_current_span().get_span_context().trace_state.to_header()])
