"""Spans, sent by OTLP (O3). Nothing of OpenTelemetry is imported unless its variables ask for traces.

`open_tracer` reads the usual variables. `OTEL_EXPORTER_OTLP_ENDPOINT` (or that of traces) turns tracing on,
`OTEL_SDK_DISABLED` and `OTEL_TRACES_EXPORTER=none` turn it off; the SDK reads `OTEL_TRACES_SAMPLER`
and the others. Spans are made when they have ended, with the database's instants, and are exported by the SDK's batch
processor in its thread. A collector that is away or hangs costs spans, which are counted, and nothing else.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from uuid import UUID

from msgspec import Struct, structs

from ondot.model.trace import TraceContext, mix_bits
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import SPANS, SPANS_LOST
from ondot.telemetry.trace_context import TRACEPARENT

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
WITH_HANDLERS: Final = frozenset({"worker", "function"})
"""Roles whose handlers may record spans of their own, by the global provider."""
CLOSES_WITHIN_S: Final = 2.0
"""An ending process waits this long for its last spans."""
QUEUE_SIZE: Final = 2048
"""Spans that wait for the exporter, unless `OTEL_BSP_MAX_QUEUE_SIZE` says otherwise."""
RANDOM_BITS: Final = 2**62 - 1
"""The part of an id that is random, see `model.ids`."""
_NANOSECONDS: Final = 1_000_000_000

Kind = Literal["INTERNAL", "PRODUCER", "CONSUMER", "CLIENT"]
Attributes = Mapping[str, str | int | float | bool]

log = get_logger()


class Span(Struct, frozen=True):
    """One span that has ended. Instants are seconds since 1970."""

    name: str
    kind: Kind
    trace_id: str
    span_id: str
    parent_id: str | None
    start_s: float
    end_s: float
    attributes: Attributes
    links: Sequence[tuple[TraceContext, str]] = ()
    """Spans that led to this one, and how."""
    state: str | None = None
    """The `tracestate` of its trace."""
    error: str | None = None
    """A code. Messages may hold data of users."""


class Tracer:
    """Decides which traces are recorded, and hands their spans to the SDK."""

    def __init__(self, provider: "TracerProvider", exporter: "SpanExporter | None", release: str) -> None:
        """`exporter`: None if the provider has processors already, because the app has set it up."""
        from opentelemetry import context, trace
        from opentelemetry.sdk.trace import ReadableSpan, sampling
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._trace = trace
        self._readable_span = ReadableSpan
        self._provider = provider
        self._scope = InstrumentationScope("ondot", release)
        self._nothing = context.Context()
        self._sampler = provider.sampler
        root = getattr(self._sampler, "_root", self._sampler)
        self._bound: int | None = None
        """If the sampler is one of the usual ones: a new trace is recorded if the random bits of its id are below this.
        To ask the sampler costs ten times as much."""
        if isinstance(root, sampling.TraceIdRatioBased):
            self._bound = round(root.rate * (RANDOM_BITS + 1))
        elif root in {sampling.ALWAYS_ON, sampling.ALWAYS_OFF}:
            self._bound = RANDOM_BITS + 1 if root is sampling.ALWAYS_ON else 0
        self._bounded: _Bounded | None = None
        if exporter is not None:
            counted = _Counted(exporter)
            self._bounded = _Bounded(BatchSpanProcessor(cast("SpanExporter", counted)), counted, _read_queue_size())
            provider.add_span_processor(cast("SpanProcessor", self._bounded))
        self._processor = provider._active_span_processor

    def is_sampled(self, own_id: UUID, caller: TraceContext | None) -> bool:
        """Whether a trace is recorded: by its caller's decision, else by an id, the same in every process."""
        if caller is None and self._bound is not None:
            return own_id.int & RANDOM_BITS < self._bound
        parent, trace_id = self._nothing, mix_bits(own_id)
        if caller is not None:
            trace_id = int(caller.trace_id, 16)
            remote = self._trace.NonRecordingSpan(self._span_context(caller, is_remote=True))
            parent = self._trace.set_span_in_context(remote, self._nothing)
        decision: Any = self._sampler.should_sample(parent, trace_id, "process").decision
        return bool(decision.is_sampled())

    def record(self, span: Span) -> None:
        if self._bounded is not None and self._bounded.is_full:  # here: to make a span costs most
            SPANS_LOST.inc()
            return
        trace = self._trace
        own = TraceContext(span.trace_id, span.span_id, is_sampled=True, state=span.state)
        parent = None if span.parent_id is None else structs.replace(own, span_id=span.parent_id)
        start_ns = int(span.start_s * _NANOSECONDS)
        status = trace.Status() if span.error is None else trace.Status(trace.StatusCode.ERROR, span.error)
        self._processor.on_end(
            self._readable_span(
                name=span.name,
                context=self._span_context(own),
                parent=None if parent is None else self._span_context(parent, is_remote=True),
                resource=self._provider.resource,
                attributes=dict(span.attributes),
                links=[
                    trace.Link(self._span_context(other, is_remote=True), {"ondot.link": how})
                    for other, how in span.links
                ],
                kind=trace.SpanKind[span.kind],
                instrumentation_scope=self._scope,
                status=status,
                start_time=start_ns,
                end_time=max(int(span.end_s * _NANOSECONDS), start_ns),
            )
        )
        SPANS.inc()

    def _span_context(self, of: TraceContext, *, is_remote: bool = False) -> Any:
        flags = self._trace.TraceFlags(int(of.is_sampled))
        state = None if of.state is None else self._trace.TraceState.from_header([of.state])
        return self._trace.SpanContext(int(of.trace_id, 16), int(of.span_id, 16), is_remote, flags, state)

    def close(self, within_s: float) -> None:
        """Send the last spans. A collector that does not answer must not keep the process."""
        closing = threading.Thread(target=self._provider.shutdown, name="ondot-traces", daemon=True)
        closing.start()
        closing.join(within_s)


