"""`/v1/forecast` and `/v1/pools/{name}/scale`: the load that the schedules will make, and the workers it needs
(S13, C8)."""

import asyncio
from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field

from ondot.api.dependencies import RequestServices, SharedView, Tenant, needs
from ondot.api.parameters import Instant, check_instant, only_known_parameters
from ondot.api.routes.pools import PoolPath
from ondot.flow.forecast.compute import MOST_STEPS, Forecast, PoolForecast, forecast, step_of
from ondot.flow.forecast.scale import scale
from ondot.model import duration
from ondot.model.access import Right
from ondot.model.errors import InvalidParameters, NotFound

router = APIRouter(tags=["pools"], dependencies=[Depends(only_known_parameters)])

MOST_BUCKETS = 11_000
MOST_BUCKETS_OF_ALL = 2 * MOST_BUCKETS
"""Of all pools together: a thousand buckets are 190 kB of JSON."""
USUAL_BUCKETS = 200
EXAMPLE = "for example 1m, 1h"
LENGTHS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86_400)


class TopJobOut(BaseModel):
    job_id: UUID
    name: str | None
    slot_s: float = Field(description="The seconds of a slot that its fires in this bucket need.")


class BucketOut(BaseModel):
    """What becomes due from this instant to the next bucket."""

    at: datetime
    fires: float = Field(description="Executions that become due. A rate, not a whole number, for very frequent jobs.")
    slot_s: float = Field(description="Seconds of slots that they need, by measured durations.")
    busy_s: float = Field(description="Seconds of slots in use in this time, also by work that began before.")
    wait_s: float | None = Field(
        description="How long the last of them is likely to wait for a slot. null: for ever, as the pool has no worker."
    )
    top: list[TopJobOut] = Field(description="The jobs that need most of it.")
    others_slot_s: float = Field(description="The part of `slot_s` for jobs of other tenants that share the pool.")


class ActualOut(BaseModel):
    """What became due from this instant to the next bucket, and has ended."""

    at: datetime
    executions: int
    slot_s: float
    wait_s: float | None = Field(description="The longest wait from when one was due to its start.")
    others_slot_s: float = Field(description="The part of `slot_s` for jobs of other tenants that share the pool.")


class PoolForecastOut(BaseModel):
    pool: str
    slots: int = Field(description="Attempts that its live workers run at once.")
    complete: bool = Field(
        description="false: some of its schedules take too long to compute, or fire too often to list all."
    )
    buckets: list[BucketOut] = Field(description="The forecast, from now on; buckets without a fire are left out.")
    actual: list[ActualOut] = Field(
        description="What ran, up to now, of the same tenants as the forecast; empty if `from` is not in the past."
    )


class DurationsOut(BaseModel):
    measured: int = Field(description="Jobs whose latest executions show how long they take.")
    assumed: int = Field(description="Jobs that are taken to be as long as the others of their pool.")


class ForecastOut(BaseModel):
    from_at: datetime
    to_at: datetime
    bucket_s: int
    now: datetime
    durations: DurationsOut
    actual_complete: bool = Field(description="false: only the newest million executions were counted.")
    pools: list[PoolForecastOut] = Field(description="Most work first.")


class ScaleOut(BaseModel):
    """How many workers a pool should have, with the reasons. KEDA's `metrics-api` scaler reads `workers`."""

    pool: str
    workers: int = Field(description="How many there should be.")
    workers_now: int
    slots_a_worker: int = Field(description="Attempts that one of its workers runs at once.")
    slots: int = Field(description="Slots that are needed.")
    waiting: int
    oldest_wait_s: float
    coming: float = Field(description="Executions that become due in the next minutes.")
    why: str


