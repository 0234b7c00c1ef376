"""How long is it from a cause to the message about it (O4)? Aim: 5 s.

The real roles as processes: `ondot api`, `ondot scheduler`, `ondot worker`, on the machine that also runs PostgreSQL
(`fsync` and `synchronous_commit` on); the receiver of the webhooks is an HTTP server in this process. Each measurement
has its own alert (`for` is 0), channel and job or pool, all created before: so none is joined with another, and the
scheduler looks at all of these alerts each second. They start one after another, at random parts of a second.

- *failing*: a job without retries fails. The cause is the end of its last attempt, as history records it.
- *dead_letters*: the same, watched by an alert on the number of dead letters.
- *workers*: the only worker of a pool leaves it, by the statement that a worker ends with. The cause is that instant.
  (A worker that is killed is found by its silence, which is the heartbeat's setting and no matter of alerts.)

The message is the instant at which its request has arrived whole. `failing_ms` … have p50, p99 and the worst; each
cause must give exactly one message, and all must arrive. `worst_s`: of all. `storm_s`: one alert on all jobs, of which
a thousand fail at once: until its one message, from the end of the first and of the last of them.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
from aiohttp import web
from client import client
from fires import spread_ms
from fleet import Fleet, fleet
from question import Result, ask, say

from ondot.model.ids import WorkerId
from ondot.store.database import Database
from ondot.store.pools import find_pools
from ondot.store.workers import leave_worker, register_worker

ARRIVES_WITHIN_S = 60.0
STORM = 1_000
STORM_LABEL = "storm"
ENDED = "SELECT job_id, ended_at, state FROM ondot.history WHERE job_id = ANY ($1::uuid[])"


class Messages:
    """The webhook receiver: when each channel got its messages (seconds since the epoch)."""

    def __init__(self) -> None:
        self.arrived: defaultdict[str, list[float]] = defaultdict(list)
        self._changed = asyncio.Event()

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["type"] == "incident.opened":
            self.arrived[body["channel"]].append(time.time())
            self._changed.set()
        return web.Response()

    async def first(self, channel: str) -> float:
        async with asyncio.timeout(ARRIVES_WITHIN_S):
            while not self.arrived[channel]:
                self._changed.clear()
                await self._changed.wait()
        return self.arrived[channel][0]


@asynccontextmanager
async def receiving() -> AsyncIterator[tuple[str, Messages]]:
    messages = Messages()
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/{tail:.*}", messages.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield "http://127.0.0.1:{1}".format(*runner.addresses[0]), messages
    finally:
        await runner.cleanup()


class Watched:
    """The installation under test, by its API."""

    def __init__(self, api: str, session: aiohttp.ClientSession, receiver: str, messages: Messages) -> None:
        self._api = api
        self._session = session
        self._receiver = receiver
        self.messages = messages

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(self._api + path, json=body) as answer:
            found: dict[str, Any] = await answer.json()
        if answer.status >= 300:
            raise RuntimeError(f"{path}: the API answered {answer.status}: {found}")
        return found

    async def add_alert(self, name: str, when: dict[str, Any], scope: dict[str, Any] | None = None) -> None:
        await self.post("/v1/channels", {"name": name, "webhook": {"url": f"{self._receiver}/{name}"}})
        alert: dict[str, Any] = {"name": name, "when": when, "notify": [name]}
        await self.post("/v1/alerts", alert | ({"scope": scope} if scope else {}))

    async def add_job(self, name: str, **fields: Any) -> UUID:
        """It runs at once, and fails."""
        job = {"name": name, "target": {"function": "fail"}, "retry": {"max_retries": 0}, **fields}
        return UUID((await self.post("/v1/jobs", job))["id"])


def alerts(quick: bool) -> Result:
    with fleet() as started:
        return asyncio.run(_alerts(started, rounds=12 if quick else 40))


async def _alerts(started: Fleet, rounds: int) -> Result:
    started.scheduler(ONDOT_ALLOW_PRIVATE_TARGETS="true", ONDOT_LOG_LEVEL="error")
    started.worker(slots=100)
    api = await asyncio.to_thread(started.api, ONDOT_ALLOW_PRIVATE_TARGETS="true")
    async with (
        receiving() as (receiver, messages),
        aiohttp.ClientSession() as session,
        client(started.url) as from_here,
    ):
        watched = Watched(api, session, receiver, messages)
        kinds = {
            "failing": {"failing": {"in_a_row": 1}},
            "dead_letters": {"dead_letters": {"over": 0}},
        }
        for number in range(rounds):
            for kind, when in kinds.items():
                name = f"{kind}-{number}"
                await watched.add_alert(name, when, {"jobs": [name]})
        took_s: dict[str, list[float]] = {}
        connection = await started.connect()
        try:
            for kind in kinds:
                took_s[kind] = [
                    await _measure_failure(watched, connection, f"{kind}-{number}") for number in range(rounds)
                ]
                say(f"{kind}: {spread_ms(sorted(took_s[kind]))}")
            took_s["workers"] = [await _measure_worker(watched, from_here.database, number) for number in range(rounds)]
            say(f"workers: {spread_ms(sorted(took_s['workers']))}")
            storm = await _storm(watched, connection)
        finally:
            await connection.close()
        if doubled := {name: len(each) for name, each in messages.arrived.items() if len(each) != 1}:
            raise RuntimeError(f"invalid run: not one message of each cause: {doubled}")
    return {
        "question": "alerts",
        "worst_s": round(max(max(each) for each in took_s.values()), 3),
        **{f"{kind}_ms": spread_ms(sorted(each)) for kind, each in took_s.items()},
        "storm_s": storm,
        "rounds": rounds,
        "alerts": 3 * rounds + 1,
    }


async def _measure_failure(watched: Watched, connection: asyncpg.Connection, name: str) -> float:
    await asyncio.sleep(random.random())
    job_id = await watched.add_job(name)
    arrived_s = await watched.messages.first(name)
    [row] = await connection.fetch(ENDED, [job_id])
    if row["state"] != "FAILED":
        raise RuntimeError(f"invalid run: the job {name} is {row['state']}")
    return arrived_s - float(row["ended_at"].timestamp())


async def _measure_worker(watched: Watched, database: Database, number: int) -> float:
    """The alert is created while the worker serves: nothing holds then."""
    name = pool = f"workers-{number}"
    async with database.connection() as connection:
        await database.pools.register(connection, [pool])
        pool_nos = list((await find_pools(connection, [pool])).values())
        id_ = WorkerId(database.clock.new_id())
        await register_worker(connection, id_, host="bench", pid=1, release="0", pool_nos=pool_nos, slots=1)
    await watched.add_alert(name, {"workers": {"below": 1, "pool": pool}})
    await asyncio.sleep(1 + random.random())
    async with database.connection() as connection:
        left_s = time.time()
        await leave_worker(connection, id_)
    return await watched.messages.first(name) - left_s


async def _storm(watched: Watched, connection: asyncpg.Connection) -> dict[str, float]:
    await watched.add_alert("storm", {"failing": {"in_a_row": 1}}, {"labels": {STORM_LABEL: ["yes"]}})
    jobs = [
        {"name": f"storm-{number}", "target": {"function": "fail"}, "retry": {"max_retries": 0}}
        for number in range(STORM)
    ]
    for job in jobs:
        job["labels"] = {STORM_LABEL: "yes"}
    made = await watched.post("/v1/jobs/batch", {"jobs": jobs})
    ids = [UUID(each["id"]) for each in made["items"]]
    arrived_s = await watched.messages.first("storm")
    deadline_s = time.monotonic() + ARRIVES_WITHIN_S
    while len(rows := await connection.fetch(ENDED, ids)) < STORM:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"invalid run: {len(rows)} of {STORM} jobs have ended")
        await asyncio.sleep(0.1)
    ended_s = sorted(row["ended_at"].timestamp() for row in rows)
    await asyncio.sleep(3)  # a second message would be a fault
    return {"after_the_first": round(arrived_s - ended_s[0], 3), "after_the_last": round(arrived_s - ended_s[-1], 3)}


if __name__ == "__main__":
    ask(alerts, full="40 of each kind", quick="12 of each kind")
