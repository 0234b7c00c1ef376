"""A collector that hangs, is away or is too slow costs spans, which are counted, and nothing else (O3)."""

import asyncio
import os
import time
from collections.abc import AsyncIterator

import pytest
from msgspec import structs

from ondot.model.trace import TraceContext
from ondot.telemetry.metrics import SPANS_LOST
from ondot.telemetry.trace import QUEUE_SIZE, Span, Tracer, _open_exporter
from tests.proves import proves
from tests.telemetry.test_traces import Collector, a_collector

AWAY = "http://127.0.0.1:1"
BATCH = 512
"""Spans that the exporter takes at once."""
TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", is_sampled=True)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with a_collector() as collector:
        yield collector


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


def open_with(monkeypatch: pytest.MonkeyPatch, url: str) -> Tracer:
    from opentelemetry.sdk.trace import TracerProvider

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    return Tracer(TracerProvider(shutdown_on_exit=False), _open_exporter(), "test")


def span(number: int) -> Span:
    return Span(f"span {number}", "INTERNAL", TRACE.trace_id, f"{number + 1:016x}", None, 1.0, 2.0, {"ondot.n": number})


async def lost_since(before: float, count: int) -> None:
    async with asyncio.timeout(30):
        while SPANS_LOST.value - before < count:
            await asyncio.sleep(0.01)


@proves("O3")
async def test_ten_thousand_spans_at_once_fill_a_bounded_queue_and_the_rest_is_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.hangs = True
    tracer, before = open_with(monkeypatch, collector.url), SPANS_LOST.value
    for number in range(10_000):
        tracer.record(span(number))
    lost = SPANS_LOST.value - before
    # The exporter may have taken a batch, which hangs; the others wait.
    assert 10_000 - QUEUE_SIZE - BATCH <= lost <= 10_000 - QUEUE_SIZE
    started_s = time.monotonic()
    await asyncio.to_thread(tracer.close, 0.2)
    assert time.monotonic() - started_s < 10


@proves("O3")
async def test_spans_of_libraries_that_flood_the_queue_do_not_end_those_of_ondot(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.hangs = True
    tracer, before = open_with(monkeypatch, collector.url), SPANS_LOST.value
    library = tracer._provider.get_tracer("library")
    for number in range(3 * QUEUE_SIZE):
        tracer.record(span(number))
        library.start_span("inner").end()
    assert SPANS_LOST.value - before >= 6 * QUEUE_SIZE - QUEUE_SIZE - BATCH
    collector.hangs = False
    collector.release()
    # As soon as the collector takes spans again, ondot's arrive again.
    async with asyncio.timeout(30):
        while not any(got.name == "span 99999" for got in collector.spans):
            tracer.record(span(99_999))
            collector.arrived.clear()
            await collector.arrived.wait()
    await asyncio.to_thread(tracer.close, 5)


@proves("O3")
async def test_spans_for_a_collector_that_is_away_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    tracer, before = open_with(monkeypatch, AWAY), SPANS_LOST.value
    for number in range(100):
        tracer.record(span(number))
    started_s = time.monotonic()
    await asyncio.to_thread(tracer.close, 2)
    assert time.monotonic() - started_s < 10
    await lost_since(before, 100)


@proves("O3")
async def test_spans_carry_the_tracestate_of_their_trace(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = open_with(monkeypatch, collector.url)
    tracer.record(structs.replace(span(1), state="rojo=1,congo=2"))
    tracer.record(span(2))
    await asyncio.to_thread(tracer.close, 10)
    assert {got.name: got.state for got in collector.spans} == {"span 1": "rojo=1,congo=2", "span 2": ""}
