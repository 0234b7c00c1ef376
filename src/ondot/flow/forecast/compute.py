"""Computes a forecast from the jobs of a tenant, and of all tenants in the pools that it shares with them (S13).

The jobs are read in pages, and decoded and added up in a thread: 100,000 of them take about a second, in which the loop
that answers requests goes on. Of other tenants only numbers leave this module: what recurs and what waits. A pool whose
workers serve only some tenants is not shared.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from ondot.model.forecast import Bucket, Grid, Herds, Load, add_up, gather, predict_waits
from ondot.model.ids import JobId, PoolNo, TenantNo
from ondot.model.schedule import OnEvent, Schedule, start_delay
from ondot.model.schedule.listing import list_fires
from ondot.store.database import Database
from ondot.store.forecast import (
    Ran,
    RecurringJob,
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


async def forecast(
    database: Database, tenant_no: TenantNo, begin_at: datetime, end_at: datetime, bucket_s: int, pool: str | None
) -> Forecast:
    """Buckets from `begin_at` to `end_at`, for one pool or for all: up to now what ran, then what will."""
    now = database.clock.now()
    step_s = 1 if (end_at - begin_at).total_seconds() <= FINE_S else 60
    begin_at, end_at = _align(begin_at, bucket_s), _align(end_at + timedelta(seconds=bucket_s - 1), bucket_s)
    ahead_at = _align(max(now, begin_at), bucket_s)
    steps = max(0, int((end_at - ahead_at).total_seconds())) // step_s
    coming = await read_coming(database, tenant_no, Grid(ahead_at, step_s, steps), pool)
    actual: dict[str, list[tuple[datetime, Ran]]] = {}
    is_complete = True
    if begin_at < now:
        actual, is_complete = await _read_actual(
            database, tenant_no, begin_at, min(now, end_at), bucket_s, set(coming.rows)
        )
    pools = [
        _show(
            row,
            coming.loads.get(name) or Load(steps),
            coming.grid,
            bucket_s,
            actual.get(name, []),
            coming.others_waiting.get(name, 0),
        )
        for name, row in coming.rows.items()
        if name in coming.loads or name in actual
    ]
    pools.sort(key=lambda each: -sum(bucket.work_s for bucket in each.buckets))
    top = {job_id for each in pools for bucket in each.buckets for job_id, _ in bucket.top}
    async with database.connection() as connection:
        names = await find_names(connection, tenant_no, top)
    return Forecast(begin_at, end_at, bool(coming.rows), pools, names, coming.measured, coming.assumed, is_complete)


async def read_coming(database: Database, tenant_no: TenantNo, grid: Grid, pool: str | None) -> Coming:
    """What becomes due in the steps of a grid."""
    async with database.patient.connection() as connection:
        rows = {row.name: row for row in await list_pools(connection, tenant_no, name=pool)}
        numbers = {number: name for name, number in (await find_pools(connection, list(rows))).items()}
        if not grid.steps or not rows:
            return Coming(grid, {}, rows, 0, 0)
        shared: dict[PoolNo, int] = {}
        if len(database.tenants.known) > 1:
            shared = await find_shared_pools(connection, tenant_no, list(numbers), WAITING_COUNTED)
        jobs, others = list[RecurringJob](), list[RecurringJob]()
        async for job in list_recurring(connection, None if shared else tenant_no, grid.end_at):
            if job.tenant_no != tenant_no:
                if job.pool_no in shared:
                    others.append(job)
            elif job.pool_no in numbers:
                jobs.append(job)
        durations = await measure_durations(connection, tenant_no)
        durations_of_others = await measure_durations(connection, None) if others else {}
        queued = await count_queued(connection, tenant_no, grid.begin_at, grid.end_at, grid.step_s)
    planned_until = database.clock.now() + timedelta(seconds=database.settings.horizon_s)
    work = await asyncio.to_thread(add_up_jobs, jobs, durations, grid, planned_until)
    loads = work.loads
    for number, by_step in queued.items():
        if number in numbers:
            _add_queued(loads.setdefault(number, Load(grid.steps)), by_step, work.typical_s.get(number, UNKNOWN_S))
    if others:
        # Their planned fires are not looked up in the queues, so all of their fires count from the first step on.
        of_others = await asyncio.to_thread(add_up_jobs, others, durations_of_others, grid, grid.begin_at)
        for number, load in of_others.loads.items():
            loads.setdefault(number, Load(grid.steps)).add_others(load)
    by_name = {numbers[number]: load for number, load in loads.items()}
    waiting = {numbers[number]: count for number, count in shared.items()}
    return Coming(grid, by_name, rows, work.measured, work.assumed, waiting)


async def _read_actual(
    database: Database, tenant_no: TenantNo, begin_at: datetime, end_at: datetime, bucket_s: int, names: set[str]
) -> tuple[dict[str, list[tuple[datetime, Ran]]], bool]:
    async with database.patient.connection() as connection:
        found, is_complete = await count_actual(connection, tenant_no, begin_at, end_at, bucket_s)
        numbers = await find_pools(connection, list(names))
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
    jobs: Iterable[RecurringJob], durations: Mapping[JobId, float], grid: Grid, planned_until: datetime
) -> Work:
    """`planned_until`: fires before it are in the queues already."""
    jobs = list(jobs)
    typical_s = _typical(jobs, durations)
    fires_from = max(grid.begin_at, planned_until)
    herds, kept, measured = Herds(grid, fires_from), dict[str, Schedule](), 0
    for job in jobs:
        schedule = kept.get(job.schedule)
        if schedule is None:
            schedule = kept[job.schedule] = _DECODER.decode(job.schedule)
        if isinstance(schedule.when, OnEvent):
            continue
        lasts_s = durations.get(job.job_id)
        measured += lasts_s is not None
        if job.fires_left is not None:
            schedule = _with_last_fire(schedule, job, grid)
        herds.add(
            job.job_id,
            schedule,
            start_delay(schedule, job.job_id).total_seconds(),
            job.pool_no,
            typical_s[job.pool_no] if lasts_s is None else lasts_s,
        )
    loads = add_up(herds, grid, fires_from)
    return Work({PoolNo(number): load for number, load in loads.items()}, typical_s, measured, len(jobs) - measured)


def _typical(jobs: Iterable[RecurringJob], durations: Mapping[JobId, float]) -> dict[PoolNo, float]:
    sums: dict[PoolNo, list[float]] = {}
    for job in jobs:
        found = sums.setdefault(job.pool_no, [])
        if (lasts_s := durations.get(job.job_id)) is not None:
            found.append(lasts_s)
    return {number: sum(found) / len(found) if found else UNKNOWN_S for number, found in sums.items()}


def _with_last_fire(schedule: Schedule, job: RecurringJob, grid: Grid) -> Schedule:
    """The schedule of a job with `max_fires` ends with its last one."""
    before = job.next_fire_at - timedelta(microseconds=1)
    fires, _ = list_fires(schedule, before, grid.end_at, job.fires_left or 0)
    if not fires:
        return schedule
    return msgspec.structs.replace(schedule, end_at=datetime.fromtimestamp(fires[-1], UTC))


def _add_queued(load: Load, by_step: Mapping[int, int], lasts_s: float) -> None:
    for step, count in by_step.items():
        load.fires[step] += count
        load.work_s[step] += count * lasts_s
        load.busy_s[step] += count * lasts_s


def _show(
    row: PoolRow,
    load: Load,
    grid: Grid,
    bucket_s: int,
    actual: list[tuple[datetime, Ran]],
    others_waiting: int,
) -> PoolForecast:
    slots = usable_slots(row)
    waits = predict_waits(load.fires, load.work_s, slots, grid.step_s, due=row.waiting + others_waiting)
    buckets = gather(load, grid, bucket_s // grid.step_s, waits)
    return PoolForecast(row.name, slots, load.is_complete, buckets, actual)


def usable_slots(row: PoolRow) -> int:
    return row.slots if row.concurrency is None else min(row.slots, row.concurrency)
