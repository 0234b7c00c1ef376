"""A histogram that counts a batch at a time: a value costs one search among the bounds and nothing else.

The histogram of prometheus_client takes a lock for each value and sum: 2.5 µs of the 40 µs that a whole attempt may
take. Only the loop adds values. A scrape from another thread may see a batch half counted for a moment.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString


class BatchHistogram(Collector):
    def __init__(
        self, name: str, documentation: str, *, buckets: tuple[float, ...], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, values: Iterable[float]) -> None:
        """Count these values; one below zero counts as zero, since clocks differ."""
        bounds, counts = self._bounds, self._counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            if value > 0.0:
                self._sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        limits = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(limits, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=self._sum)
