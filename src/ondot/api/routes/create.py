"""`POST /v1/jobs` and `/v1/jobs/batch`: create jobs, one or up to 10,000.

`fast_path` calls these two functions too, with the request alone. So they use no dependency of FastAPI; the parameters
that they declare only document them.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from ondot.api import responses
from ondot.api.backpressure import QUEUE_FULL
from ondot.api.dependencies import Services, by_of, caller_of, check_active, needs, services_of
from ondot.api.job_rules import check_keys, check_step_pools
from ondot.api.job_secrets import admit_secrets_of
from ondot.api.openapi import takes
from ondot.api.parameters import only_known_parameters
from ondot.api.request_body import Key, batch_of, body_of, idempotency_of, parse_body
from ondot.api.traces import caller_trace
from ondot.api.views import Warnings, created_batch_text, created_job_text
from ondot.document.body import JobBody
from ondot.document.functions import KnownFunctions
from ondot.document.parse import job_specs, new_job_spec
from ondot.document.render import JobOut
from ondot.flow.descriptor_sets import check_descriptor_sets
from ondot.flow.idempotency import Idempotency
from ondot.flow.known_functions import find_unknown
from ondot.flow.new_jobs import Accepted
from ondot.flow.secrets_in_jobs import have_secrets
from ondot.flow.traced_submit import record_submits, set_caller
from ondot.flow.workflows.depends import resolve_parents
from ondot.model.access import Caller, Right
from ondot.model.job import JobSpec
from ondot.model.job_access import check_jobs, limit_reach
from ondot.store.clock import Moment
from ondot.store.idempotency import has_key
from ondot.telemetry.trace import active_tracer

if TYPE_CHECKING:
    from ondot.flow.submit import OnCreated


class _Versioned(msgspec.Struct):
    version: int


RenderCreated = Callable[..., str]
"""`created_job_text` or `created_batch_text`."""
RunParse = Callable[[Callable[[], list[JobSpec]]], Awaitable[list[JobSpec]]]


router = APIRouter(tags=["jobs"], dependencies=[Depends(only_known_parameters)])


@router.post(
    "/jobs",
    dependencies=[needs(Right.JOBS_WRITE, by_pool=True)],
    status_code=201,
    response_model=JobOut,
    responses=QUEUE_FULL,
    openapi_extra=takes(JobBody),
)
async def create_job(request: Request, _key: Key = None) -> Response:
    """Create a job: one-time, delayed, cron or interval; without a schedule it runs now."""
    services, caller = services_of(request), await creator_of(request)
    body = await body_of(request)

    async def create(moment: Moment) -> str:
        specs, warnings = await read_specs(
            services,
            caller,
            lambda functions: [new_job_spec(body, moment.at, functions=functions)],
            partial(parse_body, request),
        )
        idempotency = idempotency_of(request)
        return await submit_specs(
            request, services, caller, specs, moment, created_job_text, idempotency, warnings=warnings
        )

    return created_one(await services.database.by_clock(create))


@router.post(
    "/jobs/batch",
    dependencies=[needs(Right.JOBS_WRITE, by_pool=True)],
    status_code=201,
    response_model=responses.JobBatch,
    responses=QUEUE_FULL,
    openapi_extra=takes(JobBody, many="jobs"),
)
async def create_jobs(request: Request, _key: Key = None) -> Response:
    """Create up to 10,000 jobs in one transaction, all or none; the response lists them in the same order."""
    services, caller = services_of(request), await creator_of(request)
    body = await batch_of(request)

    async def create(moment: Moment) -> str:
        specs, warnings = await read_specs(
            services,
            caller,
            lambda functions: job_specs(body, moment.at, max_bytes=services.intake.max_bytes, functions=functions),
            partial(parse_body, request),
        )
        idempotency = await parse_body(request, lambda: idempotency_of(request))
        return await submit_specs(
            request, services, caller, specs, moment, created_batch_text, idempotency, warnings=warnings
        )

    return created(await services.database.by_clock(create))


async def creator_of(request: Request) -> Caller:
    """A caller that may create jobs. Here too, because the fast path resolves no dependencies."""
    caller = await caller_of(request)
    caller.require(Right.JOBS_WRITE)
    await check_active(request, caller)
    return caller


async def read_specs(
    services: Services, caller: Caller, parse: Callable[[KnownFunctions], list[JobSpec]], run: RunParse
) -> tuple[list[JobSpec], Warnings]:
    """The specs of a body, with the options of the functions that they name; and which functions are not known.
    `run`: runs the parsing, in a thread if it may take long."""
    functions = await services.functions.of(caller.tenant_no)
    specs = await run(lambda: parse(functions))
    warnings = find_unknown(functions, specs)
    if warnings and (newer := await services.functions.look_again(caller.tenant_no)) is not functions:
        specs = await run(lambda: parse(newer))
        warnings = find_unknown(newer, specs)
    return specs, warnings


async def submit_specs(
    request: Request,
    services: Services,
    caller: Caller,
    specs: Sequence[JobSpec],
    moment: Moment,
    render: RenderCreated,
    idempotency: Idempotency | None,
    *,
    reason: str | None = None,
    warnings: Warnings = MappingProxyType({}),
) -> str:
    check_jobs(caller, specs)
    specs = limit_reach(caller, specs)
    trace = caller_trace(request.scope)
    if trace is not None:
        specs = set_caller(specs, trace)
    if caller.pools is not None:
        await check_keys(services, caller, specs)
    await check_step_pools(services, caller, specs)
    await check_descriptor_sets(specs)
    # One-time jobs are not in the audit log, because there are thousands a second: each records its creator.
    is_audited = any(spec.recurs or spec.key is not None or spec.depends_on for spec in specs)
    by = await by_of(request, reason) if is_audited else None
    tenant_no = caller.tenant_no
    if have_secrets(specs):
        specs = await admit_secrets_of(services, caller, specs)
    if any(spec.depends_on for spec in specs) and not await _is_repeated(services, caller, idempotency):
        is_batch = render is created_batch_text
        specs = await resolve_parents(services.database, tenant_no, specs, is_batch=is_batch, sees=caller.sees)
    if any(spec.recurs for spec in specs):
        specs, crowded = await services.crowds.place(specs)
        warnings = {n: [*warnings.get(n, ()), *crowded.get(n, ())] for n in warnings.keys() | crowded.keys()}
    submit = partial(
        services.group_commit.submit,
        tenant_no,
        specs,
        render=partial(render, warnings=warnings) if warnings else render,
        idempotency=idempotency,
        moment=moment,
        by=by,
        created_by=caller.key_id or caller.user_id,
    )
    tenant = services.quotas.with_quotas(tenant_no)
    tracer = active_tracer()
    if services.backpressure is None and tenant is None and tracer is None:
        return await submit()
    async with AsyncExitStack() as rooms:
        counts: list[OnCreated] = []
        if tracer is not None:
            counts.append(record_submits(tracer, trace, moment.at, services.database.clock.now))
        if services.backpressure is not None:
            room = services.backpressure.room_for_jobs(tenant_no, specs, moment.at, idempotency)
            counts.append(await rooms.enter_async_context(room))
        if tenant is not None:
            is_batch = render is created_batch_text
            quotas = services.quotas.room_for_jobs(tenant, specs, idempotency, is_batch=is_batch)
            counts.append(await rooms.enter_async_context(quotas))

        def on_created(jobs: Sequence[Accepted]) -> None:
            for count in counts:
                count(jobs)

        return await submit(on_created=on_created)


async def _is_repeated(services: Services, caller: Caller, idempotency: Idempotency | None) -> bool:
    """A repeated request gets the response of the first time, even if a parent is no longer kept."""
    if idempotency is None:
        return False
    async with services.database.connection() as connection:
        return await has_key(connection, caller.tenant_no, idempotency.key)


def created_one(text: str) -> Response:
    # From the text of the response: for a repeated Idempotency-Key it is the text of the first response.
    return created(text, {"ETag": f'"{msgspec.json.decode(text, type=_Versioned).version}"'})


def created(text: str, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status_code=201, headers=headers, media_type="application/json")
