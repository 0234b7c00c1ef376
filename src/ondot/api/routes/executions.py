"""`/v1/executions`: list, get, logs, result, cancel (E8), retry (E10)."""

import asyncio
import re
import time
from contextlib import suppress
from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from ondot.api import responses
from ondot.api.backpressure import QUEUE_FULL
from ondot.api.dead_letter_bodies import RetryExecutionBody, replay_of, retry_request
from ondot.api.dependencies import (
    BySender,
    CallerDep,
    RequestServices,
    Services,
    Tenant,
    check_again,
    needs,
    while_allowed,
)
from ondot.api.openapi import takes
from ondot.api.parameters import (
    Cursor,
    ExecutionPath,
    Instant,
    Limit,
    Search,
    check_instant,
    invalid_cursor,
    only_known_parameters,
    parse_cursor,
)
from ondot.api.request_body import Key, OptionalJsonBody, idempotency_of
from ondot.api.routes.jobs import load_specs
from ondot.api.views import execution_detail, execution_out
from ondot.document.fields import Body, PlainText
from ondot.document.reading import read_form
from ondot.flow.cancel import cancel
from ondot.flow.history.gone import unknown_execution
from ondot.flow.output import open_log, open_result
from ondot.flow.retry import retry
from ondot.model.access import Caller, Right
from ondot.model.errors import InvalidParameters, NotFound
from ondot.model.execution import Origin, State
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.query import Op, Term, merge, parse
from ondot.model.query.query import term
from ondot.store.events import find_event_of
from ondot.store.executions import (
    ExecutionRow,
    get_execution,
    list_attempts,
    list_executions,
    list_job_executions,
)
from ondot.store.logs import is_under_way, list_log_lines
from ondot.store.pools import find_pools
from ondot.store.search import search_executions

LARGEST = 2**31 - 1
SKIPPED_ARE_RANGES = (
    "Missed fires and fires of a pause are stored as ranges, without executions: GET /v1/skipped-fires lists them."
)
CURSOR = re.compile(r"([0-9]{1,10})\.([0-9]{1,10})")
LONGEST_WAIT_S = 30.0
LOOK_EVERY_S = 0.4

router = APIRouter(tags=["executions"], dependencies=[Depends(only_known_parameters)])


class CancelBody(Body):
    """Why an execution is cancelled."""

    reason: PlainText | None = Field(default=None, description="Why; kept in the audit log.", examples=["wrong region"])


class _Identified(msgspec.Struct):
    id: UUID


