"""`/v1/jobs`: list, get, update, patch, delete, pause, resume, run, status, executions."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Annotated
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request, Response

from ondot.api import responses
from ondot.api.backpressure import QUEUE_FULL
from ondot.api.dependencies import ByCaller, CallerDep, RequestServices, Services, Tenant, needs
from ondot.api.job_rules import check_step_pools
from ondot.api.job_secrets import admit_secrets_of_one
from ondot.api.openapi import takes, takes_patch
from ondot.api.parameters import Cursor, JobPath, Limit, Search, only_known_parameters, parse_cursor
from ondot.api.request_body import JsonBody, Key, OptionalJsonBody, idempotency_of
from ondot.api.views import execution_out
from ondot.document.body import JobBody
from ondot.document.errors import invalid_body
from ondot.document.functions import KnownFunctions
from ondot.document.parse import job_spec, patched_spec
from ondot.document.render import SPEC_FIELDS, JobOut, WarningOut, render_job
from ondot.document.requests import ResumeBody, RunBody, resume_missed, run_payload
from ondot.flow.change.change import delete, pause, resume, update
from ondot.flow.declared_jobs import Declaration, read_declarations
from ondot.flow.descriptor_sets import check_descriptor_sets
from ondot.flow.history.gone import find_why_unknown
from ondot.flow.known_functions import find_unknown
from ondot.flow.run_now import run_now
from ondot.flow.workflows.control import cancel_runs_of_job
from ondot.model.access import Caller, Right
from ondot.model.errors import Fault, InvalidBody, InvalidParameters
from ondot.model.execution import State
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.job import JobSpec, JobState
from ondot.model.job_access import check_jobs, limit_reach
from ondot.model.query import Term, Value, merge, parse
from ondot.model.query.query import term
from ondot.model.target import FunctionTarget
from ondot.store.audit import By
from ondot.store.executions import ExecutionRow, find_latest_execution, list_job_executions, list_skipped
from ondot.store.jobs import JobRow, find_creator, get_job, list_jobs
from ondot.store.pools import find_pools
from ondot.store.search_jobs import search_jobs

LATEST = 10
READ_ONLY = responses.JobDetail.__annotations__.keys() - SPEC_FIELDS
"""The fields of a response that only ondot writes."""

router = APIRouter(tags=["jobs"], dependencies=[Depends(only_known_parameters)])

IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="The ETag of the version that was read. If the job has changed since then, the response is 412.",
    ),
]


@router.get("/jobs", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=responses.JobList)
async def list_all_jobs(
    services: RequestServices,
    caller: CallerDep,
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    name: Annotated[str | None, Query(max_length=200, description="The whole name.")] = None,
    label: Annotated[list[str] | None, Query(description="`key:value`; may be given several times.")] = None,
    pool: Annotated[str | None, Query(max_length=63, description="Only jobs of this pool.")] = None,
    q: Search = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> responses.JobList:
    """Jobs, newest first. Deleted ones are listed only with `state=DELETED`. With `q` the answer may stop before its
    page is full, with `searched_through`."""
    query = None if q is None else merge(parse(q, "jobs"), _terms(state, name, _parse_labels(label)))
    async with services.database.reading(caller.tenant_no) as connection:
        wanted = caller.pools_among(pool)
        pools = None if wanted is None else await find_pools(connection, wanted)
        if pools == {}:
            return responses.JobList(items=[], next_cursor=None)
        if query is not None:
            pool_nos = None if pools is None else list(pools.values())
            found = await search_jobs(
                connection, caller.tenant_no, query, parse_cursor(cursor), limit, pool_nos=pool_nos
            )
            declared = await read_declarations(connection, caller.tenant_no, found.rows)
            return responses.JobList(
                items=[_render(row, declared) for row in found.rows],
                next_cursor=str(found.next) if found.next else None,
                searched_through=found.searched_through,
            )
        rows = await list_jobs(
            connection,
            caller.tenant_no,
            before=parse_cursor(cursor),
            limit=limit + 1,
            state=state.value if state else None,
            name=name,
            labels=_parse_labels(label),
            pool_nos=None if pools is None else list(pools.values()),
        )
        declared = await read_declarations(connection, caller.tenant_no, rows[:limit])
    return responses.JobList(
        items=[_render(row, declared) for row in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


def _render(row: JobRow, declared: Mapping[JobId, Declaration]) -> JobOut:
    rendered = render_job(row, row.updated_at)
    if (found := declared.get(row.id)) is not None:
        rendered["declared"] = {
            "app": found.row.app,
            "release": found.row.release,
            "differs": [difference.field for difference in found.differs],
            "dropped_release": found.row.dropped_release,
        }
    return rendered


def _terms(state: JobState | None, name: str | None, labels: dict[str, str] | None) -> list[Term]:
    """The other parameters of a search, as terms of its query."""
    terms = [Term("label", (Value((value,)),), path=(key,)) for key, value in (labels or {}).items()]
    if state is not None:
        terms.append(term("state", state.value))
    if name is not None:
        terms.append(term("name", name))
    return terms


@router.get("/jobs/{id}", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=responses.JobDetail)
async def get_one_job(
    services: RequestServices, tenant_no: Tenant, id_: JobPath, response: Response
) -> responses.JobDetail:
    """One job with its latest executions; `ETag` is its version."""
    async with services.database.reading(tenant_no) as connection:
        row = await load_job(services, tenant_no, JobId(id_))
        latest = await list_job_executions(
            connection, tenant_no, row.id, limit=LATEST, horizon_s=services.database.settings.horizon_s
        )
        skipped = await list_skipped(connection, tenant_no, row.id, LATEST)
        declared = await read_declarations(connection, tenant_no, [row])
    specs = await load_specs(services, latest)
    response.headers["ETag"] = f'"{row.version}"'
    return {
        **_render(row, declared),
        "latest_executions": [execution_out(execution, specs.get(execution.id)) for execution in latest],
        "skipped_fires": [
            responses.SkippedRange(from_at=entry.from_at, to_at=entry.to_at, reason=entry.reason, count=entry.count)
            for entry in skipped
        ],
    }


@router.put(
    "/jobs/{id}",
    dependencies=[needs(Right.JOBS_WRITE, by_pool=True)],
    response_model=JobOut,
    openapi_extra=takes(JobBody),
)
async def update_job(
    services: RequestServices,
    caller: CallerDep,
    id_: JobPath,
    body: JsonBody,
    response: Response,
    by: ByCaller,
    if_match: IfMatch = None,
) -> JobOut:
    """Store a new version, which is in force at once: fires that are planned and have not started are planned again."""
    row = await replace_job(services, caller, JobId(id_), body, by, if_version=_parse_etag(if_match))
    return _job_response(row, response, await services.functions.of(caller.tenant_no))


@router.patch(
    "/jobs/{id}",
    dependencies=[needs(Right.JOBS_WRITE, by_pool=True)],
    response_model=JobOut,
    openapi_extra=takes_patch(),
)
async def patch_job(
    services: RequestServices,
    caller: CallerDep,
    id_: JobPath,
    body: JsonBody,
    response: Response,
    by: ByCaller,
    if_match: IfMatch = None,
) -> JobOut:
    """Store a new version with some fields changed, by a merge patch (RFC 7396) on the job's long form.

    null resets a field to its default; another kind of schedule or target replaces the old one. A patch that changes
    nothing makes no new version.
    """

    functions = await services.functions.of(caller.tenant_no)

    async def compute(job: JobRow, now: datetime) -> JobSpec:
        wanted = _without_read_only(body, job)
        # In a thread: even a small patch may change a job whose schedule is slow to check.
        spec = await asyncio.to_thread(lambda: patched_spec(job.spec, wanted, now, functions=functions))
        check_jobs(caller, [spec])
        await check_step_pools(services, caller, [spec])
        await check_descriptor_sets([spec])
        [spec] = limit_reach(caller, [spec])
        services.quotas.check_version(caller.tenant_no, spec)
        return await admit_secrets_of_one(services, caller, spec)

    row = await update(
        services.database,
        services.dispatcher,
        caller.tenant_no,
        JobId(id_),
        compute,
        if_version=_parse_etag(if_match),
        only_if_changed=True,
        by=by,
    )
    return _job_response(row, response, functions)


@router.delete("/jobs/{id}", dependencies=[needs(Right.JOBS_WRITE, by_pool=True)], response_model=responses.Deleted)
async def delete_job(
    services: RequestServices,
    tenant_no: Tenant,
    id_: JobPath,
    by: ByCaller,
    if_match: IfMatch = None,
    cancel_runs: Annotated[
        bool, Query(description="Of a workflow: cancel its runs that have not ended. Otherwise they go on.")
    ] = False,
) -> responses.Deleted:
    """Delete a job. It has no further fires; executions that wait are cancelled, those that run may end."""
    await delete(services.database, tenant_no, JobId(id_), if_version=_parse_etag(if_match), by=by)
    if cancel_runs:
        await cancel_runs_of_job(services.database, services.dispatcher, tenant_no, JobId(id_), by=by)
    return responses.Deleted()


@router.post("/jobs/{id}/pause", dependencies=[needs(Right.JOBS_RUN, by_pool=True)], response_model=JobOut)
async def pause_job(
    services: RequestServices,
    tenant_no: Tenant,
    id_: JobPath,
    response: Response,
    by: ByCaller,
    if_match: IfMatch = None,
) -> JobOut:
    """Pause a job: it has no fires until it is resumed."""
    row = await pause(services.database, tenant_no, JobId(id_), if_version=_parse_etag(if_match), by=by)
    return _job_response(row, response)


@router.post(
    "/jobs/{id}/resume",
    dependencies=[needs(Right.JOBS_RUN, by_pool=True)],
    response_model=JobOut,
    openapi_extra=takes(ResumeBody, required=False),
)
async def resume_job(
    services: RequestServices,
    tenant_no: Tenant,
    id_: JobPath,
    body: OptionalJsonBody,
    response: Response,
    by: ByCaller,
    if_match: IfMatch = None,
) -> JobOut:
    """Resume a job: it fires from now on. The fires of the pause are skipped, unless `missed` sets another rule."""
    row = await resume(
        services.database,
        services.dispatcher,
        tenant_no,
        JobId(id_),
        missed=resume_missed(body),
        if_version=_parse_etag(if_match),
        by=by,
    )
    return _job_response(row, response)


@router.post(
    "/jobs/{id}/run",
    dependencies=[needs(Right.JOBS_RUN, by_pool=True)],
    status_code=201,
    response_model=responses.Started,
    responses=QUEUE_FULL,
    openapi_extra=takes(RunBody, required=False),
)
async def run_job(
    request: Request,
    services: RequestServices,
    tenant_no: Tenant,
    id_: JobPath,
    body: OptionalJsonBody,
    by: ByCaller,
    _key: Key = None,
) -> Response:
    """Start one execution now, with the job's payload or another one. It does not count as a fire."""
    payload = run_payload(body)
    if payload is not None:
        await _check_arguments(services, tenant_no, id_, payload)
    idempotency = idempotency_of(request)

    async def pools() -> dict[str, int]:
        return {(await load_job(services, tenant_no, JobId(id_))).spec.pool: 1}

    if (tenant := services.quotas.with_quotas(tenant_no)) is not None:
        await services.quotas.room_for_run(tenant, None if payload is None else bytes(payload), idempotency)
    async with services.room_now(tenant_no, pools, idempotency):
        text = await run_now(
            services.database,
            services.dispatcher,
            tenant_no,
            JobId(id_),
            bytes(payload) if payload is not None else None,
            render=lambda execution_id: responses.Started(execution_id=execution_id, job_id=id_).model_dump_json(),
            idempotency=idempotency,
            by=by,
        )
    return Response(text, status_code=201, media_type="application/json")


