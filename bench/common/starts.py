"""From the request to the start: jobs that are created at given instants, and what the database recorded of them.

Single creates go over HTTP to an API of the fleet, batches through the code that the API runs. Every job must have run
exactly once, at its first attempt, and not before it was enqueued; percentiles leave out the first second.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
from client import Client
from fires import spread_ms
from fleet import Fleet

from ondot.flow.new_jobs import Accepted
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.job import JobSpec
from ondot.model.target import FunctionTarget

PER_S, BATCH = 100, 100
WARM_S = 1.0
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


async def single_creates(url: str, seconds: float) -> Sent:
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


async def batches(from_here: Client, per_s: float, seconds: float) -> Sent:
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


async def result(started: Fleet, sent: Sent) -> dict[str, Any]:
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
