"""Events per second through the API, with 10 and with 10,000 jobs that wait for events of the type.

One `ondot api`; 32 senders on 32 kept connections in one other process, each POSTs one structured CloudEvent of about
200 bytes at a time and waits for its 202. Each event matches one job (`data.customer`, an exact value, and
`data.amount`, a comparison), so it stores an event, an execution and the link of both in one transaction; requests that
arrive together share a commit. No worker runs. Durable (`fsync` and `synchronous_commit` on), PostgreSQL on the same
machine. Windows with 10 and with 10,000 jobs take turns.

What counts: 202 answers within a window. At the end there must be exactly one execution for each event that was
answered. `ratio`: with 10,000 jobs ÷ with 10. `of_creates`: with 10 jobs ÷ POSTs of one-time jobs by the same senders.
`batch_events_per_s`: events in batches of 100. `index_per_s`: the index alone, in one thread of this process.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp
from fleet import Fleet, fleet
from question import Result, ask, say

from ondot.model.event import BATCH, STRUCTURED
from ondot.model.pattern_index import PatternIndex
from ondot.model.patterns import compile_pattern

SENDERS = 32
FEW, MANY = 10, 10_000
BATCHED = 100


def events(quick: bool) -> Result:
    with fleet() as started:
        return asyncio.run(_events(started, quick))


async def _events(started: Fleet, quick: bool) -> Result:
    window_s, turns = (2.0, 2) if quick else (15.0, 5)
    url = started.api()
    ids = itertools.count()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=SENDERS)) as http:
        for jobs in (FEW, MANY):
            await _create(http, url, jobs)
        for jobs in (FEW, MANY):
            await _window(partial(_send, http, url, jobs, ids), 1.0)
        say("jobs are created, and both kinds of event were sent")
        rates: dict[int, list[float]] = {FEW: [], MANY: []}
        for _ in range(turns):
            for jobs, found in rates.items():
                found.append(await _window(partial(_send, http, url, jobs, ids), window_s))
                say(f"{jobs:,} jobs: {found[-1]:,.0f} events/s")
        batches = BATCHED * await _window(partial(_send_batch, http, url, ids), window_s)
        creates = await _window(partial(_create_one, http, url), window_s)
    await _check(started, next(ids))
    few, many = (statistics.median(rates[jobs]) for jobs in (FEW, MANY))
    return {
        "question": "events",
        "per_s": round(few),
        "with_10000_per_s": round(many),
        "ratio": round(many / few, 3),
        "creates_per_s": round(creates),
        "of_creates": round(few / creates, 3),
        "batch_events_per_s": round(batches),
        "index_per_s": round(_index_rate(1.0 if quick else 5.0)),
        "rates": {str(jobs): [round(each) for each in found] for jobs, found in rates.items()},
        "senders": SENDERS,
    }


def _filter(customer: int) -> dict[str, object]:
    return {"data": {"customer": [customer], "amount": [{"numeric": [">=", 100]}]}}


def _event(jobs: int, number: int) -> dict[str, object]:
    return {
        "specversion": "1.0",
        "id": str(number),
        "source": "/shop",
        "type": f"order.paid.{jobs}",
        "data": {"customer": number % jobs, "amount": 150, "currency": "EUR"},
    }


async def _create(http: aiohttp.ClientSession, url: str, jobs: int) -> None:
    bodies = [
        {"function": "ship", "schedule": {"event": {"type": f"order.paid.{jobs}", "filter": _filter(customer)}}}
        for customer in range(jobs)
    ]
    for start in range(0, jobs, 1_000):
        async with http.post(f"{url}/v1/jobs/batch", json={"jobs": bodies[start : start + 1_000]}) as answer:
            _require(answer.status == 201, await answer.text())


async def _send(http: aiohttp.ClientSession, url: str, jobs: int, ids: "itertools.count[int]") -> None:
    body = json.dumps(_event(jobs, next(ids)))
    async with http.post(f"{url}/v1/events", data=body, headers={"content-type": STRUCTURED}) as answer:
        _require(answer.status == 202 and (await answer.json())["matched"] == 1, await answer.text())


async def _send_batch(http: aiohttp.ClientSession, url: str, ids: "itertools.count[int]") -> None:
    body = json.dumps([_event(MANY, next(ids)) for _ in range(BATCHED)])
    async with http.post(f"{url}/v1/events", data=body, headers={"content-type": BATCH}) as answer:
        _require(answer.status == 202, await answer.text())


async def _create_one(http: aiohttp.ClientSession, url: str) -> None:
    async with http.post(f"{url}/v1/jobs", json={"function": "ship", "payload": {"amount": 150}}) as answer:
        _require(answer.status == 201, await answer.text())


async def _window(request: Callable[[], Awaitable[None]], seconds: float) -> float:
    """Requests a second, by all senders."""
    until_s, done = time.monotonic() + seconds, 0

    async def send() -> None:
        nonlocal done
        while time.monotonic() < until_s:
            await request()
            done += 1

    started_s = time.monotonic()
    await asyncio.gather(*(send() for _ in range(SENDERS)))
    return done / (time.monotonic() - started_s)


async def _check(started: Fleet, sent: int) -> None:
    connection = await started.connect()
    stored = await connection.fetchval("SELECT count(*) FROM ondot.event")
    made = await connection.fetchval("SELECT count(*) FROM ondot.execution WHERE origin = 'event'")
    await connection.close()
    _require(stored == made == sent, f"invalid run: {sent} events sent, {stored} stored, {made} executions")


def _index_rate(seconds: float) -> float:
    index: PatternIndex[int] = PatternIndex()
    for customer in range(MANY):
        index.add(customer, "paid", compile_pattern(_filter(customer)))
    sent = [_event(MANY, number) for number in range(1_000)]
    until_s, done, started_s = time.perf_counter() + seconds, 0, time.perf_counter()
    while time.perf_counter() < until_s:
        for event in sent:
            index.find("paid", event)
        done += len(sent)
    return done / (time.perf_counter() - started_s)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


if __name__ == "__main__":
    ask(events, full="4 minutes", quick="30 seconds")
