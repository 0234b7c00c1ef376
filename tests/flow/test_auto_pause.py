"""A job that keeps failing is paused, with the reason; a success starts a new count (S12)."""

import pytest

from ondot.flow.auto_pause import pause_failing_pass
from ondot.flow.change.change import delete, resume
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.job import JobState
from ondot.model.outcome import Report, Succeeded
from ondot.model.retry import Retry
from tests.proves import proves
from tests.world import World, every, failed, job

BAD, GOOD = failed(retryable=False), Succeeded("1")


async def live_through(world: World, reports: list[Report], retry: Retry = Retry()) -> JobState:  # noqa: B008
    """One fire for each report, then the pass; returns the job's state."""
    accepted = await world.submit(job(schedule=every(10, world.now), pause_after_failures=3, retry=retry))
    worker = await world.worker()
    for report in reports:
        await world.advance(10)
        await world.plan()
        await worker.run_one(report)
    await pause_failing_pass(world.database)
    row = await world.job(accepted.id)
    assert (row.state_reason is not None) == (row.state is JobState.PAUSED)
    return row.state


@proves("S12")
@pytest.mark.parametrize(
    ("reports", "state"),
    [
        ([BAD, BAD], JobState.ACTIVE),
        ([BAD, BAD, BAD], JobState.PAUSED),
        ([BAD, BAD, GOOD, BAD, BAD], JobState.ACTIVE),
        ([BAD, GOOD, BAD, BAD, BAD], JobState.PAUSED),
        ([GOOD], JobState.ACTIVE),
    ],
)
async def test_a_job_is_paused_after_its_limit_of_failures_in_a_row(
    world: World, reports: list[Report], state: JobState
) -> None:
    assert await live_through(world, reports) is state


@proves("S12", "E4")
async def test_an_attempt_that_will_be_tried_again_is_no_failure_yet(world: World) -> None:
    retry = Retry(max_retries=5, backoff="fixed", initial_s=1000, jitter=False)
    assert await live_through(world, [failed(), failed(), failed()], retry) is JobState.ACTIVE


@proves("S12")
async def test_failures_of_one_batch_count_in_the_order_of_their_fires(world: World) -> None:
    accepted = await world.submit(job(schedule=every(5, world.now), pause_after_failures=2))
    worker = await world.worker()
    await world.advance(20)
    await world.plan()
    assignments = await worker.lease()
    await worker.complete_all(assignments[:2], BAD)
    await worker.complete_all(assignments[2:3], GOOD)
    await worker.complete_all(assignments[3:], BAD)
    await pause_failing_pass(world.database)
    assert (await world.job(accepted.id)).state is JobState.ACTIVE
    assert await world.value("SELECT failures FROM ondot.streak") == 1


@proves("S12", "S8")
async def test_a_job_that_was_paused_for_its_failures_starts_a_new_count_when_it_is_resumed(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now), pause_after_failures=1))
    worker = await world.worker()
    await world.advance(10)
    await worker.run_one(BAD)
    await pause_failing_pass(world.database)
    row = await world.job(accepted.id)
    assert (row.state, row.state_reason) == (JobState.PAUSED, "1 failure in a row")
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id)
    assert await pause_failing_pass(world.database) == 0
    row = await world.job(accepted.id)
    assert (row.state, row.state_reason) == (JobState.ACTIVE, None)


@proves("S12")
async def test_a_job_that_was_deleted_before_the_pass_is_left_alone(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now), pause_after_failures=1))
    worker = await world.worker()
    await world.advance(10)
    await worker.run_one(BAD)
    await delete(world.database, DEFAULT_TENANT, accepted.id)
    await pause_failing_pass(world.database)
    assert (await world.job(accepted.id)).state is JobState.DELETED
    assert await world.count("streak") == 0
