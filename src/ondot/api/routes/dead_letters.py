"""`/v1/dead-letters`: list, group, show, replay, discard; operations on all letters that match a filter (E10, O8)."""

import re
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response

from ondot.api.backpressure import QUEUE_FULL
from ondot.api.dead_letter_bodies import (
    DiscardBody,
    ReplayBody,
    discard_request,
    replay_of,
    replay_request,
)
from ondot.api.dead_letter_responses import (
    LetterCount,
    LetterDetail,
    LetterGroupList,
    LetterList,
    LettersDone,
    OperationList,
    OperationOut,
    done_out,
    group_out,
    letter_detail,
    letter_out,
    operation_out,
)
from ondot.api.dependencies import BySender, RequestServices, Services, Tenant, needs
from ondot.api.openapi import takes
from ondot.api.parameters import (
    Cursor,
    Instant,
    Limit,
    Search,
    check_instant,
    id_in_path,
    invalid_cursor,
    only_known_parameters,
    parse_cursor,
    pool_of_execution,
)
from ondot.api.request_body import JsonBody, Key, idempotency_of
from ondot.flow.bulk.start import bound_rate, start_bulk, stop
from ondot.flow.dead_letters import discard, replay
from ondot.flow.replay import Replay
from ondot.model.access import Right
from ondot.model.errors import NotFound
from ondot.model.ids import EPOCH, ExecutionId, TenantNo
from ondot.model.query import parse
from ondot.store.audit import By
from ondot.store.bulk import NewBulk, list_bulks
from ondot.store.dead_letters import (
    LetterFilter,
    LetterRow,
    LetterState,
    count_letters,
    count_open_letters,
    find_job_names,
    get_letter,
    group_letters,
    list_letters,
)
from ondot.store.executions import get_execution, list_attempts
from ondot.store.pools import count_letters_by_pool

