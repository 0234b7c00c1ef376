"""The API as one ASGI application: routes, errors as problem+json, request metrics.

It gets everything it needs as arguments; `ondot.app` builds it, and mounts the pages beside it.
"""

import time
from functools import cache

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ondot import __version__
from ondot.api.backpressure import headers_of
from ondot.api.dead_letter_bodies import DiscardBody, ReplayBody, RetryExecutionBody
from ondot.api.dependencies import Services, needs
from ondot.api.export import Exports, describe_exports
from ondot.api.fast_path import Entry, FastPath
from ondot.api.guard import HEADERS, Guard
from ondot.api.intake import ReleaseBody
from ondot.api.openapi import describe
from ondot.api.problems import CONTENT_TYPE, TYPE, problem, status_of
from ondot.api.quotas import quota_headers
from ondot.api.request_id import request_id_of
from ondot.api.routes import (
    alerts,
    audit,
    awaited,
    backfills,
    bulk,
    channels,
    connections,
    create,
    dead_letters,
    declared,
    events,
    executions,
    explain,
    find,
    fleet,
    forecast,
    functions,
    health,
    history,
    hooks,
    incidents,
    jobs,
    keys,
    me,
    now,
    past_events,
    pings,
    pools,
    report,
    run_steps,
    runs,
    saved_views,
    schedules,
    secrets,
    sinks,
    skipped,
    tenants,
    usage,
    users,
    webhooks,
    workflows,
)
from ondot.api.routes.awaited import WaitBody
from ondot.api.routes.events import CloudEventBody
from ondot.api.routes.executions import CancelBody
from ondot.api.routes.past_events import ReplayEventBody, TryBody
from ondot.api.routes.pools import PoolBody
from ondot.api.routes.secrets import SecretBody
from ondot.api.routes.users import UserBody, UserChangeBody
from ondot.document.alerts import AlertBody, MuteBody, NoteBody
from ondot.document.body import JobBody
from ondot.document.bulk import BulkBody, UndoBody
from ondot.document.channels import ChannelBody, ChannelPatchBody
from ondot.document.connections import ConnectionBody
from ondot.document.hooks import HookBody, RotateHookBody
from ondot.document.key_body import KeyBody, RotateBody
from ondot.document.pings import PingBody
from ondot.document.requests import BackfillBody, PreviewBody, ResumeBody, RunBody
from ondot.document.run_steps import DecisionBody, LinkBody, MapPatchBody
from ondot.document.runs import RerunBody, ResultBody, RunChangeBody, RunRetryBody, SkipBody
from ondot.document.saved_views import ViewBody, ViewPatchBody
from ondot.document.sinks import SinkBody
from ondot.document.tenants import TenantBody, TenantPatchBody
from ondot.document.workflow import WorkflowJobBody
from ondot.model.access import Right
from ondot.model.errors import (
    InvalidParameters,
    OndotError,
    QueueFull,
    QuotaExceeded,
    TooManySignIns,
    TooManyWrongKeys,
    Unavailable,
)
from ondot.model.hook import hide_tokens
from ondot.telemetry.log import get_logger
from ondot.telemetry.log_throttle import LogThrottle
from ondot.telemetry.metrics import REQUESTS

RETRY_AFTER_S = "2"
UNAVAILABLE_LOGGED_EVERY_S = 10.0
LONGEST_PATH = 200

