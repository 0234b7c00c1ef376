"""How fast runs of workflows advance, and what a step costs.

Roles as processes on the machine that also runs PostgreSQL (`fsync` and `synchronous_commit` on): `ondot scheduler` and
`ondot worker` with two processes. Steps are functions that return at once; runs are submitted by the code that the API
runs. Each run must end SUCCEEDED with each step run exactly once.

- `step`: a chain of 100. *step_ms*: from one function's call to the next one's, by the machine's clock: the end is
  gathered and committed, the run advanced, the next step leased and called. Its parts, by the instants of the
  statements: *ended_ms*, *released_ms*, *leased_ms*, *called_ms*.
- `shapes`: `chain` (each step after the one before), `diamond` (one, two beside each other, one, and again) and `fan`
  (one, all beside each other, one) with 1,000 and 10,000 steps (200 and 1,000 with --quick). *s*: from the run's start
  to its end; *per_s*: steps; *postgres_us*, *worker_us*: processor time for each step.
- `fan_in`: the 10,000 steps beside each other (2,000 with --quick) have begun, and their ends are written with 1, 10
  and 500 in a transaction by one connection; the run is advanced after each, as a worker does it. *per_s*: ends;
  *release_ms*: from the last commit to the commit that releases the join.
- `many`: 1,000 runs of ten steps in a chain at once (200 with --quick). *per_s*: steps; *run_s*: p50 and p99 of a run.
- `peers`: a fan of 1,000 (200 with --quick) in one run of this benchmark: ondot; the same by hand on ondot's plain jobs
  (the first enqueues all, each counts down a row of its own table in its transaction, the one that reaches zero
  enqueues the last); a Celery chord on Redis without append-only file, two processes; Airflow with its LocalExecutor on
  the same PostgreSQL and operators that do nothing, 100 of them (30 with --quick). *s*: from the request to the end of
  the last step. `ratio`: the peer's time ÷ ondot's for as many steps. A peer that is not installed is listed with its
  error: Airflow is used if the variable AIRFLOW_PYTHON names an interpreter that has it.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import asyncpg
import msgspec
from client import Client, client
from fires import spread_ms
from fleet import Fleet, fleet
from question import Result, ask, quantile, say
from run_ends import fan_in
from workflow_peers import peers

from ondot.model.job import JobSpec
from ondot.model.target import FunctionTarget
from ondot.model.workflow.spec import StepSpec, WorkflowTarget

NOTHING = FunctionTarget(name="nothing")
NOW = FunctionTarget(name="now")
ENDS_WITHIN_S = 900.0

ENDED = "SELECT count(*) FROM ondot.run WHERE job_id = ANY ($1) AND ended_at IS NOT NULL"
RUNS = """
SELECT id, state, extract(epoch FROM ended_at - started_at)::float8 AS seconds, succeeded
FROM ondot.run WHERE job_id = ANY ($1)
"""
CALLS = """
SELECT result::text::float8 AS called_s, extract(epoch FROM ended_at)::float8 AS ended_s,
       extract(epoch FROM ready_at)::float8 AS released_s, extract(epoch FROM started_at)::float8 AS leased_s
