"""Shared by the stories of a lost database: real roles with an API, and how soon all of them work again."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from started import free_port

from ondot.model.errors import Unavailable
from tests.faults.fleet import Fleet, a_fleet

LOOK_AGAIN_S = 0.05
PATIENCE_S = 40.0
BACK_WITHIN_S = 15.0
"""Five seconds are promised, on a quiet machine; this one may be busy."""
EVERY_S = 1


Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: Any
    took_s: float


@dataclass(slots=True)
class Office:
    """A fleet with an API that is called over HTTP."""

    fleet: Fleet
    port: int

    def open(self) -> None:
        self.fleet.start("api")
        self.fleet.scheduler()
        self.fleet.worker()

    async def ask(self, path: str, body: object = None, **headers: str) -> Answer:
        return await asyncio.to_thread(_ask, f"http://127.0.0.1:{self.port}{path}", body, headers)

    async def post_for_ever(self, acked: list[str]) -> None:
        """Post small jobs one after the other, each with its key until it is accepted, and keep the accepted ids."""
        body = {"name": "posted", "function": "works_together", "payload": {"seconds": 0}}
        for number in count():
            accepted = partial(self._accepted, body, **{"idempotency-key": f"posted {number}"})
            acked.append(await until(accepted, what=f"job {number} was accepted"))

    async def works(self, what: str) -> float:
        """How long it takes from now until API, scheduler and worker have all done something new.

        A job is posted until it is accepted, and its fire, which only a scheduler can plan, has been executed.
        """
        begun_s = time.monotonic()
        schedule = {"every": f"{EVERY_S}s", "max_fires": 1}
        body = {"name": what, "schedule": schedule, "function": "naps", "payload": {"seconds": 0}}
        job = await until(lambda: self._accepted(body), what=f"{what}: a job was accepted")
        await until(lambda: self._succeeded(job), what=f"{what}: its fire was executed")
        took_s = time.monotonic() - begun_s
        print(f"{what}: all work after {took_s:.2f} s, {EVERY_S} s of which the job itself waits")  # noqa: T201
        self.all_run()
        return took_s

    def all_run(self) -> None:
        """Whatever happens to the database, no role exits (L4)."""
        assert [member.name for member in self.fleet.members if not member.runs] == []

    async def _accepted(self, body: object, **headers: str) -> str | None:
        answer = await self.ask("/v1/jobs", body, **headers)
        assert answer.status in {0, 201, 503}, answer.body
        return str(answer.body["id"]) if answer.status == 201 else None

    async def _succeeded(self, job_id: str) -> bool | None:
        answer = await self.ask(f"/v1/jobs/{job_id}/status")
        return True if answer.status == 200 and answer.body["status"] == "SUCCEEDED" else None

    async def value(self, sql: str, *arguments: object) -> Any:
        """Retries until the database answers."""

        async def look() -> tuple[Any] | None:
            try:
                async with self.fleet.database.connection() as connection:
                    return (await connection.fetchval(sql, *arguments),)
            except Unavailable:
                return None

        [value] = await until(look, what="the database answers")
        return value

    def calls(self) -> Counter[str]:
        """How often each execution's function was started, as it recorded itself."""
        lines = self.fleet.notes.read_text().splitlines() if self.fleet.notes.exists() else []
        return Counter(line["execution_id"] for line in map(json.loads, lines) if line["what"] == "started")

    async def settled(self) -> dict[str, int]:
        """How many executions ended in which state, once none is left."""

        async def none_left() -> bool | None:
            return True if await self.value("SELECT count(*) FROM ondot.execution") == 0 else None

        await until(none_left, what="every execution ended")
        counts = await self.value(
            "SELECT json_object_agg(state, n) FROM (SELECT state, count(*) AS n FROM ondot.history GROUP BY 1) counted"
        )
        return dict(json.loads(counts))


def _ask(url: str, body: object, headers: dict[str, str]) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **headers})
    begun_s = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return Answer(answer.status, dict(answer.headers), json.load(answer), time.monotonic() - begun_s)
    except urllib.error.HTTPError as error:
        return Answer(error.code, dict(error.headers), json.load(error), time.monotonic() - begun_s)
    except OSError as error:
        return Answer(0, {}, str(error), time.monotonic() - begun_s)


async def until(look: Callable[[], Awaitable[Fact | None]], *, what: str, within_s: float = PATIENCE_S) -> Fact:
    deadline_s = time.monotonic() + within_s
    while (fact := await look()) is None:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(LOOK_AGAIN_S)
    return fact


@asynccontextmanager
async def an_office(url: str, directory: Path, **settings: str) -> AsyncIterator[Office]:
    """No role yet. Lease and heartbeat are those of the harness, short, unless given."""
    port = free_port()
    async with a_fleet(url, directory, port=str(port), **settings) as fleet:
        yield Office(fleet, port)
