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
import time

from bare import Strand, statements_of
from client import client
from fires import spread_ms
from fleet import Fleet, fleet
from question import Result, ask, quantile, say
from starts import BATCH, NOW, PER_S, WARM_S, batches, result, single_creates
from steady import steady

from ondot.settings import load_settings
from ondot.store.database import connect, open_database

PROCESSES, SLOTS = 2, 1_000
BARE = 100


def latency(quick: bool) -> Result:
    with fleet() as started:
        return asyncio.run(_latency(started, seconds=4.0 if quick else 120.0, busy_s=3.0 if quick else 60.0))


async def _latency(started: Fleet, seconds: float, busy_s: float) -> Result:
    bare_s = await _bare(started)
    started.scheduler()
    started.worker(processes=PROCESSES, slots=SLOTS)
    url = await asyncio.to_thread(started.api)
    await result(started, await single_creates(url, WARM_S))  # until the workers have started too
    few = await result(started, await single_creates(url, seconds))
    say(f"at {PER_S}/s: {few}")
    peak = await steady(started, NOW, backlog=5_000, warm_s=WARM_S, windows_s=[min(busy_s, 10.0)])
    async with client(started.url) as from_here:
        sent = await batches(from_here, peak.per_s / 2, busy_s)
    many = await result(started, sent)
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


if __name__ == "__main__":
    ask(latency, full="5 minutes", quick="40 seconds")