FROM ondot.history WHERE job_id = $1 ORDER BY step_no
"""
RAN = "SELECT count(*), count(DISTINCT step_no) FROM ondot.history WHERE job_id = $1 AND state = 'SUCCEEDED'"


def chain(count: int, target: FunctionTarget = NOTHING) -> dict[str, StepSpec]:
    return {f"s{no}": StepSpec(target=target, depends_on=(f"s{no - 1}",) if no else ()) for no in range(count)}


def diamond(count: int) -> dict[str, StepSpec]:
    """Diamonds one after the other, of three steps each and one at the begin."""
    steps = {"s0": StepSpec(target=NOTHING)}
    last = "s0"
    for no in range(1, count - 2, 3):
        sides = (f"s{no}", f"s{no + 1}")
        steps |= {side: StepSpec(target=NOTHING, depends_on=(last,)) for side in sides}
        last = f"s{no + 2}"
        steps[last] = StepSpec(target=NOTHING, depends_on=sides)
    return steps


def fan(count: int) -> dict[str, StepSpec]:
    middle = [f"s{no}" for no in range(1, count - 1)]
    steps = {"first": StepSpec(target=NOTHING)}
    steps |= {name: StepSpec(target=NOTHING, depends_on=("first",)) for name in middle}
    return steps | {"last": StepSpec(target=NOTHING, depends_on=tuple(middle))}


def workflow(name: str, steps: dict[str, StepSpec]) -> JobSpec:
    return JobSpec(name=name, target=WorkflowTarget(steps=steps))


async def run_all(
    from_here: Client, connection: asyncpg.Connection, spec: JobSpec, count: int = 1
) -> list[asyncpg.Record]:
    """Run it that often at once, wait until all have ended, and check that each step ran exactly once."""
    assert isinstance(spec.target, WorkflowTarget)
    jobs = await from_here.submit(spec, count)
    deadline_s = time.monotonic() + ENDS_WITHIN_S
    while await connection.fetchval(ENDED, jobs) < count:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{spec.name}: not every run has ended within {ENDS_WITHIN_S:g} s")
        await asyncio.sleep(0.02)
    rows = await connection.fetch(RUNS, jobs)
    steps = len(spec.target.steps)
    for row in rows:
        [ran] = await connection.fetch(RAN, row["id"])
        if row["state"] != "SUCCEEDED" or tuple(ran) != (steps, steps):
            raise RuntimeError(f"{spec.name}: {row['state']}, ran {tuple(ran)} of {steps} steps")
    return rows


async def _started(started: Fleet, connection: asyncpg.Connection, from_here: Client) -> None:
    """Start the roles, and run a chain, so that they have started."""
    started.scheduler()
    started.worker(processes=2)
    await run_all(from_here, connection, workflow("warm", chain(10)))


# The parts -----------------------------------------------------------------------------------------------------------


async def _step(started: Fleet, quick: bool) -> Result:
    connection = await started.connect()
    async with client(started.url) as from_here:
        await _started(started, connection, from_here)
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(3 if quick else 10):
            [run] = await run_all(from_here, connection, workflow("chain", chain(100, NOW)))
            for one, other in pairwise(await connection.fetch(CALLS, run["id"])):
                found["step"].append(other["called_s"] - one["called_s"])
                found["ended"].append(one["ended_s"] - one["called_s"])
                found["released"].append(other["released_s"] - one["ended_s"])
                found["leased"].append(other["leased_s"] - other["released_s"])
                found["called"].append(other["called_s"] - other["leased_s"])
    await connection.close()
    spreads = {f"{name}_ms": spread_ms(sorted(gaps)) for name, gaps in found.items()}
    say(f"step: {spreads}")
    return spreads


async def _shapes(started: Fleet, quick: bool) -> Result:
    connection = await started.connect()
    found: Result = {}
    async with client(started.url) as from_here:
        await _started(started, connection, from_here)
        for count in (200, 1_000) if quick else (1_000, 10_000):
            for name, make in (("chain", chain), ("diamond", diamond), ("fan", fan)):
                steps = make(count)
                before = started.cpu_s()
                [run] = await run_all(from_here, connection, workflow(name, steps))
                after = started.cpu_s()
                used = {kind: (after[kind] - before[kind]) * 1e6 / len(steps) for kind in ("postgres", "worker")}
                found[f"{name}_{count}"] = {
                    "s": round(run["seconds"], 3),
                    "per_s": round(len(steps) / run["seconds"], 1),
                    "postgres_us": round(used["postgres"]),
                    "worker_us": round(used["worker"]),
                }
                say(f"{name} of {count:,}: {found[f'{name}_{count}']}")
    await connection.close()
    return found


async def _many(started: Fleet, quick: bool) -> Result:
    connection = await started.connect()
    count = 200 if quick else 1_000
    async with client(started.url) as from_here:
        await _started(started, connection, from_here)
        begun_s = time.monotonic()
        rows = await run_all(from_here, connection, workflow("many", chain(10)), count)
        took_s = time.monotonic() - begun_s
    await connection.close()
    seconds = sorted(row["seconds"] for row in rows)
    found = {"p50": round(quantile(seconds, 0.5), 3), "p99": round(quantile(seconds, 0.99), 3)}
    say(f"many: {count} runs in {took_s:.1f} s, {found}")
    return {"many_runs": count, "many_per_s": round(count * 10 / took_s, 1), "many_run_s": found}


PARTS: dict[str, Any] = {"step": _step, "shapes": _shapes, "fan_in": fan_in, "many": _many, "peers": peers}


def workflows(quick: bool, parts: list[str]) -> Result:
    found: Result = {"question": "how fast do runs of workflows advance, and what does a step cost?"}
    for part in parts:
        with fleet(checkpoint_timeout="1d", max_wal_size="32GB") as started:
            found |= asyncio.run(PARTS[part](started, quick))
    if "step_ms" in found:
        found["per_s"] = round(1000 / found["step_ms"]["p50"], 1)
    return found


if __name__ == "__main__":
    msgspec.json.encode(workflow("", fan(4)))
    ask(workflows, full="1,000 and 10,000 steps", quick="200 and 1,000 steps", parts=list(PARTS))
