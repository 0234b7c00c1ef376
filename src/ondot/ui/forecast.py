"""`/forecast`: the load of a week, hour by hour, and of one hour, second by second (S13).

Hours that are over show what ran, the others what the schedules will bring. How dark a cell is follows the share of the
pool's slots that it keeps busy; a pool without workers is shaded by its busiest cell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from ondot.flow.forecast.compute import Forecast, PoolForecast, forecast
from ondot.model.ids import TenantNo
from ondot.store.database import Database

HOUR: Final = timedelta(hours=1)
WEEK: Final = timedelta(days=7)
FURTHEST: Final = timedelta(days=28)
KNOWN: Final = ("week", "hour", "pool")
SHADES: Final = 5
FULL: Final = 0.8
"""The share of the slots from which a cell has the darkest shade."""


@dataclass(frozen=True, slots=True)
class Cell:
    """`shade`: from 0, nothing, to 5, as much as the slots can do. `is_past`: it shows what ran."""

    at: datetime
    fires: int
    shade: int
    wait_s: float
    is_past: bool
    words: str


@dataclass(frozen=True, slots=True)
class Second:
    """A second of an hour with fires; `x` and `y`: its place in the picture, by minute and second."""

    x: int
    y: int
    shade: int
    words: str


@dataclass(frozen=True, slots=True)
class Hour:
    at: datetime
    seconds: tuple[Second, ...]
    fires: int
    top: tuple[tuple[str, str, float], ...]
    """The largest jobs: id, name, seconds of slots."""
    others_s: float = 0.0
    """Seconds of slots for jobs of other tenants."""


@dataclass(frozen=True, slots=True)
class ForecastView:
    now: datetime
    pool: str | None
    pools: tuple[str, ...]
    slots: int
    days: tuple[tuple[date, tuple[Cell, ...]], ...]
    hour: Hour | None
    before: date
    after: date | None
    is_complete: bool
    assumed: int
    waits: tuple[Cell, ...]
    """The hours with the longest waits, worst first."""
    fault: str | None
    """What of the address cannot be read, so that this week and the first pool are shown."""


async def read_forecast(database: Database, tenant_no: TenantNo, query: Mapping[str, str]) -> ForecastView:
    now = database.clock.now()
    faults = [
        f"Unknown parameter {name[:64]!r}. Use one of: {', '.join(KNOWN)}." for name in query if name not in KNOWN
    ]
    hour_at, week_at = _parse_hour(query.get("hour")), _parse_day(query.get("week"))
    if hour_at is None and query.get("hour"):
        faults.append(f"hour: cannot read {query['hour'][:64]!r}. Write, for example, {now:%Y-%m-%dT%H}:00:00Z.")
    if week_at is None and query.get("week"):
        faults.append(f"week: cannot read {query['week'][:64]!r}. Write a day of it, for example {now:%Y-%m-%d}.")
    monday = _monday(hour_at or week_at or now)
    monday = min(monday, _monday(now + FURTHEST))
    found = await forecast(database, tenant_no, monday, monday + WEEK, 3600, None)
    pools = tuple(each.name for each in found.pools)
    wanted = query.get("pool")
    if wanted and wanted not in pools:
        known = f"Use one of: {', '.join(pools)}." if pools else "No pool has work in this week."
        faults.append(f"There is no load of a pool {wanted[:64]!r} in this week. {known}")
    shown = next((each for each in found.pools if each.name == wanted), found.pools[0] if found.pools else None)
    hour = None
    if hour_at is not None and shown is not None:
        near = await forecast(database, tenant_no, hour_at, hour_at + HOUR, 1, shown.name)
        hour = _hour(near, hour_at)
    cells = [] if shown is None else _cells(shown, found, monday, now)
    days = tuple((monday.date() + timedelta(days=day), tuple(cells[24 * day : 24 * day + 24])) for day in range(7))
    return ForecastView(
        now=now,
        pool=None if shown is None else shown.name,
        pools=pools,
        slots=0 if shown is None else shown.slots,
        days=days if shown is not None else (),
        hour=hour,
        before=(monday - WEEK).date(),
        after=(monday + WEEK).date() if monday + WEEK <= now + FURTHEST else None,
        is_complete=shown is None or shown.is_complete,
        assumed=found.assumed,
        waits=tuple(sorted((cell for cell in cells if cell.wait_s >= 1), key=lambda cell: -cell.wait_s)[:5]),
        fault=" ".join(faults) or None,
    )


def _cells(shown: PoolForecast, found: Forecast, monday: datetime, now: datetime) -> list[Cell]:
    coming = {bucket.at: bucket for bucket in shown.buckets}
    actual = dict(shown.actual)
    most_s = max([bucket.busy_s for bucket in shown.buckets] + [ran.work_s for ran in actual.values()], default=0.0)
    cells = []
    for number in range(7 * 24):
        at = monday + number * HOUR
        bucket, ran = coming.get(at), actual.get(at)
        fires = round(bucket.fires if bucket else 0) + (ran.executions if ran else 0)
        busy_s = (bucket.busy_s if bucket else 0.0) + (ran.work_s if ran else 0.0)
        wait_s = max(_finite(bucket.wait_s if bucket else 0.0), (ran.wait_s or 0.0) if ran else 0.0)
        shade = _shade(busy_s, shown.slots * 3600.0 or most_s)
        is_past = at + HOUR <= now
        top = [] if bucket is None else [found.names.get(job_id, "") for job_id, _ in bucket.top]
        words = _words(fires, busy_s, wait_s, [name for name in top if name], is_past=is_past)
        cells.append(Cell(at, fires, max(shade, 1) if fires else shade, wait_s, is_past, words))
    return cells


def _hour(found: Forecast, hour_at: datetime) -> Hour:
    if not found.pools:
        return Hour(hour_at, (), 0, ())
    [shown] = found.pools
    counts: dict[datetime, float] = {at: float(ran.executions) for at, ran in shown.actual}
    jobs: dict[str, tuple[str, float]] = {}
    for bucket in shown.buckets:
        if bucket.fires:
            counts[bucket.at] = counts.get(bucket.at, 0.0) + bucket.fires
        for job_id, work_s in bucket.top:
            name, known_s = jobs.get(str(job_id), (found.names.get(job_id, ""), 0.0))
            jobs[str(job_id)] = (name or str(job_id), known_s + work_s)
    most = max(counts.values(), default=1.0)
    seconds = tuple(
        Second(at.minute, at.second, max(1, _shade(count, most)), f"{at:%H:%M:%S}: {_number(count)}")
        for at, count in sorted(counts.items())
        if count
    )
    top = sorted(((job_id, name, work_s) for job_id, (name, work_s) in jobs.items()), key=lambda job: -job[2])[:10]
    others_s = sum(bucket.others_s for bucket in shown.buckets) + sum(ran.others_s for _, ran in shown.actual)
    return Hour(hour_at, seconds, round(sum(counts.values())), tuple(top), others_s)


def _shade(busy_s: float, full_s: float) -> int:
    if busy_s <= 0 or full_s <= 0:
        return 0
    return min(SHADES, 1 + int(busy_s / (FULL * full_s) * (SHADES - 1)))


def _words(fires: int, busy_s: float, wait_s: float, top: list[str], *, is_past: bool) -> str:
    if not fires:
        return "nothing ran" if is_past else "nothing is due"
    said = f"{_number(fires)} {'ran' if is_past else 'due'}, {busy_s:,.0f} s of slots"
    if wait_s >= 1:
        said += f", waits up to {wait_s:,.0f} s"
    return said + (f"; most for {', '.join(top)}" if top else "")


def _number(count: float) -> str:
    return f"{round(count):,}"


def _finite(wait_s: float | None) -> float:
    return 0.0 if wait_s is None or wait_s == float("inf") else wait_s


def _monday(at: datetime) -> datetime:
    day = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())


def _parse_day(text: str | None) -> datetime | None:
    try:
        at = None if text is None else datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
    except ValueError:
        return None
    return at if at is not None and 1970 < at.year < 2200 else None


def _parse_hour(text: str | None) -> datetime | None:
    try:
        at = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
    if at is None or at.tzinfo is None or not 1970 < at.year < 2200:
        return None
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
