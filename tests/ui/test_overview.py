"""The first page as read from a real database with a clock that the test sets."""

from typing import TypeVar

import pytest

from ondot.flow.change.change import pause
from ondot.model.execution import State
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.retry import Retry
from ondot.model.schedule import Misfire
from ondot.store.logs import Progress, save_progress
from ondot.store.overview import Missed, count_missed_fires
from ondot.ui.health import Health
from ondot.ui.overview import (
    MISSED_WITHIN,
    Failures,
    Fires,
    Latest,
    Numbers,
    Overview,
    Paused,
    Running,
    Section,
    read_overview,
)
from tests.holding import WHY, accept, hold
from tests.proves import proves
from tests.world import World, cron, every, failed, job, once

S = TypeVar("S", bound=Section)


async def overview_of(world: World, tenant_no: TenantNo = DEFAULT_TENANT) -> Overview:
    return await read_overview(world.database, tenant_no, is_whole=True)


async def missed_of(world: World) -> Missed:
    async with world.database.connection() as connection:
        return await count_missed_fires(connection, DEFAULT_TENANT, MISSED_WITHIN)


def section(overview: Overview, kind: type[S]) -> S:
    (found,) = (section for section in overview.sections.values() if isinstance(section, kind))
    return found


@proves("O5")
async def test_an_empty_ondot_is_new(world: World) -> None:
    overview = await overview_of(world)
    assert overview.is_new
    assert section(overview, Numbers).pools[0].name == "default"


@proves("O5", "L7", "P3")
async def test_a_hold_is_reported_before_lateness(world: World) -> None:
    await hold(world)
    held_at = world.now
    await world.submit(job("late"))
    await world.advance(5)
    health = section(await overview_of(world), Health)
    assert (health.word, health.since) == ("On hold", held_at)
    assert WHY in health.why
    await accept(world)
    assert section(await overview_of(world), Health).word == "Late"


@proves("O5", "S2")
async def test_the_next_fire_of_a_limited_job_is_the_earliest_even_if_it_is_planned(world: World) -> None:
    """Planned fires of a limited job wait at its gate, not in the queue: the page once showed 21 s instead of 3 s."""
    limited = job("crawl", schedule=every(3, world.now), limits=Limits(concurrency=1))
    keyed = job("keyed", schedule=every(4, world.now), limits=Limits(key="k", key_concurrency=1))
    accepted = await world.submit_all([limited, keyed])
    await world.plan()
    await world.advance(1)
    rows = section(await overview_of(world), Fires).rows
    assert {row.name: (row.at - world.now).total_seconds() for row in rows} == {"crawl": 2, "keyed": 3}
    assert [row.at for row in rows] == [(await world.job(one.id)).next_fire_at for one in accepted]


@proves("O5", "S6")
async def test_missed_fires_are_reported_for_a_day(world: World) -> None:
    made = await world.submit(job("pulse", schedule=every(10, world.now, misfire=Misfire(policy="skip"))))
    await world.advance(3600)
    await world.plan()
    [(_, _, _, count)] = await world.skipped(made.id)
    missed = await missed_of(world)
    assert (missed.count, missed.jobs) == (count, 1)
    await world.value("UPDATE ondot.skipped SET at = ondot.clock() - interval '23 hours' RETURNING 1")
    assert (await missed_of(world)).count == count
    await world.value("UPDATE ondot.skipped SET at = ondot.clock() - interval '25 hours' RETURNING 1")
    assert (await missed_of(world)).count == 0


@proves("O5")
async def test_planned_fires_and_timers_are_one_list_in_the_order_of_time(world: World) -> None:
    await world.submit_all(
        [
            job("tomorrow", schedule=once(world.after(86_400))),
            job("pulse", schedule=every(5, world.now)),
            job("nightly", schedule=cron("0 3 * * *")),
        ]
    )
    await world.plan()
    rows = section(await overview_of(world), Fires).rows
    assert [(row.name, row.schedule) for row in rows] == [
        ("pulse", "Every 5 seconds"),
        ("nightly", "At 03:00, UTC"),
        ("tomorrow", "Once"),
    ]
    assert (rows[0].at - world.now).total_seconds() == 5


@proves("O5")
async def test_a_running_execution_is_shown_with_its_progress_and_its_worker(world: World) -> None:
    await world.submit(job("report"))
    worker = await world.worker()
    (assignment,) = await worker.lease()
    leased = assignment.leased
    async with world.database.connection() as connection:
        await save_progress(connection, worker.id, [Progress(leased.id, leased.attempt_no, None, 0.4, "half\nway")])
    overview = await overview_of(world)
    running = section(overview, Running)
    (row,) = running.rows
    assert (row.name, row.attempt, row.percent, row.message, row.worker) == ("report", 1, 40, "half way", "here:1")
    assert (running.total, section(overview, Numbers).running) == (1, 1)


@proves("O5")
async def test_an_execution_is_shown_from_its_first_attempt_to_its_failure(world: World) -> None:
    await world.submit(job("doomed", retry=Retry(max_retries=1, jitter=False)))
    worker = await world.worker()
    (first,) = await worker.lease()
    await worker.complete(first, failed("no such table"))
    overview = await overview_of(world)
    (row,) = section(overview, Latest).rows
    assert (row.state, row.message, row.attempts, row.late) == (State.RETRYING, "no such table", 1, None)
    assert row.next_try_at is not None
    assert row.next_try_at > world.now
    assert section(overview, Numbers).retrying == 1
    assert not section(overview, Failures).rows

    await world.advance(3600)
    (second,) = await worker.lease()
    await worker.complete(second, failed("no such table"))
    overview = await overview_of(world)
    (row,) = section(overview, Latest).rows
    assert (row.state, row.attempts, row.next_try_at, row.took) == (State.FAILED, 2, None, "0 ms")
    (letter,) = section(overview, Failures).rows
    assert (letter.name, letter.message) == ("doomed", "no such table")


