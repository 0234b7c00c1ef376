"""What tenants cost each other, and what many of them cost.

Roles as processes on the machine that also runs PostgreSQL (`fsync` and `synchronous_commit` on): `ondot scheduler`,
`ondot worker --tenant '*'` with one process, and where it says so `ondot api`. Executions that wait are loaded by SQL.

- `flood`: one tenant has a million jobs waiting (150,000 with --quick), each of which holds a slot for 100 ms, and all
  100 slots are busy. Another enqueues ten jobs a second by the code that the API runs. *wait*: from before the request
  to the recorded start, of every job but those of the first seconds. `flood_ratio`, `flood_ratio_p50`: p99 and p50 of
  the wait beside the flood ÷ alone. `*_ahead`: how many executions of the flood started between the request and the
  start, the part of the wait that turns decide. `busy_*`: the same while the flood consists of jobs that do nothing and
  the worker has 1,000 slots, so that the processors are the limit: every statement takes longer than alone.
- `weights`: three tenants with the weights 1, 2 and 4, more waiting than can run. `weights_error`: the largest distance
  of a tenant's share of the slot-seconds in the measured time from its weight's share, ÷ that.
- `long`: two tenants of the same weight; the jobs of one take 2 s, those of the other 50 ms. `long_share`: the share of
  the long ones in the slot-seconds; 0.5 is fair.
- `many`: what a lease costs with 10,000 tenants waiting ÷ with one (processor time of PostgreSQL's backend and of the
  client, for each leased execution, by turns; common/lease_cost.py), and `many_memory_ratio`: the memory of a worker
  that has run work of all of them ÷ of one.
- `keys`: `GET /v1/jobs?limit=1` over one connection, by turns at an API that requires keys and at one that does not.
  `key_us`: what the key adds to the processor time of the API; `key_ms`: p50 with and without; `new_key_us`: what the
  first request of each of many keys costs more than a later one.

Each part has its own database, and must find each job of the quiet tenant run exactly once, at its first attempt.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from statistics import median
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
import msgspec
from client import Client, client
from fires import spread_ms
from fleet import Fleet, fleet
from lease_cost import load_waiting, make_databases, named, open_case
from question import Result, ask, say

from ondot.model.ids import TenantNo
from ondot.model.job import JobSpec
from ondot.model.schedule import Interval, Schedule
from ondot.model.target import FunctionTarget

QUIET, FLOODING = TenantNo(2), TenantNo(3)
SLOTS = 100
PER_S = 10.0
HELD_S = 0.1
WARM_S = 3.0
JOBS = 100
A_YEAR_S = 31_536_000.0
STARTED_WITHIN_S = 60.0
ENDED_WITHIN_S = 60.0
MANY = 10_000
LEAST = 100
"""What each pass must lease at least: one of many tenants may be asked for more than it has."""
EVERYBODY = ("--tenant", "*")
NOTHING = JobSpec(name="nothing", target=FunctionTarget(name="nothing"))

SLOT_SECONDS = """
SELECT tenant_no, sum(extract(epoch FROM least(ended_at, $2) - greatest(started_at, $1)))::float8 AS slot_s,
       count(*) FILTER (WHERE started_at >= $1) AS starts
