"""What do metrics cost an attempt? The measuring of a lease and of a batch of outcomes, alone, for each attempt of it;
and what an answer to a scraper costs.

    python bench/metrics.py
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from uuid import uuid4

from ondot.flow.complete import end_attempt
from ondot.flow.lease import Assignment
from ondot.flow.measure import Measures
from ondot.model.completion import Completion, succeed
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId, LeaseId, PoolNo
from ondot.model.job import JobSpec, decode_spec, encode_spec
from ondot.model.target import FunctionTarget
from ondot.store.queue import Leased
from ondot.telemetry.metrics import REGISTRY
from ondot.telemetry.serve import encode
from ondot.telemetry.sum import ProcessMetrics

ROUNDS = 200


def assignments(count: int, pools: int) -> list[Assignment]:
    lease_id = LeaseId(uuid4())
    specs = [
        decode_spec(encode_spec(JobSpec(name="x", target=FunctionTarget(name="f"), pool=f"pool-{number % pools}")))
        for number in range(count)  # each one-time job has its own
    ]
    now_s = 1_800_000_000.0
    made = []
    for number in range(count):
        leased = Leased(
            id=ExecutionId(uuid4()),
            job_id=JobId(uuid4()),
            job_version=1,
            tenant_no=DEFAULT_TENANT,
            pool_no=PoolNo(1),
            priority_class=2,
            fire_s=now_s - number / 1000,
            ready_s=now_s - number / 1000,
            started_s=now_s,
            attempt_no=1,
            failures=0,
            losses=0,
            origin="fire",
            own_payload=False,
            has_more_at_end=False,
        )
        made.append(Assignment(leased, lease_id, specs[number], b"null"))
    return made


def measure(measures: Measures, leased: list[Assignment]) -> None:
    if not measures.measure_plain(leased):
        measures.measure_leased(leased)


def measure_ended(measures: Measures, leased: list[Assignment], completions: list[Completion]) -> None:
    """With the record of what is measured, which is made for each."""
    ended = [end_attempt(one, completion) for one, completion in zip(leased, completions, strict=True)]
    measures.measure_ended(ended, 1_800_000_000.0)


def seconds(action: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        action()
        times.append(time.perf_counter() - started_s)
    return median(times)


def main() -> None:
    measures = Measures()
    print(f"{'batch':>6} {'pools':>6} {'lease, µs each':>15} {'outcome, µs each':>17}")
    for count, pools in ((1, 1), (10, 1), (100, 1), (1000, 1), (1000, 20)):
        leased = assignments(count, pools)
        completions = [succeed(one.leased) for one in leased]
        lease_s = seconds(partial(measure, measures, leased))
        outcome_s = seconds(partial(measure_ended, measures, leased, completions))
        print(f"{count:>6} {pools:>6} {lease_s / count * 1e6:>15.2f} {outcome_s / count * 1e6:>17.2f}")
    metrics = ProcessMetrics(REGISTRY)
    for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
        body, media_type = encode(metrics.collect_all, accept)
        took_s = seconds(partial(encode, metrics.collect_all, accept))
        print(f"an answer of {len(body):,} bytes ({media_type.partition(';')[0]}): {took_s * 1000:.1f} ms")


if __name__ == "__main__":
    main()
