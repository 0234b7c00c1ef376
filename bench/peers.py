"""No-op jobs through the tools that people would use instead, each in its recommended fast form, beside ondot.

For ondot and each peer (PgQueuer, Procrastinate, Huey, SAQ, Dramatiq, Taskiq, arq, Celery, RQ), with two worker
processes and one producer, in the same way (`common/peer/measure.py`):
- *lifecycle_per_s*: N jobs enqueued while the workers run; N ÷ (from the first enqueue to the last done);
- *enqueue_per_s*, *drain_per_s*: N jobs enqueued while the workers are halted, in batches of 1,000 where the peer has a
  batch form; then worked off;
- *start_p50_ms*, *start_p99_ms*: one job each 20 ms on idle workers, from just before it is enqueued to its first line;
- *cpu_us*: processor time of a lifecycle: workers, server and producer; *ratio*: ondot's lifecycles ÷ the peer's.

The job is the same everywhere: it appends its number and the instant to a file, from which everything is counted. Each
must have run exactly once. ondot, PgQueuer and Procrastinate use one PostgreSQL (`fsync` and `synchronous_commit` on),
each with its own database, and their jobs are done when their end is committed. The others use a Redis without
append-only file and snapshots (no job survives its crash), and their jobs are done when they ran. N is scaled to the
speed of each peer. Rounds take turns, figures are medians of them. `per_s` is ondot's; `ratio` compares with PgQueuer,
`ratio_redis` with the fastest on Redis. A peer that is not installed or fails is listed with its error. A quick run
measures ondot, PgQueuer and the others for which there is time: in turn, starting with another one each minute. The
rest are listed as left out.

*herd*: N cron jobs due in the same second, through ondot, APScheduler 3 (memory job store, thread pool) and Celery beat
(in memory, with a worker of two processes on Redis): how long after the instant the last one started.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import os
import statistics
import time
from collections import defaultdict
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

import uvloop
from fleet import Fleet, fleet
from peer import DATABASE, REDIS, Peer
from peer.herd import herds
from peer.measure import FULL, QUICK, Figures, Look, Measured
from peer.servers import forget_all, new_database, redis
from peer.workers import working
from question import Result, ask, say

PEERS = ("pgqueuer", "huey", "saq", "dramatiq", "taskiq", "celery", "arq", "procrastinate", "rq")
POSTGRES = ("pgqueuer", "procrastinate")
REFERENCE = ("ondot", "pgqueuer")
ROUNDS = 3
QUICK_S, HERD_S = 20.0, 24.5
"""After this time a quick run starts no further peer and no herd; a started one ends within 45 s."""
NO_TIME = "no time left in a quick run"


class Contest:
    """ondot and all peers, on one PostgreSQL and one Redis."""

    def __init__(self, started: Fleet, redis_url: str, redis_process: Any, quick: bool) -> None:
        self._started, self._redis_url, self._redis, self._quick = started, redis_url, redis_process, quick
        self._databases: dict[str, str] = {"ondot": started.url}
        self.forms: dict[str, str] = {}
        self.figures: dict[str, list[Figures]] = defaultdict(list)
        self.errors: dict[str, str] = {}

    def ask(self, name: str, turn: int) -> None:
        """Measure one turn of one of them; a failure is kept as its error."""
        directory = self._started.directory / f"{name}-{turn}"
        try:
            figures = uvloop.run(self._measure(name, directory))
        except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result
            message = str(error).strip() or type(error).__name__
            self.errors[name] = message.splitlines()[0]
            say(f"{name}: {self.errors[name]}")
        else:
            self.figures[name].append(figures)
            say(f"{name}: {', '.join(f'{each} {value:,.1f}' for each, value in figures.items())}")

    async def _measure(self, name: str, directory: Path) -> Figures:
        environment = {REDIS: self._redis_url, "ONDOT_DATABASE_URL": self._started.url, "ONDOT_LOG_LEVEL": "warning"}
        new = name not in self._databases
        if new:
            self._databases[name] = await new_database(self._started.url, f"peer_{name}")
        environment[DATABASE] = self._databases[name]
        os.environ.update(environment)
        peer = cast("Peer", import_module(f"peer.{name}"))
        self.forms[name] = peer.FORM
        if peer.SERVER == "redis":
            forget_all(self._redis_url)
        if new:
            await peer.prepare()
        server = self._redis if peer.SERVER == "redis" else self._started.postmaster
        with working(peer.workers(), directory, environment, peer.ENDS_WITHIN_S) as workers:
            return await Measured(peer, workers, server, self._look(name)).all()

    def _look(self, name: str) -> Look:
        if not self._quick:
            return FULL
        # The two peers of the main ratio keep thousands of jobs in flight: that takes a while to fill.
        return replace(QUICK, work_s=0.8, whole_s=18.0) if name in REFERENCE else QUICK

    def result(self, name: str) -> dict[str, Any]:
        if not self.figures[name]:
            return {"error": self.errors[name]}
        turns = self.figures[name]
        shown: dict[str, Any] = {key: round_figure(statistics.median(turn[key] for turn in turns)) for key in turns[0]}
        if name != "ondot" and self.figures["ondot"]:
            shown["ratio"] = round(self._rate("ondot") / self._rate(name), 2)
        if name in self.errors:
            shown["error"] = self.errors[name]
        return shown | {"form": self.forms[name]}

    def _rate(self, name: str) -> float:
        return statistics.median(turn["lifecycle_per_s"] for turn in self.figures[name])


def round_figure(value: float) -> float:
    return round(value) if value >= 100 else round(value, 2)


def peers(quick: bool) -> Result:
    began_s = time.monotonic()
    first = int(time.time() / 60) % len(PEERS) if quick else 0
    others = [name for name in (*PEERS[first:], *PEERS[:first]) if name not in REFERENCE]
    with fleet() as started, redis(started.directory / "redis") as (redis_url, redis_process):
        contest = Contest(started, redis_url, redis_process, quick)
        for turn in range(1 if quick else ROUNDS):
            for name in (*REFERENCE, *others):
                if quick and name not in REFERENCE and time.monotonic() - began_s > QUICK_S:
                    contest.errors[name] = NO_TIME
                else:
                    contest.ask(name, turn)
        if not contest.figures["ondot"]:
            raise RuntimeError(f"ondot itself: {contest.errors['ondot']}")
        late = quick and time.monotonic() - began_s > HERD_S
        herd = {"error": NO_TIME} if late else herds(started, redis_url, quick)
    ours = contest.result("ondot")
    found = {name: contest.result(name) for name in PEERS}
    on_redis = [found[name]["ratio"] for name in PEERS if "ratio" in found[name] and name not in POSTGRES]
    return {
        "question": "peers",
        "per_s": ours["lifecycle_per_s"],
        "ratio": found["pgqueuer"].get("ratio"),
        "ratio_redis": min(on_redis, default=None),
        "ondot": ours,
        "peers": found,
        "herd": herd,
    }


if __name__ == "__main__":
    ask(peers, full="about ten minutes", quick="under 45 seconds")