FROM (
    SELECT tenant_no, started_at, ended_at FROM ondot.history WHERE ended_at > $1 AND started_at < $2
    UNION ALL
    SELECT tenant_no, started_at, 'infinity' FROM ondot.execution WHERE state = 'RUNNING' AND started_at < $2
) e GROUP BY tenant_no ORDER BY tenant_no
"""


def lasting(seconds: float) -> JobSpec:
    payload = msgspec.Raw(msgspec.json.encode({"seconds": seconds}))
    return JobSpec(name="wait", target=FunctionTarget(name="wait"), payload=payload)


async def make_tenants(connection: asyncpg.Connection, weights: Sequence[float]) -> None:
    """Tenants from 2 on."""
    await connection.executemany(
        "INSERT INTO ondot.tenant (tenant_no, name, weight, pools) VALUES ($1, $2, $3, '{*}')",
        [(no, f"tenant-{no}", weight) for no, weight in enumerate(weights, 2)],
    )


async def fill(
    from_here: Client, connection: asyncpg.Connection, tenant_no: TenantNo, spec: JobSpec, count: int, first: int = 0
) -> None:
    """Load executions that wait, of recurring jobs of the tenant."""
    schedule = Schedule(when=Interval(every_s=A_YEAR_S, anchor_at=from_here.database.clock.now()))
    jobs = await from_here.submit(msgspec.structs.replace(spec, schedule=schedule), JOBS, tenant_no)
    await load_waiting(connection, jobs, first, count, tenant_no=tenant_no)


async def analyse(connection: asyncpg.Connection) -> None:
    await connection.execute("VACUUM (ANALYZE) ondot.execution, ondot.ready")


async def read_now(connection: asyncpg.Connection) -> datetime:
    now: datetime = await connection.fetchval("SELECT ondot.clock()")
    return now


# One floods ----------------------------------------------------------------------------------------------------------


def flood(quick: bool) -> Result:
    count = 150_000 if quick else 1_000_000
    found: Result = {}
    forms = (
        ("flood", lasting(HELD_S), SLOTS, 6.0 if quick else 30.0),
        ("busy", NOTHING, 1_000, 4.0 if quick else 15.0),
    )
    for name, spec, slots, seconds in forms:
        with fleet(checkpoint_timeout="1d", max_wal_size="32GB") as started:
            alone, beside, ahead, left = asyncio.run(_flood(started, spec, slots, count, seconds))
        found |= {
            f"{name}_ratio": round(beside["p99"] / alone["p99"], 2),
            f"{name}_ratio_p50": round(beside["p50"] / alone["p50"], 2),
            f"{name}_wait_ms": beside,
            f"{name}_wait_alone_ms": alone,
            f"{name}_ahead": ahead,
            f"{name}_left": left,
            f"{name}_seconds": seconds,
        }
        say(f"{name}: alone {alone}, beside {beside}, ahead {ahead}, {left:,} of {count:,} still waited")
    return found | {"flood_jobs": count}


async def _flood(
    started: Fleet, spec: JobSpec, slots: int, count: int, seconds: float
) -> tuple[dict[str, float], dict[str, float], dict[str, int], int]:
    connection = await started.connect()
    async with client(started.url) as from_here:
        await make_tenants(connection, [1, 1])
        started.scheduler()
        started.worker(*EVERYBODY, slots=slots)
        await _enqueue(from_here, connection, WARM_S)  # until the worker has started
        alone, _ = await _enqueue(from_here, connection, seconds)
        await fill(from_here, connection, FLOODING, spec, count)
        await analyse(connection)
        beside, ahead = await _enqueue(from_here, connection, seconds)
        left = await connection.fetchval("SELECT count(*) FROM ondot.ready WHERE tenant_no = $1", FLOODING)
        if not left:
            raise RuntimeError("invalid run: the flood was over before the measurement")
    await connection.close()
    return alone, beside, ahead, left


async def _enqueue(
    from_here: Client, connection: asyncpg.Connection, seconds: float
) -> tuple[dict[str, float], dict[str, int]]:
    """Ten jobs a second of the quiet tenant; how long each waited, without the first seconds, and for how many of the
    flood."""
    sent: dict[UUID, float] = {}
    began_s = time.monotonic()
    warm = 0

    async def enqueue() -> None:
        sent_s = time.time()
        [job_id] = await from_here.submit(NOTHING, 1, QUIET)
        sent[job_id] = sent_s

    async with asyncio.TaskGroup() as group:
        for number in range(int((WARM_S + seconds) * PER_S)):
            await asyncio.sleep(max(began_s + number / PER_S - time.monotonic(), 0.0))
            warm = len(sent) if number < WARM_S * PER_S else warm
            group.create_task(enqueue())
    rows = await _ended(connection, list(sent))
    counted = list(sent)[warm:]
    waits_s = sorted(rows[job_id] - sent[job_id] for job_id in counted)
    starts_s = await _starts_of_flood(connection, sent[counted[0]], max(rows.values()))
    ahead = sorted(bisect_left(starts_s, rows[job_id]) - bisect_left(starts_s, sent[job_id]) for job_id in counted)
    return spread_ms(waits_s), {"p50": ahead[len(ahead) // 2], "p99": ahead[len(ahead) * 99 // 100]}


async def _starts_of_flood(connection: asyncpg.Connection, from_s: float, to_s: float) -> list[float]:
    rows = await connection.fetch(
        "SELECT extract(epoch FROM started_at)::float8 AS started_s FROM ("
        " SELECT started_at FROM ondot.history WHERE tenant_no = $1 UNION ALL"
        " SELECT started_at FROM ondot.execution WHERE tenant_no = $1 AND state = 'RUNNING') e"
        " WHERE started_at BETWEEN to_timestamp($2) AND to_timestamp($3) ORDER BY started_at",
        *(FLOODING, from_s, to_s),
    )
    return [row["started_s"] for row in rows]


async def _ended(connection: asyncpg.Connection, jobs: list[UUID]) -> dict[UUID, float]:
    """When each of these one-time jobs started, once all have ended."""
    deadline_s = time.monotonic() + ENDED_WITHIN_S
    while True:
        rows = await connection.fetch(
            "SELECT job_id, state, attempt_no, extract(epoch FROM started_at)::float8 AS started_s FROM ondot.history"
            " WHERE job_id = ANY ($1::uuid[])",
            jobs,
        )
        if len(rows) >= len(jobs):
            break
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"invalid run: {len(rows)} of {len(jobs)} jobs of the quiet tenant have ended")
        await asyncio.sleep(0.2)
    bad = [row for row in rows if row["state"] != "SUCCEEDED" or row["attempt_no"] != 1]
    if bad or len(rows) != len(jobs):
        raise RuntimeError(f"invalid run: {len(jobs)} jobs, {len(rows)} ended, {len(bad)} not at the first attempt")
    return {row["job_id"]: row["started_s"] for row in rows}


# Shares --------------------------------------------------------------------------------------------------------------


def weights(quick: bool) -> Result:
    given = [1.0, 2.0, 4.0]
    with fleet() as started:
        measured = asyncio.run(_share(started, given, [lasting(HELD_S)] * 3, *_sizes(quick)))
    shares = [each["share"] for each in measured]
    wanted = [weight / sum(given) for weight in given]
    errors = [abs(share / want - 1) for share, want in zip(shares, wanted, strict=True)]
    say(f"weights: shares {shares}, wanted {wanted}")
    return {
        "weights_error": round(max(errors), 4),
        "weights_shares": [round(share, 4) for share in shares],
        "weights_starts": [each["starts"] for each in measured],
    }


def long(quick: bool) -> Result:
    with fleet() as started:
        measured = asyncio.run(_share(started, [1.0, 1.0], [lasting(2.0), lasting(HELD_S / 2)], *_sizes(quick)))
    say(f"long: {measured}")
    return {
        "long_share": round(measured[0]["share"], 4),
        "long_starts": [each["starts"] for each in measured],
        "long_slots_used": round(sum(each["slots"] for each in measured), 1),
    }


def _sizes(quick: bool) -> tuple[int, float, float]:
    """Waiting for each tenant, seconds before the measurement, seconds of it."""
    return (20_000, 5.0, 8.0) if quick else (150_000, 10.0, 60.0)


async def _share(
    started: Fleet, given: list[float], specs: list[JobSpec], count: int, warm_s: float, seconds: float
) -> list[dict[str, Any]]:
    """Each tenant's share of the slot-seconds, with more waiting than can run."""
    connection = await started.connect()
    async with client(started.url) as from_here:
        await make_tenants(connection, given)
        for number, spec in enumerate(specs):
            await fill(from_here, connection, TenantNo(2 + number), spec, count, first=number * count)
        await analyse(connection)
        started.scheduler()
        started.worker(*EVERYBODY, slots=SLOTS)
        await _until_full(connection)
        await asyncio.sleep(warm_s)
        from_at = await read_now(connection)
        await asyncio.sleep(seconds)
        to_at = await read_now(connection)
        rows = await connection.fetch(SLOT_SECONDS, from_at, to_at)
        waiting = await connection.fetchval("SELECT count(DISTINCT tenant_no) FROM ondot.ready")
    await connection.close()
    if waiting != len(specs) or len(rows) != len(specs):
        raise RuntimeError(f"invalid run: {waiting} of {len(specs)} tenants still wait, {len(rows)} had slots")
    total_s, took_s = sum(row["slot_s"] for row in rows), (to_at - from_at).total_seconds()
    if total_s < 0.8 * SLOTS * took_s:
        raise RuntimeError(f"invalid run: {total_s / took_s:.1f} of {SLOTS} slots were used, so nobody had to wait")
    return [
        {"share": row["slot_s"] / total_s, "slots": row["slot_s"] / took_s, "starts": row["starts"]} for row in rows
    ]


