"""Schedulers are killed as a herd enters the horizon (C2, L2, N3, N5): thousands of fires due in one second. The
remaining scheduler plans each once, and none is late for it. `ONDOT_TEST_HERD` sets how many."""

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from tests.faults.fleet import a_fleet
from tests.proves import proves

HERD = int(os.environ.get("ONDOT_TEST_HERD", "3000"))
BATCH = 1_000
HORIZON_S = 6.0
LATE_S = 20.0 + HERD / 500
"""One second is promised beside the time to run them all; this machine may be busy."""


@pytest.mark.timeout(360 + HERD / 30)
@proves("C1", "C2", "L2", "N3", "N5", "P3", "P9")
async def test_killing_schedulers_as_a_herd_enters_the_horizon_makes_no_fire_late(
    database_url: str, tmp_path: Path
) -> None:
    async with a_fleet(database_url, tmp_path, lease_s="1", horizon_s=f"{HORIZON_S:g}") as fleet:
        worker = fleet.worker(slots=500)
        schedulers = [fleet.scheduler(), fleet.scheduler(), fleet.scheduler()]
        await fleet.wait_until_up(worker, *schedulers)
        due_at = fleet.database.clock.now() + timedelta(seconds=HORIZON_S + 2 + HERD / 2_000)
        body = {"function": "naps", "payload": {"seconds": 0}, "at": due_at.isoformat()}
        jobs = [id_ for _ in range(HERD // BATCH) for id_ in await fleet.submit(*[body] * BATCH)]

        async def enters() -> bool | None:
            return fleet.database.clock.now() >= due_at - timedelta(seconds=HORIZON_S) or None

        await fleet.until(enters, within_s=60, what="the herd enters the horizon")
        planned = []
        for scheduler in schedulers[:2]:
            await scheduler.kill()
            planned.append(await fleet.connection.fetchval("SELECT count(*) FROM ondot.execution"))
        for scheduler in schedulers[:2]:
            scheduler.restart()

        ended = await fleet.ended(jobs, within_s=60 + HERD / 100)
        late_s = sorted((row["started_at"] - due_at).total_seconds() for row in ended)
        run = f"{HERD} jobs, two schedulers killed when {planned} were planned; started {late_s[0]:.3f} to"
        print(f"\n{run} {late_s[-1]:.3f} s after they were due, p50 {late_s[len(late_s) // 2]:.3f}")  # noqa: T201
        assert Counter(row["state"] for row in ended) == {"SUCCEEDED": HERD}
        assert await fleet.connection.fetchval("SELECT count(*) FROM ondot.history") == HERD
        assert late_s[0] >= 0
        assert late_s[-1] < LATE_S
