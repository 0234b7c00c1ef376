"""The metrics of several processes as one (O2): counters and histograms are added up, gauges by their own rule.

The page of a process that was killed counts too. Its gauges do not: a process that has not written them for some
seconds is dead or frozen, and `ondot_processes` shows one less.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final
from uuid import UUID

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from ondot.telemetry.instruments import Registry
from ondot.telemetry.page import EXEMPLAR, Key, Page

GAUGES_LAST_S: Final = 5.0


class ProcessMetrics:
    """The metrics of this process, with those of other processes if it adds them up."""

    def __init__(self, registry: Registry, others: Sequence[Page] = ()) -> None:
        self._registry = registry
        self._others = others
        self.shared: Callable[[], Iterable[Metric]] = tuple
        """Of all processes: the API reads them from the database."""

    def collect(self) -> Iterator[Metric]:
        self._registry.refresh()
        yield from sum_pages([self._registry.page, *self._others], self._registry.documentation)

    def collect_all(self) -> Iterator[Metric]:
        yield from self.collect()
        yield from self.shared()


def sum_pages(pages: Iterable[Page], documentation: Mapping[str, str]) -> Iterator[Metric]:
    """Every metric of these pages, each once, by name and labels."""
    numbers: dict[Key, list[float]] = {}
    exemplars: dict[Key, list[bytes | None]] = {}
    now_s = time.monotonic()
    for page in pages:
        are_gauges_fresh = now_s - page.gauges_at < GAUGES_LAST_S
        for key, at in page.entries():
            found = list(map(float, page.values[at : at + key.width]))
            if key.kind == "gauge" and (not are_gauges_fresh or math.isnan(found[0])):
                continue
            known = numbers.get(key)
            if known is None:
                numbers[key] = found
            elif key.merge == "max":
                numbers[key] = [max(known[0], found[0])]
            else:
                numbers[key] = [one + other for one, other in zip(known, found, strict=True)]
            if key.exemplars:
                of_page = [page.read_exemplar(key, at, bucket) for bucket in range(key.exemplars)]
                exemplars[key] = [
                    _newer(one, other)
                    for one, other in zip(exemplars.get(key, [None] * key.exemplars), of_page, strict=True)
                ]
    yield from _families(numbers, exemplars, documentation)


def _newer(one: bytes | None, other: bytes | None) -> bytes | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda packed: EXEMPLAR.unpack(packed)[3])


def _families(
    numbers: Mapping[Key, list[float]],
    exemplars: Mapping[Key, list[bytes | None]],
    documentation: Mapping[str, str],
) -> Iterator[Metric]:
    families: dict[str, Any] = {}
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for key in sorted(numbers, key=lambda key: (key.name, key.labels)):
        if (key.name, key.labels) in seen:
            # Of another release, with other bounds: two of them would make the answer invalid.
            continue
        seen.add((key.name, key.labels))
        values = [value for _, value in key.labels]
        family = families.get(key.name)
        if family is None:
            about = documentation.get(key.name, "Of another release")
            names = [name for name, _ in key.labels]
            family = families[key.name] = _KINDS[key.kind](key.name, about, labels=names)
        if key.kind == "histogram":
            family.add_metric(values, _buckets(key, numbers[key], exemplars.get(key)), numbers[key][-1])
        else:
            family.add_metric(values, numbers[key][0])
    yield from families.values()


_KINDS: Final[dict[str, Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _buckets(key: Key, numbers: list[float], exemplars: list[bytes | None] | None) -> list[tuple[Any, ...]]:
    limits = [*map(floatToGoString, key.bounds), "+Inf"]
    counts = list(accumulate(numbers[:-1]))
    if exemplars is None:
        return list(zip(limits, counts, strict=True))
    return [(limit, count, _exemplar(packed)) for limit, count, packed in zip(limits, counts, exemplars, strict=True)]


def _exemplar(packed: bytes | None) -> Exemplar | None:
    if packed is None:
        return None
    execution_id, trace_id, value, at_s = EXEMPLAR.unpack(packed)
    labels = {"execution_id": str(UUID(bytes=execution_id))}
    if any(trace_id):
        labels["trace_id"] = trace_id.hex()
    return Exemplar(labels, value, at_s)