async def _until_full(connection: asyncpg.Connection) -> None:
    """Wait until every slot is taken."""
    deadline_s = time.monotonic() + STARTED_WITHIN_S
    while await connection.fetchval("SELECT count(*) FROM ondot.execution WHERE state = 'RUNNING'") < 0.9 * SLOTS:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the slots were not full {STARTED_WITHIN_S:.0f} s after the start")
        await asyncio.sleep(0.05)


# Many tenants --------------------------------------------------------------------------------------------------------


def many(quick: bool) -> Result:
    waiting, rounds = (40_000, 2) if quick else (200_000, 5)
    with fleet(checkpoint_timeout="1d", max_wal_size="32GB") as started:
        return asyncio.run(_many(started, waiting, rounds))


async def _many(started: Fleet, waiting: int, rounds: int) -> Result:
    counts = {"one": 1, "many": MANY}
    await make_databases(started, list(counts))
    async with AsyncExitStack() as stack:
        cases = {
            name: await open_case(stack, started, name, waiting, tenants=tenants, least=LEAST)
            for name, tenants in counts.items()
        }
        for turn in range(rounds + 1):
            for case in cases.values():
                await case.turn()
                if turn == 0:
                    case.forget()
        for case in cases.values():
            await case.check()
        cost = {name: case.result() for name, case in cases.items()}
        passes_ms = {name: round(median(case.took_s) * 1e3, 1) for name, case in cases.items()}
    memory = {name: await _memory(started, name, wanted=waiting // 4) for name in counts}
    say(f"many: cost {cost}, memory {memory}")
    return {
        "many_ratio": round(cost["many"]["all"] / cost["one"]["all"], 3),
        "many_server_ratio": round(cost["many"]["server"] / cost["one"]["server"], 3),
        "many_tenants": MANY,
        "many_cost_us": cost,
        "many_pass_ms": passes_ms,
        "many_memory_ratio": round(memory["many"] / memory["one"], 3),
        "many_memory_mib": {name: round(each / 2**20, 1) for name, each in memory.items()},
    }


async def _memory(started: Fleet, name: str, wanted: int) -> int:
    """Of a worker that has ended this many executions."""
    connection = await asyncpg.connect(named(started.url, name))
    worker = started.worker(*EVERYBODY, ONDOT_DATABASE_URL=named(started.url, name))
    deadline_s = time.monotonic() + ENDED_WITHIN_S
    try:
        while await connection.fetchval("SELECT count(*) FROM ondot.history") < wanted:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{name}: fewer than {wanted:,} executions ended in {ENDED_WITHIN_S:.0f} s")
            await asyncio.sleep(0.2)
        return started.memory_bytes("worker")
    finally:
        await connection.close()
        started.stop(worker)


# Keys ----------------------------------------------------------------------------------------------------------------


def keys(quick: bool) -> Result:
    turns, requests, new = (3, 300, 50) if quick else (15, 1_000, 500)
    with fleet() as started:
        return asyncio.run(_keys(started, turns, requests, new))


async def _keys(started: Fleet, turns: int, requests: int, new: int) -> Result:
    urls = {
        "without": await asyncio.to_thread(started.api),
        "with": await asyncio.to_thread(started.api, ONDOT_AUTH="on"),
    }
    members = dict(zip(urls, (process for role, process in started.members if role == "api"), strict=True))
    async with aiohttp.ClientSession() as session:
        made = [await _new_key(session, urls["without"], number) for number in range(new + 1)]
        took: dict[str, list[float]] = {name: [] for name in urls}
        cpu_us = dict.fromkeys(urls, 0.0)
        for turn in range(turns + 1):
            for name, url in urls.items():
                before_s = sum(members[name].cpu_times()[:2])
                each_s = [await _get(session, url, made[0]) for _ in range(requests)]
                if turn:  # the first is the warm-up
                    took[name] += each_s
                    # Over all turns, because the kernel counts in steps of 10 ms.
                    cpu_us[name] += 1e6 * (sum(members[name].cpu_times()[:2]) - before_s) / (turns * requests)
        first_s = [await _get(session, urls["with"], key) for key in made[1:]]
    say(f"keys: processor time of a request {cpu_us}")
    return {
        "key_us": round(cpu_us["with"] - cpu_us["without"], 1),
        "key_ratio": round(cpu_us["with"] / cpu_us["without"], 3),
        "key_request_us": {name: round(each, 1) for name, each in cpu_us.items()},
        "key_ms": {name: spread_ms(sorted(each)) for name, each in took.items()},
        "new_key_us": round(1e6 * (median(first_s) - median(took["with"])), 1),
    }


async def _new_key(session: aiohttp.ClientSession, url: str, number: int) -> str:
    async with session.post(f"{url}/v1/keys", json={"name": f"key {number}", "role": "viewer"}) as answer:
        body = await answer.json()
        if answer.status != 201:
            raise RuntimeError(f"the API answered {answer.status}: {body}")
        return str(body["key"])


async def _get(session: aiohttp.ClientSession, url: str, key: str) -> float:
    began_s = time.perf_counter()
    async with session.get(f"{url}/v1/jobs?limit=1", headers={"authorization": f"Bearer {key}"}) as answer:
        await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the API answered {answer.status}")
    return time.perf_counter() - began_s


PARTS: dict[str, Callable[[bool], Result]] = {
    "flood": flood,
    "weights": weights,
    "long": long,
    "many": many,
    "keys": keys,
}


def tenants(quick: bool, parts: Sequence[str]) -> Result:
    result: Result = {"question": "tenants"}
    for name in parts:
        began_s = time.monotonic()
        result |= PARTS[name](quick)
        say(f"{name}: {time.monotonic() - began_s:.0f} s")
    return result


if __name__ == "__main__":
    ask(tenants, full="about 8 minutes", quick="about 2 minutes", parts=list(PARTS))
