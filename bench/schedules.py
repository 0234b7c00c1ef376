"""How fast fires are computed, and how fast they are planned.

**Next fires per second**, one thread, by kind of schedule:
- *distinct*: each call with another instant, at random within ten years, so that the memo never helps;
- *memo*: a thousand calls repeated, as a herd of jobs that share an expression makes them;
- *chain*: from each fire to the next, which peers do too; theirs is their own iteration, in UTC and without a policy
  for clock changes, from an expression that was parsed before.

**A herd**: 100,000 jobs that share 1,000 expressions, due at one instant (20,000 with --quick). Their next fires
computed per second (pure), and fires planned per second: the real planner's passes over all partitions of a real
PostgreSQL with fsync on, from the first timer read to the last execution committed.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import cycle
from typing import Any

from started import place
from structlog.testing import capture_logs

from ondot.embedded.server import EmbeddedPostgres
from ondot.flow.days import make_days
from ondot.flow.dispatch import Dispatcher
from ondot.flow.plan import Planner
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT, PARTITIONS
from ondot.model.job import JobSpec
from ondot.model.schedule import Calendar, Cron, Interval, Rrule, Schedule, cron, next_fire, when
from ondot.model.target import FunctionTarget
from ondot.settings import load_settings
from ondot.store.database import open_database
from ondot.store.migrate import migrate_up
from ondot.testing.clock import HAND_CLOCK, turn_clock
from ondot.transports.polling import PollingTransport

BEGIN_AT = datetime(2026, 1, 1, tzinfo=UTC)
TEN_YEARS_S = 10 * 365 * 86_400
BERLIN = "Europe/Berlin"
JOBS, EXPRESSIONS, A_SUBMIT = 100_000, 1_000, 1_000
PEERS = ("cronsim", "croniter", "apscheduler")

CRONS = (
    ("0 9 * * 1-5", BERLIN),
    ("*/5 * * * *", "UTC"),
    ("*/5 * * * *", BERLIN),
    ("* * * * * *", "UTC"),
    ("* * * * * *", BERLIN),
    ("0 0 29 2 *", BERLIN),
    ("0 12 15W * *", BERLIN),
    ("0 0 L * *", BERLIN),
)


def schedules() -> dict[str, Schedule]:
    nine = Cron(expression="0 9 * * *", timezone=BERLIN)
    days_off = Calendar(exclude_holidays="DE", business_days=True)
    moved = Calendar(exclude_holidays="DE", business_days="next")
    monthly = Rrule(
        text="FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
        begins=BEGIN_AT.replace(tzinfo=None, hour=9),
        timezone=BERLIN,
    )
    return {
        **{
            f"{expression} {zone.rpartition('/')[2]}": Schedule(when=Cron(expression=expression, timezone=zone))
            for expression, zone in CRONS
        },
        "every 90 s": Schedule(when=Interval(every_s=90, anchor_at=BEGIN_AT)),
        "0 9 * * * Berlin, without holidays": Schedule(when=nine, calendar=days_off),
        "0 9 * * * Berlin, moved to business days": Schedule(when=nine, calendar=moved),
        "rrule: last weekday of the month": Schedule(when=monthly),
    }


def forget() -> None:
    """Empty the memos of answers; parsed expressions and the spans of zones stay, as in a node."""
    cron.next_after.cache_clear()
    when.next_moved.cache_clear()


def rate(step: Callable[[], object], for_s: float) -> float:
    """How often per second."""
    count, began_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - began_s) < for_s:
        for _ in range(20):
            step()
        count += 20
    return count / took_s


def fires_a_second(schedule: Schedule, for_s: float) -> dict[str, float]:
    randomly = random.Random(1)
    distinct = (BEGIN_AT + timedelta(seconds=randomly.uniform(0, TEN_YEARS_S)) for _ in iter(int, 1))
    again = cycle([BEGIN_AT + timedelta(seconds=randomly.uniform(0, TEN_YEARS_S)) for _ in range(1000)])
    making = rate(lambda: next(distinct), for_s / 4)
    figures = {}
    for name, instants in (("distinct", distinct), ("memo", again)):
        forget()
        for _ in range(1000):
            next_fire(schedule, next(instants))
        asked = rate(lambda instants=instants: next_fire(schedule, next(instants)), for_s)  # type: ignore[misc]
        # Without the cost of the question itself, a random instant.
        figures[name] = 1 / (1 / asked - 1 / making) if name == "distinct" else asked
    chain = _chain(schedule)
    figures["chain"] = rate(lambda: next(chain), for_s)
    return figures


def _chain(schedule: Schedule) -> Iterator[datetime]:
    """Through fifty years, again and again, each time with an empty memo."""
    while True:
        forget()
        fire_at = next_fire(schedule, BEGIN_AT)
        while fire_at is not None and fire_at.year < BEGIN_AT.year + 50:
            yield fire_at
            fire_at = next_fire(schedule, fire_at)


def peer_fires_a_second(peer: str, expression: str, for_s: float) -> float | None:
    """None if the peer is not installed, or cannot parse the expression."""
    try:
        match peer:
            case "cronsim":
                chain: Iterator[Any] = import_module("cronsim").CronSim(expression, BEGIN_AT)
                step: Callable[[], object] = lambda: next(chain)  # noqa: E731
            case "croniter":
                step = import_module("croniter").croniter(expression, BEGIN_AT, second_at_beginning=True).get_next
            case _:
                trigger = import_module("apscheduler.triggers.cron").CronTrigger.from_crontab(expression, "UTC")
                fired = [BEGIN_AT]

                def step() -> None:
                    fired[0] = trigger.get_next_fire_time(fired[0], fired[0])

        step()
        return rate(step, for_s)
    except ImportError:
        return None
    except Exception:  # noqa: BLE001 - whatever it raises for an expression it does not read
        return None


def herd(due_at: datetime) -> list[Schedule]:
    """A thousand daily schedules with a fire at an instant, and none in the minute before."""
    hours = [hour for hour in range(21) if hour != due_at.hour]
    return [
        Schedule(when=Cron(expression=f"0,{minute} {due_at.hour},{hour} * * *"))
        for minute in range(1, 51)
        for hour in hours
    ]


def herd_computed_a_second(jobs: int) -> float:
    """Each job's next fire after the one that is due, starting with an empty memo."""
    due_at = BEGIN_AT + timedelta(hours=13)
    shared = herd(due_at)
    forget()
    began_s = time.perf_counter()
    for n in range(jobs):
        next_fire(shared[n % EXPRESSIONS], due_at)
    return jobs / (time.perf_counter() - began_s)


