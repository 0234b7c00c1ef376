"""What code counts with (O2): counters, histograms and gauges, whose numbers are in a page (`telemetry.page`).

prometheus_client writes them out, but does not count: its histogram takes 2.5 µs for a value, its labels are looked up
for each, and its way to add up several processes keeps a file for each process that ever ran. Here a batch of values
takes one lock and a search among the bounds for each value, and a series that code holds on to costs no look-up.

Gauges are read when they are asked for, or each second where a supervisor adds up pages, in a thread of their own: a
loop that hangs is shown as hanging.
"""

import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar
from uuid import UUID

from ondot.telemetry.page import EXEMPLAR, Key, Page

_LOCK: Final = threading.RLock()
"""Reentrant: while it is held, garbage may be collected, and a finalizer may print to a full pipe, which is counted."""
_NO_TRACE: Final = bytes(16)
GAUGES_EVERY_S: Final = 1.0
MANY: Final = 32
"""Values from which sorting them is faster."""


class Series:
    """The numbers of one series. They move to another page when a supervisor has one for this process."""

    __slots__ = ("at", "key", "page", "values")

    def __init__(self, key: Key, page: Page) -> None:
        self.key = key
        self._place(page)

    def _place(self, page: Page) -> None:
        at = page.find_or_add(self.key)
        if at is None:
            # The page is full: it counts where nobody reads, rather than stop the work.
            page = Page.private()
            at = page.find_or_add(self.key)
            assert at is not None
        self.page, self.values, self.at = page, page.values, at

    def move(self, page: Page) -> None:
        counted, at = self.values, self.at
        self._place(page)
        for index in range(self.key.width):
            self.values[self.at + index] += counted[at + index]


class CounterSeries(Series):
    __slots__ = ()

    def inc(self, count: float = 1.0) -> None:
        with _LOCK:
            self.values[self.at] += count

    @property
    def value(self) -> float:
        return self.values[self.at]


class HistogramSeries(Series):
    __slots__ = ("bounds",)

    def __init__(self, key: Key, page: Page) -> None:
        super().__init__(key, page)
        self.bounds = key.bounds

    def observe(self, *values: float) -> None:
        self.observe_all(values)

    def observe_all(self, values: Sequence[float]) -> None:
        """Count these values; one below zero counts as zero, since clocks differ."""
        numbers, at, bounds, total = self.values, self.at, self.bounds, 0.0
        if len(values) >= MANY:
            self._observe_many(sorted(values))
            return
        with _LOCK:
            for value in values:
                numbers[at + bisect_left(bounds, value)] += 1.0
                if value > 0.0:
                    total += value
            numbers[at + len(bounds) + 1] += total

    def _observe_many(self, ordered: list[float]) -> None:
        """One search for each bound rather than for each value. A batch is nearly sorted: it was leased in order."""
        numbers, at, below = self.values, self.at, 0
        total = sum(ordered) if ordered[0] >= 0.0 else sum(value for value in ordered if value > 0.0)
        with _LOCK:
            for place, bound in enumerate(self.bounds):
                up_to = bisect_right(ordered, bound)
                if up_to > below:
                    numbers[at + place] += up_to - below
                    below = up_to
            numbers[at + len(self.bounds)] += len(ordered) - below
            numbers[at + len(self.bounds) + 1] += total

    def show(self, value: float, execution_id: UUID, trace_id: bytes = _NO_TRACE) -> None:
        """Remember one of the values as the example of its bucket."""
        packed = EXEMPLAR.pack(execution_id.bytes, trace_id, value, time.time())
        self.page.write_exemplar(self.key, self.at, bisect_left(self.bounds, value), packed)


class GaugeSeries(Series):
    __slots__ = ()

    def set(self, value: float) -> None:
        self.values[self.at] = value


OneSeries = TypeVar("OneSeries", bound=Series)


