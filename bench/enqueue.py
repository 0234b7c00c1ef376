"""What one `enqueue` costs the program that calls it, beside Celery, Dramatiq, Procrastinate and PgQueuer.

A program enqueues one job after another, as a web request would: a function with one whole number, due now, no batch.
No worker runs. For each way in which people call it:
- *wall_us*: median time of a call, until the job is accepted;
- *cpu_us*: processor time of the calling process for each call, with all of its threads: what it costs a web server.

`ondot` awaits over HTTP, `ondot_sync` is `f.sync.enqueue` without an event loop; `_typed` has a date and a dataclass
among the arguments instead of the number. `_transaction` is inside the caller's own transaction (asyncpg, psycopg), 100
jobs in each, with the commit. ondot, Procrastinate and PgQueuer use one PostgreSQL (`fsync` and `synchronous_commit`
on), each with its own database: an accepted job survives a crash. ondot's API is a process of its own, which shares the
machine. Celery and Dramatiq use a Redis without append-only file and snapshots: an accepted job survives no crash.
Rounds take turns, figures are medians of them. `ratio`: Procrastinate's async wall time ÷ ondot's. A peer that is not
installed or fails is listed with its error.
"""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import os
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import date

import asyncpg
import uvloop
from fleet import fleet
from peer import DATABASE, REDIS
from peer.servers import forget_all, new_database, redis
from question import Result, ask, say

from ondot import Ondot

ROUNDS = 5
IN_A_TRANSACTION = 100
DAY = date(2026, 11, 18)

