"""`/v1/hooks`: URLs that turn plain webhooks into events (S11).

A token is in one answer only: the one that creates it. Management names a hook by its id, senders by their token
(`ondh_…`): neither can be taken for the other. The route for senders needs no API key, because the token is one.
"""

from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, RequestServices, Tenant, check_tenant, needs, services_of
from ondot.api.openapi import takes
from ondot.api.parameters import Limit, only_known_parameters
from ondot.api.request_body import JsonBody, Key, OptionalJsonBody, idempotency_of
from ondot.api.responses import Page
from ondot.api.routes.events import LARGE, receive_events
from ondot.api.traces import caller_trace
from ondot.document.hooks import HookBody, RotateHookBody, read_webhook
from ondot.document.reading import read_form
from ondot.flow.events.hooks import Render, Shown, event_id, event_of, slack_challenge, unknown_hook
from ondot.model.access import Right
from ondot.model.errors import InvalidParameters, InvalidRequest, NotFound
from ondot.model.event import MAX_EVENT_BYTES, read_event
from ondot.model.hook import Signature
from ondot.store.hooks import HookRow, get_hook, list_hooks

NOT_KEPT = (
    "The token was shown in the first answer to this Idempotency-Key and is not stored. If you do not have it, rotate"
    " it: POST /v1/hooks/{id}/rotate with an overlap of 0."
)

MOST_BYTES: Final = MAX_EVENT_BYTES

router = APIRouter(tags=["hooks"], dependencies=[Depends(only_known_parameters)])


async def _id(id_: Annotated[str, Path(alias="id", json_schema_extra={"format": "uuid"})]) -> UUID:
    """An id in the path. The answer does not repeat other text: it may be a token."""
    try:
        return UUID(id_)
    except ValueError:
        raise NotFound("There is no hook with this id: ids look like 019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a.") from None


HookPath = Annotated[UUID, Depends(_id)]


class HookOut(BaseModel):
    """A hook, without its token."""

    id: UUID
    name: str
    type: str
    source: str
    signature: Signature
    header: str | None = Field(description="Of the signature, for `hmac`.")
    created_at: datetime
    created_by: str
    rotated_at: datetime | None
    token_before_until: datetime | None = Field(description="Until when the token before is accepted.")
    secret_before_until: datetime | None = Field(description="Until when the signing secret before is accepted.")
    last_used_at: datetime | None = Field(description="Written at most once a minute.")


class HookWarning(BaseModel):
    code: Literal["token-not-kept"] = "token-not-kept"
    detail: str


class NewHookOut(HookOut):
    """A hook with what is shown only now."""

    token: str | None = Field(description="null after a rotation of the signing secret, and in a repeated answer.")
    url: str | None = Field(description="Where the sender sends: the address of this installation, and the token.")
    secret: str | None = Field(description="The signing secret, if ondot made it.")
    warnings: list[HookWarning] = []


class HookList(Page[HookOut]):
    pass


@router.post(
    "/hooks",
    dependencies=[needs(Right.JOBS_WRITE)],
    status_code=201,
    response_model=NewHookOut,
    openapi_extra=takes(HookBody),
)
async def create(
    request: Request, services: RequestServices, tenant_no: Tenant, body: JsonBody, by: ByCaller, _key: Key = None
) -> Response:
    """Create a hook. Its token is shown only in this answer: only its hash is stored."""
    wanted = read_form(HookBody, body, 'for example {"name": "github", "type": "com.github.push"}')
    text = await services.hooks.create(
        tenant_no, wanted, render=_renderer(request), idempotency=idempotency_of(request), by=by
    )
    return Response(text, status_code=201, media_type="application/json")


@router.get("/hooks", dependencies=[needs(Right.JOBS_READ)], response_model=HookList)
async def list_all(
    services: RequestServices, tenant_no: Tenant, limit: Limit = 50, cursor: str | None = None
) -> HookList:
    """Hooks by name, without their tokens."""
    if cursor is not None and len(cursor) > 200:
        raise InvalidParameters("The cursor is not valid. Pass `next_cursor` of the page before.")
    async with services.database.connection() as connection:
        rows = await list_hooks(connection, tenant_no, after=cursor or "", limit=limit + 1)
    return HookList(
        items=[hook_out(row) for row in rows[:limit]], next_cursor=rows[limit - 1].name if len(rows) > limit else None
    )


