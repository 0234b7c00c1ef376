"""gRPC calls per second: through whole lives of jobs, through ondot's target alone, and with bare grpcio.

Lives: `ondot scheduler`, `ondot worker` with 2 processes of 200 slots each, and one submitter (`flow.submit`, batches
of 1,000 one-time jobs due now). Each job is a unary call of a lean server (grpc.aio) in another process on the same
machine, with a small request whose types are in the job; at most 4,000 jobs are open at a time. Durable (`fsync` and
`synchronous_commit` on), history kept, PostgreSQL on the same machine.

What counts: rows that reached history as SUCCEEDED between two instants of the database's clock, without the first
seconds. At the end every submitted job must have exactly one, and the server exactly one call for each.

`ratio`: ÷ calls per second of bare grpcio (grpc.aio), 2 processes with 200 calls at once each, before and after the
load. `target_ratio`: ondot's target without the rest of ondot, ÷ the same. Bare grpcio sends bytes: it makes no request
of JSON and no JSON of the reply.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: this file would hide the library grpc

import asyncio
import statistics

from fleet import Fleet, fleet
from grpc_calls import PAYLOAD, Server, calls_per_s, serving, target_of
from msgspec import Raw
from question import Result, ask, say
from steady import check, steady

from ondot.model.job import JobSpec

PROCESSES, SLOTS = 2, 200
BACKLOG = 4_000


def grpc(quick: bool) -> Result:
    with fleet() as started, serving() as server, serving() as other:
        return asyncio.run(_grpc(started, server, other, quick))


async def _grpc(started: Fleet, server: Server, other: Server, quick: bool) -> Result:
    seconds = 2.5 if quick else 10.0
    rates: dict[str, list[float]] = {"plain": [], "target": []}

    async def measure() -> None:
        for kind, found in rates.items():
            found.append(await calls_per_s(kind, other.address, seconds, PROCESSES, SLOTS))
            say(f"{kind}: {found[-1]:,.0f} calls/s")

    await measure()
    started.scheduler()
    worker = started.worker(processes=PROCESSES, slots=SLOTS, ONDOT_ALLOW_PRIVATE_TARGETS="1")
    started.members.append(("server", server.process))
    spec = JobSpec(name="call", target=target_of(server.address), payload=Raw(PAYLOAD))
    windows_s = [3.0] * 3 if quick else [60.0] * 5
    load = await steady(started, spec, backlog=BACKLOG, warm_s=2.0 if quick else 5.0, windows_s=windows_s)
    started.members.remove(("server", server.process))
    started.stop(worker)
    await measure()
    await check(started, load.submitted)
    calls, executions = await asyncio.to_thread(server.counts)
    if not calls == executions == load.submitted:
        raise RuntimeError(f"invalid run: {load.submitted} jobs, {calls} calls of {executions} executions")
    plain, target = (statistics.median(found) for found in rates.values())
    return {
        "question": "grpc",
        "per_s": round(load.per_s),
        "ratio": round(load.per_s / plain, 3),
        "target_ratio": round(target / plain, 3),
        "plain_grpcio_per_s": round(plain),
        "target_per_s": round(target),
        "rates": [round(each) for each in load.rates],
        "wal_bytes_per_job": round(load.wal_bytes),
        "cpu_us_per_job": {kind: round(each, 1) for kind, each in load.cpu_us.items()},
        "jobs": load.submitted,
        "processes": PROCESSES,
        "slots": SLOTS,
    }


if __name__ == "__main__":
    ask(grpc, full="7 minutes", quick="1 minute")