async def _check_arguments(services: Services, tenant_no: TenantNo, id_: UUID, payload: msgspec.Raw) -> None:
    row = await load_job(services, tenant_no, JobId(id_))
    if not isinstance(row.spec.target, FunctionTarget):
        return
    functions = await services.functions.of(tenant_no)
    if faults := list(functions.find_faults(row.spec, msgspec.json.decode(payload), "/payload")):
        raise invalid_body(faults, all_of_schedule=False)


@router.get(
    "/jobs/{id}/status", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=responses.StatusOut
)
async def job_status(services: RequestServices, tenant_no: Tenant, id_: JobPath) -> responses.StatusOut:
    """The job's state and that of its latest execution."""
    row = await load_job(services, tenant_no, JobId(id_))
    async with services.database.reading(tenant_no) as connection:
        latest = await find_latest_execution(connection, tenant_no, row.id)
        creator = None if row.spec.recurs else await find_creator(connection, tenant_no, row.id)
    return responses.StatusOut(
        job_id=row.id,
        state=row.state,
        status=latest.state if latest else None,
        last_run=latest.last_run if latest else None,
        next_run=row.next_fire_at,
        retry_count=latest.retry_count if latest else 0,
        created_by=creator,
    )


@router.get(
    "/jobs/{id}/executions", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=responses.ExecutionList
)
async def job_executions(
    services: RequestServices,
    tenant_no: Tenant,
    id_: JobPath,
    state: Annotated[State | None, Query(description="Only executions in this state.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> responses.ExecutionList:
    """The executions of one job, latest fire first."""
    row = await load_job(services, tenant_no, JobId(id_))
    async with services.database.reading(tenant_no) as connection:
        rows = await list_job_executions(
            connection,
            tenant_no,
            row.id,
            before=parse_cursor(cursor),
            limit=limit + 1,
            horizon_s=services.database.settings.horizon_s,
            state=state.value if state else None,
        )
    specs = await load_specs(services, rows[:limit])
    return responses.ExecutionList(
        items=[execution_out(execution, specs.get(execution.id)) for execution in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


async def replace_job(
    services: Services,
    caller: Caller,
    job_id: JobId,
    body: object,
    by: By,
    *,
    if_version: int | None,
    is_edit: bool = False,
) -> JobRow:
    """Store the job of this body as the next version. `is_edit`: it was read and changed, so that an interval that is
    the same keeps its anchor, and a body that asks for what is stored makes no new version."""
    functions = await services.functions.of(caller.tenant_no)

    async def compute(job: JobRow, now: datetime) -> JobSpec:
        wanted = _without_read_only(body, job)
        read = partial(job_spec, wanted, now, current=job.spec, keeps_anchors=is_edit, functions=functions)
        spec = await asyncio.to_thread(read)
        check_jobs(caller, [spec])
        await check_step_pools(services, caller, [spec])
        await check_descriptor_sets([spec])
        [spec] = limit_reach(caller, [spec])
        services.quotas.check_version(caller.tenant_no, spec)
        return await admit_secrets_of_one(services, caller, spec)

    return await update(
        services.database,
        services.dispatcher,
        caller.tenant_no,
        job_id,
        compute,
        if_version=if_version,
        only_if_changed=is_edit,
        by=by,
    )


async def load_specs(services: Services, rows: Sequence[ExecutionRow]) -> dict[ExecutionId, JobSpec]:
    """The specs that these executions run. A spec is missing if the day of its job was dropped."""
    versions = {row.id: (row.job_id, row.job_version) for row in rows}
    async with services.database.connection() as connection:
        specs = await services.database.specs.find(connection, versions.values())
    return {id_: specs[version] for id_, version in versions.items() if version in specs}


async def load_job(services: Services, tenant_no: TenantNo, job_id: JobId) -> JobRow:
    """Raises NotFound if there is no such job."""
    async with services.database.reading(tenant_no) as connection:
        row = await get_job(connection, tenant_no, job_id)
    if row is None:
        raise await find_why_unknown(services.database, tenant_no, "job", job_id)
    return row


def _without_read_only(body: object, row: JobRow) -> object:
    """A client may send back a job as it read it: fields that only ondot writes are ignored, unless they differ."""
    if not isinstance(body, dict):
        return body
    for name, value, advice in (
        ("id", str(row.id), "an id never changes; leave it out"),
        ("state", row.state.value, "change it by /pause, /resume or DELETE, or leave it out"),
    ):
        if name in body and body[name] != value:
            message = f"`{name}` of this job is {value}: {advice}."
            raise InvalidBody(message, faults=(Fault(f"/{name}", message),))
    return {name: value for name, value in body.items() if name not in READ_ONLY}


def _job_response(row: JobRow, response: Response, functions: KnownFunctions | None = None) -> JobOut:
    """`functions`: to warn of those that it calls and no worker has registered."""
    response.headers["ETag"] = f'"{row.version}"'
    job = render_job(row, row.updated_at)
    unknown = [] if functions is None else find_unknown(functions, [row.spec]).get(0, [])
    if unknown:
        warnings = [WarningOut(**asdict(warning)) for warning in unknown]  # type: ignore[typeddict-item]
        job["warnings"] = [*job.get("warnings", ()), *warnings]
    return job


def _parse_etag(if_match: str | None) -> int | None:
    if if_match is None or if_match.strip() == "*":
        return None
    number = if_match.strip().removeprefix("W/").strip('"')
    if not number.isdecimal() or len(number) > 9:
        raise InvalidParameters(f'If-Match: {if_match[:64]!r} is not the ETag of a job; an ETag looks like "3".')
    return int(number)


def _parse_labels(pairs: list[str] | None) -> dict[str, str] | None:
    labels = {}
    for pair in pairs or []:
        name, colon, value = pair.partition(":")
        if not colon:
            raise InvalidParameters(f"label={pair[:64]!r}: write key:value, for example label=team:bi.")
        labels[name] = value
    return labels or None
