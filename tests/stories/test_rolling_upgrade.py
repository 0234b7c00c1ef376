"""A fleet is upgraded under load: a migration is applied, then every role is restarted, one after another (C11).

Nothing is missed and nothing fails for it: every acknowledged job runs once, no attempt is lost, fires of a job that
recurs come on time, and callers see at worst a closed connection of the one API that is being restarted.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path
from uuid import UUID

import aiohttp
import pytest
from started import free_port

from ondot.store.migrate import Migration, apply
from tests.faults.fleet import a_fleet
from tests.faults.receiver import receiving
from tests.proves import proves

LATE_S = 5.0
"""One second is promised, on a quiet machine; this one may be busy."""
PAUSE_S = 0.02
CHANGED = (
    "job",
    "job_once",
    "timer",
    "execution",
    "ready",
    "lease",
    "history",
    "attempt",
    "worker",
    "node",
    "partition",
)
MORE_COLUMNS = ";".join(f"ALTER TABLE ondot.{table} ADD COLUMN of_the_next_release text" for table in CHANGED)


@dataclass(slots=True)
class Caller:
    """Creates jobs through one API or the other, each with its idempotency key, until it is stopped."""

    urls: list[str]
    receiver_url: str
    accepted: list[UUID] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    closed: int = 0

    async def call(self) -> None:
        async with aiohttp.ClientSession() as session:
            for number in count():
                await self._create(session, number)
                await asyncio.sleep(PAUSE_S)

    async def _create(self, session: aiohttp.ClientSession, number: int) -> None:
        target = (
            {"url": self.receiver_url}
            if number % 2
            else {"function": "naps", "payload": {"seconds": 0.2 * (number % 5)}}
        )
        body = {"name": f"job {number}", "retry": {"max_retries": 0, "max_worker_losses": 0}, **target}
        for tries in count(number):
            try:
                async with session.post(
                    f"{self.urls[tries % len(self.urls)]}/v1/jobs", json=body, headers={"idempotency-key": f"{number}"}
                ) as answer:
                    created = await answer.json()
                    if answer.status == 201:
                        self.accepted.append(UUID(created["id"]))
                    else:
                        self.refused.append(f"{answer.status}: {created}")
                    return
            except aiohttp.ClientError:
                self.closed += 1
                await asyncio.sleep(PAUSE_S)


@pytest.mark.timeout(360)
@proves("C11", "P1", "P2", "P3", "L1", "L2", "O9")
async def test_a_migration_and_a_restart_of_every_role_under_load_cost_nothing(
    database_url: str, tmp_path: Path
) -> None:
    async with receiving() as receiver, a_fleet(database_url, tmp_path, lease_s="5", heartbeat_s="10") as fleet:
        ports = [free_port(), free_port()]
        roles = [fleet.worker(), fleet.worker(), fleet.scheduler(), fleet.scheduler(), *map(fleet.api, ports)]
        await fleet.wait_until_up(*roles)
        [recurring] = await fleet.submit({"name": "each second", "every": "1s", "url": receiver.url})
        caller = Caller([f"http://127.0.0.1:{port}" for port in ports], receiver.url)
        calling = asyncio.create_task(caller.call())

        await apply(fleet.database, Migration(9_999, "the_next_release", MORE_COLUMNS))
        for role in roles:
            before = len(caller.accepted)
            assert await role.stop(within_s=40) == 0
            role.restart()
            await fleet.wait_until_up(role)

            async def goes_on(before: int = before) -> bool | None:
                return len(caller.accepted) > before + 10 or None

            await fleet.until(goes_on, within_s=30, what=f"jobs are accepted after the restart of {role.name}")
        calling.cancel()
        with suppress(asyncio.CancelledError):
            await calling

        ended = await fleet.ended(caller.accepted, within_s=60)
        assert caller.refused == []
        assert Counter(row["state"] for row in ended) == {"SUCCEEDED": len(caller.accepted)}
        assert set(Counter(call.execution_id for call in receiver.calls).values()) == {1}
        fires = await fleet.connection.fetch(
            "SELECT fire_at, started_at, state FROM ondot.history WHERE job_id = $1 ORDER BY fire_at", recurring
        )
        steps = {after["fire_at"] - before["fire_at"] for before, after in pairwise(fires)}
        assert steps == {timedelta(seconds=1)}
        worst_s = max((row["started_at"] - row["fire_at"]).total_seconds() for row in fires)
        print(f"{len(caller.accepted)} jobs, {caller.closed} closed connections, worst lateness {worst_s:.3f} s")  # noqa: T201
        assert worst_s < LATE_S
        for member in roles:
            assert member.events("pass.failed") == [], member.name