PARTS = (
    create,
    awaited,
    jobs,
    declared,
    workflows,
    run_steps,
    backfills,
    skipped,
    schedules,
    executions,
    events,
    past_events,
    explain,
    find,
    functions,
    runs,
    dead_letters,
    report,
    bulk,
    saved_views,
    pools,
    fleet,
    now,
    forecast,
    history,
    keys,
    me,
    secrets,
    connections,
    tenants,
    usage,
    webhooks,
    hooks,
    alerts,
    incidents,
    channels,
    sinks,
    pings,
    audit,
    users,
)
"""In the order of the reference."""
BODIES = (
    JobBody,
    WorkflowJobBody,
    BackfillBody,
    PreviewBody,
    ResumeBody,
    RunBody,
    WaitBody,
    CancelBody,
    CloudEventBody,
    DecisionBody,
    LinkBody,
    MapPatchBody,
    TryBody,
    ReplayEventBody,
    RetryExecutionBody,
    ReplayBody,
    DiscardBody,
    BulkBody,
    ViewBody,
    ViewPatchBody,
    UndoBody,
    RunRetryBody,
    RerunBody,
    SkipBody,
    ResultBody,
    RunChangeBody,
    PoolBody,
    KeyBody,
    RotateBody,
    TenantBody,
    TenantPatchBody,
    SecretBody,
    ConnectionBody,
    HookBody,
    RotateHookBody,
    AlertBody,
    MuteBody,
    NoteBody,
    ChannelBody,
    ChannelPatchBody,
    SinkBody,
    PingBody,
    UserBody,
    UserChangeBody,
)

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods with a series of their own in the metrics: clients may send any word."""

ENTRIES = {
    prefix + path: Entry(path, answer, [needs(right, by_pool=right is Right.JOBS_WRITE)])
    for prefix in ("/v1", "/api/v1")
    for path, answer, right in (
        ("/jobs", create.create_job, Right.JOBS_WRITE),
        ("/jobs/batch", create.create_jobs, Right.JOBS_WRITE),
        ("/events", events.send_events, Right.EVENTS_SEND),
    )
}

log = get_logger()


def build_api(services: Services) -> FastAPI:
    app = FastAPI(
        title="ondot",
        version=__version__,
        description="Register work; ondot runs it on the dot, on a fleet of workers, and can prove that it did.",
        docs_url=None,  # the pages have one that needs no network
        redoc_url=None,
        redirect_slashes=False,  # the redirect would go to the host of the client's Host header
    )
    app.state.services = services
    app.state.unavailable = LogThrottle(UNAVAILABLE_LOGGED_EVERY_S)
    app.router.routes.extend(_routes())
    app.add_exception_handler(OndotError, _render_error)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _render_bad_parameters)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _render_no_route)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _render_bug)
    app.add_middleware(Exports, render_error=_render_error)
    app.add_middleware(FastPath, entries=ENTRIES, render_error=_render_error)
    app.add_middleware(ReleaseBody, intake=services.intake)
    app.add_middleware(
        Guard,
        auth=services.auth,
        render_error=_render_error,
        public_url=services.database.settings.public_url,
    )
    app.add_middleware(RequestMetrics)
    describe(app, BODIES)
    return app


@cache
def _routes() -> list[BaseRoute]:
    """Once for all servers of a process: to read the parameters of every route takes a second."""
    router = APIRouter()
    router.include_router(health.router)
    router.include_router(run_steps.pages)
    router.include_router(pings.receiver)
    for prefix, is_documented in (("/v1", True), ("/api/v1", False)):
        for part in PARTS:
            describe_exports(part.router.routes)
            router.include_router(part.router, prefix=prefix, include_in_schema=is_documented)
        router.include_router(hooks.receiver, prefix=prefix)
    return router.routes


async def _render_error(request: Request, error: OndotError) -> Response:
    status = status_of(error)
    headers = {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = RETRY_AFTER_S
        if times := request.app.state.unavailable.times():
            log.warning("request.unavailable", path=_path(request), error=error.message, times=times)
    if isinstance(error, QueueFull):
        headers |= headers_of(error)
    if isinstance(error, QuotaExceeded):
        headers |= quota_headers(error)
    if isinstance(error, TooManyWrongKeys | TooManySignIns):
        headers["Retry-After"] = str(error.facts["retry_after_s"])
    return JSONResponse(problem(error, _path(request)), status, headers, CONTENT_TYPE)


async def _render_bad_parameters(request: Request, error: RequestValidationError) -> Response:
    """Query parameters and headers; `document` reads the bodies."""
    words = "; ".join(f"{'.'.join(str(part) for part in fault['loc'][1:])}: {fault['msg']}" for fault in error.errors())
    return await _render_error(request, InvalidParameters(f"{words}."))


async def _render_no_route(request: Request, error: HTTPException) -> Response:
    """The path does not exist, or not with this method."""
    code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "invalid-request")
    headers = dict(error.headers or {})
    allowed = ", ".join(sorted(_methods_at(request)))
    if error.status_code == 405 and allowed:
        headers["Allow"] = allowed
    path = _path(request)
    no_slash = " Paths do not end in a slash." if path.endswith("/") else ""
    detail = {
        404: f"There is nothing at {path}.{no_slash} See /docs for all paths.",
        405: f"{request.method} is not allowed here." + (f" Use {allowed}." if allowed else ""),
    }.get(error.status_code, str(error.detail))
    body = {
        "type": TYPE + code,
        "title": str(error.detail),
        "status": error.status_code,
        "detail": detail,
        "instance": path,
    }
    return JSONResponse(body, error.status_code, headers, CONTENT_TYPE)


def _path(request: Request) -> str:
    """The path of the request, shortened, without tokens of hooks. Not from the URL, which is built with the Host
    header."""
    path: str = request.scope["path"]
    return hide_tokens(path)[:LONGEST_PATH]


def _methods_at(request: Request) -> set[str]:
    """All methods of a path: Starlette returns those of the first route that fits."""
    methods: set[str] = set()
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes):
            methods.add(method)
    return methods


async def _render_bug(request: Request, error: Exception) -> Response:
    """A bug in ondot: the log has the details, the response has none."""
    path = _path(request)
    log.error("request.failed", path=path, method=request.method, exc_info=error)
    failure = OndotError("ondot failed with an internal error. Its log has the details under request.failed.")
    # Sent outside of the guard, which adds the headers to all other responses.
    headers = {name.decode(): value.decode() for name, value in HEADERS}
    if (request_id := request_id_of(request.scope)) is not None:
        headers["x-request-id"] = request_id
    return JSONResponse(problem(failure, path), 500, headers, CONTENT_TYPE)


class RequestMetrics:
    """Counts requests by route; plain ASGI, because a streamed response must pass unbuffered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.perf_counter()
        status = 500

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in METHODS else "other"
            REQUESTS.labels(method, route, str(status)).observe(time.perf_counter() - started_s)
