"""Expectations of jobs: what misses, what will, and what comes good; found by passes over stored instants (O11)."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from ondot.flow import new_jobs
from ondot.flow.backfill import Backfill, start_backfill
from ondot.flow.change.change import delete, pause, resume
from ondot.flow.expect.watch import expect_pass
from ondot.model.expect import Expect
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.retry import Retry
from ondot.model.schedule import Misfire
from ondot.store.connection import Record
from ondot.store.expect import put_watches
from tests.proves import proves
from tests.world import Worker, World, cron, every, failed, job

NO_RETRY = Retry(max_retries=0)


async def look(world: World) -> None:
    """As the housekeeper does each second, until nothing is due."""
    while await expect_pass(world.database):
        pass


async def misses(world: World, job_id: JobId) -> list[tuple[Any, ...]]:
    """Which, whether it is open, whether it is a forecast, how many, and why."""
    sql = "SELECT which, cleared_at IS NULL, predicted, count, reason FROM ondot.miss WHERE job_id = $1 ORDER BY id"
    return [tuple(row.values()) for row in await world.fetch(sql, job_id)]


async def condition(world: World, job_id: JobId) -> Record | None:
    sql = "SELECT * FROM ondot.condition WHERE kind = 'expectation' AND subject = $1 AND tenant_no = 1"
    rows = await world.fetch(sql, str(job_id))
    return rows[0] if rows else None


async def go_to(world: World, at: datetime) -> None:
    """Turn the clock, plan and look every three hours on the way."""
    while world.now < at:
        await world.set_clock(min(at, world.now + timedelta(hours=3)))
        await world.plan()
        await look(world)


async def run_all(world: World, worker: Worker, *, takes_s: float = 0) -> None:
    assignments = await worker.lease()
    await world.advance(takes_s)
    await worker.complete_all(assignments)


def midnight(world: World) -> datetime:
    return world.now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


@proves("O11")
async def test_a_job_that_has_not_succeeded_by_its_time_is_missed_until_it_comes_good(world: World) -> None:
    night = midnight(world)
    limits = Limits(concurrency=1)
    made = await world.submit(
        job("nightly", schedule=cron("0 3 * * *"), expect=Expect(end_by="06:00"), limits=limits, retry=NO_RETRY)
    )
    worker = await world.worker()
    # Held back by its own limit: another run of it is running.
    await world.run_now(made.id)
    await worker.lease()
    await go_to(world, night + timedelta(hours=5, minutes=59))
    assert await misses(world, made.id) == []
    await go_to(world, night + timedelta(hours=6, minutes=1))
    [(which, is_open, predicted, count, reason)] = await misses(world, made.id)
    assert (which, is_open, predicted, count) == ("end_by", True, False, 1)
    assert "1 at a time" in reason
    found = await condition(world, made.id)
    assert found is not None
    assert found["message"].startswith("nightly has not succeeded by 06:00 UTC")
    assert found["job_id"] == made.id
    # The next night it fails, which is one miss more; then it succeeds in time, and the condition ends.
    await world.fetch("DELETE FROM ondot.slot")
    worker = await world.worker()
    for assignment in await worker.lease():
        await worker.complete(assignment, failed("no space left"))
    await go_to(world, night + timedelta(days=1, hours=4))
    for assignment in await worker.lease():
        await worker.complete(assignment, failed("no space left"))
    await go_to(world, night + timedelta(days=1, hours=7))
    [(_, is_open, _, count, reason)] = await misses(world, made.id)
    assert (is_open, count) == (True, 2)
    assert "no space left" in reason
    await go_to(world, night + timedelta(days=2, hours=3, minutes=1))
    await run_all(world, worker)
    await go_to(world, night + timedelta(days=2, hours=7))
    [(_, is_open, *_)] = await misses(world, made.id)
    assert not is_open
    assert await condition(world, made.id) is None


@proves("O11")
async def test_the_first_fire_of_a_job_counts_even_if_it_is_due_before_the_job_is_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine more than a second passed meanwhile, and the only fire of a job was never missed."""

    async def put_later(*given: Any) -> None:
        await world.advance(1.5)
        await put_watches(*given)

    monkeypatch.setattr(new_jobs, "put_watches", put_later)
    once_only = every(1, world.now, max_fires=1)
    made = await world.submit(job(schedule=once_only, expect=Expect(end_within_s=2), retry=NO_RETRY))
    await world.plan()
    await world.advance(5)
    await look(world)
    [(which, is_open, predicted, count, _)] = await misses(world, made.id)
    assert (which, is_open, predicted, count) == ("end_within", True, False, 1)


@proves("O11")
async def test_a_miss_is_predicted_from_earlier_runs_and_withdrawn_if_it_was_wrong(world: World) -> None:
    night = midnight(world)
    made = await world.submit(job("etl", schedule=cron("40 5 * * *"), expect=Expect(end_by="06:00")))
    worker = await world.worker()
    for day in range(6):
        await go_to(world, night + timedelta(days=day, hours=5, minutes=40))
        # Below five runs nothing is said, though each takes 15 of its 20 minutes.
        assert await misses(world, made.id) == []
        await run_all(world, worker, takes_s=15 * 60)
        await look(world)
    # Tonight it starts at 05:50, so it will end at 06:05.
    await go_to(world, night + timedelta(days=6, hours=5, minutes=45))
    await world.advance(300)
    running = await worker.lease()
    await look(world)
    [(_, is_open, predicted, _, reason)] = await misses(world, made.id)
    assert (is_open, predicted) == (True, True)
    assert "nine of ten runs take 15 min" in reason
    assert "it will end at 06:05:00 UTC" in reason
    found = await condition(world, made.id)
    assert found is not None
    assert '"predicted": true' in found["details"]
    assert "will not succeed by 06:00" in found["message"]
    # It is faster than that: the forecast is withdrawn, and was no miss.
    await world.advance(8 * 60)
    await worker.complete_all(running)
    await world.advance(15)
    await look(world)
    [(_, is_open, predicted, *_)] = await misses(world, made.id)
    assert (is_open, predicted) == (False, True)
    assert await condition(world, made.id) is None
    # The next night it comes true.
    await go_to(world, night + timedelta(days=7, hours=5, minutes=50))
    await go_to(world, night + timedelta(days=7, hours=6, minutes=1))
    *_, (_, is_open, predicted, count, _) = await misses(world, made.id)
    assert (is_open, predicted, count) == (True, False, 1)


