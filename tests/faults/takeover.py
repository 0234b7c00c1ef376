"""How long it takes until another process does the work of a hung or killed one: `python -m tests.faults.takeover`.

With the default lease (5 s) and heartbeat (10 s), on a separate PostgreSQL; the schedulers' leases in it, or in a
separate etcd. Measured from the moment of the hang or kill: for a scheduler until another owns all its partitions, for
a worker until its execution has started again, for an API until the process has restarted and answers. Also what idle
schedulers cost PostgreSQL: transactions per second of each.
"""

import argparse
import asyncio
import random
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from started import free_port

from brokers import Etcd
from tests.faults.fleet import Fleet, Member, a_fleet
from tests.faults.postgres import a_postgres

OWNED = (
    "SELECT count(*) FROM ondot.partition p JOIN ondot.node n ON n.id = p.owner"
    " WHERE n.pid = $1 AND n.expires_at > ondot.clock()"
)
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
LOOK_AGAIN_S = 0.01
IDLE_S = 30.0
PARTITIONS = 64


async def until(fleet: Fleet, query: str, wanted: int, *values: object) -> float:
    while await fleet.connection.fetchval(query, *values) != wanted:
        await asyncio.sleep(LOOK_AGAIN_S)
    return time.monotonic()


async def of_scheduler(fleet: Fleet, first: Member, second: Member) -> float:
    await until(fleet, OWNED, PARTITIONS // 2, first.process.pid)
    began_s = time.monotonic()
    first.hang()
    taken_s = await until(fleet, OWNED, PARTITIONS, second.process.pid)
    first.move()
    return taken_s - began_s


async def of_killed_scheduler(fleet: Fleet, first: Member, second: Member) -> float:
    await until(fleet, OWNED, PARTITIONS // 2, first.process.pid)
    # At any moment between two beats.
    await asyncio.sleep(random.uniform(0, 1.5))
    began_s = time.monotonic()
    await first.kill()
    taken_s = await until(fleet, OWNED, PARTITIONS, second.process.pid)
    first.restart()
    return taken_s - began_s


async def of_idle_schedulers(fleet: Fleet, schedulers: int) -> float:
    """Transactions per second, of each."""
    before, began_s = await fleet.connection.fetchval(COMMITS), time.monotonic()
    await asyncio.sleep(IDLE_S)
    count = await fleet.connection.fetchval(COMMITS) - before
    return float(count) / (time.monotonic() - began_s) / schedulers


async def of_worker(fleet: Fleet, workers: dict[int, Member], number: int) -> float:
    [job_id] = await fleet.submit({"function": "works_together", "payload": {"seconds": 3600}, "cancel_grace": "0s"})
    started = (await fleet.noted("started", count=2 * number + 1, within_s=60))[-1]
    victim = workers[started["pid"]]
    began_s = time.time()
    victim.hang()
    again = (await fleet.noted("started", count=2 * number + 2, within_s=60))[-1]
    victim.move()
    id_ = await fleet.connection.fetchval("SELECT id FROM ondot.execution WHERE job_id = $1", job_id)
    await fleet.cancel(id_)
    await fleet.ended([job_id], within_s=60)
    return float(again["at_s"]) - began_s


async def of_api(api: Member, port: int) -> float:
    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            return False

    while not await asyncio.to_thread(answers):
        await asyncio.sleep(LOOK_AGAIN_S)
    began_s = time.monotonic()
    api.hang()
    await asyncio.sleep(1)
    while not await asyncio.to_thread(answers):
        await asyncio.sleep(LOOK_AGAIN_S)
    return time.monotonic() - began_s


async def measure_kills(times: int, directory: Path, coordination: str) -> dict[str, list[float]]:
    with ExitStack() as stack:
        settings = {"lease_s": "5", "coordination": coordination}
        if coordination == "etcd":
            settings["etcd_url"] = stack.enter_context(Etcd.running()).url
        async with a_postgres() as postgres, a_fleet(postgres.url, directory, **settings) as fleet:
            first, second = fleet.scheduler(), fleet.scheduler()
            await fleet.wait_until_up(first, second)
            await until(fleet, OWNED, PARTITIONS // 2, first.process.pid)
            return {
                "statements": [await of_idle_schedulers(fleet, 2)],
                "killed": [await of_killed_scheduler(fleet, first, second) for _ in range(times)],
            }


async def measure(times: int, directory: Path) -> dict[str, list[float]]:
    async with (
        a_postgres() as postgres,
        a_fleet(postgres.url, directory, lease_s="5", heartbeat_s="10") as fleet,
    ):
        port = free_port()
        first, second, api = fleet.scheduler(), fleet.scheduler(), fleet.api(port)
        workers = {member.process.pid: member for member in (fleet.worker(), fleet.worker())}
        await fleet.wait_until_up(*fleet.members)
        return {
            "scheduler": [await of_scheduler(fleet, first, second) for _ in range(times)],
            "worker": [await of_worker(fleet, workers, number) for number in range(times)],
            "api": [await of_api(api, port)],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--kills-by", choices=["postgres", "etcd"], help="kill schedulers that coordinate by this")
    how = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        measured = asyncio.run(
            measure_kills(how.times, path, how.kills_by) if how.kills_by else measure(how.times, path)
        )
    for role, seconds in measured.items():
        print(f"{role:10} {len(seconds)} ×  p50 {median(seconds):.2f} s  longest {max(seconds):.2f} s")  # noqa: T201


if __name__ == "__main__":
    main()
