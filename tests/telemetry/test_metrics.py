"""Counting in pages, adding them up, and serving them: the parts of the metrics that need no database."""

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ondot.telemetry import serve
from ondot.telemetry.instruments import MANY, Counter, Gauge, Histogram, Registry
from ondot.telemetry.page import SIZE, Page, make_page
from ondot.telemetry.serve import CONNECTIONS, MayRead, MetricsServer, encode
from ondot.telemetry.sum import GAUGES_LAST_S, ProcessMetrics, sum_pages
from tests.proves import proves

EXECUTION = UUID("01980000-0000-7000-8000-000000000001")


def read(*pages: Page) -> dict[str, float]:
    """Each sample by its name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for metric in sum_pages(pages, {})
        for sample in metric.samples
    }


def started(descriptor: int) -> tuple[Registry, Counter]:
    """A process that counts in this page."""
    registry = Registry()
    counter = Counter("ondot_x_total", "X", ["pool"], registry=registry)
    registry.role = "worker"
    registry.attach(Page.shared(descriptor))
    return registry, counter


@proves("O2")
def test_a_process_that_replaces_another_goes_on_counting_and_no_sum_falls() -> None:
    first, second = make_page(), make_page()
    _, counter = started(first)
    counter.labels("a").inc(3)
    _, other = started(second)
    other.labels("a").inc(1)
    other.labels("b").inc(1)
    assert read(Page.shared(first), Page.shared(second))["ondot_x_total[('pool', 'a')]"] == 4
    _, again = started(first)
    reader = Page.shared(first)
    assert read(reader)["ondot_x_total[('pool', 'a')]"] == 3
    again.labels("a").inc()
    again.labels("c").inc()
    assert read(reader, Page.shared(second)) == {
        "ondot_x_total[('pool', 'a')]": 5,
        "ondot_x_total[('pool', 'b')]": 1,
        "ondot_x_total[('pool', 'c')]": 1,
    }


@proves("O2")
def test_what_a_process_counted_is_there_after_kill_nine() -> None:
    page = make_page()
    script = (
        "import os, signal, sys; from ondot.telemetry.metrics import LEASED, REGISTRY; from ondot.telemetry.page import"
        " Page; LEASED.inc(2); REGISTRY.attach(Page.shared(int(sys.argv[1]))); LEASED.inc(40);"
        " os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(page)], pass_fds=[page], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert read(Page.shared(page))["ondot_executions_leased_total[]"] == 42


@proves("O2")
def test_gauges_of_a_process_that_no_longer_writes_them_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = make_page()
    registry, _ = started(descriptor)
    slots = Gauge("ondot_slots_here", "Slots", registry=registry)
    age = Gauge("ondot_age", "Age", registry=registry, merge="max")
    slots.follow(lambda: 10)
    age.follow(lambda: 7)
    broken = Gauge("ondot_broken", "Broken", registry=registry)
    broken.follow(lambda: 1 // 0)
    registry.refresh()
    other = Registry()
    other.role = "worker"
    Gauge("ondot_slots_here", "Slots", registry=other).follow(lambda: 5)
    Gauge("ondot_age", "Age", registry=other, merge="max").follow(lambda: 3)
    other.refresh()
    pages = [Page.shared(descriptor), other.page]
    role = "[('role', 'worker')]"
    assert read(*pages) == {f"ondot_slots_here{role}": 15, f"ondot_age{role}": 7}
    later_s = time.monotonic() + GAUGES_LAST_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    other.refresh()
    assert read(Page.shared(make_page()), other.page) == {f"ondot_slots_here{role}": 5, f"ondot_age{role}": 3}
    # The next process in the same page does not have every gauge of the one before.
    started(descriptor)
    assert math.isnan(
        next(Page.shared(descriptor).values[at] for key, at in registry.page.entries() if key.kind == "gauge")
    )


@proves("O2")
def test_a_histogram_counts_each_value_once_and_shows_the_slowest_as_exemplar() -> None:
    registry = Registry()
    histogram = Histogram("ondot_h_seconds", "H", ["pool"], buckets=(1, 10), registry=registry, has_exemplars=True)
    histogram.labels("a").observe_all([-1, 0.5, 1, 5, 100])
    histogram.labels("a").show(5, EXECUTION, bytes(range(16)))
    text, media_type = encode(ProcessMetrics(registry).collect_all, "application/openmetrics-text; version=1.0.0")
    assert media_type.startswith("application/openmetrics-text")
    [family] = text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call]
    buckets = {sample.labels["le"]: sample for sample in family.samples if sample.name.endswith("_bucket")}
    assert {limit: sample.value for limit, sample in buckets.items()} == {"1.0": 3, "10.0": 4, "+Inf": 5}
    assert [sample.value for sample in family.samples if sample.name.endswith("_sum")] == [106.5]
    exemplar = buckets["10.0"].exemplar
    assert exemplar is not None
    assert exemplar.labels == {"execution_id": str(EXECUTION), "trace_id": bytes(range(16)).hex()}
    plain, media_type = encode(ProcessMetrics(registry).collect_all, "text/plain")
    assert b"execution_id" not in plain
    assert media_type.startswith("text/plain")


@given(st.lists(st.one_of(st.floats(-10, 1000), st.sampled_from([0.0, 1.0, 10.0])), min_size=MANY, max_size=3 * MANY))
def test_many_values_at_once_count_as_each_alone(values: list[float]) -> None:
    histogram = Histogram("h", "", ["how"], buckets=(1, 10, 100), registry=Registry())
    at_once, alone = histogram.labels("at once"), histogram.labels("alone")
    at_once.observe_all(values)
    for value in values:
        alone.observe(value)
    buckets = range(len(at_once.bounds) + 1)
    assert [at_once.values[at_once.at + place] for place in buckets] == [alone.values[alone.at + p] for p in buckets]
    sum_at = len(at_once.bounds) + 1
    assert at_once.values[at_once.at + sum_at] == pytest.approx(alone.values[alone.at + sum_at])


def test_a_page_that_is_full_or_of_another_release_stops_nothing() -> None:
    registry = Registry()
    counter = Counter("ondot_many_total", "Many", ["label"], registry=registry)
    for number in range(40):
        counter.labels(f"{number}" + "x" * (SIZE // 20)).inc()
    assert 10 < len(read(registry.page)) < 40
    old = make_page()
    os.pwrite(old, b"\x01" * 4096, 0)
    _, counter = started(old)
    counter.labels("a").inc()
    assert read(Page.shared(old)) == {"ondot_x_total[('pool', 'a')]": 1}


def test_threads_that_count_at_once_lose_nothing() -> None:
    registry = Registry()
    counter = Counter("ondot_y_total", "Y", registry=registry)

    def count() -> None:
        for _ in range(5_000):
            counter.inc()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 20_000


# Serving --------------------------------------------------------------------------------------------------------------


class Served:
    def __init__(self, may_read: MayRead = lambda _: HTTPStatus.OK) -> None:
        self.builds = 0
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.server = MetricsServer(listener, self.collect, may_read)
        self.server.start()

    def collect(self) -> Iterator[Metric]:
        self.builds += 1
        family = CounterMetricFamily("ondot_builds", "Builds")
        family.add_metric([], self.builds)
        yield family

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def ask(self, head: str) -> str:
        with self.connect() as client:
            client.sendall(head.encode())
            answer = b""
            while part := client.recv(65536):
                answer += part
        return answer.decode()


@contextmanager
def served(may_read: MayRead = lambda _: HTTPStatus.OK) -> Iterator[Served]:
    one = Served(may_read)
    try:
        yield one
    finally:
        one.server.stop()


GET = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@proves("O2")
def test_any_number_of_requests_builds_one_answer_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "BUILT_EVERY_S", 3600.0)
    with served() as one:
        answers = {one.ask(GET).partition("\r\n\r\n")[2] for _ in range(20)}
    assert len(answers) == 1
    assert "ondot_builds_total 1.0" in answers.pop()
    assert one.builds == 1


@proves("O2")
def test_clients_that_send_nothing_or_nonsense_keep_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "WITHIN_S", 0.2)
    with served() as one:
        silent = [one.connect() for _ in range(CONNECTIONS)]
        for client in silent:
            client.sendall(b"G")
        for client in silent:
            # Ended by the server, however the client goes on.
            assert client.recv(1000) == b""
            client.close()
        assert "404" in one.ask("GET /secrets HTTP/1.1\r\n\r\n").splitlines()[0]
        assert "501" in one.ask("POST /metrics HTTP/1.1\r\n\r\n").splitlines()[0]
        assert one.ask("\x00\x16\x03 nonsense\r\n\r\n") is not None
        assert one.ask(f"GET /{'x' * 20_000} HTTP/1.1\r\n\r\n") == ""
        assert "200 OK" in one.ask(GET)


@proves("O2", "T1")
def test_a_scraper_without_the_right_gets_no_metrics() -> None:
    answers = {None: HTTPStatus.UNAUTHORIZED, "Bearer viewer": HTTPStatus.FORBIDDEN, "Bearer owner": HTTPStatus.OK}
    with served(lambda sent: answers[sent]) as one:
        for sent, status in answers.items():
            header = "" if sent is None else f"Authorization: {sent}\r\n"
            answer = one.ask(f"GET /metrics HTTP/1.1\r\n{header}\r\n")
            assert f" {status.value} " in answer.splitlines()[0]
            assert ("ondot_builds" in answer) is (status is HTTPStatus.OK)
