"""Whole lives per second: submit → planned → leased → run → completed, through the real roles as separate processes.

`ondot scheduler`, `ondot worker` with 1 and with 2 processes of 1,000 slots each, and one submitter, which calls the
same function as the API (`flow.submit`, without HTTP) in batches of 1,000 one-time jobs due now; each runs `nothing`,
an async function that does nothing. Durable (`fsync` and `synchronous_commit` on), history kept, on the machine that
also runs PostgreSQL. At most 20,000 jobs (5,000 with --quick) are open at a time, so the rate is that of the whole.

What counts: rows that reached history as SUCCEEDED between two instants of the database's clock, without the first
seconds. At the end every submitted job must have exactly one, at its first attempt, and none may be left.

- `per_s`, `per_s_1_process`: medians of the turns, with 2 and with 1 worker processes.
- `ratio`: ÷ `limit` through asyncpg with as many processes (bare SQL in a database beside it), measured in turn.
- `ratio_by_cpu`: processor time of a bare life, PostgreSQL and clients, ÷ that of a job, all roles, the submitter and
  PostgreSQL: equals `ratio` if the processors are the limit, and is steadier if other programs use them too.
- `sustained_per_s`, `per_minute`: 2 processes without a pause (the windows of the last turn with --quick).
- `wal_bytes_per_job`, `cpu_us_per_job`: of the sustained run.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import statistics
from dataclasses import dataclass

from bare import bare_lives
from fleet import Fleet, fleet
from question import Result, ask, say
from steady import Load, check, steady

from ondot.model.job import JobSpec
from ondot.model.target import FunctionTarget

SLOTS = 1_000
BACKLOG = 20_000
PROCESSES = (1, 2)
NOTHING = JobSpec(name="nothing", target=FunctionTarget(name="nothing"))


@dataclass(frozen=True, slots=True)
class _Bare:
    per_s: float
    cpu_us: float


def lifecycle(quick: bool) -> Result:
    with fleet() as started:
        started.scheduler()
        return asyncio.run(_quick(started) if quick else _full(started))


async def _full(started: Fleet) -> Result:
    loads, bare = await _turns(started, BACKLOG, turns=3, bare_s=10.0, warm_s=5.0, windows_s=[10.0, 10.0])
    say("sustained: 5 minutes")
    sustained = await _load(started, 2, BACKLOG, 5.0, [60.0] * 5)
    return await _result(started, loads, bare, sustained)


async def _quick(started: Fleet) -> Result:
    # Jobs that wait when the submitter stops must end, too, before the next turn.
    loads, bare = await _turns(started, BACKLOG // 4, turns=1, bare_s=2.0, warm_s=1.5, windows_s=[2.0] * 2)
    return await _result(started, loads, bare, loads[2][-1])


async def _turns(
    started: Fleet, backlog: int, turns: int, bare_s: float, warm_s: float, windows_s: list[float]
) -> tuple[dict[int, list[Load]], dict[int, list[_Bare]]]:
    beside = await started.beside("bare")
    loads: dict[int, list[Load]] = {processes: [] for processes in PROCESSES}
    bare: dict[int, list[_Bare]] = {processes: [] for processes in PROCESSES}
    for turn in range(turns):
        for processes in PROCESSES:
            bare[processes].append(await _bare(started, beside, bare_s, processes))
            load = await _load(started, processes, backlog, warm_s, windows_s)
            loads[processes].append(load)
            say(
                f"turn {turn + 1} of {turns}, processes: {processes}, lifecycle: {load.per_s:,.0f}/s,"
                f" limit: {bare[processes][-1].per_s:,.0f}/s"
            )
    return loads, bare


async def _bare(started: Fleet, url: str, seconds: float, processes: int) -> _Bare:
    before_s = started.cpu_s().get("postgres", 0.0)
    lives = await bare_lives(url, seconds, processes)
    of_server_us = 1e6 * (started.cpu_s().get("postgres", 0.0) - before_s) / lives.all
    return _Bare(lives.per_s, of_server_us + lives.cpu_us)


async def _load(started: Fleet, processes: int, backlog: int, warm_s: float, windows_s: list[float]) -> Load:
    worker = started.worker(processes=processes, slots=SLOTS)
    try:
        return await steady(started, NOTHING, backlog=backlog, warm_s=warm_s, windows_s=windows_s)
    finally:
        started.stop(worker)


async def _result(
    started: Fleet, loads: dict[int, list[Load]], bare: dict[int, list[_Bare]], sustained: Load
) -> Result:
    every = [load for each in loads.values() for load in each]
    if sustained not in every:
        every.append(sustained)
    await check(started, sum(load.submitted for load in every))
    per_s = {processes: statistics.median(load.per_s for load in each) for processes, each in loads.items()}
    limit = {processes: statistics.median(one.per_s for one in each) for processes, each in bare.items()}
    bare_us = statistics.median(one.cpu_us for one in bare[2])
    whole_us = statistics.median(sum(load.cpu_us.values()) for load in loads[2])
    return {
        "question": "lifecycle",
        "per_s": round(per_s[2]),
        "ratio": round(per_s[2] / limit[2], 3),
        "ratio_by_cpu": round(bare_us / whole_us, 3),
        "per_s_1_process": round(per_s[1]),
        "ratio_1_process": round(per_s[1] / limit[1], 3),
        "limit_per_s": round(limit[2]),
        "limit_per_s_1_process": round(limit[1]),
        "sustained_per_s": round(sustained.per_s),
        "sustained_rates": [round(each) for each in sustained.rates],
        "wal_bytes_per_job": round(sustained.wal_bytes),
        "cpu_us_per_job": {kind: round(each, 1) for kind, each in sustained.cpu_us.items()},
        "cpu_us_per_job_1_process": {kind: round(each, 1) for kind, each in loads[1][-1].cpu_us.items()},
        "limit_cpu_us_per_life": round(bare_us, 1),
        "jobs": sum(load.submitted for load in every),
        "slots": SLOTS,
    }


if __name__ == "__main__":
    ask(lifecycle, full="9 minutes", quick="40 seconds")