class _Bounded:
    """A processor whose queue is never full: it counts what it cannot take. The processor behind it would drop the
    oldest span, without a count. Handlers' libraries send their spans through it too, from any thread."""

    def __init__(self, processor: "SpanProcessor", exporter: "_Counted", most_waiting: int) -> None:
        self._processor = processor
        self._exporter = exporter
        self._most_waiting = most_waiting
        self._ended = 0
        self._lock = threading.Lock()
        self.on_start = processor.on_start
        self._on_ending = processor._on_ending
        self.shutdown = processor.shutdown
        self.force_flush = processor.force_flush

    @property
    def is_full(self) -> bool:
        return self._ended - self._exporter.taken >= self._most_waiting

    def on_end(self, span: "ReadableSpan") -> None:
        if not span.context.trace_flags.sampled:
            return
        with self._lock:
            is_full = self.is_full
            self._ended += not is_full
        if is_full:
            SPANS_LOST.inc()
        else:
            self._processor.on_end(span)


class _Counted:
    """An exporter that counts the spans that it took, and those that it could not send. In another thread."""

    def __init__(self, exporter: "SpanExporter") -> None:
        self._exporter = exporter
        self.taken = 0
        self.shutdown = exporter.shutdown
        self.force_flush = exporter.force_flush

    def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
        from opentelemetry.sdk.trace.export import SpanExportResult

        self.taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                SPANS_LOST.inc(len(spans))
        return result


_active: Tracer | None = None


def active_tracer() -> Tracer | None:
    """The tracer of this process; None: it records no traces."""
    return _active


def open_tracer(role: str, release: str) -> Tracer | None:
    """Start tracing in this process if the variables ask for it, and the packages are there."""
    global _active  # noqa: PLW0603 - as OpenTelemetry has it, one for a process
    if _active is None and is_wanted(os.environ):
        try:
            _active = _open(role, release)
        except ImportError as error:
            log.warning(
                "traces.unavailable", missing=error.name, then="runs without traces; install `ondot[otel]` to send them"
            )
    return _active


def close_tracer(within_s: float = CLOSES_WITHIN_S) -> None:
    global _active  # noqa: PLW0603
    if _active is not None:
        _active.close(within_s)
        _active = None


def is_wanted(variables: Mapping[str, str]) -> bool:
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = {name.strip() for name in variables.get("OTEL_TRACES_EXPORTER", "otlp").split(",")}
    return "otlp" in exporters and any(variables.get(name, "").strip() for name in ENDPOINTS)


def _open(role: str, release: str) -> Tracer:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider

    found = trace.get_tracer_provider()
    if isinstance(found, TracerProvider):
        # The app or `opentelemetry-instrument` has set it up: one resource, one sampler, one exporter.
        return Tracer(found, None, release)
    names = {SERVICE_NAME: f"ondot-{role}"}
    named = Resource.create()
    if str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        named = named.merge(Resource(names))
    provider = TracerProvider(resource=named.merge(Resource({"ondot.role": role})), shutdown_on_exit=False)
    if role in WITH_HANDLERS:
        # Not elsewhere: FastAPI would record each probe and each scrape.
        trace.set_tracer_provider(provider)
    return Tracer(provider, _open_exporter(), release)


def _open_exporter() -> "SpanExporter":
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    if protocol.strip() == "grpc":
        # Not in the extra, because grpcio is large.
        grpc = import_module("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
        exporter: SpanExporter = grpc.OTLPSpanExporter()
        return exporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _read_queue_size() -> int:
    """As the SDK reads it; it reports text that is no number."""
    text = os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", "").strip()
    return int(text) if text.isdecimal() else QUEUE_SIZE


def new_traceparent(own_id: UUID, span_id: str) -> str:
    """For a call that no trace records. Without tracing its receiver decides; with it the decision was no."""
    return f"00-{own_id.hex}-{span_id}-{'01' if _active is None else '00'}"


__all__ = ["TRACEPARENT", "Span", "Tracer", "active_tracer", "close_tracer", "new_traceparent", "open_tracer"]
