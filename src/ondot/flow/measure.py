"""What a worker measures of its attempts, by pool and kind of target (O2): how late they start, how long they waited
and ran, and how they ended.

A lease and a batch of outcomes are measured whole: the series of a pool are looked up once for all of its attempts, and
a histogram takes their values at once. It costs 1 µs for each attempt in all (bench/metrics.py). Each batch leaves its
slowest attempt as an exemplar.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ondot.flow.job_series import JOB_SERIES, asks
from ondot.flow.sampled import sample_trace
from ondot.model.execution import RETRY
from ondot.model.job import JobSpec
from ondot.model.schedule import jitter_offset
from ondot.telemetry.instruments import CounterSeries, HistogramSeries
from ondot.telemetry.metrics import COMPLETED, DURATION, LATENESS, OTHER_POOLS, POOLS_SHOWN, QUEUE_WAIT, RETRIES
from ondot.telemetry.trace import active_tracer

if TYPE_CHECKING:
    from ondot.flow.complete import Done
    from ondot.flow.lease import Assignment

ON_TIME: Final = frozenset({"fire", "run"})
"""Origins of executions that were due at an instant. A backfill or a replay is late by its nature."""
UNKNOWN: Final = "unknown"


class PoolSeries:
    """The series of one pool and kind of target."""

    __slots__ = ("_labels", "_outcomes", "duration", "lateness", "retries", "wait")

    def __init__(self, pool: str, target: str) -> None:
        self._labels = (pool, target)
        self._outcomes: dict[str, CounterSeries] = {}
        self.lateness = LATENESS.labels(pool, target)
        self.wait = QUEUE_WAIT.labels(pool, target)
        self.duration = DURATION.labels(pool, target)
        self.retries = RETRIES.labels(pool, target)

    def ended_as(self, outcome: str) -> CounterSeries:
        found = self._outcomes.get(outcome)
        if found is None:
            found = self._outcomes[outcome] = COMPLETED.labels(outcome, *self._labels)
        return found


class Measures:
    """The series that this process has used, of a bounded number of pools."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, type], PoolSeries] = {}
        self._pools: set[str] = set()

    def measure_leased(self, assignments: Sequence["Assignment"]) -> None:
        """At the start of these attempts."""
        for series, group in self._by_series(assignments):
            waits = [(one := assignment.leased).started_s - one.ready_s for assignment in group]
            series.wait.observe_all(waits)
            _show_slowest(series.wait, waits, group)
            first = [
                assignment
                for assignment in group
                if assignment.leased.attempt_no == 1 and assignment.leased.origin in ON_TIME
            ]
            if first:
                late = [assignment.leased.started_s - _due_s(assignment) for assignment in first]
                series.lateness.observe_all(late)
                for late_s, assignment in zip(late, first, strict=True):
                    if asks(assignment):
                        JOB_SERIES.measure_leased(assignment, late_s)
                _show_slowest(series.lateness, late, first)

    def measure_ended(self, ended: Sequence["Done"], clock_offset_s: float) -> None:
        """Outcomes that the database has. `clock_offset_s`: from this machine's monotonic clock to the database's,
        which says when an attempt started."""
        by_series: dict[PoolSeries, list[Done]] = {}
        for done in ended:
            if done.assignment is not None:
                by_series.setdefault(self._of(done.assignment.spec), []).append(done)
        for series, group in by_series.items():
            attempts = [done.assignment for done in group if done.assignment is not None]
            took = [
                done.ended_s + clock_offset_s - attempt.leased.started_s
                for done, attempt in zip(group, attempts, strict=True)
            ]
            series.duration.observe_all(took)
            for took_s, done, attempt in zip(took, group, attempts, strict=True):
                if asks(attempt):
                    JOB_SERIES.measure_ended(done, attempt, took_s)
            _show_slowest(series.duration, took, attempts)
            for outcome, count in Counter(done.completion.outcome for done in group).items():
                series.ended_as(outcome.value).inc(count)
            if retries := sum(done.completion.transition is RETRY for done in group):
                series.retries.inc(retries)

    def _by_series(self, assignments: Iterable["Assignment"]) -> Iterable[tuple[PoolSeries, list["Assignment"]]]:
        groups: dict[PoolSeries, list[Assignment]] = {}
        for assignment in assignments:
            groups.setdefault(self._of(assignment.spec), []).append(assignment)
        return groups.items()

    def _of(self, spec: JobSpec | None) -> PoolSeries:
        key = (OTHER_POOLS, type(None)) if spec is None else (spec.pool, type(spec.target))
        found = self._series.get(key)
        return self._add(key) if found is None else found

    def _add(self, key: tuple[str, type]) -> PoolSeries:
        pool, target = key
        # 100 of them have series of their own: a client that may submit jobs may name a new pool with each.
        if pool not in self._pools and len(self._pools) >= POOLS_SHOWN:
            pool = OTHER_POOLS
        self._pools.add(pool)
        config = getattr(target, "__struct_config__", None)
        kind = UNKNOWN if config is None else str(config.tag)
        if (pool, target) not in self._series:
            self._series[pool, target] = PoolSeries(pool, kind)
        self._series[key] = self._series[pool, target]
        return self._series[key]


MEASURES: Final = Measures()


def _due_s(assignment: "Assignment") -> float:
    leased, spec = assignment.leased, assignment.spec
    jitter_s = 0.0 if spec is None or leased.origin != "fire" else getattr(spec.schedule, "jitter_s", 0.0)
    if not jitter_s:
        return leased.fire_s
    return leased.fire_s + jitter_offset(leased.job_id, jitter_s).total_seconds()


def _show_slowest(series: HistogramSeries, values: Sequence[float], of: Sequence["Assignment"]) -> None:
    slowest = max(values)
    assignment = of[values.index(slowest)]
    tracer = active_tracer()
    sampled = None if tracer is None else sample_trace(tracer, assignment)
    if sampled is None:
        series.show(slowest, assignment.leased.id)
    else:
        series.show(slowest, assignment.leased.id, bytes.fromhex(sampled.trace_id))
