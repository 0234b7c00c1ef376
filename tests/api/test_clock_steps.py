"""The database's clock is set while the API believes the old one: whatever is stored next goes by the new one (P4, P9).

Here time is real, and nobody reads the clock between its step and the request: the statement that stores must notice.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from ondot.flow.dispatch import Dispatcher
from ondot.flow.plan import Planner
from ondot.model.ids import ExecutionId
from ondot.store.database import open_database
from tests.api.conftest import Caller, caller_of
from tests.proves import proves
from tests.servers import settings_for
from tests.world import RecordingTransport, World

STEPS = (19, -2, 5, -19, 0, 2)
"""The offsets of the clock in seconds, in order: steps forwards and backwards by 2 to 24."""
ROUNDED = timedelta(milliseconds=2)


@dataclass(slots=True)
class Stepping:
    """An API on a database whose clock runs, and is set."""

    caller: Caller

    async def set_off(self, seconds: float) -> None:
        await self.caller.world.value(
            "CREATE OR REPLACE FUNCTION ondot.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE"
            f" AS 'SELECT statement_timestamp() + interval ''{seconds:g} seconds'''"
        )

    async def now(self) -> datetime:
        now: datetime = await self.caller.world.value("SELECT ondot.clock()")
        return now

    async def send(self, method: str, path: str, body: object, **headers: str) -> dict[str, Any]:
        answer = await self.caller.http.request(method, path, json=body, headers=headers)
        assert answer.is_success, answer.text
        answered: dict[str, Any] = answer.json()
        return answered


@pytest.fixture
async def stepping(database_url: str) -> AsyncIterator[Stepping]:
    database = await open_database(settings_for(database_url))
    try:
        await database.read_clock()
        transport = RecordingTransport()
        dispatcher = Dispatcher(transport)
        planner = Planner(database, dispatcher)
        world = World(database_url, database, transport, dispatcher, planner, database.clock.now())
        caller = caller_of(world, auth="off")
        async with caller.http:
            yield Stepping(caller)
    finally:
        await database.close()


def _at(job: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(job["schedule"]["at"])


def _anchor(job: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(job["schedule"]["anchor_at"])


async def delayed(api: Stepping) -> list[datetime]:
    return [_at(await api.send("POST", "/v1/jobs", {"command": ["true"], "in": 30})) - timedelta(seconds=30)]


async def delayed_by_key(api: Stepping) -> list[datetime]:
    headers = {"Idempotency-Key": f"{await api.now()}"}
    body = {"command": ["true"], "in": 30}
    first = await api.send("POST", "/v1/jobs", body, **headers)
    assert await api.send("POST", "/v1/jobs", body, **headers) == first
    return [_at(first) - timedelta(seconds=30)]


async def batch(api: Stepping) -> list[datetime]:
    jobs = [{"command": ["true"], "in": 30}] * 30 + [{"command": ["true"], "every": 40}]
    items = (await api.send("POST", "/v1/jobs/batch", {"jobs": jobs}))["items"]
    return [*(_at(job) - timedelta(seconds=30) for job in items[:-1]), _anchor(items[-1])]


async def at_once(api: Stepping) -> list[datetime]:
    made = [api.send("POST", "/v1/jobs", {"command": ["true"], "in": 30}) for _ in range(12)]
    return [_at(job) - timedelta(seconds=30) for job in await asyncio.gather(*made)]


async def interval(api: Stepping) -> list[datetime]:
    job = await api.send("POST", "/v1/jobs", {"command": ["true"], "every": 40})
    first_at = datetime.fromisoformat(job["next_fire_at"])
    [timer] = await api.caller.world.fetch("SELECT * FROM ondot.timer WHERE job_id = $1", job["id"])
    assert timer["next_fire_at"] == first_at
    return [_anchor(job), first_at - timedelta(seconds=40), timer["fired_through"]]


async def debounced(api: Stepping) -> list[datetime]:
    key = f"{await api.now()}"
    job = await api.send("POST", "/v1/jobs", {"command": ["true"], "debounce": {"key": key, "wait": 30}})
    return [_at(job) - timedelta(seconds=30)]


async def put(api: Stepping) -> list[datetime]:
    world = api.caller.world
    # Created without the API, so that the update is the first to notice.
    id_ = await world.value("SELECT id FROM ondot.submit_spec($1::json, ondot.clock() + interval '1 hour')", _FUNCTION)
    job = await api.send("PUT", f"/v1/jobs/{id_}", {"name": "report", "function": "report", "in": 30})
    return [_at(job) - timedelta(seconds=30)]


async def run_within(api: Stepping) -> list[datetime]:
    body = {"command": ["true"], "every": 3600, "start_deadline": 30}
    job = await api.send("POST", "/v1/jobs", body)
    await api.set_off(1_000)
    before_at = await api.now()
    run = await api.send("POST", f"/v1/jobs/{job['id']}/run", None)
    [row] = await api.caller.world.fetch(
        "SELECT * FROM ondot.execution WHERE id = $1", ExecutionId(run["execution_id"])
    )
    assert before_at <= row["start_by"] - timedelta(seconds=30) <= await api.now()
    return []


_FUNCTION = '{"name": "report", "target": {"kind": "function", "name": "report"}}'


@proves("P4", "P9", "S1", "C3")
@pytest.mark.parametrize(
    "send",
    [delayed, delayed_by_key, batch, at_once, interval, debounced, put, run_within],
    ids=lambda send: send.__name__,
)
async def test_rows_stored_after_a_step_of_the_database_s_clock_use_the_new_time(
    stepping: Stepping, send: Callable[[Stepping], Awaitable[list[datetime]]]
) -> None:
    for seconds in STEPS:
        await stepping.set_off(seconds)
        before_at = await stepping.now()
        instants = await send(stepping)
        after_at = await stepping.now()
        for instant in instants:
            assert before_at - ROUNDED <= instant <= after_at + ROUNDED, f"the clock was set to {seconds:+} s"


@proves("P4", "S12")
async def test_an_upsert_that_changes_a_job_uses_the_new_time(stepping: Stepping) -> None:
    for seconds in STEPS:
        body = {"command": ["true"], "key": "k", "every": 100 + seconds}
        await stepping.set_off(seconds)
        before_at = await stepping.now()
        job = await stepping.send("POST", "/v1/jobs", body)
        assert before_at - ROUNDED <= _anchor(job) <= await stepping.now() + ROUNDED


@proves("P4", "S7")
async def test_a_backfill_ends_in_the_past_by_the_new_clock(stepping: Stepping) -> None:
    job = await stepping.send("POST", "/v1/jobs", {"command": ["true"], "every": 1})
    await stepping.set_off(19)
    now = await stepping.now()
    body = {"from_at": (now - timedelta(seconds=10)).isoformat(), "to_at": now.isoformat()}
    await stepping.send("POST", f"/v1/jobs/{job['id']}/backfill", body)
    await stepping.set_off(-19)
    path = f"/v1/jobs/{job['id']}/backfill"
    answer = await stepping.caller.http.post(path, json=body | {"dry_run": True})
    assert answer.status_code == 422, answer.text


@proves("P1", "P4")
async def test_a_clock_that_agrees_with_no_reading_stores_nothing(api: Caller) -> None:
    # The estimate does not move, as if every reading were wrong.
    await api.world.value("UPDATE ondot.hand_clock SET at = at - interval '5 seconds'")
    for body in ({"command": ["true"], "in": 5}, {"command": ["true"], "every": 5}):
        answer = await api.http.post("/v1/jobs", json=body)
        assert answer.status_code == 503, answer.text
    assert [await api.world.count(table) for table in ("job", "job_once", "timer", "execution")] == [0, 0, 0, 0]
