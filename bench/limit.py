"""The ceiling: lifecycles per second that PostgreSQL reaches with ondot's own hot statements and nothing around them.

A life is insert → lease → complete, the statements of the engine with the engine's arguments, 1,000 jobs in each batch,
each statement a separate commit (`fsync` and `synchronous_commit` on), with history kept; no scheduler, no worker, no
handler, no notes. A life counts when its completion has returned.

- *asyncpg*: 1 and 2 client processes, each with three statements in flight on as many connections, arguments made
  before the clock starts. `per_s` is that of 2 processes: the divisor of `lifecycle`.
- *server side*: the same statements in a procedure that commits after each, 1 and 2 sessions, without any client.

Forms are measured in turn, and each figure is the median of its turns. WAL and processor time are per life, of the
turns of 2 processes.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import statistics
from collections import defaultdict

import asyncpg
from bare import BATCH, bare_lives
from fleet import Fleet, fleet, wal_bytes
from question import Result, ask, say
from server_side import server_lives


def limit(quick: bool) -> Result:
    with fleet() as started:
        return asyncio.run(_limit(started, turns=1 if quick else 5, seconds=2.0 if quick else 10.0))


async def _limit(started: Fleet, turns: int, seconds: float) -> Result:
    rates: dict[str, list[float]] = defaultdict(list)
    wal: list[float] = []
    cpu: dict[str, list[float]] = defaultdict(list)
    connection = await started.connect()
    for turn in range(turns):
        for processes in (1, 2):
            before, cpu_s = await wal_bytes(connection), started.cpu_s().get("postgres", 0.0)
            lives = await bare_lives(started.url, seconds, processes)
            rates[f"asyncpg_{processes}"].append(lives.per_s)
            if processes == 2:
                wal.append((await wal_bytes(connection) - before) / lives.all)
                cpu["postgres"].append(1e6 * (started.cpu_s().get("postgres", 0.0) - cpu_s) / lives.all)
                cpu["clients"].append(lives.cpu_us)
        for sessions in (1, 2):
            server_side = await server_lives(started.url, seconds, sessions)
            rates[f"server_{sessions}"].append(server_side.per_s)
        say(f"turn {turn + 1} of {turns}: " + ", ".join(f"{form} {each[-1]:,.0f}/s" for form, each in rates.items()))
    await _check(connection)
    await connection.close()
    median = {form: statistics.median(each) for form, each in rates.items()}
    return {
        "question": "limit",
        "per_s": round(median["asyncpg_2"]),
        "per_s_1_process": round(median["asyncpg_1"]),
        "server_side_per_s": round(median["server_2"]),
        "server_side_per_s_1_session": round(median["server_1"]),
        "ratio": round(median["asyncpg_2"] / median["server_2"], 3),
        "ratio_of": "asyncpg ÷ server side, 2 of each",
        "wal_bytes_per_life": round(statistics.median(wal)),
        "cpu_us_per_life": {kind: round(statistics.median(each), 1) for kind, each in cpu.items()},
        "batch": BATCH,
        "turns": turns,
        "seconds_each": seconds,
    }


async def _check(connection: asyncpg.Connection) -> None:
    """Every job has one row of history, and none is left."""
    row = await connection.fetchrow(
        "SELECT (SELECT count(*) FROM ondot.execution) + (SELECT count(*) FROM ondot.ready)"
        " + (SELECT count(*) FROM ondot.lease), (SELECT count(*) FROM ondot.job_once), count(*), count(DISTINCT job_id)"
        " FROM ondot.history WHERE state = 'SUCCEEDED'"
    )
    assert row is not None
    left, jobs, ended, distinct = row
    if left or not jobs == ended == distinct:
        raise RuntimeError(f"invalid run: {jobs} jobs, {ended} ended ({distinct} of them distinct), {left} left")


if __name__ == "__main__":
    ask(limit, full="4 minutes", quick="half a minute")