@proves("O11")
async def test_starts_and_ends_in_time_are_watched_and_a_long_outage_is_one_miss(world: World) -> None:
    expect = Expect(start_within_s=60, end_within_s=120)
    schedule = every(600, world.now, misfire=Misfire(policy="skip"))
    made = await world.submit(job("pulse", schedule=schedule, expect=expect))
    plain = await world.submit(job("plain", schedule=every(600, world.now)))
    worker = await world.worker()
    await look(world)
    assert await world.count("watch") == 2, "a job without expectations is not watched"
    await world.advance(600)
    await world.plan()
    await run_all(world, worker)
    await world.advance(130)
    await look(world)
    assert await misses(world, made.id) == []
    await world.advance(470)
    await world.plan()
    await world.advance(61)
    await look(world)
    [(which, is_open, *_)] = await misses(world, made.id)
    assert (which, is_open) == ("start_within", True)
    await run_all(world, worker)
    await world.advance(15)
    await look(world)
    [(_, is_open, *_)] = await misses(world, made.id)
    assert not is_open, "it has started"
    # Everything is down for a day: its misses are one row for each expectation, and one condition.
    await world.advance(86_400)
    await look(world)
    await world.plan()
    await world.advance(300)
    await look(world)
    open_ = [row for row in await misses(world, made.id) if row[1]]
    assert sorted(row[0] for row in open_) == ["end_within", "start_within"]
    assert await world.count("condition") == 1
    # A backfill of what was missed does not make it good, and misses nothing itself.
    start, end = world.after(-86_400), world.after(-3600)
    await start_backfill(world.database, DEFAULT_TENANT, made.id, Backfill(start, end), render=lambda _: "")
    await world.work_off()
    await run_all(world, worker)
    await world.advance(20)
    await look(world)
    assert [row for row in await misses(world, made.id) if row[1]] == open_
    assert await misses(world, plain.id) == []
    # Without the job nothing is watched, and nothing is wrong any more.
    await delete(world.database, DEFAULT_TENANT, made.id)
    await look(world)
    assert (await world.count("watch"), await world.count("condition")) == (0, 0)
    assert all(not row[1] for row in await misses(world, made.id))


@proves("O11")
async def test_a_job_that_is_retried_again_and_again_misses_its_time_all_the_same(world: World) -> None:
    """Each retry moves the instant from which an execution may start: a deadline must not count from there."""
    expect = Expect(start_within_s=60, end_within_s=120)
    retry = Retry(max_retries=100, backoff="fixed", initial_s=50, jitter=False)
    made = await world.submit(job("sync", schedule=every(3600, world.now), expect=expect, retry=retry))
    worker = await world.worker()
    await world.advance(3600)
    await world.plan()
    for _ in range(3):
        assert await misses(world, made.id) == []
        await worker.run_one(failed())
        await world.advance(50)
        await look(world)
    [(which, is_open, predicted, count, _)] = await misses(world, made.id)
    assert (which, is_open, predicted, count) == ("end_within", True, False, 1)
    await run_all(world, worker)
    await world.advance(15)
    await look(world)
    assert [row[1] for row in await misses(world, made.id)] == [False]
    assert await condition(world, made.id) is None


@proves("O11")
async def test_a_job_that_does_not_succeed_often_enough_is_missed_unless_a_person_paused_it(world: World) -> None:
    night = midnight(world)
    expect = Expect(success_every_s=26 * 3600, end_by="06:00")
    made = await world.submit(job("sync", schedule=cron("0 3 * * *"), expect=expect, retry=NO_RETRY))
    worker = await world.worker()
    await go_to(world, night + timedelta(hours=3, minutes=1))
    await run_all(world, worker)
    await go_to(world, night + timedelta(hours=7))
    assert await misses(world, made.id) == []
    await pause(world.database, DEFAULT_TENANT, made.id)
    await go_to(world, night + timedelta(days=2, hours=7))
    found = await misses(world, made.id)
    # A person paused it: success is not expected, but the fire of 03:00 has not succeeded by 06:00 all the same.
    assert [(which, reason) for which, _, _, _, reason in found] == [("end_by", "the job was paused")]
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, made.id)
    await go_to(world, night + timedelta(days=3, hours=8))
    assert [row[0] for row in await misses(world, made.id) if row[1]] == ["end_by"]
    await go_to(world, night + timedelta(days=3, hours=10))
    assert [row[0] for row in await misses(world, made.id) if row[1]] == ["end_by", "success_every"]
    for assignment in await worker.lease():
        await worker.complete(assignment)
    await world.advance(15)
    await look(world)
    assert [row for row in await misses(world, made.id) if row[1]] == []
    # Without the field nothing is watched.
    await world.update(made.id, job("sync", schedule=cron("0 3 * * *")))
    await look(world)
    assert await world.count("watch") == 0
