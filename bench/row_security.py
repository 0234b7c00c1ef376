"""What row-level security costs the reads of the API: list jobs, get a job, list executions, with it and without.

Ten tenants have 1,000 one-time jobs that have run and 1,000 recurring ones each. A read is the store's own function on
a connection of `Database.reading`, as the routes use it, one after another on one connection, for tenants in turn.
Three forms are measured in turn, in blocks, and each figure is the median of its blocks:

- *off*: no policies in the database, `ONDOT_ROW_SECURITY` off;
- *set_up*: policies in the database, the setting off: what other roles pay, which own the tables;
- *on*: policies in the database, the setting on: two more round trips for each read, and the filter.

*ratio*: *on* ÷ *off* in time, of the slowest of the reads by that measure; *ratio_set_up*: *set_up* ÷ *off*, which
should be 1. The database is on this machine and reached by a socket: over a network, round trips cost more.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import cycle, islice
from uuid import UUID

from fleet import Fleet, fleet
from question import Result, ask, say

from ondot.flow.complete import Completer, Done
from ondot.flow.dispatch import Dispatcher
from ondot.flow.lease import Leaser
from ondot.flow.submit import submit
from ondot.model.completion import decide
from ondot.model.ids import JobId, PoolNo, TenantNo, WorkerId
from ondot.model.job import JobSpec
from ondot.model.outcome import Succeeded
from ondot.model.schedule import Interval, Schedule
from ondot.model.target import FunctionTarget
from ondot.settings import load_settings
from ondot.store.connection import Connection
from ondot.store.database import Database, open_database
from ondot.store.executions import list_executions
from ondot.store.jobs import get_job, list_jobs
from ondot.store.migrate import migrate_up
from ondot.store.workers import register_worker
from ondot.transports.polling import PollingTransport

TENANTS = 10
JOBS = 1_000
PAGE = 50
DEFAULT_POOL = PoolNo(1)

Read = Callable[[Connection, TenantNo], Awaitable[object]]


def row_security(quick: bool) -> Result:
    with fleet() as started:
        return asyncio.run(_measure(started, blocks=3 if quick else 15, reads=100 if quick else 500))


async def _measure(started: Fleet, blocks: int, reads: int) -> Result:
    database = await open_database(load_settings(database_url=started.url), connections=2)
    ids = await _fill(database)
    kinds: dict[str, Read] = {
        "list_jobs": lambda connection, tenant_no: list_jobs(connection, tenant_no, limit=PAGE),
        "get_job": lambda connection, tenant_no: get_job(connection, tenant_no, ids[tenant_no]),
        "list_executions": lambda connection, tenant_no: list_executions(
            connection, tenant_no, limit=PAGE, horizon_s=20
        ),
    }
    took_us: dict[tuple[str, str], list[float]] = defaultdict(list)
    plain = database.settings
    for block in range(blocks):
        for form in ("off", "set_up", "on"):
            await migrate_up(database, row_security=form != "off")
            database.settings = plain.model_copy(update={"row_security": form == "on"})
            for kind, read in kinds.items():
                await _read(database, read, reads // 10)
                took_us[kind, form].append(await _read(database, read, reads))
        say(f"block {block + 1} of {blocks}: " + ", ".join(f"{k} {f} {v[-1]:.0f} µs" for (k, f), v in took_us.items()))
    await database.close()
    us = {key: statistics.median(each) for key, each in took_us.items()}
    ratios = {kind: round(us[kind, "on"] / us[kind, "off"], 3) for kind in kinds}
    return {
        "question": "row_security",
        "ratio": max(ratios.values()),
        "ratio_of": "time of a read with row-level security ÷ without, the slowest kind by that",
        "ratios": ratios,
        "ratio_set_up": {kind: round(us[kind, "set_up"] / us[kind, "off"], 3) for kind in kinds},
        "us": {f"{kind} {form}": round(value, 1) for (kind, form), value in us.items()},
        "tenants": TENANTS,
        "jobs_each": 2 * JOBS,
        "blocks": blocks,
        "reads_each": reads,
    }


async def _read(database: Database, read: Read, count: int) -> float:
    """Microseconds for each read."""
    began_s = time.perf_counter()
    for tenant_no in islice(cycle(range(1, TENANTS + 1)), count):
        async with database.reading(TenantNo(tenant_no)) as connection:
            await read(connection, TenantNo(tenant_no))
    return 1e6 * (time.perf_counter() - began_s) / count


async def _fill(database: Database) -> dict[TenantNo, JobId]:
    """Jobs of every tenant; returns one recurring job of each."""
    await database.read_clock()
    dispatcher = Dispatcher(PollingTransport())
    found: dict[TenantNo, JobId] = {}
    async with database.connection() as connection:
        await connection.execute(
            "INSERT INTO ondot.tenant (name, pools)"
            " SELECT 'tenant ' || n, '{*}' FROM generate_series(2, $1::integer) AS n",
            TENANTS,
        )
    now = database.clock.now()
    target = FunctionTarget(name="nothing")
    once = [JobSpec(name=f"once {n}", target=target) for n in range(JOBS)]
    far = Schedule(when=Interval(every_s=86_400.0, anchor_at=now), start_at=now + timedelta(days=1))
    recurring = [JobSpec(name=f"recurring {n}", target=target, schedule=far) for n in range(JOBS)]
    for number in range(1, TENANTS + 1):
        tenant_no = TenantNo(number)
        await submit(database, dispatcher, tenant_no, once, render=lambda _: "")
        text = await submit(database, dispatcher, tenant_no, recurring, render=lambda jobs: str(jobs[0].id))
        found[tenant_no] = JobId(UUID(text))
    await _run_all(database, dispatcher)
    async with database.connection() as connection:
        await connection.execute("ANALYZE")
    return found


async def _run_all(database: Database, dispatcher: Dispatcher) -> None:
    """Complete everything that is due, as a worker would."""
    id_ = WorkerId(database.clock.new_id())
    async with database.connection() as connection:
        await register_worker(connection, id_, host="bench", pid=1, release="0", pool_nos=[DEFAULT_POOL], slots=1000)
    leaser, completer = Leaser(database, id_, [DEFAULT_POOL]), Completer(database, dispatcher, id_)
    while assignments := (await leaser.one_pass(1000)).assignments:
        for assignment in assignments:
            completer.hold(assignment.lease_id, 1)
        leaser.acknowledge()
        done = []
        for assignment in assignments:
            assert assignment.spec is not None
            decided = decide(assignment.leased, assignment.spec, Succeeded('"done"'), lambda: 0.5)
            done.append(Done(decided, assignment.lease_id))
        await completer.write(done)


if __name__ == "__main__":
    ask(row_security, full="5 minutes", quick="half a minute")
