"""The same fan through ondot, by hand on ondot's plain jobs, through a Celery chord and through Airflow."""

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from uuid import uuid4

import asyncpg
import psutil
from client import Client, client
from fleet import Fleet
from msgspec import Raw
from peer import REDIS
from peer.airflow import Airflow
from peer.servers import new_database, redis
from question import Result, say

from ondot.model.job import JobSpec
from ondot.model.target import FunctionTarget
from ondot.model.workflow.spec import StepSpec, WorkflowTarget

NOTHING = FunctionTarget(name="nothing")
WITHIN_S = 600.0


def fan(count: int) -> WorkflowTarget:
    """One, `count` beside each other, one."""
    middle = [f"s{no}" for no in range(count)]
    steps = {"first": StepSpec(target=NOTHING)}
    steps |= {name: StepSpec(target=NOTHING, depends_on=("first",)) for name in middle}
    return WorkflowTarget(steps=steps | {"last": StepSpec(target=NOTHING, depends_on=tuple(middle))})


async def peers(started: Fleet, quick: bool) -> Result:
    count, tasks, rounds = (200, 30, 1) if quick else (1_000, 100, 3)
    connection = await started.connect()
    found: Result = {}
    times: dict[str, list[float]] = {}
    await connection.execute("CREATE TABLE IF NOT EXISTS by_hand (run text PRIMARY KEY, left_over integer NOT NULL)")
    async with client(started.url) as from_here:
        started.scheduler()
        worker = started.worker(processes=2)
        await _run_ondot(from_here, connection, 10)
        await _run_by_hand(from_here, connection, 10)
        for _ in range(rounds):
            times.setdefault("ondot", []).append(await _run_ondot(from_here, connection, count))
            times.setdefault("by_hand", []).append(await _run_by_hand(from_here, connection, count))
        times["ondot_as_airflow"] = [await _run_ondot(from_here, connection, tasks) for _ in range(rounds)]
        started.stop(worker)
    others = {"celery": partial(_run_celery, started, count, rounds), "airflow": partial(_run_airflow, started, tasks)}
    for name, run in others.items():
        try:
            times[name] = await run()
        except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result
            found[f"{name}_error"] = str(error).strip().splitlines()[0]
            say(f"{name}: {found[f'{name}_error']}")
    await connection.close()
    seconds = {name: round(median(each), 3) for name, each in times.items()}
    say(f"peers: {seconds}")
    found |= {f"peers_{name}_s": value for name, value in seconds.items()}
    for name, reference in (("by_hand", "ondot"), ("celery", "ondot"), ("airflow", "ondot_as_airflow")):
        if name in seconds:
            found[f"ratio_{name}"] = round(seconds[name] / seconds[reference], 2)
    return found | {"peers_steps": count, "peers_airflow_steps": tasks}


async def _wait(is_done: Callable[[], Awaitable[object]]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not await is_done():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not done within {WITHIN_S:g} s")
        await asyncio.sleep(0.005)


async def _run_ondot(from_here: Client, connection: asyncpg.Connection, count: int) -> float:
    begun_s = time.monotonic()
    jobs = await from_here.submit(JobSpec(name="fan", target=fan(count)), 1)
    ended = "SELECT count(*) FROM ondot.run WHERE job_id = $1 AND state = 'SUCCEEDED'"
    await _wait(lambda: connection.fetchval(ended, jobs[0]))
    return time.monotonic() - begun_s


async def _run_by_hand(from_here: Client, connection: asyncpg.Connection, count: int) -> float:
    run = uuid4().hex
    payload = f'{{"run": "{run}", "count": {count}}}'.encode()
    begun_s = time.monotonic()
    await from_here.submit(JobSpec(name="fan", target=FunctionTarget(name="spread"), payload=Raw(payload)), 1)
    await _wait(lambda: connection.fetchval("SELECT count(*) FROM by_hand WHERE run = $1 AND left_over = -1", run))
    return time.monotonic() - begun_s


async def _run_celery(started: Fleet, count: int, rounds: int) -> list[float]:
    with redis(started.directory / "redis") as (url, _):
        os.environ[REDIS] = url
        peer = import_module("peer.chord")
        environment = {**os.environ, REDIS: url, "PYTHONPATH": str(Path(__file__).parent)}
        quiet = subprocess.DEVNULL
        processes = [
            psutil.Popen(words, env=environment, cwd=started.directory, stdin=quiet, stdout=quiet, stderr=quiet)
            for words in peer.workers()
        ]
        try:
            await asyncio.to_thread(peer.run_fan, 10, WITHIN_S)
            times = []
            for _ in range(rounds):
                begun_s = time.monotonic()
                got = await asyncio.to_thread(peer.run_fan, count, WITHIN_S)
                times.append(time.monotonic() - begun_s)
                if got != count:
                    raise RuntimeError(f"the last task got {got} of {count} results")
            return times
        finally:
            for process in processes:
                with suppress(psutil.Error):
                    process.terminate()
            psutil.wait_procs(processes, timeout=20)


async def _run_airflow(started: Fleet, tasks: int) -> list[float]:
    airflow = Airflow(started.directory / "airflow", await new_database(started.url, "airflow"), tasks)
    try:
        await asyncio.to_thread(airflow.start)
        return [await airflow.run_fan(WITHIN_S)]
    finally:
        await asyncio.to_thread(airflow.stop)
