"""The first page, read once and shaped for the templates (O5, L7).

Each section is a frozen value with instants instead of "12 s ago": two readings of an idle ondot are equal, so the feed
renders and sends only changes, and the page's own script updates durations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from ondot.model.execution import State
from ondot.model.held_back import HeldBack
from ondot.model.ids import EPOCH, TenantNo, first_id_at
from ondot.model.job import JobSpec
from ondot.model.schedule import in_words
from ondot.store import overview as store
from ondot.store.database import Database
from ondot.store.incidents import IncidentFilter, list_incidents
from ondot.store.specs import Version
from ondot.ui.health import Health, judge
from ondot.ui.run_states import step_name
from ondot.words.job import WHY_SKIPPED, took, zone_of_job

WINDOW = timedelta(minutes=10)
MISSED_WITHIN = timedelta(days=1)
"""How long the first page reports missed fires, unless a backfill has run them: outages happen at night."""
MOST_RUNNING = 8
MOST_FIRES = 8
MOST_FAILURES = 4
MOST_PAUSED = 4
MOST_BLOCKED = 4
MOST_INCIDENTS = 4
MOST_LATEST = 20
MOST_POOLS = 6
MOST_LIMITS = 4
PLANNED_READ = 200
"""Planned fires read to find the next one of each job: a job that fires each second has 20 in the horizon."""

Specs = dict[Version, JobSpec]
Row = store.RunningRow | store.ComingFire | store.DeadLetterRow | store.LatestRow | store.BlockedRow


@dataclass(frozen=True, slots=True)
class Skips:
    """Recorded fires that were not run. `count`: "76", or "at least 76" if not all were counted."""

    count: str
    why: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """`skips`: skipped fires without executions, by reason.

    `waiting`: executions that are due and not started: they wait for a worker or for a limit (`held`).
    `schedulers`: None if they are not shown: there are other tenants, and only owners see how all are served.
    """

    succeeded: int
    failed: int
    retrying: int
    skipped: int
    skips: tuple[Skips, ...]
    window: str
    minutes: int
    running: int
    slots: int
    workers: int
    draining: int
    schedulers: int | None
    waiting: str
    held: HeldBack
    pools: tuple[store.PoolAtWork, ...]
    more_pools: int


@dataclass(frozen=True, slots=True)
class Run:
    id: UUID
    name: str
    started_at: datetime
    attempt: int
    worker: str
    percent: int | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Running:
    rows: tuple[Run, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Fire:
    job_id: UUID
    name: str
    at: datetime
    schedule: str
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Fires:
    rows: tuple[Fire, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    id: UUID
    name: str
    failed_at: datetime
    message: str


@dataclass(frozen=True, slots=True)
class Failures:
    rows: tuple[Failure, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Paused:
    """Jobs that ondot paused because they kept failing: they do not fire until a person resumes them."""

    rows: tuple[store.PausedRow, ...]
    total: int


@dataclass(frozen=True, slots=True)
class BlockedRun:
    id: UUID
    name: str
    blocked_at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """Runs in which a step failed and nothing handled it: nothing moves in them until a person acts."""

    rows: tuple[BlockedRun, ...]
    total: int


@dataclass(frozen=True, slots=True)
class OpenIncident:
    id: UUID
    title: str
    since: datetime
    acknowledged_by: str | None


@dataclass(frozen=True, slots=True)
class Incidents:
    """What alerts found and what still holds."""

    rows: tuple[OpenIncident, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Execution:
    """`late`: how long after it was due the last attempt started."""

    id: UUID
    name: str
    state: State
    fire_at: datetime
    late: str | None
    took: str | None
    attempts: int
    message: str
    next_try_at: datetime | None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Latest:
    rows: tuple[Execution, ...]


@dataclass(frozen=True, slots=True)
class Badge:
    """The number of open dead letters, shown on the link to them."""

    total: int


Section = Health | Numbers | Running | Fires | Incidents | Failures | Blocked | Paused | Latest | Badge


@dataclass(frozen=True, slots=True)
class Overview:
    """`sections`: by the names of their templates, in the order of the page."""

    now: datetime
    sections: dict[str, Section]

    @property
    def open_letters(self) -> int:
        return next(section.total for section in self.sections.values() if isinstance(section, Badge))

    @property
    def is_new(self) -> bool:
        """Nothing has run and nothing is planned: a new installation."""
        lists = (self.sections[name] for name in ("running", "fires", "latest"))
        return not any(section.rows for section in lists if isinstance(section, Running | Fires | Latest))


async def read_overview(database: Database, tenant_no: TenantNo, *, is_whole: bool) -> Overview:
    """Reads the whole page with bounded statements on one connection. `is_whole`: with the processes of all tenants."""
    is_one_of_several = await database.tenants.are_several()
    async with database.reading(tenant_no) as connection:
        fleet = await store.count_fleet(connection, None if is_whole else tenant_no)
        pools = await store.list_pools_at_work(connection, tenant_no)
        running = await store.list_running(connection, tenant_no, MOST_RUNNING)
        coming = await store.list_coming_fires(connection, tenant_no, planned=PLANNED_READ, timers=MOST_FIRES)
        letters = await store.list_latest_dead_letters(connection, tenant_no, MOST_FAILURES)
        latest = await store.list_latest_executions(
            connection, tenant_no, MOST_LATEST, is_one_of_several=is_one_of_several
        )
        states = await store.count_recent_states(
            connection, tenant_no, first_id_at(fleet.now - WINDOW), is_one_of_several=is_one_of_several
        )
        skips = await store.count_recent_skips(connection, tenant_no, WINDOW)
        held = await store.read_held_back(connection, database.specs, tenant_no, lines=MOST_LIMITS)
        missed = await store.count_missed_fires(connection, tenant_no, MISSED_WITHIN)
        paused = await store.list_paused_by_itself(connection, tenant_no, MOST_PAUSED)
        blocked = await store.list_blocked_runs(connection, tenant_no, MOST_BLOCKED)
        fires = _next_of_each_job(coming)
        rows: list[Row] = [*running, *fires, *letters, *latest, *blocked]
        specs = await database.specs.find(connection, {(row.job_id, row.job_version) for row in rows})
    async with database.connection() as connection:
        is_open = IncidentFilter(is_open=True)
        incidents = await list_incidents(connection, tenant_no, is_open, limit=MOST_INCIDENTS + 1)
    unplanned_at = min((fire.at for fire in coming if not fire.is_planned and fire.at <= fleet.now), default=None)
    total = running[0].total if running else 0
    open_letters = letters[0].total if letters else 0
    sections: dict[str, Section] = {
        "health": judge(fleet, pools, unplanned_at, total, missed, held),
        "numbers": _numbers(fleet, pools, states, skips, total, held, is_whole=is_whole),
        "running": Running(tuple(_run(row, specs) for row in running), total),
        "fires": Fires(tuple(_fire(fire, specs) for fire in fires)),
        "open_incidents": Incidents(
            tuple(
                OpenIncident(row.id, row.title, row.since, row.acknowledged_by) for row in incidents[:MOST_INCIDENTS]
            ),
            len(incidents) > MOST_INCIDENTS,
        ),
        "failures": Failures(tuple(_failure(row, specs) for row in letters), open_letters),
        "blocked": Blocked(
            tuple(BlockedRun(row.id, _name(row, specs), row.blocked_at, row.reason or "") for row in blocked),
            blocked[0].total if blocked else 0,
        ),
        "paused": Paused(tuple(paused), paused[0].total if paused else 0),
        "latest": Latest(tuple(_execution(row, specs) for row in latest)),
        "badge": Badge(open_letters),
    }
    return Overview(fleet.now, sections)


def _next_of_each_job(coming: Sequence[store.ComingFire]) -> list[store.ComingFire]:
    """Only the next fire of each job: a job that fires each second would fill the list."""
    first: dict[UUID, store.ComingFire] = {}
    for fire in coming:
        first.setdefault(fire.job_id, fire)
    return list(first.values())[:MOST_FIRES]


def _numbers(
    fleet: store.Fleet,
    pools: Sequence[store.PoolAtWork],
    states: store.RecentStates,
    skips: Sequence[store.RecentSkips],
    running: int,
    held: HeldBack,
    *,
    is_whole: bool,
) -> Numbers:
    counts = states.counts
    minutes = WINDOW // timedelta(minutes=1)
    return Numbers(
        succeeded=counts.get(State.SUCCEEDED, 0),
        failed=counts.get(State.FAILED, 0),
        retrying=counts.get(State.RETRYING, 0),
        skipped=counts.get(State.SKIPPED, 0) + sum(entry.count for entry in skips),
        skips=tuple(_skips(entry) for entry in skips),
        window=f"latest {states.among:,} executions" if states.among else f"last {minutes} minutes",
        minutes=minutes,
        running=running,
        slots=fleet.slots,
        workers=fleet.workers,
        draining=fleet.draining,
        schedulers=fleet.nodes if is_whole else None,
        waiting=f"{sum(pool.waiting for pool in pools) + held.count:,}{'+' if held.is_least else ''}",
        # Without the instant of the reading, so that two readings of an idle ondot are equal.
        held=replace(held, now=EPOCH),
        pools=tuple(pools[:MOST_POOLS]),
        more_pools=max(len(pools) - MOST_POOLS, 0),
    )


def _skips(entry: store.RecentSkips) -> Skips:
    return Skips(
        f"at least {entry.count:,}" if entry.is_least else f"{entry.count:,}",
        WHY_SKIPPED.get(entry.reason, entry.reason),
    )


def _run(row: store.RunningRow, specs: Specs) -> Run:
    step = "" if row.step_no is None else f": {step_name(specs.get((row.job_id, row.job_version)), row.step_no)}"
    return Run(
        id=row.id,
        name=_name(row, specs) + step,
        started_at=row.started_at,
        attempt=row.attempt_no,
        worker=f"{row.host}:{row.pid}" if row.host else "unknown",
        percent=None if row.progress is None else round(row.progress * 100),
        message=_one_line(row.message),
    )


def _fire(fire: store.ComingFire, specs: Specs) -> Fire:
    spec = specs.get((fire.job_id, fire.job_version))
    words = "" if spec is None or spec.schedule is None else in_words(spec.schedule) if spec.recurs else "Once"
    return Fire(fire.job_id, _name(fire, specs), fire.at, words, zone_of_job(spec))


def _failure(row: store.DeadLetterRow, specs: Specs) -> Failure:
    return Failure(row.execution_id, _name(row, specs), row.failed_at, _one_line(row.message or row.reason) or "")


def _execution(row: store.LatestRow, specs: Specs) -> Execution:
    ran_s = (row.ended_at - row.started_at).total_seconds() if row.ended_at and row.started_at else None
    waits = row.state is State.RETRYING  # ready_at is the next attempt's, started_at the last one's
    return Execution(
        id=row.id,
        name=_name(row, specs),
        state=row.state,
        fire_at=row.fire_at,
        late=took((row.started_at - row.ready_at).total_seconds()) if row.started_at and not waits else None,
        took=None if ran_s is None else took(ran_s),
        attempts=row.attempt_no,
        message="" if row.state is State.SUCCEEDED else _one_line(row.message or row.reason) or "",
        next_try_at=row.ready_at if waits else None,
        zone=zone_of_job(specs.get((row.job_id, row.job_version))),
    )


def _name(row: Row, specs: Specs) -> str:
    """A one-time job's spec is dropped with its day; its executions may stay for hours longer."""
    spec = specs.get((row.job_id, row.job_version))
    return spec.name if spec else f"job {row.job_id}"


def _one_line(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())