Awaited = Callable[[int], Awaitable[object]]
Blocking = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the servers are."""

    database: str
    api: str


@dataclass(frozen=True, slots=True)
class Order:
    number: int
    day: date


app = Ondot()


@app.job
async def invoice(customer: int) -> None:
    """Never run here."""


@app.job
async def bill(order: Order, day: date) -> None:
    """Never run here."""


@asynccontextmanager
async def ondot(_: Place) -> AsyncIterator[Awaited]:
    yield invoice.enqueue
    await app.close()


@asynccontextmanager
async def ondot_typed(_: Place) -> AsyncIterator[Awaited]:
    yield lambda number: bill.enqueue(Order(number, DAY), day=DAY)
    await app.close()


@contextmanager
def ondot_sync(_: Place) -> Iterator[Blocking]:
    yield invoice.sync.enqueue


@contextmanager
def ondot_sync_typed(_: Place) -> Iterator[Blocking]:
    yield lambda number: bill.sync.enqueue(Order(number, DAY), day=DAY)


@asynccontextmanager
async def ondot_transaction(place: Place) -> AsyncIterator[Awaited]:
    connection = await asyncpg.connect(place.database)

    async def put(number: int) -> None:
        async with connection.transaction(), app.transaction(connection):
            for each in range(IN_A_TRANSACTION):
                await invoice.enqueue(number + each)

    yield put
    await connection.close()


@contextmanager
def ondot_sync_transaction(place: Place) -> Iterator[Blocking]:
    import psycopg

    with psycopg.connect(place.database) as connection:

        def put(number: int) -> None:
            with connection.transaction(), app.transaction(connection):
                for each in range(IN_A_TRANSACTION):
                    invoice.sync.enqueue(number + each)

        yield put


@contextmanager
def celery(_: Place) -> Iterator[Blocking]:
    from peer.celery import run

    yield run.delay


@contextmanager
def dramatiq(_: Place) -> Iterator[Blocking]:
    from peer.dramatiq import run

    yield run.send


@asynccontextmanager
async def procrastinate(_: Place) -> AsyncIterator[Awaited]:
    from peer.procrastinate import app as queue
    from peer.procrastinate import run

    async with queue.open_async():
        yield lambda number: run.defer_async(number=number)


@contextmanager
def procrastinate_sync(_: Place) -> Iterator[Blocking]:
    from peer.procrastinate import app as queue
    from peer.procrastinate import run
    from procrastinate import SyncPsycopgConnector

    with queue.replace_connector(SyncPsycopgConnector(conninfo=os.environ[DATABASE])), queue.open():
        yield lambda number: run.defer(number=number)


@asynccontextmanager
async def pgqueuer(_: Place) -> AsyncIterator[Awaited]:
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(os.environ[DATABASE])
    queries = Queries(AsyncpgDriver(connection))
    yield lambda number: queries.enqueue(["mark"], [b"%d" % number], [0])
    await connection.close()


@contextmanager
def pgqueuer_sync(_: Place) -> Iterator[Blocking]:
    import psycopg
    from pgqueuer.db import SyncPsycopgDriver
    from pgqueuer.queries import SyncQueries

    with psycopg.connect(os.environ[DATABASE], autocommit=True) as connection:
        queries = SyncQueries(SyncPsycopgDriver(connection))
        yield lambda number: queries.enqueue(["mark"], [b"%d" % number], [0])


AWAITED: dict[str, Callable[[Place], AbstractAsyncContextManager[Awaited]]] = {
    "ondot": ondot,
    "ondot_typed": ondot_typed,
    "ondot_transaction": ondot_transaction,
    "procrastinate": procrastinate,
    "pgqueuer": pgqueuer,
}
BLOCKING: dict[str, Callable[[Place], AbstractContextManager[Blocking]]] = {
    "ondot_sync": ondot_sync,
    "ondot_sync_typed": ondot_sync_typed,
    "ondot_sync_transaction": ondot_sync_transaction,
    "celery": celery,
    "dramatiq": dramatiq,
    "procrastinate_sync": procrastinate_sync,
    "pgqueuer_sync": pgqueuer_sync,
}
JOBS_A_CALL = {"ondot_transaction": IN_A_TRANSACTION, "ondot_sync_transaction": IN_A_TRANSACTION}

Taken = tuple[float, float]
"""Microseconds for each job: of the clock, and of the processor."""


async def awaited(name: str, place: Place, calls: int) -> Taken:
    async with AWAITED[name](place) as put:
        for number in range(calls // 10):
            await put(number)
        took_s, cpu_s = [], time.process_time()
        for number in range(calls):
            began_s = time.perf_counter()
            await put(number)
            took_s.append(time.perf_counter() - began_s)
        return summary(took_s, time.process_time() - cpu_s)


def blocking(name: str, place: Place, calls: int) -> Taken:
    with BLOCKING[name](place) as put:
        for number in range(calls // 10):
            put(number)
        took_s, cpu_s = [], time.process_time()
        for number in range(calls):
            began_s = time.perf_counter()
            put(number)
            took_s.append(time.perf_counter() - began_s)
        return summary(took_s, time.process_time() - cpu_s)


def summary(took_s: list[float], cpu_s: float) -> Taken:
    return statistics.median(took_s) * 1e6, cpu_s / len(took_s) * 1e6


async def prepare(name: str) -> None:
    """Install the schema of a peer in its own database."""
    from importlib import import_module

    await import_module(f"peer.{name}").prepare()


def question(quick: bool) -> Result:
    calls, rounds = (300, 2) if quick else (2_000, ROUNDS)
    taken: dict[str, list[Taken]] = defaultdict(list)
    errors: dict[str, str] = {}
    with fleet() as made, redis(made.directory / "redis") as (redis_url, _):
        place = Place(made.url, made.api())
        os.environ |= {REDIS: redis_url, "ONDOT_URL": place.api}
        databases = {}
        for name in ("procrastinate", "pgqueuer"):
            databases[name] = os.environ[DATABASE] = uvloop.run(new_database(made.url, name))
            try:
                uvloop.run(prepare(name))
            except ImportError as error:
                errors[name] = errors[f"{name}_sync"] = str(error)
        for turn in range(rounds):
            for name in [*AWAITED, *BLOCKING]:
                if name in errors:
                    continue
                os.environ[DATABASE] = databases.get(name.removesuffix("_sync"), made.url)
                jobs = JOBS_A_CALL.get(name, 1)
                try:
                    if name in AWAITED:
                        wall, cpu = uvloop.run(awaited(name, place, calls // jobs))
                    else:
                        wall, cpu = blocking(name, place, calls // jobs)
                except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result
                    errors[name] = (str(error).strip() or type(error).__name__).splitlines()[0]
                    say(f"{name}: {errors[name]}")
                    continue
                taken[name].append((wall / jobs, cpu / jobs))
                say(f"{turn} {name}: {wall / jobs:,.0f} µs, {cpu / jobs:,.0f} µs of the processor")
            forget_all(redis_url)
    wall_us = {name: round(statistics.median(each[0] for each in values)) for name, values in taken.items()}
    cpu_us = {name: round(statistics.median(each[1] for each in values)) for name, values in taken.items()}
    result: Result = {"question": "enqueue"}
    if "procrastinate" in wall_us:
        result["ratio"] = round(wall_us["procrastinate"] / wall_us["ondot"], 2)
    return result | {"wall_us": wall_us, "cpu_us": cpu_us, "errors": errors}


if __name__ == "__main__":
    ask(question, full=f"{ROUNDS} rounds of 2,000 calls", quick="2 rounds of 300")
