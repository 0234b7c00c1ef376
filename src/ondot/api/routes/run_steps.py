"""`/v1/runs/{id}/steps/{name}`: items and limits of a map, and decisions of people (W7, W8).

A link to an approval is signed and needs no key. GET only asks, because programs that scan messages follow links; POST
decides.
"""

from datetime import datetime
from html import escape
from typing import Annotated, Any
from urllib.parse import parse_qsl
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, CallerDep, RequestServices, Services, Tenant, needs, services_of
from ondot.api.openapi import takes
from ondot.api.parameters import (
    Cursor,
    Limit,
    id_in_path,
    invalid_cursor,
    only_known_parameters,
)
from ondot.api.problems import status_of
from ondot.api.request_body import JsonBody, OptionalJsonBody
from ondot.api.responses import Page
from ondot.document.reading import read_form
from ondot.document.run_steps import A_DECISION, A_LINK, A_MAP, DecisionBody, LinkBody, MapPatchBody
from ondot.flow.workflows.approvals import decide_approval, make_link, open_link
from ondot.flow.workflows.change_map import change_map
from ondot.model.access import Caller, Right, Role
from ondot.model.errors import InvalidBody, InvalidRequest, NotFound, OndotError, TooLarge
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.workflow.graph import compile_graph
from ondot.model.workflow.spec import Tolerate, WorkflowTarget
from ondot.model.workflow.states import StepState
from ondot.store.audit import By
from ondot.store.maps import MapRow, list_items
from ondot.store.run_reads import find_step_executions
from ondot.store.runs import read_run

MAX_FORM_BYTES = 16 * 1024
PREFIX = "/runs/{id}/steps/{name}"

router = APIRouter(tags=["runs"], dependencies=[Depends(only_known_parameters)])
pages = APIRouter(include_in_schema=False)

RunPath = Annotated[UUID, Depends(id_in_path("run"))]
StepPath = Annotated[str, Path(alias="name", max_length=200, description="The name of the step.")]


class ItemOut(BaseModel):
    """An item of a mapped step that was made, or waits to be made again."""

    item: int = Field(description="Its place in the list, from 0.")
    state: StepState
    execution_id: UUID | None = Field(description="Of its latest generation: GET /v1/executions/{id} has its result.")
    generation: int = Field(description="How often it was made.")
    error: Any = Field(default=None, description="Why it failed.")


class ItemList(Page[ItemOut]):
    pass


class MapLimitsOut(BaseModel):
    """How far a map is. `concurrency` and `tolerate` only if they were changed for this run."""

    total: int
    made: int = Field(description="How many items have an execution, or had one.")
    active: int
    succeeded: int
    failed: int
    concurrency: int | None
    tolerate: dict[str, float | int] | None


class DecisionOut(BaseModel):
    run_id: UUID
    step: str
    approved: bool


class LinkOut(BaseModel):
    url: str
    expires_at: datetime


