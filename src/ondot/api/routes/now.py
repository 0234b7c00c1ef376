"""`GET /v1/now`: what runs, waits and comes next, in one bounded answer, for `ondot top` (D5, O5)."""

from datetime import datetime, timedelta
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from ondot.api.dependencies import RequestServices, SharedView, needs
from ondot.api.parameters import only_known_parameters
from ondot.model.access import Right
from ondot.model.execution import State
from ondot.model.ids import first_id_at
from ondot.store import overview as store

WINDOW: Final = timedelta(minutes=1)
MOST_FIRES: Final = 20
PLANNED_READ: Final = 200
MOST_LIMITS: Final = 10
LATEST_READ: Final = 50

router = APIRouter(tags=["fleet"], dependencies=[Depends(only_known_parameters)])


class RunningOut(BaseModel):
    id: UUID
    job_id: UUID
    name: str
    started_at: datetime
    attempt: int
    worker: str | None = Field(description="Host and process.")
    progress: float | None
    message: str | None


class WaitingOut(BaseModel):
    name: str
    workers: int
    slots: int
    waiting: int = Field(description="Due executions that wait for a slot, counted up to 10,000 for each class.")
    oldest_s: float | None


class HeldOut(BaseModel):
    job_id: UUID
    name: str
    limit: str
    count: int


class RecentOut(BaseModel):
    """Of the executions that became due within the last minute."""

    window_s: float
    started: int
    succeeded: int
    failed: int
    is_least: bool = Field(description="There were too many to look at all.")
    late_s: float | None = Field(description="The longest time from due to started, of the latest 50.")


class ComingOut(BaseModel):
    job_id: UUID
    name: str
    at: datetime


class NowOut(BaseModel):
    now: datetime
    nodes: int | None = Field(description="Live schedulers; null: there are other tenants, and the caller is no owner.")
    workers: int
    slots: int
    draining: int
    running: int
    held_back: int = Field(description="Due executions that wait for a limit.")
    dead_letters: int
    recent: RecentOut
    pools: list[WaitingOut]
    limits: list[HeldOut] = Field(description="The longest lines before a limit.")
    executions: list[RunningOut] = Field(description="Those that run, the longest first.")
    fires: list[ComingOut] = Field(description="The next fire of each job.")


@router.get("/now", dependencies=[needs(Right.JOBS_READ)], response_model=NowOut)
async def now(
    services: RequestServices,
    view: SharedView,
    limit: Annotated[int, Query(ge=1, le=200, description="The most executions to name.")] = 50,
) -> NowOut:
    """What runs, waits and comes next."""
    database, tenant_no = services.database, view.caller.tenant_no
    is_one_of_several = await database.tenants.are_several()
    async with database.connection() as connection:
        fleet = await store.count_fleet(connection, None if view.is_whole else tenant_no)
    async with database.reading(tenant_no) as connection:
        pools = await store.list_pools_at_work(connection, tenant_no)
        running = await store.list_running(connection, tenant_no, limit)
        coming = await store.list_coming_fires(connection, tenant_no, planned=PLANNED_READ, timers=MOST_FIRES)
        letters = await store.list_latest_dead_letters(connection, tenant_no, 1)
        latest = await store.list_latest_executions(
            connection, tenant_no, LATEST_READ, is_one_of_several=is_one_of_several
        )
        states = await store.count_recent_states(
            connection, tenant_no, first_id_at(fleet.now - WINDOW), is_one_of_several=is_one_of_several
        )
        held = await store.read_held_back(connection, database.specs, tenant_no, lines=MOST_LIMITS)
        first = {fire.job_id: fire for fire in reversed(coming)}
        fires = sorted(first.values(), key=lambda fire: fire.at)[:MOST_FIRES]
        rows: list[store.RunningRow | store.ComingFire] = [*running, *fires]
        versions = {(row.job_id, row.job_version) for row in rows}
        specs = await database.specs.find(connection, versions)

    def name_of(row: store.RunningRow | store.ComingFire) -> str:
        spec = specs.get((row.job_id, row.job_version))
        return spec.name if spec else f"job {row.job_id}"

    since = fleet.now - WINDOW
    lateness = [
        (row.started_at - row.ready_at).total_seconds()
        for row in latest
        if row.started_at is not None and row.started_at >= since and row.attempt_no <= 1
    ]
    ended = {state: states.counts.get(state, 0) for state in (State.SUCCEEDED, State.FAILED)}
    started = sum(ended.values()) + sum(states.counts.get(state, 0) for state in (State.RUNNING, State.RETRYING))
    return NowOut(
        now=fleet.now,
        nodes=fleet.nodes if view.is_whole else None,
        workers=fleet.workers,
        slots=fleet.slots,
        draining=fleet.draining,
        running=running[0].total if running else 0,
        held_back=held.count,
        dead_letters=letters[0].total if letters else 0,
        recent=RecentOut(
            window_s=WINDOW.total_seconds(),
            started=started,
            succeeded=ended[State.SUCCEEDED],
            failed=ended[State.FAILED],
            is_least=states.among is not None,
            late_s=max(lateness, default=None),
        ),
        pools=[
            WaitingOut(
                name=pool.name,
                workers=pool.workers,
                slots=pool.slots,
                waiting=pool.waiting,
                oldest_s=None if pool.oldest_at is None else (fleet.now - pool.oldest_at).total_seconds(),
            )
            for pool in pools
        ],
        limits=[
            HeldOut(job_id=line.job_id, name=line.job_name, limit=line.limit, count=line.count) for line in held.lines
        ],
        executions=[
            RunningOut(
                id=row.id,
                job_id=row.job_id,
                name=name_of(row),
                started_at=row.started_at,
                attempt=row.attempt_no,
                worker=f"{row.host}:{row.pid}" if row.host else None,
                progress=row.progress,
                message=row.message,
            )
            for row in running
        ],
        fires=[ComingOut(job_id=fire.job_id, name=name_of(fire), at=fire.at) for fire in fires],
    )