@router.get("/executions", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=responses.ExecutionList)
async def list_all_executions(
    services: RequestServices,
    caller: CallerDep,
    state: Annotated[State | None, Query(description="Only executions in this state.")] = None,
    pool: Annotated[str | None, Query(max_length=63, description="Only executions of this pool.")] = None,
    from_at: Instant = None,
    to_at: Instant = None,
    origin: Annotated[
        Origin | None, Query(description="Only of this origin. Default: all but `step`, the steps of runs.")
    ] = None,
    run: Annotated[UUID | None, Query(description="Only steps of this run, of all generations.")] = None,
    q: Search = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> responses.ExecutionList:
    """Executions, live and ended, latest fire first; `from_at` and `to_at` bound the fire. With `q` newest first, by
    when they were planned: the answer may stop before its page is full, with `searched_through`."""
    if q is not None:
        return await _search(services, caller, q, _terms(state, pool, from_at, to_at, origin, run), limit, cursor)
    if run is not None and (pool or from_at or to_at or origin not in {None, "step"}):
        raise InvalidParameters("`run` can be combined only with `state`: leave out the other filters.")
    from_at, to_at = check_instant("from_at", from_at), check_instant("to_at", to_at)
    async with services.database.reading(caller.tenant_no) as connection:
        wanted = caller.pools_among(pool)
        pools = None if wanted is None else await find_pools(connection, wanted)
        if pools == {}:
            return responses.ExecutionList(items=[], next_cursor=None)
        if run is not None:
            caller.require_all_pools()
            rows = await list_job_executions(
                connection,
                caller.tenant_no,
                JobId(run),
                before=parse_cursor(cursor),
                limit=limit + 1,
                horizon_s=services.database.settings.horizon_s,
                state=state.value if state else None,
            )
            rows = [row for row in rows if row.origin == "step"]
        else:
            rows = await list_executions(
                connection,
                caller.tenant_no,
                before=parse_cursor(cursor),
                limit=limit + 1,
                horizon_s=services.database.settings.horizon_s,
                state=state.value if state else None,
                from_at=from_at,
                to_at=to_at,
                pool_nos=None if pools is None else list(pools.values()),
                origin=origin,
            )
    specs = await load_specs(services, rows[:limit])
    return responses.ExecutionList(
        items=[execution_out(row, specs.get(row.id)) for row in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
        see=SKIPPED_ARE_RANGES if state is State.SKIPPED else None,
    )


def _terms(
    state: State | None,
    pool: str | None,
    from_at: datetime | None,
    to_at: datetime | None,
    origin: Origin | None,
    run: UUID | None,
) -> list[Term]:
    """The other parameters of a search, as terms of its query."""
    from_at, to_at = check_instant("from_at", from_at), check_instant("to_at", to_at)
    wanted = [
        state and term("state", state.value),
        pool and term("pool", pool),
        from_at and term("fire", from_at.isoformat(), op=Op.AT_LEAST),
        to_at and term("fire", to_at.isoformat(), op=Op.UNDER),
        origin and term("origin", origin),
        run and term("run", str(run)),
    ]
    return [each for each in wanted if each]


async def _search(
    services: Services, caller: Caller, q: str, terms: list[Term], limit: int, cursor: str | None
) -> responses.ExecutionList:
    query = merge(parse(q, "executions"), terms)
    async with services.database.reading(caller.tenant_no) as connection:
        wanted = caller.pools_among(None)
        pools = None if wanted is None else await find_pools(connection, wanted)
        found = await search_executions(
            connection,
            caller.tenant_no,
            query,
            parse_cursor(cursor),
            limit,
            pool_nos=None if pools is None else list(pools.values()),
        )
    specs = await load_specs(services, found.rows)
    return responses.ExecutionList(
        items=[execution_out(row, specs.get(row.id)) for row in found.rows],
        next_cursor=str(found.next) if found.next else None,
        searched_through=found.searched_through,
    )


@router.get(
    "/executions/{id}", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=responses.ExecutionDetail
)
async def get_one_execution(
    services: RequestServices, tenant_no: Tenant, id_: ExecutionPath
) -> responses.ExecutionDetail:
    """One execution with all its attempts."""
    row = await _load_execution(services, tenant_no, id_)
    async with services.database.reading(tenant_no) as connection:
        attempts = await list_attempts(connection, tenant_no, row.id)
        event_id = await find_event_of(connection, tenant_no, row.id) if row.origin == "event" else None
    specs = await load_specs(services, [row])
    return execution_detail(row, specs.get(row.id), attempts, event_id)


@router.get(
    "/executions/{id}/logs",
    dependencies=[needs(Right.JOBS_READ, by_pool=True)],
    response_model=responses.LogList,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def execution_logs(
    request: Request,
    services: RequestServices,
    tenant_no: Tenant,
    id_: ExecutionPath,
    cursor: Annotated[
        str | None, Query(description="`next_cursor` of the page before: lists the lines after it.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    attempt: Annotated[int | None, Query(ge=1, le=LARGEST, description="Only of this attempt.")] = None,
    q: Annotated[str | None, Query(max_length=1_000, description="A part of the line; case does not matter.")] = None,
    wait: Annotated[
        float, Query(ge=0, le=LONGEST_WAIT_S, description="Seconds to wait for lines if there are none yet.")
    ] = 0,
    whole: Annotated[
        bool, Query(description="The whole log of `attempt` (default: the latest) as text, without pages.")
    ] = False,
) -> responses.LogList | Response:
    """Log lines and captured output of the attempts. To follow them, ask again with `next_cursor` and `wait`."""
    row = await _load_execution(services, tenant_no, id_)
    if whole:
        number = attempt or row.attempt_no
        if number > row.attempt_no:
            raise NotFound(f"The execution {id_} has no attempt {number}: its last one is {row.attempt_no}.")
        text = await open_log(services.database, services.objects, tenant_no, row.id, number, q or None)
        return StreamingResponse(while_allowed(request, text), media_type="text/plain")
    after = _parse_position(cursor)
    until_s = time.monotonic() + wait
    while True:
        async with services.database.reading(tenant_no) as connection:
            # In this order: lines that were written before the end are visible once the end is.
            ended = not await is_under_way(connection, tenant_no, row.id)
            lines = await list_log_lines(
                connection, tenant_no, row.id, after=after, limit=limit, attempt_no=attempt, part=q
            )
        left_s = until_s - time.monotonic()
        if lines or ended or left_s <= 0 or services.stopping.is_set() or await request.is_disconnected():
            break
        with suppress(TimeoutError):
            async with asyncio.timeout(min(LOOK_EVERY_S, left_s)):
                await services.stopping.wait()
        await check_again(request)
    last = (lines[-1].attempt_no, lines[-1].line_no) if lines else after
    return responses.LogList(
        items=[
            responses.LogOut(attempt=line.attempt_no, at=line.at, stream=line.stream, line=line.line) for line in lines
        ],
        next_cursor=f"{last[0]}.{last[1]}",
        ended=ended and len(lines) < limit,
    )


@router.get(
    "/executions/{id}/result",
    dependencies=[needs(Right.JOBS_READ, by_pool=True)],
    responses={200: {"content": {"application/json": {"schema": {}}}}},
)
async def execution_result(
    request: Request, services: RequestServices, tenant_no: Tenant, id_: ExecutionPath
) -> Response:
    """The whole result of an execution that has ended, of any size; `null` if it has none."""
    row = await _load_execution(services, tenant_no, id_)
    stored = await open_result(services.database, services.objects, tenant_no, row.id)
    headers = {"Content-Length": str(stored.size)}
    return StreamingResponse(while_allowed(request, stored.chunks), media_type="application/json", headers=headers)


@router.post(
    "/executions/{id}/cancel",
    dependencies=[needs(Right.JOBS_RUN, by_pool=True)],
    status_code=202,
    response_model=responses.ExecutionOut,
    openapi_extra=takes(CancelBody, required=False),
)
async def cancel_execution(
    services: RequestServices, tenant_no: Tenant, by: BySender, id_: ExecutionPath, body: OptionalJsonBody
) -> responses.ExecutionOut:
    """Cancel an execution. One that waits is CANCELLED at once. One that runs is notified within two seconds
    (`cancel_requested_at`), has the job's `cancel_grace` to end, and is then ended by force."""
    reason = None if body is None else read_form(CancelBody, body, 'for example {"reason": "wrong region"}').reason
    row = await cancel(services.database, services.dispatcher, tenant_no, ExecutionId(id_), by=by.because(reason))
    specs = await load_specs(services, [row])
    return execution_out(row, specs.get(row.id), whole=True)


@router.post(
    "/executions/{id}/retry",
    dependencies=[needs(Right.JOBS_RUN, by_pool=True)],
    status_code=201,
    response_model=responses.ExecutionOut,
    responses={
        202: {"model": responses.ExecutionOut, "description": "It was waiting for its next attempt."},
        **QUEUE_FULL,
    },
    openapi_extra=takes(RetryExecutionBody, required=False),
)
async def retry_execution(
    request: Request,
    services: RequestServices,
    tenant_no: Tenant,
    by: BySender,
    id_: ExecutionPath,
    body: OptionalJsonBody,
    _key: Key = None,
) -> Response:
    """Run an execution again: its next attempt now if it waits for one (202), a new execution if it has ended (201)."""
    wanted = retry_request(body)
    how = replay_of(wanted)
    services.quotas.check_replay(tenant_no, how.payload)
    idempotency = idempotency_of(request)

    async def pools() -> dict[str, int]:
        async with services.database.connection() as connection:
            found = await get_execution(connection, tenant_no, ExecutionId(id_))
        return {found.pool: 1} if found else {}

    async with services.room_now(tenant_no, pools, idempotency):
        text = await retry(
            services.database,
            services.dispatcher,
            tenant_no,
            ExecutionId(id_),
            how,
            by=by.because(wanted.reason),
            render=lambda retried: execution_out(retried.execution, retried.spec, whole=True).model_dump_json(),
            idempotency=idempotency,
        )
    # From the text of the response: for a repeated Idempotency-Key it is the text of the first response.
    status = 202 if msgspec.json.decode(text, type=_Identified).id == id_ else 201
    return Response(text, status_code=status, media_type="application/json")


async def _load_execution(services: Services, tenant_no: TenantNo, id_: UUID) -> ExecutionRow:
    async with services.database.reading(tenant_no) as connection:
        row = await get_execution(connection, tenant_no, ExecutionId(id_))
    if row is None:
        raise await unknown_execution(services.database, tenant_no, ExecutionId(id_))
    return row


def _parse_position(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return 0, 0
    written = CURSOR.fullmatch(cursor)
    position = (int(written[1]), int(written[2])) if written else (LARGEST + 1, 0)
    if max(position) > LARGEST:
        raise invalid_cursor()
    return position
