"""How long from enqueue to start, under a light load and at half of the peak.

The real roles as processes: `ondot api`, `ondot scheduler`, `ondot worker` with 2 processes of 1,000 slots each, on the
machine that also runs PostgreSQL (`fsync` and `synchronous_commit` on). Jobs call an async function that returns the
instant of its call.

- *at 100/s*: single creates, `POST /v1/jobs` over connections that are kept, at random instants (Poisson).
- *at half the peak*: batches of 100 by the code that the API runs (`flow.submit`), evenly spaced; the peak is the rate
  that the same fleet has just reached in a closed loop, batches of 1,000 (as in `lifecycle`).

Enqueue is this machine's clock right before the request. `started_ms`: until the recorded start, when a worker leased
it; `called_ms`: until the first line of the function. Percentiles are of every job but those of the first second. Each
must have run exactly once, at its first attempt, and not before it was enqueued.

`ratio`: p50 of `started` at 100/s ÷ p50 of the two statements it takes, bare and one at a time (insert, lease, each a
commit), before the load. `answered_ms`: until the API's answer, which is after COMMIT.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
from bare import Strand, statements_of
from client import Client, client
from fires import spread_ms
from fleet import Fleet, fleet
from question import Result, ask, quantile, say
from steady import steady

from ondot.flow.new_jobs import Accepted
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.job import JobSpec
from ondot.model.target import FunctionTarget
from ondot.settings import load_settings
from ondot.store.database import connect, open_database

PER_S, BATCH = 100, 100
PROCESSES, SLOTS = 2, 1_000
WARM_S = 1.0
BARE = 100
ENDED_WITHIN_S = 60.0
NOW = JobSpec(name="now", target=FunctionTarget(name="now"))
CLOCK_S = 1e-6
"""The precision of an instant as a float of seconds."""
ENDED = """
SELECT job_id, state, attempt_no, extract(epoch FROM started_at)::float8 AS started_s,
       (result #>> '{}')::float8 AS called_s
FROM ondot.history WHERE job_id = ANY ($1::uuid[])
"""


@dataclass(slots=True)
class Sent:
    """When each job was sent (seconds since the epoch), and how long its request took."""

    began_s: float = field(default_factory=time.time)
    at_s: dict[UUID, float] = field(default_factory=dict)
    answered_s: list[float] = field(default_factory=list)

    def note(self, job_ids: Sequence[UUID], sent_s: float) -> None:
        self.at_s |= dict.fromkeys(job_ids, sent_s)
        self.answered_s.append(time.time() - sent_s)


def latency(quick: bool) -> Result:
    with fleet() as started:
        return asyncio.run(_latency(started, seconds=4.0 if quick else 120.0, busy_s=3.0 if quick else 60.0))


async def _latency(started: Fleet, seconds: float, busy_s: float) -> Result:
    bare_s = await _bare(started)
    started.scheduler()
    started.worker(processes=PROCESSES, slots=SLOTS)
    url = await asyncio.to_thread(started.api)
    await _result(started, await _single_creates(url, WARM_S))  # until the workers have started too
    few = await _result(started, await _single_creates(url, seconds))
    say(f"at {PER_S}/s: {few}")
    peak = await steady(started, NOW, backlog=5_000, warm_s=WARM_S, windows_s=[min(busy_s, 10.0)])
    async with client(started.url) as from_here:
        sent = await _batches(from_here, peak.per_s / 2, busy_s)
    many = await _result(started, sent)
    return {
        "question": "latency",
        "ratio": round(few["started_ms"]["p50"] / (1000 * quantile(bare_s, 0.5)), 2),
        "bare_ms": spread_ms(bare_s),
        f"at_{PER_S}_per_s": few,
        "peak_per_s": round(peak.per_s),
        "at_half_the_peak": many,
        "batch": BATCH,
    }


async def _bare(started: Fleet) -> list[float]:
    """Seconds for the bare insert and lease of one job, one after the other."""
    settings = load_settings(database_url=await started.beside("bare"))
    database, connection = await open_database(settings), await connect(settings)
    try:
        statements = await statements_of(database)
        strand = await Strand.of(connection, statements)
        took_s = []
        for insert in [await statements.insert(1) for _ in range(BARE)]:
            began_s = time.perf_counter()
            leased = await strand.start(insert)
            took_s.append(time.perf_counter() - began_s)
            if await strand.end(*leased) != 1:
                raise RuntimeError("a bare job was not leased")
        return sorted(took_s[BARE // 10 :])
    finally:
        await connection.close()
        await database.close()


async def _single_creates(url: str, seconds: float) -> Sent:
    randomly = random.Random(1)

    def gaps() -> Iterator[float]:
        while True:
            yield randomly.expovariate(PER_S)

    sent = Sent()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def create() -> None:
            sent_s = time.time()
            async with session.post(f"{url}/v1/jobs", json={"target": {"function": "now"}}) as answer:
                body: dict[str, Any] = await answer.json()
            if answer.status != 201:
                raise RuntimeError(f"the API answered {answer.status}: {body}")
            sent.note([UUID(body["id"])], sent_s)

        await _at(gaps(), create, seconds)
    return sent


async def _batches(from_here: Client, per_s: float, seconds: float) -> Sent:
    def gaps() -> Iterator[float]:
        while True:
            yield BATCH / per_s

    sent = Sent()

    async def create() -> None:
        ids: list[UUID] = []

        def answer(accepted: list[Accepted]) -> str:
            ids.extend(each.id for each in accepted)
            return ""

        sent_s = time.time()
        await submit(from_here.database, from_here.dispatcher, DEFAULT_TENANT, [NOW] * BATCH, render=answer)
        sent.note(ids, sent_s)

    await _at(gaps(), create, seconds)
    return sent


async def _at(gaps: Iterator[float], create: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Call at instants with these gaps, whether or not earlier calls have ended."""
    began_s = at_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        while (at_s := at_s + next(gaps)) < began_s + seconds:
            if (wait_s := at_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            group.create_task(_of(create))


async def _of(create: Callable[[], Awaitable[None]]) -> None:
    await create()


async def _result(started: Fleet, sent: Sent) -> dict[str, Any]:
    """Compare the recorded executions with the jobs that were sent."""
    connection = await started.connect()
    try:
        await _until_ended(connection)
        rows = await connection.fetch(ENDED, list(sent.at_s))
    finally:
        await connection.close()
    otherwise = [row for row in rows if row["state"] != "SUCCEEDED" or row["attempt_no"] != 1]
    if otherwise or len(rows) != len(sent.at_s) or len({row["job_id"] for row in rows}) != len(rows):
        raise RuntimeError(
            f"invalid run: {len(sent.at_s)} jobs, {len(rows)} ended, {len(otherwise)} not at the first attempt"
        )
    counted = [row for row in rows if sent.at_s[row["job_id"]] > sent.began_s + WARM_S] or rows
    started_s = sorted(row["started_s"] - sent.at_s[row["job_id"]] for row in counted)
    called_s = sorted(row["called_s"] - sent.at_s[row["job_id"]] for row in counted)
    if min(started_s[0], called_s[0]) < -CLOCK_S:
        raise RuntimeError("invalid run: a job was started before it was enqueued")
    spent_s = max(sent.at_s.values()) - sent.began_s
    return {
        "jobs": len(counted),
        "per_s": round(len(sent.at_s) / spent_s),
        "started_ms": spread_ms(started_s),
        "called_ms": spread_ms(called_s),
        "answered_ms": spread_ms(sorted(sent.answered_s)),
    }


async def _until_ended(connection: asyncpg.Connection) -> None:
    deadline_s = time.monotonic() + ENDED_WITHIN_S
    while await connection.fetchval("SELECT EXISTS (SELECT FROM ondot.execution)"):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not all jobs have ended after {ENDED_WITHIN_S:.0f} s")
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    ask(latency, full="5 minutes", quick="40 seconds")
