"""Computes a forecast from the jobs of a tenant, and of all tenants in the pools that it shares with them (S13).

The jobs are read in pages, and decoded and added up in a thread: 100,000 of them take about a second, in which the loop
that answers requests goes on. Of other tenants only numbers leave this module: what recurs, what waits and what ran. A
pool whose workers serve only some tenants is not shared.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from ondot.model.errors import InvalidParameters
from ondot.model.forecast import Bucket, Load, add_up, gather, predict_waits
from ondot.model.herd import Grid, Herds, measured_jobs
from ondot.model.ids import JobId, PoolNo, TenantNo
from ondot.model.schedule import Interval, OnEvent, Schedule, start_delay
from ondot.store.database import Database
from ondot.store.forecast import (
    Ran,
    Recurring,
    count_actual,
    count_queued,
    find_names,
    find_shared_pools,
    list_recurring,
    measure_durations,
)
from ondot.store.pools import WAITING_COUNTED, PoolRow, find_pools, list_pools

FINE_S: Final = 6 * 3600
"""Up to this long a forecast has steps of a second, beyond it of a minute."""
MOST_STEPS: Final = 35 * 1440
UNKNOWN_S: Final = 1.0
"""How long a job is taken to last if nothing in its pool was measured."""

_DECODER: Final = msgspec.json.Decoder(Schedule)


@dataclass(frozen=True, slots=True)
class PoolForecast:
    """`slots`: of live workers, as far as the pool's own limit lets them be used. `actual`: what ran, up to now."""

    name: str
    slots: int
    is_complete: bool
    buckets: list[Bucket]
    actual: list[tuple[datetime, Ran]]


@dataclass(frozen=True, slots=True)
class Forecast:
    begin_at: datetime
    end_at: datetime
    is_known: bool
    """Whether there is a pool of the name that was asked for."""
    pools: list[PoolForecast]
    names: Mapping[JobId, str]
    measured: int
    assumed: int
    actual_is_complete: bool


@dataclass(frozen=True, slots=True)
class Coming:
    """What becomes due, by pool, and the pools."""

    grid: Grid
    loads: dict[str, Load]
    rows: dict[str, PoolRow]
    measured: int
    assumed: int
    others_waiting: Mapping[str, int] = field(default_factory=dict)
    """Due executions of other tenants, by pool."""
    shared: frozenset[PoolNo] = frozenset()
    """Pools in which other tenants count."""


def step_of(range_s: float, bucket_s: float) -> int:
    """How many seconds a step has. Whole buckets are computed, so a long one needs long steps too."""
    return 1 if range_s <= FINE_S and bucket_s <= FINE_S else 60