@proves("O5")
async def test_the_numbers_are_of_the_last_ten_minutes(world: World) -> None:
    worker = await world.worker()
    await world.submit_all([job("old") for _ in range(3)])
    await worker.complete_all(await worker.lease())
    await world.advance(700)
    await world.submit_all([job("new") for _ in range(2)])
    await worker.complete_all(await worker.lease())
    numbers = section(await overview_of(world), Numbers)
    assert (numbers.succeeded, numbers.failed, numbers.window) == (2, 0, "last 10 minutes")


@proves("S6", "L7")
async def test_fires_missed_in_an_outage_are_counted_with_their_reason(world: World) -> None:
    await world.submit(job("coalescing", schedule=every(600, world.now)))
    await world.worker()
    await world.advance(6 * 3600)
    await world.plan()
    (recorded,) = await skips_on_record(world)
    overview = await overview_of(world)
    numbers = section(overview, Numbers)
    assert recorded > 30
    assert numbers.skipped == recorded
    assert [(entry.count, entry.why) for entry in numbers.skips] == [
        (str(recorded), "missed in an outage; only the latest of them was run")
    ]


@proves("S6")
async def test_old_skips_and_those_of_a_calendar_or_another_tenant_do_not_count(world: World) -> None:
    async with world.database.connection() as connection:
        for reason, count, ago, tenant_no in (
            ("misfire", None, 60, 1),
            ("paused", 4, 60, 1),
            ("calendar", 100, 60, 1),
            ("misfire", 1000, 3600, 1),
            ("misfire", 1000, 60, 2),
        ):
            await connection.execute(
                "INSERT INTO ondot.skipped (job_id, from_at, to_at, tenant_no, reason, count, at)"
                " VALUES (gen_random_uuid(), now(), now(), $4, $1, $2, now() - make_interval(secs => $3))",
                reason,
                count,
                ago,
                tenant_no,
            )
    numbers = section(await overview_of(world), Numbers)
    assert numbers.skipped == 5
    assert [entry.count for entry in numbers.skips] == ["4", "at least 1"]


@proves("S12", "O5")
async def test_jobs_that_ondot_paused_are_listed_and_those_that_people_paused_are_not(world: World) -> None:
    made = [await world.submit(job(name, schedule=every(600, world.now))) for name in ("calm", "doomed", "well")]
    await pause(world.database, DEFAULT_TENANT, made[0].id)
    await pause(world.database, DEFAULT_TENANT, made[1].id, because="5 failures in a row")
    paused = section(await overview_of(world), Paused)
    assert [(row.id, row.name, row.reason) for row in paused.rows] == [(made[1].id, "doomed", "5 failures in a row")]
    assert paused.total == 1
    assert not section(await overview_of(world, TenantNo(2)), Paused).rows


@proves("L7")
async def test_a_queue_without_a_worker_makes_the_health_line_late(world: World) -> None:
    await world.submit(job("lonely", pool="reports"))
    await world.advance(30)
    overview = await overview_of(world)
    health = section(overview, Health)
    assert (health.level, health.why) == ("bad", "No worker serves pool reports")
    assert section(overview, Numbers).waiting == "1"


@proves("T1")
async def test_another_tenant_sees_nothing(world: World) -> None:
    await world.submit_all([job("now"), job("later", schedule=once(world.after(90)))])
    worker = await world.worker()
    await worker.complete_all(await worker.lease(), failed(retryable=False))
    await world.submit(job("waiting"))
    overview = await overview_of(world, await world.add_tenant())
    assert overview.is_new
    assert not section(overview, Failures).rows
    assert [pool.waiting for pool in section(overview, Numbers).pools] == [0]
    assert section(overview, Numbers).failed == 0


@proves("O5")
async def test_two_readings_of_an_idle_ondot_show_the_same(world: World) -> None:
    await world.submit_all([job("now"), job("later", schedule=once(world.after(90)))])
    await world.worker()
    assert (await overview_of(world)).sections == (await overview_of(world)).sections


async def skips_on_record(world: World) -> list[int]:
    async with world.database.connection() as connection:
        return [row["count"] for row in await connection.fetch("SELECT count FROM ondot.skipped")]


@proves("T2", "O5")
@pytest.mark.parametrize(("looked_at", "shown"), [(50, ["bad"]), (500, ["bad", "good"])])
async def test_a_flood_of_one_tenant_does_not_empty_the_page_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch, looked_at: int, shown: list[str]
) -> None:
    monkeypatch.setattr("ondot.store.overview.CEILING", 20)
    monkeypatch.setattr("ondot.store.overview.LOOKED_AT", 20)
    monkeypatch.setattr("ondot.store.overview.LOOKED_AT_AMONG_TENANTS", looked_at)
    worker = await world.worker()
    await world.submit(job("good"))
    await worker.complete_all(await worker.lease())
    await world.submit(job("bad", retry=Retry(max_retries=0)))
    [bad] = await worker.lease()
    await worker.complete(bad, failed("broken"))
    await world.advance(1)
    await world.submit_all([job("noise") for _ in range(100)], await world.add_tenant("busy"))
    while found := await worker.lease():
        await worker.complete_all(found)
    overview = await overview_of(world)
    assert sorted(row.name for row in section(overview, Latest).rows) == shown
    numbers = section(overview, Numbers)
    assert (numbers.failed, numbers.succeeded) == (1, int("good" in shown))
    assert numbers.window == ("latest 50 executions" if looked_at == 50 else "last 10 minutes")
