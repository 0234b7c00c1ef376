"""What jobs at rest cost the jobs that fire: processor time of each execution, and lateness, with few and with many.

There are 10 thousand, 1 million and 10 million recurring jobs (common/seeding.py). 10,000 of them, evenly spread over
all, get a schedule with a fire within the same ten seconds: fifty each 50 ms, so that batches have the same size
whatever else the machine does. The scheduler plans them, which moves a row anywhere in `timer`, and one worker process
runs them, a function that does nothing. `fsync` and `synchronous_commit` are on, history is kept; the server has
ondot's own settings.

Cache and checkpoints: windows *after_checkpoint* start right after a CHECKPOINT, so that every page changed in them
goes whole into the WAL, compressed. In windows *between* checkpoints the pages did so before: checkpoints are 15
minutes apart, and at such rates a page changes more than once from one to the next. Before each window other rows are
read until shared buffers (256 MB) hold few of those that will fire; the system's own cache is left as it is. The result
shows reads, writes and checkpoints within the windows (*blocks_read*, *wal_bytes*, *checkpoints*).

*cpu_us*: of PostgreSQL, scheduler and worker together for each execution, idle loops included, median of the windows.
*ratio*: *cpu_us* with most jobs at rest ÷ with fewest, between checkpoints; *ratio_after_checkpoint*: after one (not
with --quick). *window_ms*: to load the timers of the coming minute, with the planner's own statement over all
partitions from the start, first time and median of nine more. Each fire must have run once, at its first attempt, and
not before its instant.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import statistics
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg
import psutil
from fires import Fires, read_fires, spread_ms, until_ended
from fleet import Fleet, fleet, wal_bytes
from question import Result, ask, say
from seeding import Rest

from ondot.model.ids import EPOCH, PARTITIONS
from ondot.model.schedule import Interval, Schedule
from ondot.settings import load_settings
from ondot.store.database import connect
from ondot.store.timers import find_due_timers

SHARED_BLOCKS = 32_768
"""256 MB."""
LEAD = timedelta(seconds=2)
"""From the commit of the new schedules to the first fire."""
GRID = timedelta(milliseconds=50)
MINUTE_S = 60.0
TIMERS = 1_000


@dataclass(frozen=True, slots=True)
class Size:
    levels: tuple[int, ...]
    fires: int
    over: timedelta
    windows: int
    kinds: tuple[str, ...] = ("between", "after_checkpoint")


FULL = Size((10_000, 1_000_000, 10_000_000), fires=10_000, over=timedelta(seconds=10), windows=2)
QUICK = Size((10_000, 200_000), fires=3_000, over=timedelta(seconds=3), windows=1, kinds=("between",))


@dataclass(frozen=True, slots=True)
class Window:
    cpu_us: dict[str, float]
    fires: Fires
    blocks_read: int
    wal_bytes: int
    checkpoints: int

    @property
    def total_us(self) -> float:
        return sum(self.cpu_us.values())


def rest(quick: bool) -> Result:
    size = QUICK if quick else FULL
    with fleet() as ondot:
        return asyncio.run(_rest(ondot, size))


async def _rest(ondot: Fleet, size: Size) -> Result:
    connection, beside = await ondot.connect(), await ondot.connect()
    levels: dict[str, dict[str, object]] = {}
    costs: dict[str, list[float]] = {kind: [] for kind in size.kinds}
    try:
        at_rest = Rest(connection, await connection.fetchval("SELECT ondot.clock()"), size.levels[-1])
        for jobs in size.levels:
            seeded_s = await at_rest.grow(ondot.url, jobs)
            say(f"{jobs:,} jobs at rest after {seeded_s:.1f} s")
            roles = [ondot.scheduler(), ondot.worker()]
            await _until_up(connection)
            level = levels[f"{jobs:,} at rest"] = {}
            windows: dict[str, list[Window]] = {kind: [] for kind in size.kinds}
            for kind in size.kinds * size.windows:
                windows[kind].append(await _window(ondot, connection, beside, at_rest, size, kind))
            for kind in size.kinds:
                costs[kind].append(statistics.median(window.total_us for window in windows[kind]))
                level[kind] = _result(windows[kind], costs[kind][-1])
            level["scheduler_mib"] = ondot.memory_bytes("scheduler") // 2**20
            ondot.stop(*roles)
            level["window_ms"] = await _window_ms(ondot, at_rest)
            level["seeded_s"] = round(seeded_s, 1)
    finally:
        await beside.close()
        await connection.close()
    return {
        "question": "rest",
        **{
            "ratio" if kind == "between" else f"ratio_{kind}": round(each[-1] / each[0], 3)
            for kind, each in costs.items()
        },
        "fires": size.fires,
        "windows": size.windows,
        **levels,
    }


async def _until_up(connection: asyncpg.Connection) -> None:
    """Wait until the scheduler owns all partitions and the worker has registered."""
    deadline_s = time.monotonic() + 60
    while not await connection.fetchval(
        "SELECT (SELECT count(*) = $1 FROM ondot.partition p JOIN ondot.node n ON n.id = p.owner)"
        " AND EXISTS (SELECT FROM ondot.worker WHERE state = 'ALIVE')",
        PARTITIONS,
    ):
        if time.monotonic() > deadline_s:
            raise RuntimeError("the roles did not start within a minute")
        await asyncio.sleep(0.1)


async def _window(
    ondot: Fleet, connection: asyncpg.Connection, beside: asyncpg.Connection, at_rest: Rest, size: Size, kind: str
) -> Window:
    """Measure one window of fires. The roles see its changes only after the commit."""
    ours = [psutil.Process(each.get_server_pid()) for each in (connection, beside)] if ondot.postmaster else []

    def spent_s() -> dict[str, float]:
        return ondot.cpu_s() | {"benchmark": sum(sum(each.cpu_times()[:2]) for each in ours)}

    async with connection.transaction():
        now = await connection.fetchval("SELECT ondot.clock()")
        first_at = now + timedelta(seconds=1.5 + size.fires / 1500 + at_rest.jobs / 1_000_000) + LEAD
        fire_ats = [first_at + n * size.over / size.fires // GRID * GRID for n in range(size.fires)]
        await at_rest.wake([_each_month(fire_at) for fire_at in fire_ats], fire_ats, "fires")
        if kind == "after_checkpoint":
            await beside.execute("CHECKPOINT", timeout=600)
        await at_rest.forget(beside, SHARED_BLOCKS)
        before, before_s = await _counts(beside), spent_s()
        left_s = (first_at - await beside.fetchval("SELECT ondot.clock()")).total_seconds()
        if left_s < LEAD.total_seconds() / 2:
            raise RuntimeError("preparing a window took too long: the machine is too busy")
    await asyncio.sleep(left_s + size.over.total_seconds())
    await until_ended(connection, first_at + size.over, within_s=60)
    after_s, after = spent_s(), await _counts(beside)
    cpu_us = {kind: (spent - before_s[kind]) / size.fires * 1e6 for kind, spent in after_s.items()}
    if "postgres" in cpu_us:
        cpu_us["postgres"] -= cpu_us["benchmark"]
    fires = await read_fires(connection, first_at, first_at + size.over, size.fires)
    del cpu_us["benchmark"]
    return Window(cpu_us, fires, *(new - old for new, old in zip(after, before, strict=True)))


def _each_month(fire_at: datetime) -> Schedule:
    return Schedule(when=Interval(every_s=30 * 86_400, anchor_at=fire_at))


async def _counts(connection: asyncpg.Connection) -> tuple[int, int, int]:
    """Blocks read into shared buffers, bytes of WAL, checkpoints: totals."""
    has_checkpointer = await connection.fetchval("SELECT to_regclass('pg_stat_checkpointer') IS NOT NULL")
    checkpoints = (
        "SELECT num_timed + num_requested FROM pg_stat_checkpointer"
        if has_checkpointer
        else "SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter"
    )
    read = "SELECT blks_read FROM pg_stat_database WHERE datname = current_database()"
    return (
        int(await connection.fetchval(read)),
        await wal_bytes(connection),
        int(await connection.fetchval(checkpoints)),
    )


async def _window_ms(ondot: Fleet, at_rest: Rest) -> dict[str, float]:
    """With a thousand timers in the coming minute, in a transaction that is rolled back."""
    connection = await connect(load_settings(database_url=ondot.url))
    took_ms: list[float] = []
    try:
        transaction = connection.transaction()
        await transaction.start()
        now = await connection.fetchval("SELECT ondot.clock()")
        fire_ats = [now + n * timedelta(seconds=MINUTE_S) / TIMERS for n in range(TIMERS)]
        await at_rest.wake([_each_month(fire_at) for fire_at in fire_ats], fire_ats, "window", connection)
        await at_rest.forget(connection, SHARED_BLOCKS)
        for _ in range(10):
            began_s = time.perf_counter()
            timers, _now = await find_due_timers(
                connection, range(PARTITIONS), [EPOCH] * PARTITIONS, horizon_s=MINUTE_S, limit=TIMERS
            )
            took_ms.append((time.perf_counter() - began_s) * 1000)
            if len(timers) != TIMERS:
                raise RuntimeError(f"{len(timers)} timers of {TIMERS} in the coming minute")
        await transaction.rollback()
    finally:
        await connection.close()
    return {"first": round(took_ms[0], 2), "then": round(statistics.median(took_ms[1:]), 2)}


def _result(windows: list[Window], cost_us: float) -> dict[str, object]:
    typical = min(windows, key=lambda window: abs(window.total_us - cost_us))
    fires = sorted(late_s for window in windows for late_s in window.fires.started_s)
    return {
        "cpu_us": round(cost_us, 1),
        "of": {kind: round(spent_us, 1) for kind, spent_us in typical.cpu_us.items()},
        "late_ms": spread_ms(fires),
        "wal_bytes": round(typical.wal_bytes / len(typical.fires.started_s)),
        "blocks_read": round(typical.blocks_read / len(typical.fires.started_s), 2),
        "checkpoints": sum(window.checkpoints for window in windows),
    }


if __name__ == "__main__":
    ask(rest, full="10 thousand, 1 and 10 million at rest, four windows each", quick="10 and 200 thousand, one each")