JOBS_OF_A_GROUP = 10
MICROSECOND = timedelta(microseconds=1)
CURSOR = re.compile(r"(\d{1,16})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)

router = APIRouter(tags=["dead letters"], dependencies=[Depends(only_known_parameters)])

LetterPath = Annotated[UUID, Depends(id_in_path("dead letter", "execution_id", pool_of_execution))]
OperationPath = Annotated[UUID, Depends(id_in_path("operation"))]

OfJob = Annotated[UUID | None, Query(description="Only letters of this job.")]
OfPool = Annotated[str | None, Query(max_length=63, description="Only letters of this pool.")]
OfGroup = Annotated[str | None, Query(max_length=64, description="Only letters of this group of similar errors.")]

COUNTED_OR_STARTED: dict[int | str, dict[str, Any]] = {
    200: {"model": LettersDone | LetterCount, "description": "By ids: the result for each. With `dry_run`: the count."},
    202: {"model": OperationOut, "description": "By filter: it continues in the background."},
}


@router.get("/dead-letters", dependencies=[needs(Right.JOBS_READ)], response_model=LetterList)
async def list_dead_letters(
    services: RequestServices,
    tenant_no: Tenant,
    job_id: OfJob = None,
    pool: OfPool = None,
    fingerprint: OfGroup = None,
    from_at: Instant = None,
    to_at: Instant = None,
    q: Search = None,
    state: Annotated[
        LetterState,
        Query(description="Open letters, or those that were replayed, discarded, or handled by their workflow."),
    ] = "open",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> LetterList:
    """FAILED executions that wait for a person, latest failure first; `from_at` and `to_at` bound the failure."""
    wanted = _filter(job_id, pool, fingerprint, from_at, to_at, q)
    async with services.database.reading(tenant_no) as connection:
        rows = await list_letters(
            connection, tenant_no, wanted, state=state, before=_parse_position(cursor), limit=limit + 1
        )
        page = rows[:limit]
        specs = await services.database.specs.find(connection, [(row.job_id, row.job_version) for row in page])
    return LetterList(
        items=[letter_out(row, specs.get((row.job_id, row.job_version))) for row in page],
        next_cursor=_render_cursor(page[-1]) if len(rows) > limit else None,
    )


@router.get("/dead-letters/groups", dependencies=[needs(Right.JOBS_READ)], response_model=LetterGroupList)
async def group_dead_letters(
    services: RequestServices,
    tenant_no: Tenant,
    job_id: OfJob = None,
    pool: OfPool = None,
    fingerprint: OfGroup = None,
    from_at: Instant = None,
    to_at: Instant = None,
    q: Search = None,
    limit: Limit = 100,
) -> LetterGroupList:
    """Open letters, grouped by similar errors, the group with the latest failure first."""
    wanted = _filter(job_id, pool, fingerprint, from_at, to_at, q)
    async with services.database.reading(tenant_no) as connection:
        groups = await group_letters(connection, tenant_no, wanted, limit=limit, jobs=JOBS_OF_A_GROUP)
        names = await find_job_names(connection, tenant_no, list({id_ for group in groups for id_ in group.job_ids}))
    return LetterGroupList(items=[group_out(group, names) for group in groups])


@router.post(
    "/dead-letters/replay",
    dependencies=[needs(Right.JOBS_RUN)],
    responses=COUNTED_OR_STARTED | QUEUE_FULL,
    openapi_extra=takes(ReplayBody),
)
async def replay_dead_letters(
    request: Request, services: RequestServices, tenant_no: Tenant, by: BySender, body: JsonBody, _key: Key = None
) -> Response:
    """Run letters again: by ids at once, by filter in the background, at a bounded rate."""
    wanted = replay_request(body)
    how = replay_of(wanted)
    services.quotas.check_replay(tenant_no, how.payload)
    if wanted.dry_run:
        return await _count(services, tenant_no, wanted)
    if wanted.ids is None:
        return await _start(request, services, tenant_no, wanted, how, by)
    idempotency = idempotency_of(request)

    async def pools() -> dict[str, int]:
        async with services.database.connection() as connection:
            return await count_letters_by_pool(connection, tenant_no, wanted.execution_ids)

    async with services.room_now(tenant_no, pools, idempotency):
        text = await replay(
            services.database,
            services.dispatcher,
            tenant_no,
            wanted.execution_ids,
            how,
            by=by.because(wanted.reason),
            render=lambda entries: done_out(entries).model_dump_json(),
            idempotency=idempotency,
        )
    return _json(text, 200)


@router.post(
    "/dead-letters/discard",
    dependencies=[needs(Right.JOBS_RUN)],
    responses=COUNTED_OR_STARTED,
    openapi_extra=takes(DiscardBody),
)
async def discard_dead_letters(
    request: Request, services: RequestServices, tenant_no: Tenant, by: BySender, body: JsonBody, _key: Key = None
) -> Response:
    """Discard letters that should not run again, with a reason. Their executions stay in history."""
    wanted = discard_request(body)
    if wanted.dry_run:
        return await _count(services, tenant_no, wanted)
    if wanted.ids is None:
        return await _start(request, services, tenant_no, wanted, Replay(), by)
    text = await discard(
        services.database,
        tenant_no,
        wanted.execution_ids,
        by=by.because(wanted.reason),
        render=lambda entries: done_out(entries).model_dump_json(),
        idempotency=idempotency_of(request),
    )
    return _json(text, 200)


@router.get("/dead-letters/operations", dependencies=[needs(Right.JOBS_READ)], response_model=OperationList)
async def list_operations(
    services: RequestServices, tenant_no: Tenant, limit: Limit = 50, cursor: Cursor = None
) -> OperationList:
    """Replays and discards by filter, with their progress, newest first."""
    async with services.database.reading(tenant_no) as connection:
        rows = await list_bulks(
            connection, tenant_no, kind="dead_letters", before=parse_cursor(cursor), limit=limit + 1
        )
    return OperationList(
        items=[operation_out(row) for row in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


@router.get("/dead-letters/operations/{id}", dependencies=[needs(Right.JOBS_READ)], response_model=OperationOut)
async def get_operation(services: RequestServices, tenant_no: Tenant, id_: OperationPath) -> OperationOut:
    """One operation and its progress."""
    async with services.database.reading(tenant_no) as connection:
        rows = await list_bulks(connection, tenant_no, id_=id_, kind="dead_letters")
    if not rows:
        raise NotFound(f"There is no operation {id_} on dead letters.")
    return operation_out(rows[0])


@router.post("/dead-letters/operations/{id}/cancel", dependencies=[needs(Right.JOBS_RUN)], response_model=OperationOut)
async def cancel_operation(
    services: RequestServices, tenant_no: Tenant, by: BySender, id_: OperationPath
) -> OperationOut:
    """Stop an operation: it handles no further letters. Those that it has handled stay as they are."""
    return operation_out(await stop(services.database, tenant_no, id_, by=by, kind="dead_letters"))


@router.get(
    "/dead-letters/{execution_id}", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=LetterDetail
)
async def get_dead_letter(services: RequestServices, tenant_no: Tenant, execution_id: LetterPath) -> LetterDetail:
    """One letter: its payload, its attempts, and how it was replayed or discarded."""
    async with services.database.reading(tenant_no) as connection:
        row = await get_letter(connection, tenant_no, ExecutionId(execution_id))
        if row is None:
            raise NotFound(f"There is no dead letter {execution_id}: only a FAILED execution leaves one.")
        attempts = await list_attempts(connection, tenant_no, row.execution_id)
        specs = await services.database.specs.find(connection, [(row.job_id, row.job_version)])
        again = await get_execution(connection, tenant_no, row.replay_id) if row.replay_id else None
    return letter_detail(row, specs.get((row.job_id, row.job_version)), attempts, again.state if again else None)


async def _count(services: Services, tenant_no: TenantNo, wanted: ReplayBody | DiscardBody) -> Response:
    async with services.database.reading(tenant_no) as connection:
        if wanted.ids is not None:
            count = await count_open_letters(connection, tenant_no, wanted.execution_ids)
        else:
            count, _ = await count_letters(connection, tenant_no, wanted.letter_filter)
    return _json(LetterCount(count=count).model_dump_json(), 200)


async def _start(
    request: Request,
    services: Services,
    tenant_no: TenantNo,
    wanted: ReplayBody | DiscardBody,
    how: Replay,
    by: By,
) -> Response:
    tenant = services.database.tenants.known.get(tenant_no)
    is_replay = isinstance(wanted, ReplayBody)
    bulk = NewBulk(
        services.database.clock.new_id(),
        "dead_letters",
        "replay" if is_replay else "discard",
        bound_rate(tenant, "replay", wanted.per_s) if is_replay else wanted.per_s,
        filter=wanted.letter_filter,
        payload=how.payload,
        current_version=how.current_version,
    )
    text = await start_bulk(
        services.database,
        tenant_no,
        bulk,
        by=by.because(wanted.reason),
        render=lambda row: operation_out(row).model_dump_json(),
        idempotency=idempotency_of(request),
    )
    return _json(text, 202)


def _json(text: str, status: int) -> Response:
    return Response(text, status_code=status, media_type="application/json")


def _filter(
    job_id: UUID | None,
    pool: str | None,
    fingerprint: str | None,
    from_at: datetime | None,
    to_at: datetime | None,
    q: str | None,
) -> LetterFilter:
    if q is not None:
        parse(q, "dead_letters")
    return LetterFilter(
        job_id=job_id,
        pool=pool,
        fingerprint=fingerprint,
        from_at=check_instant("from_at", from_at),
        to_at=check_instant("to_at", to_at),
        q=q,
    )


def _render_cursor(row: LetterRow) -> str:
    return f"{(row.failed_at - EPOCH) // MICROSECOND}.{row.execution_id}"


def _parse_position(cursor: str | None) -> tuple[datetime, UUID] | None:
    """The letter after which a page starts."""
    if cursor is None:
        return None
    found = CURSOR.fullmatch(cursor)
    if found is None:
        raise invalid_cursor()
    return EPOCH + int(found[1]) * MICROSECOND, UUID(found[2])
