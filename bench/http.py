"""Whole lives per second with HTTP targets: submit → planned → leased → a real call → completed, through the real
roles.

`ondot scheduler`, `ondot worker` with 2 processes of 200 slots each, and one submitter (`flow.submit`, batches of 1,000
one-time jobs due now). Each job is a POST of `null` to a lean receiver in another process on the same machine, which
answers 200 at once; connections are kept, and at most 4,000 jobs are open at a time. Durable (`fsync` and
`synchronous_commit` on), history kept, PostgreSQL on the same machine.

What counts: rows that reached history as SUCCEEDED between two instants of the database's clock, without the first
seconds. At the end every submitted job must have exactly one, and the receiver exactly one call for each.

`ratio`: ÷ calls per second of plain aiohttp, 2 processes with 200 connections each, to the same kind of receiver,
before and after the load. It stores nothing.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: this file would hide the library's http

import asyncio
import statistics

from fleet import Fleet, fleet
from plain_calls import plain_calls
from question import Result, ask, say
from steady import check, steady

from ondot.model.job import JobSpec
from ondot.model.target import HttpTarget
from receiver import Receiver, receiving

PROCESSES, SLOTS = 2, 200
BACKLOG = 4_000


def http(quick: bool) -> Result:
    with fleet() as started, receiving() as receiver, receiving() as other:
        return asyncio.run(_http(started, receiver, other, quick))


async def _http(started: Fleet, receiver: Receiver, other: Receiver, quick: bool) -> Result:
    plain_s = 2.5 if quick else 10.0
    plain = [await plain_calls(other.url, plain_s, PROCESSES, SLOTS)]
    say(f"plain aiohttp: {plain[0]:,.0f} calls/s")
    started.scheduler()
    worker = started.worker(processes=PROCESSES, slots=SLOTS, ONDOT_ALLOW_PRIVATE_TARGETS="1")
    started.members.append(("receiver", receiver.process))
    spec = JobSpec(name="call", target=HttpTarget(url=f"{receiver.url}/"))
    windows_s = [3.0] * 3 if quick else [60.0] * 5
    load = await steady(started, spec, backlog=BACKLOG, warm_s=2.0 if quick else 5.0, windows_s=windows_s)
    started.members.remove(("receiver", receiver.process))
    started.stop(worker)
    plain.append(await plain_calls(other.url, plain_s, PROCESSES, SLOTS))
    await check(started, load.submitted)
    calls, executions = await asyncio.to_thread(receiver.counts)
    if not calls == executions == load.submitted:
        raise RuntimeError(f"invalid run: {load.submitted} jobs, {calls} calls of {executions} executions")
    return {
        "question": "http",
        "per_s": round(load.per_s),
        "ratio": round(load.per_s / statistics.median(plain), 3),
        "plain_aiohttp_per_s": round(statistics.median(plain)),
        "rates": [round(each) for each in load.rates],
        "wal_bytes_per_job": round(load.wal_bytes),
        "cpu_us_per_job": {kind: round(each, 1) for kind, each in load.cpu_us.items()},
        "jobs": load.submitted,
        "processes": PROCESSES,
        "slots": SLOTS,
    }


if __name__ == "__main__":
    ask(http, full="6 minutes", quick="35 seconds")
