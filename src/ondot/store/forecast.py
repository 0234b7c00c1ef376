"""What a forecast is computed from: recurring jobs, work that is queued ahead, and how long jobs took (S13)."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ondot.model.ids import JobId, PoolNo, TenantNo, first_id_at
from ondot.store.connection import Connection
from ondot.store.day_bounds import DAY_BITS, with_day_bounds
from ondot.store.newest import NO_ID, read_kept
from ondot.store.queries import load_queries

_SQL = load_queries("forecast")

JOBS_A_PAGE = 10_000
QUEUED_AT_MOST = 50_000
"""Rows that are counted of each queue."""
ACTUAL_ROWS = 1_000_000
MADE_BEFORE = timedelta(hours=1)
"""How long before it is due an execution may have been created, to be counted: fires are planned seconds ahead."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HISTORY_ROWS = 100_000
"""The newest rows from which durations are measured."""


@dataclass(frozen=True, slots=True)
class Recurring:
    """Jobs of a tenant with one schedule in one pool. `schedule`: its JSON. `next_fire_at`: the first fire that is not
    planned yet. `job_ids`: ascending. `fires_left`: how many more fires it may have; such a job is alone."""

    schedule: str
    pool_no: PoolNo
    tenant_no: TenantNo
    next_fire_at: datetime
    job_ids: list[JobId]
    fires_left: int | None = None


async def list_recurring(connection: Connection, tenant_no: TenantNo | None, before: datetime) -> list[Recurring]:
    """Every recurring job that fires before an instant, of one tenant or of all. Read in pages of some thousand."""
    after, limited = NO_ID, list[Recurring]()
    found: dict[tuple[str, PoolNo, TenantNo, datetime], list[JobId]] = {}
    while True:
        page = await connection.fetchrow(_SQL["jobs_ahead"].text, tenant_no, after, before, JOBS_A_PAGE)
        if page is None or page["job_ids"] is None:
            break
        keys = zip(page["schedules"], page["pool_nos"], page["tenant_nos"], page["next_fires_at"], strict=True)
        for job_id, key, fires_left in zip(page["job_ids"], keys, page["fires_left"], strict=True):
            if fires_left is not None:
                limited.append(Recurring(*key, [job_id], fires_left))
            elif (same := found.get(key)) is None:
                found[key] = [job_id]
            else:
                same.append(job_id)
        if len(page["job_ids"]) < JOBS_A_PAGE:
            break
        after = page["job_ids"][-1]
    return [Recurring(*key, same) for key, same in found.items()] + limited


async def count_queued(
    connection: Connection, tenant_no: TenantNo, begin_at: datetime, end_at: datetime, step_s: int
) -> dict[PoolNo, dict[int, int]]:
    """One-time work that becomes due in the range, by pool and step, and recurring fires that are planned already."""
    found: dict[PoolNo, dict[int, int]] = {}
    once = await connection.fetch(_SQL["once_timers"].text, tenant_no, begin_at, end_at, QUEUED_AT_MOST)
    fires = {JobId(job_id): fire_at for job_id, fire_at in once}
    for job_id, pool_no in (await find_once_pools(connection, tenant_no, fires)).items():
        steps = found.setdefault(pool_no, {})
        step = int((fires[job_id] - begin_at).total_seconds()) // step_s
        steps[step] = steps.get(step, 0) + 1
    for row in await connection.fetch(_SQL["queued_ahead"].text, tenant_no, begin_at, end_at, step_s, QUEUED_AT_MOST):
        steps = found.setdefault(PoolNo(row["pool_no"]), {})
        steps[row["step"]] = steps.get(row["step"], 0) + row["count"]
    return found


async def find_once_pools(connection: Connection, tenant_no: TenantNo, ids: Collection[JobId]) -> dict[JobId, PoolNo]:
    """The pools of one-time jobs, a day of creation at a time."""
    by_day: dict[int, list[JobId]] = {}
    for id_ in ids:
        by_day.setdefault(id_.int // DAY_BITS, []).append(id_)
    found: dict[JobId, PoolNo] = {}
    for of_day in by_day.values():
        text = with_day_bounds(_SQL["pools_of_once"], of_day, from_id="$3", before_id="$4")
        found |= {JobId(id_): PoolNo(pool_no) for id_, pool_no in await connection.fetch(text, tenant_no, of_day)}
    return found


async def find_shared_pools(
    connection: Connection, tenant_no: TenantNo, pool_nos: Collection[PoolNo], ceiling: int
) -> dict[PoolNo, int]:
    """The pools that other tenants use with the same workers, and how many of their due executions wait there."""
    rows = await connection.fetch(_SQL["shared_pools"].text, tenant_no, list(pool_nos), ceiling)
    return {PoolNo(row["pool_no"]): row["count"] for row in rows}


async def list_slots(connection: Connection) -> list[tuple[PoolNo, str, int]]:
    """Pools with the slots of their live workers, as far as the pool's own limit lets them be used."""
    rows = await connection.fetch(_SQL["slots_of_pools"].text)
    return [(PoolNo(row["pool_no"]), row["name"], row["slots"]) for row in rows]


async def measure_durations(connection: Connection, tenant_no: TenantNo | None) -> dict[JobId, float]:
    """The mean of the latest executions of each job that is among the newest rows of history."""
    kept = await read_kept(connection)
    from_id, to_id = next(kept.windows())
    text = with_day_bounds(_SQL["measured_durations"], (from_id, to_id), from_id="$3", before_id="$4")
    rows = await connection.fetch(text, tenant_no, HISTORY_ROWS)
    return {JobId(row["job_id"]): row["mean_s"] for row in rows}


@dataclass(frozen=True, slots=True)
class Ran:
    """What ran in a bucket. `wait_s`: the longest from when one was due to its start. `others_s`: the part of `work_s`
    that is not the caller's own."""

    executions: int
    work_s: float
    wait_s: float | None
    others_s: float


async def count_actual(
    connection: Connection,
    tenant_no: TenantNo,
    shared: Collection[PoolNo],
    begin_at: datetime,
    end_at: datetime,
    bucket_s: int,
) -> tuple[dict[PoolNo, dict[int, Ran]], bool]:
    """What became due in the range and has ended, by pool and bucket; and whether all of it was counted. `shared`: the
    pools in which other tenants count."""
    ids = first_id_at(max(begin_at - MADE_BEFORE, EPOCH)), first_id_at(end_at)
    text = with_day_bounds(_SQL["actual_loads"], ids, from_id="$7", before_id="$8")
    found: dict[PoolNo, dict[int, Ran]] = {}
    counted = 0
    for row in await connection.fetch(text, tenant_no, list(shared), begin_at, end_at, bucket_s, ACTUAL_ROWS):
        ran = Ran(row["executions"], row["work_s"], row["wait_s"], row["others_s"])
        found.setdefault(PoolNo(row["pool_no"]), {})[row["bucket"]] = ran
        counted += ran.executions
    return found, counted < ACTUAL_ROWS


async def find_names(connection: Connection, tenant_no: TenantNo, ids: Collection[JobId]) -> dict[JobId, str]:
    rows = await connection.fetch(_SQL["names_of_jobs"].text, tenant_no, list(ids))
    return {JobId(row["id"]): row["name"] for row in rows}
