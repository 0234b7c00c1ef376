"""`POST /v1/jobs/wait`: wait until the first of many jobs has ended (D2). One call serves all handles of a program."""

import asyncio
import time
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from ondot.api.dependencies import CallerDep, RequestServices, Services, check_again, needs
from ondot.api.openapi import takes
from ondot.api.parameters import only_known_parameters
from ondot.api.request_body import JsonBody
from ondot.api.shown_json import MOST_LEVELS
from ondot.document.fields import Body, Duration, JobIdText
from ondot.document.reading import read_form
from ondot.model.access import Caller, Right
from ondot.model.errors import Unavailable
from ondot.model.execution import State
from ondot.model.ids import JobId
from ondot.store.awaited import EndRow, find_awaited_jobs, read_latest_ends

MOST_JOBS: Final = 5_000
LONGEST_WAIT_S: Final = 25.0
CHECK_EVERY_S: Final = 2.0
"""How often the rights of a waiting caller are checked. They are also checked before each answer with results."""
ENDS_AN_ANSWER: Final = 200
INLINE_BYTES: Final = 16 * 1024
"""A longer result is left out: 200 of this size are 3 MiB."""

router = APIRouter(tags=["jobs"], dependencies=[Depends(only_known_parameters)])


class WaitBody(Body):
    """Jobs to wait for."""

    ids: Annotated[list[JobIdText], Field(min_length=1, max_length=MOST_JOBS)] = Field(
        description=f"Ids of jobs, up to {MOST_JOBS:,}.", examples=[["019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"]]
    )
    wait: Duration = Field(
        default=LONGEST_WAIT_S, ge=0, le=LONGEST_WAIT_S, description="How long to wait at most.", examples=["25s"]
    )


class EndedOut(BaseModel):
    """A job that has ended, and its latest execution; the fields after `job_id` are null if it never had one."""

    job_id: UUID
    execution_id: UUID | None = None
    state: State | None = Field(
        default=None, description="How the execution ended; BLOCKED: its run waits for a person."
    )
    attempt: int | None = Field(default=None, description="The number of its last attempt; 0: none started.")
    ended_at: datetime | None = None
    reason: str | None = None
    error: dict[str, Any] | None = Field(default=None, description="`code`, `type` and `message` of its error.")
    result: Any = None
    result_omitted: bool = Field(
        default=False, description="The result is too large for this answer: GET /v1/executions/{id}/result."
    )


class EndedList(BaseModel):
    """Empty if the time was up first."""

    items: list[EndedOut] = Field(description=f"Jobs that have ended, at most {ENDS_AN_ANSWER}.")
    unknown: list[UUID] = Field(description="Ids of jobs that do not exist, or are no longer kept.")


@router.post(
    "/jobs/wait",
    dependencies=[needs(Right.JOBS_READ, by_pool=True)],
    response_model=EndedList,
    openapi_extra=takes(WaitBody),
)
async def wait_for_jobs(request: Request, services: RequestServices, caller: CallerDep, body: JsonBody) -> Response:
    """Wait until at least one of these jobs has ended: it has nothing left to fire or to run. Answers at once if one
    has already, or if one is unknown; an empty list means that the time is up: ask again."""
    wanted = read_form(WaitBody, body, 'for example {"ids": ["019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"], "wait": "25s"}')
    ids = {JobId(id_) for id_ in wanted.ids}
    async with services.database.reading(caller.tenant_no) as connection:
        pools = await find_awaited_jobs(connection, caller.tenant_no, ids)
    known = {id_ for id_, pool in pools.items() if caller.sees(pool)}
    wait_s = wanted.wait if len(known) == len(ids) else 0
    over = await _wait(request, services, caller, known, wait_s)
    items = await _read_ends(services, caller, sorted(over)[:ENDS_AN_ANSWER]) if over else []
    answer = {"items": items, "unknown": [str(id_) for id_ in ids - known]}
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _wait(request: Request, services: Services, caller: Caller, ids: set[JobId], wait_s: float) -> set[JobId]:
    """Those that are over; none: the time is up, the caller has gone, or the process stops."""
    if not ids:
        return set()
    if wait_s == 0:
        return await services.awaited.look(caller.tenant_no, ids)
    until_s = time.monotonic() + wait_s
    gone = asyncio.create_task(_until_gone(request), name="caller of wait")
    with services.awaited.watch(caller.tenant_no, ids) as waiter:
        woken = asyncio.create_task(waiter.wake.wait(), name="wait for jobs")
        try:
            while True:
                left_s = max(until_s - time.monotonic(), 0)
                timeout_s = min(left_s, CHECK_EVERY_S)
                await asyncio.wait({woken, gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                await check_again(request)
                if woken.done() or gone.done() or left_s <= CHECK_EVERY_S:
                    break
        finally:
            woken.cancel()
            gone.cancel()
    if waiter.error is not None:
        raise Unavailable(waiter.error.message)
    return waiter.over


async def _until_gone(request: Request) -> None:
    """The body has been read: what is received next is the end of the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read_ends(services: Services, caller: Caller, ids: list[JobId]) -> list[dict[str, Any]]:
    async with services.database.reading(caller.tenant_no) as connection:
        found = await read_latest_ends(connection, caller.tenant_no, ids, most_bytes=INLINE_BYTES)
    return [_end_out(id_, found.get(id_)) for id_ in ids]


def _end_out(job_id: JobId, row: EndRow | None) -> dict[str, Any]:
    if row is None:
        return {"job_id": str(job_id), "execution_id": None, "state": None}
    is_omitted = row.is_long or (row.result is not None and _may_be_deep(row.result))
    error = row.error
    return {
        "job_id": str(job_id),
        "execution_id": str(row.id),
        "state": row.state.value,
        "attempt": row.attempt_no,
        "ended_at": row.ended_at,
        "reason": row.reason,
        "error": None if error is None else {name: error.get(name) for name in ("code", "type", "message")},
        "result": None if is_omitted or row.result is None else msgspec.Raw(row.result.encode()),
        "result_omitted": is_omitted,
    }


def _may_be_deep(text: str) -> bool:
    """One deeply nested result must not take away the results of the other jobs: readers of JSON give up on it."""
    return text.count("[") + text.count("{") > MOST_LEVELS and _depth(text) > MOST_LEVELS


def _depth(text: str) -> int:
    """At least how deep it is nested; brackets inside of text count, too."""
    depth = deepest = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest
