"""What a worker measures of its attempts, by pool and kind of target (O2): how late they start, how long they waited
and ran, and how they ended.

A lease and a batch of outcomes are measured whole: the series of a pool are looked up once for all of its attempts, and
a histogram takes their values at once. It costs less than 1 µs for each attempt in all (bench/metrics.py), most of it
in `_common`: whether a batch is plain, of one pool and one kind of target. Each batch leaves its slowest attempt as an
exemplar.
"""

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from ondot.flow.job_series import JOB_SERIES
from ondot.flow.sampled import sample_trace
from ondot.model.execution import RETRY, SUCCEED, Outcome
from ondot.model.job import JobSpec
from ondot.model.schedule import start_delay
from ondot.telemetry.instruments import CounterSeries, HistogramSeries
from ondot.telemetry.metrics import COMPLETED, DURATION, LATENESS, OTHER_POOLS, POOLS_SHOWN, QUEUE_WAIT, RETRIES
from ondot.telemetry.trace import active_tracer

if TYPE_CHECKING:
    from ondot.flow.complete import Done
    from ondot.flow.lease import Assignment
    from ondot.model.completion import Completion

ON_TIME: Final = frozenset({"fire", "run"})
"""Origins of executions that were due at an instant. A backfill or a replay is late by its nature."""
UNKNOWN: Final = "unknown"
_transition_of: Final = attrgetter("transition")
_series_of: Final = attrgetter("series")
_asking_job_of: Final = attrgetter("asking_job")


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

    def count_ends(self, completions: Sequence["Completion"]) -> None:
        transitions = list(map(_transition_of, completions))
        if transitions.count(SUCCEED) == len(transitions):
            self.ended_as(Outcome.SUCCEEDED.value).inc(len(transitions))
            return
        for outcome, count in Counter(completion.outcome for completion in completions).items():
            self.ended_as(outcome.value).inc(count)
        if retries := transitions.count(RETRY):
            self.retries.inc(retries)


class Measures:
    """The series that this process has used, of a bounded number of pools."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, type], PoolSeries] = {}
        self._pools: set[str] = set()

    def measure_plain(self, assignments: Sequence["Assignment"]) -> bool:
        """At the start of these attempts, if none of them needs more than the series of their pool; False: nothing was
        measured."""
        series = self._common([assignment.spec for assignment in assignments])
        if series is None:
            return False
        leased = [assignment.leased for assignment in assignments]
        waits = [one.started_s - one.ready_s for one in leased]
        series.wait.observe_all(waits)
        _show_slowest(series.wait, waits, assignments)
        late = [one.started_s - one.fire_s for one in leased if one.attempt_no == 1 and one.origin in ON_TIME]
        if len(late) == len(waits):
            series.lateness.observe_all(late)
            _show_slowest(series.lateness, late, assignments)
        elif late:
            first = [one for one in assignments if one.leased.attempt_no == 1 and one.leased.origin in ON_TIME]
            series.lateness.observe_all(late)
            _show_slowest(series.lateness, late, first)
        return True

    def measure_leased(self, assignments: Sequence["Assignment"]) -> None:
        """The same for any attempts."""
        groups: dict[PoolSeries, tuple[list[float], list[Assignment], list[float], list[Assignment]]] = {}
        known: JobSpec | None = None
        group = None
        for assignment in assignments:
            leased, spec = assignment.leased, assignment.spec
            if spec is not known or group is None:
                known, series = spec, self.find_series(spec)
                group = groups.get(series)
                if group is None:
                    group = groups[series] = ([], [], [], [])
            waits, of_waits, late, of_late = group
            waits.append(leased.started_s - leased.ready_s)
            of_waits.append(assignment)
            if leased.attempt_no == 1 and leased.origin in ON_TIME:
                late_s = leased.started_s - leased.fire_s
                if spec is not None:
                    schedule = spec.schedule
                    if schedule is not None and (schedule.jitter_s or schedule.spread_s) and leased.origin == "fire":
                        late_s -= start_delay(schedule, leased.job_id).total_seconds()
                    if spec.metrics:
                        JOB_SERIES.measure_leased(assignment, late_s)
                late.append(late_s)
                of_late.append(assignment)
        for series, (waits, of_waits, late, of_late) in groups.items():
            series.wait.observe_all(waits)
            _show_slowest(series.wait, waits, of_waits)
            if late:
                series.lateness.observe_all(late)
                _show_slowest(series.lateness, late, of_late)

    def measure_ended(self, ended: Sequence["Done"], clock_offset_s: float) -> None:
        """Outcomes that the database has. `clock_offset_s`: from this machine's monotonic clock to the database's,
        which says when an attempt started."""
        groups: dict[PoolSeries | None, list[Done]] = {}
        if len(found := set(map(_series_of, ended))) == 1:
            groups[found.pop()] = list(ended)
        else:
            for done in ended:
                groups.setdefault(done.series, []).append(done)
        for series, group in groups.items():
            if series is None:
                continue
            took = [done.ended_s + clock_offset_s - done.started_s for done in group]
            series.duration.observe_all(took)
            slowest = max(took)
            shown = group[took.index(slowest)]
            if shown.trace_id is None:
                series.duration.show(slowest, shown.completion.execution_id)
            else:
                series.duration.show(slowest, shown.completion.execution_id, bytes.fromhex(shown.trace_id))
            series.count_ends([done.completion for done in group])
            if any(map(_asking_job_of, group)):
                for took_s, done in zip(took, group, strict=True):
                    if done.asking_job is not None:
                        JOB_SERIES.measure_ended(done.asking_job, done.completion, took_s)

    def _common(self, specs: Sequence[JobSpec | None]) -> PoolSeries | None:
        """The series that all of these jobs share, if none has a series or a start of its own."""
        if not specs or (first := specs[0]) is None:
            return None
        pool, kind = first.pool, type(first.target)
        known = None
        for spec in specs:
            # Each one-time job has a spec of its own, so this loop runs in full for most batches.
            if spec is known:
                continue
            if spec is None or spec.metrics or spec.pool != pool or type(spec.target) is not kind:
                return None
            schedule = spec.schedule
            if schedule is not None and (schedule.jitter_s or schedule.spread_s):
                return None
            known = spec
        return self.find_series(first)

    def find_series(self, spec: JobSpec | None) -> PoolSeries:
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


def _show_slowest(series: HistogramSeries, values: Sequence[float], of: Sequence["Assignment"]) -> None:
    slowest = max(values)
    assignment = of[values.index(slowest)]
    tracer = active_tracer()
    sampled = None if tracer is None else sample_trace(tracer, assignment)
    if sampled is None:
        series.show(slowest, assignment.leased.id)
    else:
        series.show(slowest, assignment.leased.id, bytes.fromhex(sampled.trace_id))
