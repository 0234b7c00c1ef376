"""Processes that are there and do not work (P13): real ones, whose log nobody reads, or whose loop hangs."""

from pathlib import Path

import pytest

from tests.faults.fleet import Member, a_fleet
from tests.proves import proves


def fill_logs(*members: Member) -> None:
    """From here on each of them finds its log's pipe full, and nobody reads it."""
    for member in members:
        assert member.launch.pipe is not None
        member.launch.pipe.read_no_more()


@pytest.mark.timeout(180)
@proves("P13", "P5", "L3", "E6")
async def test_roles_whose_log_nobody_reads_plan_recover_and_run(database_url: str, tmp_path: Path) -> None:
    """A scheduler's loop hung in `write()`, kept its partitions with a fresh beat, and recovered nothing."""
    async with a_fleet(database_url, tmp_path, lease_s="0.6", horizon_s="5") as fleet:
        scheduler = fleet.scheduler(piped=True)
        victim, other = fleet.worker(piped=True), fleet.worker("--pool", "other", piped=True)
        await fleet.stands(scheduler, victim, other)
        fill_logs(scheduler, victim, other)
        # It logs each of these events: nodes that come and go, a worker that is lost, what is recovered.
        [job_id] = await fleet.submit({"function": "works_together", "payload": {"seconds": 3600}, "max_retries": 0})
        await fleet.noted("begun", within_s=20)
        await victim.kill()
        second = fleet.worker()
        await fleet.noted("begun", count=2, within_s=20)
        # Beyond the horizon: somebody has to plan it.
        [later] = await fleet.submit({"function": "naps", "in": "7s", "pool": "other"})
        [row] = await fleet.ended([later], within_s=20)
        assert row["state"] == "SUCCEEDED"
        losses = await fleet.connection.fetchval("SELECT losses FROM ondot.execution WHERE job_id = $1", job_id)
        assert losses == 1
        assert second.stands
        assert scheduler.launch.pipe is not None
        assert scheduler.events("worker.lost") == []
        scheduler.launch.pipe.read_again()
        await fleet.logged(scheduler, "worker.lost", within_s=20)
        await fleet.logged(scheduler, "executions.recovered", within_s=20)
        assert await scheduler.stop() == 0
