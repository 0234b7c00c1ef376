"""The herd: N cron jobs due in the same second, through ondot, APScheduler 3 and Celery beat, by their jobs' marks.

All three are started together and have accepted their jobs before the first is due. Their instants are apart, so that
each has the machine for itself. The result is how long after its instant the first, the median and the last job
started; or, if that takes too long, how many had started when the time was up. None may start early, none twice.
"""

import math
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import uvloop
from fleet import Fleet
from question import say

from peer import DATABASE, HERD, REDIS, command, marks
from peer.servers import forget_all
from peer.workers import Workers, working

LOOK_EACH_S = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    """`apart_s`: when each is due after the start; `within_s`: how long it is watched after that."""

    jobs: int
    apart_s: Mapping[str, float]
    within_s: Mapping[str, float]


QUICK = Size(
    1_000,
    {"apscheduler": 4.0, "ondot": 6.0, "celery_beat": 8.0},
    {"apscheduler": 2.0, "ondot": 2.0, "celery_beat": 3.5},
)
FULL = Size(
    10_000,
    {"apscheduler": 20.0, "ondot": 65.0, "celery_beat": 75.0},
    {"apscheduler": 40.0, "ondot": 10.0, "celery_beat": 60.0},
)


def read_task() -> tuple[int, int]:
    """In a scheduler's process: the number of jobs, and when they are due (s)."""
    count, _, due_s = os.environ[HERD].partition("@")
    return int(count), int(due_s)


def herds(started: Fleet, redis_url: str, quick: bool) -> dict[str, Any]:
    size = QUICK if quick else FULL
    began_s = time.time()
    due = {name: math.ceil(began_s + apart_s) for name, apart_s in size.apart_s.items()}
    servers = {REDIS: redis_url, DATABASE: started.url, "ONDOT_DATABASE_URL": started.url, "ONDOT_LOG_LEVEL": "warning"}
    os.environ.update(servers)
    uvloop.run(_submit(size.jobs, due["ondot"]))
    in_time = time.time() < due["ondot"] - 1
    result: dict[str, Any] = {"jobs": size.jobs}
    with ExitStack() as stack:
        running: dict[str, Workers] = {}
        for name, due_s in due.items():
            environment = servers | {HERD: f"{size.jobs}@{due_s}"}
            try:
                commands = _commands(name, redis_url)
                running[name] = stack.enter_context(
                    working(commands, started.directory / f"herd-{name}", environment, 0.5)
                )
            except Exception as error:  # noqa: BLE001 - not installed, or whatever else it raises
                result[name] = {"error": str(error).splitlines()[0]}
        for name, workers in running.items():
            result[name] = _watched(workers, size.jobs, due[name], size.within_s[name])
            workers.end()
            if name == "ondot" and not in_time:
                result[name] = {
                    "error": "not all jobs were accepted a second before they were due: the machine is busy"
                }
            say(f"herd of {size.jobs:,}: {name} {result[name]}")
    return result


def _commands(name: str, redis_url: str) -> list[list[str]]:
    match name:
        case "ondot":
            commands: list[list[str]] = import_module("peer.ondot").workers()
            return commands
        case "apscheduler":
            import_module("apscheduler")
            return [command("peer.apscheduler")]
        case _:
            forget_all(redis_url)
            kept = ["--scheduler", "celery.beat:Scheduler", "--pidfile", "", "--loglevel", "ERROR"]
            workers: list[list[str]] = import_module("peer.celery").workers()
            return [*workers, command("celery", "-A", "peer.beat", "beat", *kept)]


async def _submit(jobs: int, due_s: int) -> None:
    from ondot.model.schedule import Cron, Schedule
    from peer.ondot import submit_all

    due_at = datetime.fromtimestamp(due_s, UTC)
    schedule = Schedule(when=Cron(expression=f"{due_at.second} {due_at.minute} {due_at.hour} * * *"))
    await submit_all(range(jobs), schedule)


def _watched(workers: Workers, jobs: int, due_s: int, within_s: float) -> dict[str, Any]:
    while marks.count(workers.marks) < jobs and time.time() < due_s + within_s:
        time.sleep(LOOK_EACH_S)
    begun = list(marks.read(workers.marks))
    late_s = sorted(instant_ns / 1e9 - due_s for _, instant_ns in begun)
    if not late_s:
        return {"error": f"none of {jobs:,} started within {within_s:g} s. {workers.trouble()}".strip()}
    if late_s[0] < 0:
        return {"error": f"started {-late_s[0]:.3f} s early"}
    if len({number for number, _ in begun}) != len(begun):
        return {"error": f"{len(begun) - len({number for number, _ in begun})} ran twice"}
    figures: dict[str, Any] = {"first_s": round(late_s[0], 3), "median_s": round(late_s[len(late_s) // 2], 3)}
    if len(begun) < jobs:
        return figures | {"began": len(begun), "error": f"{len(begun):,} of {jobs:,} started within {within_s:g} s"}
    return figures | {"last_s": round(late_s[-1], 3)}