@router.get("/hooks/{id}", dependencies=[needs(Right.JOBS_READ)], response_model=HookOut)
async def get_one(services: RequestServices, tenant_no: Tenant, id_: HookPath) -> HookOut:
    """One hook, without its token."""
    async with services.database.connection() as connection:
        row = await get_hook(connection, tenant_no, id_)
    if row is None:
        raise unknown_hook(id_)
    return hook_out(row)


@router.post(
    "/hooks/{id}/rotate",
    dependencies=[needs(Right.JOBS_WRITE)],
    status_code=201,
    response_model=NewHookOut,
    openapi_extra=takes(RotateHookBody, required=False),
)
async def rotate(
    request: Request,
    services: RequestServices,
    tenant_no: Tenant,
    id_: HookPath,
    body: OptionalJsonBody,
    by: ByCaller,
    _key: Key = None,
) -> Response:
    """Give a hook a new token; or, with `secret`, a new signing secret. The one before works until the overlap is
    over."""
    wanted = read_form(RotateHookBody, {} if body is None else body, 'for example {"overlap": "24h"}')
    text = await services.hooks.rotate(
        tenant_no, id_, wanted, render=_renderer(request), idempotency=idempotency_of(request), by=by
    )
    return Response(text, status_code=201, media_type="application/json")


@router.delete("/hooks/{id}", dependencies=[needs(Right.JOBS_WRITE)], response_model=HookOut)
async def delete(services: RequestServices, tenant_no: Tenant, id_: HookPath, by: ByCaller) -> HookOut:
    """Delete a hook. Its token is refused within a second; events that it made stay."""
    return hook_out(await services.hooks.delete(tenant_no, id_, by=by))


receiver = APIRouter(tags=["hooks"])
"""For senders: without an API key, because the token in the path is one."""


@receiver.post("/hooks/{token}", include_in_schema=False)
async def receive(request: Request, services: RequestServices) -> Response:
    """A webhook: checked as its hook demands, then an event like any other. What starts has started when it is
    answered."""
    hook = await services.hooks.find(request.path_params["token"])
    if hook is None:
        services.wrong_tokens.count(request.client.host if request.client else "")
        raise NotFound("There is no such hook.")
    await check_tenant(services, hook.tenant_no)
    raw = await services.intake.raw(request, MOST_BYTES)
    headers = dict(request.headers)
    if headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequest("A hook reads bodies that are not compressed. Leave out Content-Encoding at the sender.")
    await services.hooks.verify(hook, headers, raw)
    content_type = headers.get("content-type", "")
    data = await services.intake.parse(
        lambda: read_webhook(content_type, raw, max_bytes=MOST_BYTES), is_slow=len(raw) > LARGE
    )
    if (challenge := slack_challenge(hook, data)) is not None:
        return JSONResponse({"challenge": challenge})
    id_ = event_id(hook, headers, raw, services.database.clock.new_id())
    event = read_event(event_of(hook, id_, headers, data))
    [answer] = await receive_events(services, hook.tenant_no, [event], caller_trace(request.scope))
    await services.hooks.record_use(hook)
    if hook.signature is Signature.SLACK:
        return Response(status_code=200)  # Slack shows the body of an answer to people
    return JSONResponse({"id": str(answer.id), "matched": answer.matched}, status_code=202)


def hook_out(row: HookRow) -> HookOut:
    return HookOut(
        id=row.id,
        name=row.name,
        type=row.type,
        source=row.source,
        signature=row.signature,
        header=row.header if row.signature is Signature.HMAC else None,
        created_at=row.created_at,
        created_by=row.created_by,
        rotated_at=row.rotated_at,
        token_before_until=row.token_before_until,
        secret_before_until=row.secret_before_until,
        last_used_at=row.last_used_at,
    )


def _renderer(request: Request) -> Render:
    base = services_of(request).database.settings.public_url or ""

    def render(row: HookRow, shown: Shown | None) -> str:
        token = None if shown is None else shown.token
        return NewHookOut(
            **hook_out(row).model_dump(),
            token=token,
            url=None if token is None else f"{base.rstrip('/')}/v1/hooks/{token}",
            secret=None if shown is None else shown.secret,
            warnings=[HookWarning(detail=NOT_KEPT.format(id=row.id))] if shown is None else [],
        ).model_dump_json()

    return render