class Registry:
    """The metrics of this process. `role`: a label of its gauges."""

    def __init__(self) -> None:
        self.page = Page.private()
        self.role = "none"
        self.documentation: dict[str, str] = {}
        self._series: list[Series] = []
        self._reads: dict[tuple[str, ...], tuple[GaugeSeries, Callable[[], float]]] = {}

    def add(self, series: OneSeries) -> OneSeries:
        self._series.append(series)
        return series

    def attach(self, page: Page) -> None:
        """Go on counting in the page that a supervisor made for this process, where the process before it counted."""
        for key, at in page.entries():
            if key.kind == "gauge":
                page.values[at] = math.nan
        for series in self._series:
            series.move(page)
        self.page = page
        threading.Thread(target=self._refresh_for_ever, name="ondot-gauges", daemon=True).start()

    def follow(self, name: tuple[str, ...], series: GaugeSeries, read: Callable[[], float]) -> None:
        self._reads[name] = (series, read)

    def refresh(self) -> None:
        """Read the gauges. One that cannot be read is left out: a role may just be ending."""
        for series, read in list(self._reads.values()):
            try:
                series.set(read())
            except Exception:  # noqa: BLE001 - the boundary of a pass, in a thread that must not end
                series.set(math.nan)
        self.page.gauges_at = time.monotonic()

    def _refresh_for_ever(self) -> None:
        while True:
            self.refresh()
            time.sleep(GAUGES_EVERY_S)


class _Family(Generic[OneSeries]):
    """All series of one name. `labels` returns one of them; code that counts often holds on to it."""

    def __init__(self, series: Callable[[Key], OneSeries], name: str, documentation: str, registry: Registry) -> None:
        self._make = series
        self._name = name
        self._by_labels: dict[tuple[str, ...], OneSeries] = {}
        self._registry = registry
        registry.documentation[name] = documentation

    def _get(self, values: tuple[str, ...], make_key: Callable[[], Key]) -> OneSeries:
        found = self._by_labels.get(values)
        if found is None:
            with _LOCK:
                found = self._by_labels.get(values)
                if found is None:
                    found = self._by_labels[values] = self._registry.add(self._make(make_key()))
        return found


class Counter(_Family[CounterSeries]):
    def __init__(self, name: str, documentation: str, labels: Sequence[str] = (), *, registry: Registry) -> None:
        super().__init__(lambda key: CounterSeries(key, registry.page), name, documentation, registry)
        self._labels = tuple(labels)
        if not labels:
            self.labels()

    def labels(self, *values: str) -> CounterSeries:
        return self._get(values, lambda: Key("counter", self._name, tuple(zip(self._labels, values, strict=True))))

    def inc(self, count: float = 1.0) -> None:
        self.labels().inc(count)

    @property
    def value(self) -> float:
        return self.labels().value


class Histogram(_Family[HistogramSeries]):
    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        *,
        buckets: tuple[float, ...],
        registry: Registry,
        has_exemplars: bool = False,
    ) -> None:
        super().__init__(lambda key: HistogramSeries(key, registry.page), name, documentation, registry)
        self._labels = tuple(labels)
        self._bounds = tuple(map(float, buckets))
        self._has_exemplars = has_exemplars
        if not labels:
            self.labels()

    def labels(self, *values: str) -> HistogramSeries:
        def key() -> Key:
            labels = tuple(zip(self._labels, values, strict=True))
            return Key("histogram", self._name, labels, self._bounds, self._has_exemplars)

        return self._get(values, key)

    def observe_all(self, values: Sequence[float]) -> None:
        self.labels().observe_all(values)


class Gauge(_Family[GaugeSeries]):
    """Of this process. `merge`: what several processes of a role show together, their `sum` or the `max`."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str] = (), *, registry: Registry, merge: str = "sum"
    ) -> None:
        super().__init__(lambda key: GaugeSeries(key, registry.page), name, documentation, registry)
        self._labels = ("role", *labels)
        self._merge = merge

    def follow(self, read: Callable[[], float], *values: str) -> None:
        """Show what this returns from now on. It is called from another thread."""
        of_role = (self._registry.role, *values)

        def key() -> Key:
            labels = tuple(zip(self._labels, of_role, strict=True))
            return Key("gauge", self._name, labels, merge=self._merge)

        self._registry.follow((self._name, *of_role), self._get(of_role, key), read)
