"""What is measured of attempts: by pool and kind of target, and of single jobs that ask for it."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from ondot.document.parse import job_spec
from ondot.flow import job_series, lease, measure
from ondot.flow.job_series import JobSeries
from ondot.flow.measure import Measures
from ondot.model.errors import InvalidBody
from ondot.model.retry import Retry
from ondot.model.target import HttpTarget
from ondot.store.outcomes import complete_executions
from ondot.telemetry.metrics import REGISTRY
from ondot.telemetry.sum import sum_pages
from tests.proves import proves
from tests.world import World, done, every, failed, job

NOW = datetime(2026, 11, 17, tzinfo=UTC)
AT_ONCE = Retry(max_retries=1, backoff="fixed", initial_s=0, jitter=False)


def read(name: str, **labels: str) -> float:
    """The sum of the samples of this name that have these labels."""
    return sum(
        sample.value
        for metric in sum_pages([REGISTRY.page], {})
        for sample in metric.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@proves("O2")
async def test_attempts_are_measured_by_pool_and_kind_of_target(world: World) -> None:
    await world.submit_all(
        [job(pool="measured"), job(pool="measured", target=HttpTarget(url="http://x/"), retry=AT_ONCE)]
    )
    await world.advance(3)
    pool_no = await world.value("SELECT pool_no FROM ondot.pool WHERE name = 'measured'")
    worker = await world.worker(pool_nos=[pool_no])
    of_pool = {"pool": "measured"}
    assignments = await worker.lease()
    for name in ("ondot_queue_wait_seconds", "ondot_start_lateness_seconds"):
        for target in ("function", "http"):
            assert read(f"{name}_count", **of_pool, target=target) == 1
            assert read(f"{name}_sum", **of_pool, target=target) == 3
    by_target = {type(assignment.spec.target): assignment for assignment in assignments if assignment.spec}
    await world.advance(2)
    await worker.complete(by_target.pop(HttpTarget), failed())
    [called] = by_target.values()
    await worker.complete(called)
    [again] = await worker.lease()
    # A second attempt waits for a worker too; only the first can be late.
    assert read("ondot_queue_wait_seconds_count", **of_pool) == 3
    assert read("ondot_start_lateness_seconds_count", **of_pool) == 2
    await worker.complete(again)
    assert read("ondot_attempts_completed_total", **of_pool, target="http", outcome="FAILED") == 1
    assert read("ondot_attempts_completed_total", **of_pool, outcome="SUCCEEDED") == 2
    assert read("ondot_retries_total", **of_pool) == 1
    assert read("ondot_attempt_duration_seconds_count", **of_pool) == 3
    assert read("ondot_attempt_duration_seconds_sum", **of_pool) == pytest.approx(4, abs=1)


@proves("O2", "S13")
async def test_a_job_that_starts_at_its_offset_is_not_late(world: World) -> None:
    schedule = replace(every(3600, world.now), spread_s=600, offset_s=300)
    await world.submit(job(pool="spread", schedule=schedule))
    await world.advance(3900)
    await world.plan()
    worker = await world.worker(pool_nos=[await world.value("SELECT pool_no FROM ondot.pool WHERE name = 'spread'")])
    assert len(await worker.lease()) == 1
    assert read("ondot_start_lateness_seconds_count", pool="spread") == 1
    assert read("ondot_start_lateness_seconds_sum", pool="spread") == 0


@proves("O2")
async def test_an_outcome_whose_reply_was_lost_is_measured_once(world: World) -> None:
    await world.submit(job(pool="default"))
    worker = await world.worker()
    [assignment] = await worker.lease()
    before = read("ondot_attempt_duration_seconds_count", pool="default")
    outcome = done(assignment)
    async with world.database.connection() as connection:
        await complete_executions(connection, worker.id, [outcome.completion], [])
    await worker.completer.write([outcome])
    assert read("ondot_attempt_duration_seconds_count", pool="default") == before + 1


def test_pools_beyond_the_bound_share_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "POOLS_SHOWN", 2)
    measures = Measures()
    series = [measures.find_series(job(pool=f"bound-{number}")) for number in range(5)]
    assert len(set(series)) == 3
    assert series[2] is series[3] is series[4]


@proves("O2")
async def test_a_job_that_asks_has_series_of_its_own_up_to_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = JobSeries()
    monkeypatch.setattr(job_series, "JOBS_SHOWN", 1)
    for module in (measure, lease):
        monkeypatch.setattr(module, "JOB_SERIES", series)
    schedule = every(3600, world.now)
    asking = [job(name, metrics=True, schedule=schedule) for name in ("asks-first", "asks-second")]
    await world.submit_all([*asking, job("does-not-ask", schedule=schedule)])
    await world.advance(3600)
    await world.plan()
    worker = await world.worker()
    assignments = await worker.lease()
    assert len(assignments) >= 3
    await worker.complete_all(assignments)
    first = {"tenant": "default", "job_name": "asks-first"}
    fires = sum(assignment.spec.name == "asks-first" for assignment in assignments if assignment.spec)
    assert read("ondot_job_attempts_total", **first, outcome="SUCCEEDED") == fires
    assert read("ondot_job_lateness_seconds_count", **first) == fires
    assert read("ondot_job_duration_seconds_count", **first) == fires
    assert read("ondot_job_attempts_total", tenant="(other)", job_name="(other)") == fires
    names = {sample.labels.get("job_name") for metric in sum_pages([REGISTRY.page], {}) for sample in metric.samples}
    assert names == {None, "asks-first", "(other)"}


def test_only_a_job_that_recurs_may_ask_for_series() -> None:
    assert job_spec({"name": "x", "function": "f", "every": "1h", "metrics": True}, NOW).metrics
    with pytest.raises(InvalidBody, match="`metrics` is for recurring jobs"):
        job_spec({"name": "x", "function": "f", "metrics": True}, NOW)