async def forecast(
    database: Database,
    tenant_no: TenantNo,
    begin_at: datetime,
    end_at: datetime,
    bucket_s: int,
    pool: str | None,
    *,
    most_buckets: int | None = None,
) -> Forecast:
    """Buckets from `begin_at` to `end_at`, for one pool or for all: up to now what ran, then what will. `most_buckets`:
    of all pools together; more are refused."""
    now = database.clock.now()
    step_s = step_of((end_at - begin_at).total_seconds(), bucket_s)
    begin_at, end_at = _align(begin_at, bucket_s), _align(end_at + timedelta(seconds=bucket_s - 1), bucket_s)
    ahead_at = _align(max(now, begin_at), bucket_s)
    steps = max(0, int((end_at - ahead_at).total_seconds())) // step_s
    coming = await read_coming(database, tenant_no, Grid(ahead_at, step_s, steps, bucket_s // step_s), pool)
    actual: dict[str, list[tuple[datetime, Ran]]] = {}
    is_complete = True
    if begin_at < now:
        actual, is_complete = await _read_actual(database, tenant_no, begin_at, min(now, end_at), bucket_s, coming)
    shown = [name for name in coming.rows if name in coming.loads or name in actual]
    if most_buckets is not None and len(shown) > 1 and len(shown) * steps * step_s / bucket_s > most_buckets:
        message = (
            f"That is more than {most_buckets:,} buckets in {len(shown)} pools; ask for longer ones, or for one pool."
        )
        raise InvalidParameters(message)
    pools = [
        _show(
            row,
            coming.loads.get(name) or Load(steps),
            coming.grid,
            actual.get(name, []),
            coming.others_waiting.get(name, 0),
        )
        for name, row in ((name, coming.rows[name]) for name in shown)
    ]
    pools.sort(key=lambda each: -sum(bucket.work_s for bucket in each.buckets))
    top = {job_id for each in pools for bucket in each.buckets for job_id, _ in bucket.top}
    async with database.connection() as connection:
        names = await find_names(connection, tenant_no, top)
    return Forecast(begin_at, end_at, bool(coming.rows), pools, names, coming.measured, coming.assumed, is_complete)


async def read_coming(database: Database, tenant_no: TenantNo, grid: Grid, pool: str | None) -> Coming:
    """What becomes due in the steps of a grid."""
    has_others = await database.tenants.are_several()
    async with database.patient.connection() as connection:
        rows = {row.name: row for row in await list_pools(connection, tenant_no, name=pool)}
        numbers = {number: name for name, number in (await find_pools(connection, list(rows))).items()}
        shared: dict[PoolNo, int] = {}
        if has_others:
            shared = await find_shared_pools(connection, tenant_no, list(numbers), WAITING_COUNTED)
        if not grid.steps or not rows:
            return Coming(grid, {}, rows, 0, 0, shared=frozenset(shared))
        recurring = await list_recurring(connection, None if shared else tenant_no, grid.end_at)
        jobs = [each for each in recurring if each.tenant_no == tenant_no and each.pool_no in numbers]
        others = [each for each in recurring if each.tenant_no != tenant_no and each.pool_no in shared]
        durations = await measure_durations(connection, tenant_no)
        durations_of_others = await measure_durations(connection, None) if others else {}
        queued = await count_queued(connection, tenant_no, grid.begin_at, grid.end_at, grid.step_s)
        now = database.clock.now()
    work = await asyncio.to_thread(add_up_jobs, jobs, durations, grid, now)
    loads = work.loads
    for number, by_step in queued.items():
        if number in numbers:
            _add_queued(loads.setdefault(number, Load(grid.steps)), by_step, work.typical_s.get(number, UNKNOWN_S))
    if others:
        # Their planned fires are not looked up in the queues, so all of their fires count.
        of_others = await asyncio.to_thread(add_up_jobs, others, durations_of_others, grid, now, is_queued=False)
        for number, load in of_others.loads.items():
            loads.setdefault(number, Load(grid.steps)).add_others(load)
    by_name = {numbers[number]: load for number, load in loads.items()}
    waiting = {numbers[number]: count for number, count in shared.items()}
    return Coming(grid, by_name, rows, work.measured, work.assumed, waiting, frozenset(shared))


async def _read_actual(
    database: Database, tenant_no: TenantNo, begin_at: datetime, end_at: datetime, bucket_s: int, coming: Coming
) -> tuple[dict[str, list[tuple[datetime, Ran]]], bool]:
    """What ran, of the same tenants as what will: the two must compare."""
    async with database.patient.connection() as connection:
        found, is_complete = await count_actual(connection, tenant_no, coming.shared, begin_at, end_at, bucket_s)
        numbers = await find_pools(connection, list(coming.rows))
    shown = {
        name: [(begin_at + timedelta(seconds=bucket * bucket_s), ran) for bucket, ran in sorted(found[number].items())]
        for name, number in numbers.items()
        if number in found
    }
    return shown, is_complete


def _align(at: datetime, bucket_s: int) -> datetime:
    return datetime.fromtimestamp(int(at.timestamp()) // bucket_s * bucket_s, UTC)


@dataclass(frozen=True, slots=True)
class Work:
    """`typical_s`: how long a job of a pool takes on average."""

    loads: dict[PoolNo, Load]
    typical_s: dict[PoolNo, float]
    measured: int
    assumed: int


def add_up_jobs(
    recurring: Sequence[Recurring],
    durations: Mapping[JobId, float],
    grid: Grid,
    now: datetime,
    *,
    is_queued: bool = True,
) -> Work:
    """`is_queued`: leave out fires that are planned already, because the caller counts the queues."""
    typical_s, measured = _typical(recurring, durations)
    herds, jobs = Herds(grid, now), 0
    for each in recurring:
        schedule = _DECODER.decode(each.schedule)
        if isinstance(schedule.when, OnEvent):
            continue
        jobs += len(each.job_ids)
        for delay_s, job_ids in _by_delay(schedule, each.job_ids, grid.step_s):
            same = measured_jobs(job_ids, durations, typical_s[each.pool_no])
            if each.fires_left is not None:
                herds.add_limited(schedule, delay_s, each.pool_no, same, each.fires_left, each.next_fire_at)
            else:
                herds.add(schedule, delay_s, each.pool_no, same, each.next_fire_at if is_queued else None)
    loads = add_up(herds)
    return Work({PoolNo(number): load for number, load in loads.items()}, typical_s, measured, jobs - measured)


def _by_delay(schedule: Schedule, job_ids: list[JobId], step_s: int) -> Iterable[tuple[float, list[JobId]]]:
    """The jobs by their delay: of an interval exactly, of others by whole steps."""
    if not schedule.jitter_s:
        return [(start_delay(schedule, job_ids[0]).total_seconds(), job_ids)]
    found: dict[float, list[JobId]] = {}
    is_exact = isinstance(schedule.when, Interval)
    for job_id in job_ids:
        delay_s = start_delay(schedule, job_id).total_seconds()
        found.setdefault(delay_s if is_exact else delay_s // step_s * step_s, []).append(job_id)
    return found.items()


def _typical(recurring: Iterable[Recurring], durations: Mapping[JobId, float]) -> tuple[dict[PoolNo, float], int]:
    """How long a job of each pool takes on average, and of how many that is known."""
    sums: dict[PoolNo, list[float]] = {}
    for each in recurring:
        found = sums.setdefault(each.pool_no, [])
        if durations:
            found += [durations[job_id] for job_id in each.job_ids if job_id in durations]
    typical_s = {number: sum(found) / len(found) if found else UNKNOWN_S for number, found in sums.items()}
    return typical_s, sum(map(len, sums.values()))


def _add_queued(load: Load, by_step: Mapping[int, int], lasts_s: float) -> None:
    for step, count in by_step.items():
        load.fires[step] += count
        load.work_s[step] += count * lasts_s
        load.busy_s[step] += count * lasts_s


def _show(
    row: PoolRow,
    load: Load,
    grid: Grid,
    actual: list[tuple[datetime, Ran]],
    others_waiting: int,
) -> PoolForecast:
    slots = usable_slots(row)
    waits = predict_waits(load.fires, load.work_s, slots, grid.step_s, due=row.waiting + others_waiting)
    buckets = gather(load, grid, waits)
    return PoolForecast(row.name, slots, load.is_complete, buckets, actual)


def usable_slots(row: PoolRow) -> int:
    return row.slots if row.concurrency is None else min(row.slots, row.concurrency)
