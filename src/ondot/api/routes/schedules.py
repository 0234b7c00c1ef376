"""Coming fires (S9): `/v1/schedules/preview` of a schedule without a job, `/v1/jobs/{id}/next` of a job.

They are computed in a thread: a thousand fires of many rules take seconds, and other requests must not wait.
"""

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from msgspec import structs

from ondot.api import responses
from ondot.api.dependencies import RequestServices, Services, Tenant, needs
from ondot.api.openapi import takes
from ondot.api.parameters import Instant, JobPath, check_instant, only_known_parameters
from ondot.api.request_body import JsonBody
from ondot.api.routes.jobs import load_job
from ondot.document.requests import PreviewBody, preview_request
from ondot.model.access import Right
from ondot.model.errors import Fault, InvalidSchedule
from ondot.model.ids import JobId, TenantNo
from ondot.model.job import JobState
from ondot.model.schedule import GivenUp, Schedule, for_job, in_words, preview, start_delay
from ondot.model.schedule.counting import count_fires
from ondot.model.schedule.looks import A_REQUEST, allowed
from ondot.store.timers import get_timer

router = APIRouter(tags=["schedules"], dependencies=[Depends(only_known_parameters)])


@router.post(
    "/schedules/preview",
    dependencies=[needs(Right.JOBS_READ, by_pool=True)],
    response_model=responses.PreviewOut,
    openapi_extra=takes(PreviewBody),
)
async def preview_schedule(services: RequestServices, tenant_no: Tenant, body: JsonBody) -> responses.PreviewOut:
    """The next fires of a schedule, and the schedule in words, before a job uses it."""
    now = services.database.clock.now()
    try:
        with allowed(A_REQUEST):
            return responses.preview_out(await asyncio.to_thread(lambda: preview(*preview_request(body, now))))
    except GivenUp as search:
        message = f"{search.message} Or ask for fewer fires with a smaller `n`."
        faults = tuple(Fault(f"/schedule{fault.pointer}", message) for fault in search.faults)
        raise InvalidSchedule(message, faults=faults) from None


@router.get(
    "/jobs/{id}/next",
    dependencies=[needs(Right.JOBS_READ, by_pool=True)],
    tags=["jobs"],
    response_model=responses.NextOut,
    response_model_exclude_unset=True,
)
async def next_fires(
    services: RequestServices,
    tenant_no: Tenant,
    id_: JobPath,
    n: Annotated[int, Query(ge=1, le=1000, description="How many fires.")] = 10,
    after: Instant = None,
) -> responses.NextOut:
    """The next fires, with a remark if a clock change moves or repeats one. None while the job is paused or deleted."""
    now = services.database.clock.now()
    after = check_instant("after", after) or now
    row = await load_job(services, tenant_no, JobId(id_))
    assert row.spec.schedule is not None
    schedule = for_job(row.spec.schedule, row.id)
    words = in_words(schedule)
    with allowed(A_REQUEST):
        left = (
            await _fires_left(services, tenant_no, row.id, schedule, after, now) if row.state is JobState.ACTIVE else 0
        )
        if left == 0:
            return responses.NextOut(in_words=words, fires=[], skipped=[])
        coming = await asyncio.to_thread(preview, structs.replace(schedule, max_fires=left), after, n)
    return responses.next_out(replace(coming, in_words=words), start_delay(schedule, row.id) or None)


async def _fires_left(
    services: Services, tenant_no: TenantNo, job_id: JobId, schedule: Schedule, after: datetime, now: datetime
) -> int | None:
    """How many fires `max_fires` leaves after an instant; None: no limit."""
    if schedule.max_fires is None:
        return None
    async with services.database.reading(tenant_no) as connection:
        timer = await get_timer(connection, tenant_no, job_id)
    if timer is None or timer.fires_left is None:
        return schedule.max_fires
    # Planned fires are already counted, although some may be in the future.
    through = timer.fired_through or now
    if after < through:
        counted = await asyncio.to_thread(count_fires, schedule, after, through, schedule.max_fires)
        return timer.fires_left + (counted or 0)
    counted = await asyncio.to_thread(count_fires, schedule, through, after, timer.fires_left)
    return 0 if counted is None else timer.fires_left - counted