async def herd_planned(url: str, jobs: int) -> tuple[float, float]:
    """Jobs submitted and fires planned per second."""
    database = await open_database(load_settings(database_url=url))
    try:
        await migrate_up(database)
        await make_days(database)
        async with database.connection() as connection:
            await connection.execute(HAND_CLOCK)
            noon = await connection.fetchval("SELECT ondot.clock()")
        due_at = noon + timedelta(hours=1)
        await turn_clock(database, due_at - timedelta(minutes=1))
        dispatcher = Dispatcher(PollingTransport())
        shared = herd(due_at)
        specs = [
            JobSpec(name="herd", target=FunctionTarget(name="nothing"), schedule=shared[n % EXPRESSIONS])
            for n in range(jobs)
        ]
        began_s = time.perf_counter()
        for start in range(0, jobs, A_SUBMIT):
            batch = specs[start : start + A_SUBMIT]
            await submit(database, dispatcher, DEFAULT_TENANT, batch, render=lambda _accepted: "")
        submitted_s = time.perf_counter() - began_s
        async with database.connection() as connection:
            # As autovacuum would later; right after a burst of inserts it has not run yet.
            await connection.execute("ANALYZE ondot.timer, ondot.job")
        await turn_clock(database, due_at - timedelta(seconds=5))
        planner, planned = Planner(database, dispatcher), 0
        forget()
        began_s = time.perf_counter()
        while planned < jobs and (moved := await planner.one_pass(range(PARTITIONS))):
            planned += moved
        planned_s = time.perf_counter() - began_s
        async with database.connection() as connection:
            stored = await connection.fetchval("SELECT count(*) FROM ondot.execution WHERE fire_at = $1", due_at)
        if stored != jobs:
            raise RuntimeError(f"invalid run: {stored} executions of {jobs} fires")
        return jobs / submitted_s, jobs / planned_s
    finally:
        await database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the jobs, and shorter measurements")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for_s = 0.15 if arguments.quick else 1.0
    jobs = JOBS // 5 if arguments.quick else JOBS

    figures: dict[str, float] = {}
    peers: dict[str, dict[str, float]] = {}
    for name, schedule in schedules().items():
        figures |= {f"{name}: {kind}": round(each) for kind, each in fires_a_second(schedule, for_s).items()}
        if isinstance(schedule.when, Cron) and schedule.calendar is None:
            found = {peer: peer_fires_a_second(peer, schedule.when.expression, for_s) for peer in PEERS}
            peers[name] = {peer: round(each) for peer, each in found.items() if each is not None}
            figures |= {f"{name}: {peer}": each for peer, each in peers[name].items()}
    figures["herd: computed"] = round(herd_computed_a_second(JOBS))
    with place() as home, closing(_Started(home)) as postgres, capture_logs():
        submitted, planned = asyncio.run(herd_planned(postgres.url, jobs))
    figures |= {"herd: submitted": round(submitted), "herd: planned": round(planned)}

    if arguments.json:
        print(json.dumps({"question": "schedules", "unit": "per second", "herd: jobs": jobs, **figures}))
        return
    print(f"{'next fires per second':42}{'distinct':>12}{'memo':>12}{'chain':>12}   peers' chains")
    for name in schedules():
        row = "".join(f"{figures[f'{name}: {kind}']:>12,}" for kind in ("distinct", "memo", "chain"))
        beside = ", ".join(
            f"{peer} {each:,} (we: {figures[f'{name}: chain'] / each:.1f} times)"
            for peer, each in peers.get(name, {}).items()
        )
        print(f"{name:42}{row}   {beside}")
    print(
        f"{jobs:,} jobs of {EXPRESSIONS:,} expressions due at one instant: {figures['herd: computed']:,} next fires/s"
        f" computed, {figures['herd: planned']:,} fires/s planned (submitted: {figures['herd: submitted']:,} jobs/s)"
    )


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
