"""How many workers a pool should have (C8): for what runs, what waits, and what becomes due in the next minutes.

The smallest number of slots with which nothing of that waits longer than `WAIT_S`, and never less than what runs: a
scaler that takes away a busy worker costs a retry. 0 only if nothing runs, waits or comes.
"""

from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Final

from ondot.flow.forecast.compute import Coming, read_coming
from ondot.model.forecast import Load, predict_waits
from ondot.model.herd import Grid
from ondot.model.ids import TenantNo
from ondot.store.database import Database
from ondot.store.pools import PoolRow

AHEAD_S: Final = 300
"""How far to look: starting a worker takes a minute or two in most clusters."""
WAIT_S: Final = 10.0
STEP_S: Final = 1


@dataclass(frozen=True, slots=True)
class Scale:
    workers: int
    workers_now: int
    slots_a_worker: int
    slots: int
    waiting: int
    oldest_wait_s: float
    coming: float
    why: str


async def scale(database: Database, tenant_no: TenantNo, pool: str) -> Scale | None:
    """None: there is no such pool."""
    begin_at = database.clock.now().replace(microsecond=0) + timedelta(seconds=1)
    coming = await read_coming(database, tenant_no, Grid(begin_at, STEP_S, AHEAD_S // STEP_S), pool)
    row = coming.rows.get(pool)
    return None if row is None else _decide(row, coming, database.settings.slots)


def _decide(row: PoolRow, coming: Coming, usual_slots: int) -> Scale:
    load = coming.loads.get(row.name) or Load(coming.grid.steps)
    fires = sum(load.fires)
    waiting = row.waiting + coming.others_waiting.get(row.name, 0)
    slots_a_worker = max(1, row.slots // row.workers if row.workers else usual_slots)
    needed = _slots_for(load, waiting, row.running)
    slots = max(needed, row.running)
    limit = "" if row.concurrency is None or slots <= row.concurrency else f", cut to its limit of {row.concurrency}"
    if row.concurrency is not None:
        slots = min(slots, row.concurrency)
    workers = ceil(slots / slots_a_worker)
    parts = [f"{row.running} running", f"{waiting} waiting", f"{fires:.0f} due in the next {AHEAD_S // 60} minutes"]
    why = f"{', '.join(parts)}: {slots} slots{limit}, {slots_a_worker} a worker"
    return Scale(
        workers, row.workers, slots_a_worker, slots, waiting, row.oldest_waiting_s or 0.0, round(fires, 3), why
    )


def _slots_for(load: Load, waiting: int, running: int) -> int:
    """The smallest number of slots with which the longest wait is bearable, by halving."""
    if not waiting and not any(load.fires):
        return 0
    low, high = 1, max(1, ceil(waiting + sum(load.fires)))
    while low < high:
        slots = (low + high) // 2
        waits = predict_waits(load.fires, load.work_s, slots, STEP_S, due=waiting)
        low, high = (low, slots) if max(waits) <= WAIT_S else (slots + 1, high)
    return low + (running if waiting else 0)
