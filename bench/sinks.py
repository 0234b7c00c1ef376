"""What a sink costs whole lives: lifecycles a second and processor time with none, and with one for ends and for all.

The load is that of `lifecycle`, with 2 worker processes. The sink is a webhook in batches of 500, received by this
process, which answers 204 and whose processor time does not count. The cases take turns on one database. In the
case `written` the sink is paused: events are written to the outbox, and not sent.

- `per_s`: medians of the turns for each case.
- `cpu_us_per_job`: processor time of PostgreSQL and all roles, by case; `scheduler` sends.
- `cost_of_written`, `cost_of_ends`, `cost_of_all`: how much more processor time a job takes, as a share.
- `wal_bytes_per_job`: by case.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: http.py would hide the library's http

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from fleet import Fleet, fleet
from question import Result, ask, say
from steady import Load, check, steady

from ondot.model.ids import DEFAULT_TENANT
from ondot.model.job import JobSpec
from ondot.model.sink import SinkSpec, WebhookPlace
from ondot.model.target import FunctionTarget
from ondot.settings import load_settings
from ondot.store.database import Database, open_database
from ondot.store.sinks import delete_sink, get_sink, put_sink, set_sink_paused

ENDS = ("ondot.execution.succeeded", "ondot.execution.failed")
CASES = {"none": (), "written": ENDS, "ends": ENDS, "all": ("ondot.execution.*",)}
SLOTS = 1_000
BACKLOG = 5_000
NOTHING = JobSpec(name="nothing", target=FunctionTarget(name="nothing"))
NAME = "bench"
SENT_WITHIN_S = 120.0


@dataclass(slots=True)
class _Receiver:
    url: str = ""
    received: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.received += (await request.read()).count(b'"specversion"')
        return web.Response(status=204)


def sinks(quick: bool) -> Result:
    with fleet() as started:
        started.scheduler(ONDOT_ALLOW_PRIVATE_TARGETS="true")
        return asyncio.run(_measure(started, turns=2 if quick else 5, window_s=3.0 if quick else 20.0))


async def _measure(started: Fleet, turns: int, window_s: float) -> Result:
    database = await open_database(load_settings(database_url=started.url))
    await database.read_clock()
    loads: dict[str, list[Load]] = {case: [] for case in CASES}
    async with _receiving() as receiver:
        for turn in range(turns):
            for case, types in CASES.items():
                await _put(database, receiver, types, is_paused=case == "written")
                worker = started.worker(processes=2, slots=SLOTS)
                try:
                    load = await steady(started, NOTHING, backlog=BACKLOG, warm_s=2.0, windows_s=[window_s])
                finally:
                    started.stop(worker)
                loads[case].append(load)
                say(f"turn {turn + 1} of {turns}, {case}: {load.per_s:,.0f}/s, {_cpu_us(load):,.0f} µs a job")
                await _put(database, receiver, ()) if case == "written" else None
                await _until_sent(database)
        received = receiver.received
    await database.close()
    await check(started, sum(load.submitted for each in loads.values() for load in each))
    expected = sum(
        load.submitted * {"none": 0, "written": 0, "ends": 1, "all": 2}[case]
        for case, each in loads.items()
        for load in each
    )
    if received < expected:
        raise RuntimeError(f"{expected:,} events were expected, {received:,} arrived.")
    cpu_us = {case: statistics.median(map(_cpu_us, each)) for case, each in loads.items()}
    return {
        "question": "sinks",
        "per_s": {case: round(statistics.median(load.per_s for load in each)) for case, each in loads.items()},
        "cpu_us_per_job": {case: round(each, 1) for case, each in cpu_us.items()},
        "cost_of_written": round(cpu_us["written"] / cpu_us["none"] - 1, 3),
        "cost_of_ends": round(cpu_us["ends"] / cpu_us["none"] - 1, 3),
        "cost_of_all": round(cpu_us["all"] / cpu_us["none"] - 1, 3),
        "cpu_us_by_kind": {
            case: {kind: round(value, 1) for kind, value in each[-1].cpu_us.items()} for case, each in loads.items()
        },
        "wal_bytes_per_job": {case: round(each[-1].wal_bytes) for case, each in loads.items()},
        "events": received,
        "events_expected": expected,
    }


def _cpu_us(load: Load) -> float:
    return sum(load.cpu_us.values())


async def _put(database: Database, receiver: _Receiver, types: tuple[str, ...], *, is_paused: bool = False) -> None:
    """Replace the sink, and wait until workers have noticed."""
    async with database.transaction() as connection:
        if (row := await get_sink(connection, DEFAULT_TENANT, NAME)) is not None:
            await delete_sink(connection, DEFAULT_TENANT, row.id)
        if types:
            spec = SinkSpec(place=WebhookPlace(url=receiver.url, batch=500), types=types)
            id_, _ = await put_sink(connection, database.clock.new_id(), DEFAULT_TENANT, NAME, spec, by=NAME)
            if is_paused:
                await set_sink_paused(connection, DEFAULT_TENANT, id_, is_paused=True, by=NAME)
    await asyncio.sleep(1.5)


async def _until_sent(database: Database) -> None:
    async with asyncio.timeout(SENT_WITHIN_S), database.connection() as connection:
        while await connection.fetchval("SELECT EXISTS (SELECT FROM ondot.outbox)"):
            await asyncio.sleep(0.25)


@asynccontextmanager
async def _receiving() -> AsyncIterator[_Receiver]:
    receiver = _Receiver()
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_post("/", receiver.handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield receiver
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    ask(sinks, full="8 minutes", quick="90 seconds")
