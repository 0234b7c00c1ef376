"""When the rules of time zones change, stored fires are computed again, once, by the newest node (S4)."""

from datetime import timedelta

import pytest

from ondot.flow.zones import zones_pass
from ondot.model.ids import JobId
from ondot.model.schedule import Cron, Schedule
from tests.proves import proves
from tests.world import World, every, job, once

DAILY = Schedule(when=Cron(expression="30 2 * * *", timezone="Europe/Berlin"))


async def look(world: World, version: str) -> int:
    looked = 0
    while count := await zones_pass(world.database, world.dispatcher, version):
        looked += count
    return looked


async def as_by_other_rules(world: World, job_id: JobId, hours: int) -> None:
    """As if the zone had other rules when the next fire was computed."""
    await world.fetch(
        "UPDATE ondot.timer SET next_fire_at = next_fire_at + $2 WHERE job_id = $1", job_id, timedelta(hours=hours)
    )


@proves("S4")
@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_fire_stored_by_other_rules_is_computed_again(world: World, hours: int) -> None:
    accepted = await world.submit(job(schedule=DAILY))
    await look(world, "2026a")
    await as_by_other_rules(world, accepted.id, hours)
    assert await look(world, "2026a") == 0
    assert await look(world, "2026b") == 1
    assert (await world.job(accepted.id)).next_fire_at == accepted.next_fire_at
    assert await look(world, "2026b") == 0


@proves("S4")
async def test_a_node_with_older_rules_changes_nothing(world: World) -> None:
    accepted = await world.submit(job(schedule=DAILY))
    await look(world, "2026b")
    await as_by_other_rules(world, accepted.id, 1)
    assert await look(world, "2026a") == 0
    assert (await world.job(accepted.id)).next_fire_at != accepted.next_fire_at


@proves("S4", "P3")
async def test_executions_planned_by_the_old_rules_are_taken_back(world: World) -> None:
    accepted = await world.submit(job(schedule=DAILY))
    assert accepted.next_fire_at is not None
    await as_by_other_rules(world, accepted.id, -1)
    await world.set_clock(accepted.next_fire_at - timedelta(hours=1, seconds=10))
    await world.plan()
    assert await world.fires(accepted.id) == [10]
    await as_by_other_rules(world, accepted.id, -1)
    await look(world, "2026b")
    assert await world.fires(accepted.id) == []
    assert (await world.job(accepted.id)).next_fire_at == accepted.next_fire_at


@proves("S4", "S1", "S3")
async def test_jobs_that_no_zone_affects_stay_as_they_are(world: World) -> None:
    interval = await world.submit(job(schedule=every(100, world.now)))
    at = await world.submit(job(schedule=once(world.after(100))))
    stood = [await world.timer(id_) for id_ in (interval.id, at.id)]
    assert await look(world, "2026a") == 2
    assert [await world.timer(id_) for id_ in (interval.id, at.id)] == stood


@proves("S4")
async def test_a_node_with_another_release_starts_from_the_first_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondot.flow.zones.JOBS_A_PASS", 2)
    await world.submit_all([job(str(n), schedule=DAILY) for n in range(4)])
    assert await zones_pass(world.database, world.dispatcher, "2026a") == 2
    assert await look(world, "2026b") == 4