@router.get("/forecast", dependencies=[needs(Right.JOBS_READ)], response_model=ForecastOut)
async def get_forecast(
    services: RequestServices,
    tenant_no: Tenant,
    from_: Annotated[Instant, Query(alias="from")] = None,
    to: Instant = None,
    bucket: Annotated[str | None, Query(max_length=20, description=f"The length of a bucket, {EXAMPLE}.")] = None,
    pool: Annotated[str | None, Query(max_length=63, description="Only this pool.")] = None,
) -> Response:
    """What becomes due, by pool and bucket: fires, the time they need, the wait to expect, and the largest jobs.

    By default the next 24 hours. From an instant in the past, what ran is shown beside it.
    """
    now = services.database.clock.now()
    begin_at = check_instant("from", from_) or now
    end_at = check_instant("to", to) or max(begin_at, now) + timedelta(days=1)
    bucket_s = _read_bucket(bucket, begin_at, end_at)
    found = await forecast(
        services.database, tenant_no, begin_at, end_at, bucket_s, pool, most_buckets=MOST_BUCKETS_OF_ALL
    )
    if pool is not None and not found.is_known:
        raise InvalidParameters(f"There is no pool {pool!r}. Leave `pool` out for all.", pool=pool)

    def render() -> str:
        return ForecastOut(
            from_at=found.begin_at,
            to_at=found.end_at,
            bucket_s=bucket_s,
            now=now,
            durations=DurationsOut(measured=found.measured, assumed=found.assumed),
            actual_complete=found.actual_is_complete,
            pools=[_out(each, found) for each in found.pools],
        ).model_dump_json()

    # In a thread: for 11,000 buckets it takes half a second, in which other requests must be answered.
    return Response(await asyncio.to_thread(render), media_type="application/json")


@router.get("/pools/{name}/scale", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=ScaleOut)
async def get_scale(services: RequestServices, view: SharedView, name: PoolPath) -> ScaleOut:
    """How many workers the pool should have now: for what waits, and for what the next minutes bring."""
    wanted = await scale(services.database, view.caller.tenant_no, name) if view.shows(name) else None
    if wanted is None:
        raise NotFound(f"There is no pool {name!r}.", pool=name)
    return ScaleOut(
        pool=name,
        workers=wanted.workers,
        workers_now=wanted.workers_now,
        slots_a_worker=wanted.slots_a_worker,
        slots=wanted.slots,
        waiting=wanted.waiting,
        oldest_wait_s=wanted.oldest_wait_s,
        coming=wanted.coming,
        why=wanted.why,
    )


def _out(each: PoolForecast, found: Forecast) -> PoolForecastOut:
    return PoolForecastOut(
        pool=each.name,
        slots=each.slots,
        complete=each.is_complete,
        buckets=[
            BucketOut(
                at=one.at,
                fires=round(one.fires, 3),
                slot_s=round(one.work_s, 3),
                busy_s=round(one.busy_s, 3),
                wait_s=_seconds(one.wait_s),
                top=[
                    TopJobOut(job_id=job_id, name=found.names.get(job_id), slot_s=round(work_s, 3))
                    for job_id, work_s in one.top
                ],
                others_slot_s=round(one.others_s, 3),
            )
            for one in each.buckets
            if one.fires or one.wait_s
        ],
        actual=[
            ActualOut(
                at=at,
                executions=ran.executions,
                slot_s=round(ran.work_s, 3),
                wait_s=ran.wait_s,
                others_slot_s=round(ran.others_s, 3),
            )
            for at, ran in each.actual
        ],
    )


def _seconds(wait_s: float | None) -> float | None:
    return None if wait_s is None or wait_s == float("inf") else round(wait_s, 3)


def _read_bucket(written: str | None, begin_at: datetime, end_at: datetime) -> int:
    range_s = (end_at - begin_at).total_seconds()
    if range_s <= 0:
        raise InvalidParameters("`to` must be later than `from`.")
    if range_s > MOST_STEPS * 60:
        raise InvalidParameters(f"A forecast covers at most {MOST_STEPS // 1440} days; ask for a shorter range.")
    if written is None:
        return next((length for length in LENGTHS_S if range_s / length <= USUAL_BUCKETS), LENGTHS_S[-1])
    try:
        bucket_s = duration.seconds(written)
    except ValueError as refusal:
        raise InvalidParameters(f"bucket must be {refusal}.") from None
    if bucket_s > MOST_STEPS * 60:
        raise InvalidParameters(f"bucket must be at most {MOST_STEPS // 1440} days, {EXAMPLE}.")
    step_s = step_of(range_s, bucket_s)
    if bucket_s < step_s or bucket_s % step_s:
        least = "a whole number of seconds" if step_s == 1 else "whole minutes; for seconds ask for 6 hours or less"
        raise InvalidParameters(f"bucket must be {least}, {EXAMPLE}.")
    if range_s / bucket_s > MOST_BUCKETS:
        raise InvalidParameters(f"That is more than {MOST_BUCKETS:,} buckets; ask for longer ones, or a shorter range.")
    return int(bucket_s)
