"""How long a forecast takes: a week by hour and by minute, and the number of workers that a pool needs.

100,000 jobs (20,000 with --quick) in a real PostgreSQL: half daily at any minute in four zones, a fifth hourly, a tenth
every five minutes with jitter, a fifth by intervals of a minute to an hour from any instant. `forecast` is what
`GET /v1/forecast` calls: jobs read, decoded, listed and added up; `scale` is what an autoscaler asks. The median of
five, in milliseconds.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import argparse
import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from started import place
from structlog.testing import capture_logs

from ondot.embedded.server import EmbeddedPostgres
from ondot.flow.days import make_days
from ondot.flow.dispatch import Dispatcher
from ondot.flow.forecast.compute import forecast
from ondot.flow.forecast.scale import scale
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.job import JobSpec
from ondot.model.schedule import Cron, Interval, Schedule
from ondot.model.target import FunctionTarget
from ondot.settings import load_settings
from ondot.store.database import Database, open_database
from ondot.store.migrate import migrate_up
from ondot.transports.polling import PollingTransport

JOBS, A_SUBMIT, ROUNDS = 100_000, 1_000, 5
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")
WEEK = timedelta(days=7)


def schedule_of(number: int, chance: random.Random) -> Schedule:
    kind = number % 10
    minute, hour = chance.randrange(60), chance.randrange(24)
    if kind < 5:
        return Schedule(when=Cron(expression=f"{minute} {hour} * * *", timezone=chance.choice(ZONES)))
    if kind < 7:
        return Schedule(when=Cron(expression=f"{minute} * * * *"))
    if kind < 8:
        return Schedule(when=Cron(expression="*/5 * * * *"), jitter_s=30)
    anchor_at = datetime.now(UTC) - timedelta(seconds=chance.randrange(86_400))
    return Schedule(when=Interval(every_s=chance.choice((60, 300, 900, 3600)), anchor_at=anchor_at))


async def fill(database: Database, jobs: int) -> None:
    dispatcher, chance = Dispatcher(PollingTransport()), random.Random(17)
    specs = [
        JobSpec(name="job", target=FunctionTarget(name="nothing"), schedule=schedule_of(number, chance))
        for number in range(jobs)
    ]
    for start in range(0, jobs, A_SUBMIT):
        batch = specs[start : start + A_SUBMIT]
        await submit(database, dispatcher, DEFAULT_TENANT, batch, render=lambda _accepted: "")
    async with database.connection() as connection:
        await connection.execute("ANALYZE ondot.timer, ondot.job, ondot.job_version")


async def took_ms(call: Callable[[], Awaitable[object]]) -> float:
    began_s = time.perf_counter()
    await call()
    return 1000 * (time.perf_counter() - began_s)


async def measure(url: str, jobs: int) -> dict[str, float]:
    database = await open_database(load_settings(database_url=url))
    try:
        await migrate_up(database)
        await make_days(database)
        await database.read_clock()
        await fill(database, jobs)
        now = database.clock.now()

        def of_week(bucket_s: int) -> Callable[[], Awaitable[object]]:
            return lambda: forecast(database, DEFAULT_TENANT, now, now + WEEK, bucket_s, None)

        found = await forecast(database, DEFAULT_TENANT, now, now + WEEK, 3600, None)
        fires = sum(bucket.fires for pool in found.pools for bucket in pool.buckets)
        figures: dict[str, float] = {"fires in the week": round(fires)}
        for name, call in (
            ("week by hour", of_week(3600)),
            ("week by minute", of_week(60)),
            ("scale of a pool", lambda: scale(database, DEFAULT_TENANT, "default")),
        ):
            figures[name] = round(median([await took_ms(call) for _ in range(ROUNDS)]))
        return figures
    finally:
        await database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the jobs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    jobs = JOBS // 5 if arguments.quick else JOBS
    with place() as home, closing(_Started(home)) as postgres, capture_logs():
        figures = asyncio.run(measure(postgres.url, jobs))
    if arguments.json:
        print(json.dumps({"question": "forecast", "unit": "ms", "jobs": jobs, **figures}))
        return
    print(f"{jobs:,} jobs, {figures.pop('fires in the week'):,} fires in the week")
    for name, each in figures.items():
        print(f"{name:20}{each:>10,} ms")


class _Started:
    """A separate PostgreSQL, without output."""

    def __init__(self, home: Any) -> None:
        self._postgres = EmbeddedPostgres(home)
        with capture_logs():
            self.url = self._postgres.start()

    def close(self) -> None:
        with capture_logs():
            self._postgres.stop()


if __name__ == "__main__":
    main()
