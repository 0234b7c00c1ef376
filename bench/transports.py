"""What each transport costs and gains: postgres, redis, kafka, rabbitmq and nats, one after the other in one run.

The real roles as processes, on the machine that also runs PostgreSQL (`fsync` and `synchronous_commit` on) and the
broker, one server of each in its plain form. For each transport:

- `at_100_per_s`, `at_half_the_peak`: from the request to the start, as in `latency`, with 2 worker processes of 1,000
  slots. `per_s`: lifecycles a second in a closed loop, batches of 1,000, as in `lifecycle`.
- `idle_1`, `idle_100`: transactions of PostgreSQL a second, as in `idle`, while a scheduler and 1 or 100 worker
  processes (25 with --quick) have nothing to do: after three beats, over 30 s (16 with --quick). With a transport that
  has beats a worker asks PostgreSQL each 15 s, else each second; heartbeats come on top.
- `delivers`: `trusted` if the workers trust the transport, by their heartbeats; with another result its figures would
  be those of polling.

Name transports to measure only these: `python bench/transports.py redis kafka`. A server that the machine lacks is
reported, and left out.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
from client import client
from fleet import Fleet, fleet
from question import Result, ask, say
from starts import NOW, PER_S, WARM_S, batches, result, single_creates
from steady import steady

from brokers import Broker, Kafka, Missing, Nats, RabbitMQ, Redis

BROKERS: dict[str, tuple[str, type[Broker]]] = {
    "redis": ("ONDOT_REDIS_URL", Redis),
    "kafka": ("ONDOT_KAFKA_SERVERS", Kafka),
    "rabbitmq": ("ONDOT_RABBITMQ_URL", RabbitMQ),
    "nats": ("ONDOT_NATS_URL", Nats),
}
TRANSPORTS = ("postgres", *BROKERS)
PROCESSES, SLOTS = 2, 1_000
STARTED_WITHIN_S = 180.0
SETTLE_S = 6.0
"""Until the planner has no more to do, and the last heartbeats report which transports are trusted."""


def transports(quick: bool, names: list[str]) -> Result:
    answers: dict[str, Any] = {"question": "transports"}
    for name in names:
        try:
            with fleet(max_connections="1000") as started, _serving(name) as settings:
                started.settings |= settings
                answers[name] = asyncio.run(_measure(started, name, quick))
        except Missing as missing:
            answers[name] = str(missing)
        say(f"{name}: {answers[name]}")
    return answers


@contextmanager
def _serving(name: str) -> Iterator[dict[str, str]]:
    """The settings of a transport, and its server."""
    if name not in BROKERS:
        yield {"ONDOT_TRANSPORT": name}
        return
    setting, kind = BROKERS[name]
    with kind.running() as broker:
        yield {"ONDOT_TRANSPORT": name, setting: broker.url}


async def _measure(started: Fleet, name: str, quick: bool) -> Result:
    seconds, busy_s, idle_s, workers = (4.0, 3.0, 16.0, 25) if quick else (60.0, 30.0, 30.0, 100)
    started.scheduler()
    worker = started.worker(processes=PROCESSES, slots=SLOTS)
    url = await asyncio.to_thread(started.api)
    await result(started, await single_creates(url, WARM_S))  # until the workers have started too
    delivers = await _until_trusted(started, name, PROCESSES)
    say(f"{name}: {delivers}")
    few = await result(started, await single_creates(url, seconds))
    say(f"{name} at {PER_S}/s: {few['started_ms']}")
    peak = await steady(started, NOW, backlog=5_000, warm_s=WARM_S, windows_s=[min(busy_s, 10.0)])
    async with client(started.url, started.settings) as from_here:
        many = await result(started, await batches(from_here, peak.per_s / 2, busy_s))
    say(f"{name} at half of {peak.per_s:.0f}/s: {many['started_ms']}")
    started.stop(*(process for role, process in started.members if role == "api"), worker)
    idle = {f"idle_{count}": await _idle(started, name, count, idle_s) for count in (1, workers)}
    return {
        "delivers": delivers,
        "per_s": round(peak.per_s),
        f"at_{PER_S}_per_s_ms": few["started_ms"],
        "at_half_the_peak_ms": many["started_ms"],
        "half_the_peak_per_s": many["per_s"],
        **idle,
    }


async def _idle(started: Fleet, name: str, workers: int, seconds: float) -> float:
    """Transactions a second while nothing is to be done."""
    worker = started.worker(processes=workers, slots=1)
    await _until_trusted(started, name, workers)
    await asyncio.sleep(SETTLE_S)
    connection = await started.connect()
    try:
        before, began_s = await _transactions(connection), time.monotonic()
        await asyncio.sleep(seconds)
        count, took_s = await _transactions(connection) - before, time.monotonic() - began_s
    finally:
        await connection.close()
        started.stop(worker)
    return round((count - 2) / took_s, 2)


async def _transactions(connection: asyncpg.Connection) -> int:
    """Those of these two statements count too."""
    await connection.execute("SELECT pg_stat_force_next_flush()")
    return int(
        await connection.fetchval(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )
    )


async def _until_trusted(started: Fleet, name: str, workers: int) -> str:
    """Until so many workers live, and trust the transport if it has beats."""
    connection = await started.connect()
    deadline_s = time.monotonic() + STARTED_WITHIN_S
    try:
        while True:
            lists = await connection.fetch("SELECT trusts FROM ondot.worker WHERE ended_at IS NULL")
            living, trusting = len(lists), sum(name in (row["trusts"] or []) for row in lists)
            if living >= workers and (name == "postgres" or trusting >= workers):
                return "trusted" if trusting else "polled each second"
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"of {workers} workers {living} live and {trusting} trust {name}")
            await asyncio.sleep(0.1)
    finally:
        await connection.close()


if __name__ == "__main__":
    ask(transports, full="25 minutes", quick="5 minutes", parts=TRANSPORTS)
