"""`/v1/executions`: list, get, logs, result."""

import asyncio
import re
import time
from contextlib import suppress
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse

from ondot.api import responses
from ondot.api.dependencies import (
    Asked,
    Instant,
    Services,
    Tenant,
    checked_instant,
    cursor_of,
    id_in_path,
    only_known_parameters,
)
from ondot.api.routes.jobs import Cursor, Limit, specs_of
from ondot.api.views import execution_detail, execution_out
from ondot.flow.output import open_log, open_result
from ondot.model.errors import InvalidParameters, NotFound
from ondot.model.execution import State
from ondot.model.ids import ExecutionId, TenantNo
from ondot.store.executions import ExecutionRow, get_execution, list_attempts, list_executions
from ondot.store.logs import is_under_way, list_log_lines
from ondot.store.pools import find_pools

LARGEST = 2**31 - 1
SKIPPED_ARE_RANGES = (
    "Fires that were missed or paused are kept as ranges, and have no executions: GET /v1/skipped-fires lists them."
)
CURSOR = re.compile(r"([0-9]{1,10})\.([0-9]{1,10})")
LONGEST_WAIT_S = 30.0
LOOK_EVERY_S = 0.4
AS_IT_SAYS = {"X-Content-Type-Options": "nosniff"}
"""Handlers wrote it: a browser must not find a page in it."""

router = APIRouter(tags=["executions"], dependencies=[Depends(only_known_parameters)])

ExecutionPath = Annotated[UUID, Depends(id_in_path("execution"))]


@router.get("/executions", response_model=responses.ExecutionList)
async def list_all_executions(
    asked: Asked,
    tenant_no: Tenant,
    state: Annotated[State | None, Query(description="only executions in this state")] = None,
    pool: Annotated[str | None, Query(max_length=63, description="only executions of this pool")] = None,
    from_at: Instant = None,
    to_at: Instant = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> responses.ExecutionList:
    """Executions, live and ended, by when they were due, latest first; `from_at` and `to_at` bound their fire."""
    from_at, to_at = checked_instant("from_at", from_at), checked_instant("to_at", to_at)
    async with asked.database.connection() as connection:
        pools = await find_pools(connection, [pool]) if pool else {}
        if pool and pool not in pools:
            return responses.ExecutionList(items=[], next_cursor=None)
        rows = await list_executions(
            connection,
            tenant_no,
            before=cursor_of(cursor),
            limit=limit + 1,
            horizon_s=asked.database.settings.horizon_s,
            state=state.value if state else None,
            from_at=from_at,
            to_at=to_at,
            pool_no=pools[pool] if pool else None,
        )
    specs = await specs_of(asked, rows[:limit])
    return responses.ExecutionList(
        items=[execution_out(row, specs.get(row.id)) for row in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
        see=SKIPPED_ARE_RANGES if state is State.SKIPPED else None,
    )


@router.get("/executions/{id}", response_model=responses.ExecutionDetail)
async def get_one_execution(asked: Asked, tenant_no: Tenant, id_: ExecutionPath) -> responses.ExecutionDetail:
    """One execution with all its attempts."""
    row = await _execution(asked, tenant_no, id_)
    async with asked.database.connection() as connection:
        attempts = await list_attempts(connection, tenant_no, row.id)
    specs = await specs_of(asked, [row])
    return execution_detail(row, specs.get(row.id), attempts)


@router.get(
    "/executions/{id}/logs",
    response_model=responses.LogList,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def execution_logs(
    request: Request,
    asked: Asked,
    tenant_no: Tenant,
    id_: ExecutionPath,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before: the lines after it.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    attempt: Annotated[int | None, Query(ge=1, le=LARGEST, description="only of this attempt")] = None,
    q: Annotated[str | None, Query(max_length=1_000, description="a part of the line, in capitals or not")] = None,
    wait: Annotated[
        float, Query(ge=0, le=LONGEST_WAIT_S, description="seconds to wait for lines if there are none yet")
    ] = 0,
    whole: Annotated[
        bool, Query(description="the whole text of `attempt` (else the latest), as text; without pages")
    ] = False,
) -> responses.LogList | Response:
    """What its attempts said: log lines and captured output. To follow, ask again with `next_cursor` and `wait`."""
    row = await _execution(asked, tenant_no, id_)
    if whole:
        number = attempt or row.attempt_no
        if number > row.attempt_no:
            raise NotFound(f"There is no attempt {number} of the execution {id_}: it has had {row.attempt_no}.")
        text = await open_log(asked.database, asked.objects, tenant_no, row.id, number, q or None)
        return StreamingResponse(text, media_type="text/plain", headers=AS_IT_SAYS)
    after = _line(cursor)
    until_s = time.monotonic() + wait
    while True:
        async with asked.database.connection() as connection:
            # In this order: what was said before the end is there when the end is.
            ended = not await is_under_way(connection, tenant_no, row.id)
            lines = await list_log_lines(
                connection, tenant_no, row.id, after=after, limit=limit, attempt_no=attempt, part=q
            )
        left_s = until_s - time.monotonic()
        if lines or ended or left_s <= 0 or asked.stopping.is_set() or await request.is_disconnected():
            break
        with suppress(TimeoutError):
            async with asyncio.timeout(min(LOOK_EVERY_S, left_s)):
                await asked.stopping.wait()
        await asked.auth.tenant(request)  # the key may have been revoked meanwhile
    last = (lines[-1].attempt_no, lines[-1].line_no) if lines else after
    return responses.LogList(
        items=[
            responses.LogOut(attempt=line.attempt_no, at=line.at, stream=line.stream, line=line.line) for line in lines
        ],
        next_cursor=f"{last[0]}.{last[1]}",
        ended=ended and len(lines) < limit,
    )


@router.get("/executions/{id}/result", responses={200: {"content": {"application/json": {"schema": {}}}}})
async def execution_result(request: Request, asked: Asked, tenant_no: Tenant, id_: ExecutionPath) -> Response:
    """The whole result of an execution that has ended, however large; `null` if it left none."""
    row = await _execution(asked, tenant_no, id_)
    stored = await open_result(asked.database, asked.objects, tenant_no, row.id)
    headers = {"Content-Length": str(stored.size), **AS_IT_SAYS}
    return StreamingResponse(stored.chunks, media_type="application/json", headers=headers)


async def _execution(asked: Services, tenant_no: TenantNo, id_: UUID) -> ExecutionRow:
    async with asked.database.connection() as connection:
        row = await get_execution(connection, tenant_no, ExecutionId(id_))
    if row is None:
        raise NotFound(f"There is no execution {id_}.")
    return row


def _line(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return 0, 0
    written = CURSOR.fullmatch(cursor)
    position = (int(written[1]), int(written[2])) if written else (LARGEST + 1, 0)
    if max(position) > LARGEST:
        raise InvalidParameters("The cursor is not one that the log gave: take `next_cursor` of the page before.")
    return position