@router.get(f"{PREFIX}/items", dependencies=[needs(Right.JOBS_READ)], response_model=ItemList)
async def list_items_of_step(
    services: RequestServices,
    tenant_no: Tenant,
    run_id: RunPath,
    step: StepPath,
    state: Annotated[StepState | None, Query(description="Only items in this state.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> ItemList:
    """The items of a mapped step that were made, by their place in the list."""
    after = _parse_item_no(cursor)
    async with services.database.reading(tenant_no) as connection:
        run = await read_run(connection, tenant_no, ExecutionId(run_id))
        if run is None:
            raise NotFound(f"There is no run {run_id}.")
        version = (run.job_id, run.job_version)
        spec = (await services.database.specs.find(connection, [version])).get(version)
        graph = compile_graph(spec.target) if spec is not None and isinstance(spec.target, WorkflowTarget) else None
        no = None if graph is None else graph.numbers.get(step)
        if graph is None or no is None or graph.steps[no].map is None:
            raise NotFound(f"The run {run_id} has no mapped step '{step[:100]}'.")
        rows = await list_items(
            connection,
            tenant_no,
            run_id,
            no,
            state=None if state is None else state.value,
            after=after,
            limit=limit + 1,
        )
        failed = [row.execution_id for row in rows[:limit] if row.state == StepState.FAILED and row.execution_id]
        errors = {
            found.id: found.error for found in (await find_step_executions(connection, tenant_no, failed)).values()
        }
    items = [
        ItemOut(
            item=row.item_no,
            state=StepState(row.state),
            execution_id=row.execution_id,
            generation=row.generation,
            error=errors.get(row.execution_id) if row.execution_id else None,
        )
        for row in rows[:limit]
    ]
    return ItemList(items=items, next_cursor=str(items[-1].item) if len(rows) > limit else None)


@router.patch(
    PREFIX,
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=MapLimitsOut,
    openapi_extra=takes(MapPatchBody),
)
async def change_limits(
    services: RequestServices, tenant_no: Tenant, run_id: RunPath, step: StepPath, body: JsonBody, by: ByCaller
) -> MapLimitsOut:
    """Change `concurrency` and `tolerate` of a mapped step while it runs. Items that run are left alone."""
    wanted = read_form(MapPatchBody, body, A_MAP)
    if wanted.concurrency is None and wanted.tolerate is None:
        raise InvalidBody(f"Give `concurrency`, `tolerate` or both, {A_MAP}.")
    tolerate = wanted.tolerate
    row = await change_map(
        services.database,
        services.dispatcher,
        tenant_no,
        ExecutionId(run_id),
        step,
        concurrency=wanted.concurrency,
        tolerate=None if tolerate is None else Tolerate(count=tolerate.count, percent=tolerate.percent),
        by=by,
        objects=services.objects,
    )
    return map_out(row)


@router.post(
    f"{PREFIX}/approve",
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=DecisionOut,
    openapi_extra=takes(DecisionBody, required=False),
)
async def approve(
    services: RequestServices,
    tenant_no: Tenant,
    caller: CallerDep,
    run_id: RunPath,
    step: StepPath,
    body: OptionalJsonBody,
    by: ByCaller,
) -> DecisionOut:
    """Approve a step that waits for a person of the caller's role."""
    return await _decide(services, tenant_no, caller, ExecutionId(run_id), step, body, by, is_approved=True)


@router.post(
    f"{PREFIX}/reject",
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=DecisionOut,
    openapi_extra=takes(DecisionBody, required=False),
)
async def reject(
    services: RequestServices,
    tenant_no: Tenant,
    caller: CallerDep,
    run_id: RunPath,
    step: StepPath,
    body: OptionalJsonBody,
    by: ByCaller,
) -> DecisionOut:
    """Reject a step that waits for a person: it fails."""
    return await _decide(services, tenant_no, caller, ExecutionId(run_id), step, body, by, is_approved=False)


@router.post(
    f"{PREFIX}/link",
    dependencies=[needs(Right.JOBS_RUN)],
    response_model=LinkOut,
    status_code=201,
    openapi_extra=takes(LinkBody, required=False),
)
async def create_link(
    services: RequestServices,
    tenant_no: Tenant,
    caller: CallerDep,
    run_id: RunPath,
    step: StepPath,
    body: OptionalJsonBody,
    by: ByCaller,
) -> LinkOut:
    """Make a link by which a person decides the step without signing in, once, in the name of the caller."""
    wanted = read_form(LinkBody, {} if body is None else body, A_LINK)
    token, expires_at = await make_link(
        services.database,
        tenant_no,
        ExecutionId(run_id),
        step,
        lasts_s=wanted.expires_in,
        role=caller.role,
        by=by,
    )
    base = (services.database.settings.public_url or "").rstrip("/")
    return LinkOut(url=f"{base}/approvals/{token}", expires_at=expires_at)


@pages.get("/approvals/{token}")
async def ask(request: Request, token: str) -> HTMLResponse:
    """Ask the person who follows a link. Nothing changes: programs that scan messages follow links too."""
    try:
        link, approval = await open_link(services_of(request).database, token)
    except OndotError as error:
        return _page("Nothing to decide", f"<p>{escape(error.message)}</p>", status_of(error))
    form = (
        f"<p>Step <b>{escape(link.step)}</b> of <b>{escape(approval.job_name)}</b> waits for approval. "
        f"The link was made by {escape(link.actor)}.</p>"
        '<form method="post"><p><label>Reason <input name="reason" maxlength="500"></label></p>'
        '<p><button name="decision" value="approve">Approve</button> '
        '<button name="decision" value="reject">Reject</button></p></form>'
    )
    return _page("Approve?", form)


@pages.post("/approvals/{token}")
async def answer(request: Request, token: str) -> HTMLResponse:
    """The decision of a person who followed a link."""
    services = services_of(request)
    try:
        fields = await _read_fields(request)
        decision, reason = fields.get("decision"), fields.get("reason", "")
        if decision not in {"approve", "reject"}:
            raise InvalidBody("`decision` must be approve or reject.")
        link, _ = await open_link(services.database, token)
        why = f"by a link of {link.actor}" + (f": {reason[:500]}" if reason else "")
        await decide_approval(
            services.database,
            services.dispatcher,
            link.tenant_no,
            ExecutionId(link.run_id),
            link.step,
            is_approved=decision == "approve",
            # The caller that made the link had the role that the step asks for.
            role=Role.OWNER,
            by=By(link.actor, why, address=request.client.host if request.client else None),
            token=ExecutionId(link.execution_id),
            objects=services.objects,
        )
    except OndotError as error:
        return _page("Not decided", f"<p>{escape(error.message)}</p>", status_of(error))
    word = "approved" if decision == "approve" else "rejected"
    return _page(word.capitalize(), f"<p>Step <b>{escape(link.step)}</b> is {word}.</p>")


async def _read_fields(request: Request) -> dict[str, str]:
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > MAX_FORM_BYTES:
            raise TooLarge(f"The form has at most {MAX_FORM_BYTES:,} bytes.")
    try:
        return dict(parse_qsl(raw.decode(), max_num_fields=10, errors="strict"))
    except ValueError:
        raise InvalidRequest("The fields of the form cannot be read. Send them in UTF-8.") from None


def map_out(row: MapRow) -> MapLimitsOut:
    counts, tolerate = row.counts, row.tolerate
    shown: dict[str, float | int] | None = None
    if tolerate is not None:
        shown = {"count": tolerate.count} if tolerate.count is not None else {"percent": tolerate.percent or 0.0}
    return MapLimitsOut(
        total=counts.total,
        made=counts.active + counts.succeeded + counts.failed,
        active=counts.active,
        succeeded=counts.succeeded,
        failed=counts.failed,
        concurrency=row.concurrency,
        tolerate=shown,
    )


async def _decide(
    services: Services,
    tenant_no: TenantNo,
    caller: Caller,
    run_id: ExecutionId,
    step: str,
    body: object,
    by: By,
    *,
    is_approved: bool,
) -> DecisionOut:
    wanted = read_form(DecisionBody, {} if body is None else body, A_DECISION)
    await decide_approval(
        services.database,
        services.dispatcher,
        tenant_no,
        run_id,
        step,
        is_approved=is_approved,
        role=caller.role,
        by=by.because(wanted.reason) if wanted.reason else by,
        objects=services.objects,
    )
    return DecisionOut(run_id=run_id, step=step, approved=is_approved)


def _page(title: str, content: str, status: int = 200) -> HTMLResponse:
    text = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>"
        f"{escape(title)} · ondot</title><meta name='viewport' content='width=device-width'>"
        f"<meta name='robots' content='noindex'></head><body><h1>{escape(title)}</h1>{content}</body></html>"
    )
    return HTMLResponse(text, status)


def _parse_item_no(cursor: str | None) -> int:
    if cursor is None:
        return -1
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 9):
        raise invalid_cursor()
    return int(cursor)
