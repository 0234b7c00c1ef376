"""The pages: one table of them, the live streams `/ui/live…`, and `/ui/static/…` (O5, S9, E10, E14, E17).

Each page is complete without JavaScript, as a snapshot; with it, fragments are replaced as the feed sends them or as
the page requests itself again. A new page is a module that reads its view, a template, and a line of `PAGES`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.requests import HTTPConnection

from ondot.flow.history.kept import REASONS
from ondot.flow.history.show import read_history
from ondot.flow.saved_views import read_views
from ondot.model.access import Caller, Right
from ondot.model.bulk import KINDS
from ondot.model.errors import Forbidden, NotFound, OndotError, TooManyWrongKeys, Unauthorized, Unavailable
from ondot.model.execution import State
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.job import JobState
from ondot.model.query import FIELDS, Of
from ondot.model.workflow.states import RunState
from ondot.people.oidc import Provider
from ondot.people.sign_in import SignIn
from ondot.store.database import Database
from ondot.store.incidents import count_open_incidents
from ondot.store.saved_views import ViewRow
from ondot.ui import audit, bulk, dead_letters, events, executions, jobs, run, runs
from ondot.ui.addresses import number_in, uuid_in
from ondot.ui.alerts import duration_in_words, read_alerts, scope_in_words, when_in_words
from ondot.ui.audit import read_audit
from ondot.ui.bulk import read_bulk, read_bulks
from ondot.ui.channels import read_channels, read_pings
from ondot.ui.dead_letters import count_open, read_letters
from ondot.ui.events import read_event, read_events
from ondot.ui.execution import Moved, read_execution
from ondot.ui.executions import read_executions
from ondot.ui.feed import Feed, Read
from ondot.ui.fleet import read_fleet
from ondot.ui.forecast import read_forecast
from ondot.ui.functions import FunctionPages, read_functions
from ondot.ui.hooks import read_hooks
from ondot.ui.incidents import read_incident_page, read_incidents_page
from ondot.ui.job import read_job
from ondot.ui.job_pages import JobPages, WriteJobs
from ondot.ui.jobs import read_jobs
from ondot.ui.keys import read_keys
from ondot.ui.matrix import read_matrix
from ondot.ui.me import LOCAL_ME, Auth, Me, read_me
from ondot.ui.overview import read_overview
from ondot.ui.reference import read_reference
from ondot.ui.render import Renderer
from ondot.ui.report import count_in_words, read_report
from ondot.ui.run import read_run
from ondot.ui.run_picture import read_run_steps, read_shape
from ondot.ui.run_states import STATES as STEP_STATES
from ondot.ui.run_states import words_of
from ondot.ui.runs import read_runs
from ondot.ui.schedules import REMARKS, ReadPreview, form_of, preview_form
from ondot.ui.secrets import read_secrets
from ondot.ui.sign_in import SEE_OTHER, SignInPages
from ondot.ui.sinks import read_sinks
from ondot.ui.skipped import read_skipped
from ondot.ui.step import read_step
from ondot.ui.tenants import read_tenant, read_tenants
from ondot.ui.usage import read_usage_page
from ondot.ui.users import read_users
from ondot.words.function import options_in_words, workers_in_words
from ondot.words.size import size_in_words

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Forms go to this server only: to sign out, to search."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OF_SCRIPTS = "default-src 'none'; script-src 'self'; frame-ancestors 'none'"
"""A worker has the policy of its own script: it may load further scripts of this server, and nothing else."""
RECONNECT_MS = 1000
DOCS_KEPT = 16
EMPTY = "data:\n"
LIVE: Mapping[str, Read] = {"overview": read_overview, "fleet": read_fleet}
"""The pages that are read once a second for all watchers."""
STATUS: dict[type[OndotError], int] = {
    Unauthorized: 401,
    TooManyWrongKeys: 429,
    Forbidden: 403,
    NotFound: 404,
    Unavailable: 503,
}
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the table. `read` returns the view; the template gets it as `name`, together with `values`."""

    path: str
    template: str
    name: str
    read: Callable[[Database, TenantNo, Request], Awaitable[Any]]
    values: Values = field(default_factory=dict)
    right: Right = Right.JOBS_READ
    """What a person needs to open the page."""
    views_of: Of | None = None
    """It shows the saved views of these."""


def search_help(of: Of, placeholder: str) -> Values:
    """What a page says about its search: the fields of the query language."""
    return {"fields": tuple(FIELDS[of].values()), "placeholder": placeholder}


PAGES = (
    Page(
        "/jobs",
        "jobs",
        "jobs",
        lambda database, tenant_no, request: read_jobs(database, tenant_no, jobs.parse_query(request.query_params)),
        values={
            "states": tuple(JobState),
            "sorts": jobs.SORTS,
            "help": search_help("jobs", "report kind:cron label.team=bi"),
        },
        views_of="jobs",
    ),
    Page(
        "/jobs/{id}",
        "job",
        "job",
        lambda database, tenant_no, request: read_job(database, tenant_no, JobId(uuid_in(request, "job"))),
        values={"remarks": REMARKS},
    ),
    Page(
        "/jobs/{id}/runs",
        "matrix",
        "matrix",
        lambda database, tenant_no, request: read_matrix(
            database, tenant_no, JobId(uuid_in(request, "job")), request.query_params
        ),
    ),
    Page(
        "/executions",
        "executions",
        "found",
        lambda database, tenant_no, request: read_executions(
            database, tenant_no, executions.parse_query(request.query_params)
        ),
        values={"states": tuple(State), "help": search_help("executions", "state:failed job:nightly* since:24h")},
        views_of="executions",
    ),
    Page(
        "/executions/{id}",
        "execution",
        "execution",
        lambda database, tenant_no, request: read_execution(
            database, tenant_no, ExecutionId(uuid_in(request, "execution"))
        ),
    ),
    Page(
        "/runs",
        "runs",
        "found",
        lambda database, tenant_no, request: read_runs(database, tenant_no, runs.parse_query(request.query_params)),
        values={"states": tuple(RunState), "help": search_help("runs", "state:blocked,failed job:etl* since:24h")},
        views_of="runs",
    ),
    Page(
        "/runs/{id}",
        "run",
        "run",
        lambda database, tenant_no, request: read_run(
            database, tenant_no, uuid_in(request, "run"), run.parse_query(request.query_params)
        ),
        values={"states": STEP_STATES, "words_of": words_of},
    ),
    Page(
        "/runs/{id}/steps/{number}",
        "step",
        "step",
        lambda database, tenant_no, request: read_step(
            database, tenant_no, uuid_in(request, "run"), number_in(request, "number")
        ),
    ),
    Page(
        "/bulk",
        "bulks",
        "found",
        lambda database, tenant_no, request: read_bulks(database, tenant_no, bulk.parse_query(request.query_params)),
        values={"kinds": KINDS, "states": bulk.STATE_WORDS},
    ),
    Page(
        "/bulk/{id}",
        "bulk",
        "page",
        lambda database, tenant_no, request: read_bulk(
            database, tenant_no, uuid_in(request, "operation"), request.query_params
        ),
    ),
    Page(
        "/skipped",
        "skipped",
        "found",
        lambda database, tenant_no, request: read_skipped(database, tenant_no, request.query_params),
    ),
    Page(
        "/dead-letters",
        "dead_letters",
        "letters",
        lambda database, tenant_no, request: read_letters(
            database, tenant_no, dead_letters.parse_query(request.query_params)
        ),
        values={"help": search_help("dead_letters", '"timed out" job:nightly* since:24h')},
        views_of="dead_letters",
    ),
    Page(
        "/events",
        "events",
        "found",
        lambda database, tenant_no, request: read_events(database, tenant_no, events.parse_query(request.query_params)),
    ),
    Page(
        "/events/{id}",
        "event",
        "event",
        lambda database, tenant_no, request: read_event(database, tenant_no, uuid_in(request, "event")),
    ),
    Page(
        "/hooks",
        "hooks",
        "hooks",
        lambda database, tenant_no, request: read_hooks(database, tenant_no, request.query_params),
    ),
    Page(
        "/sinks",
        "sinks",
        "sinks",
        lambda database, tenant_no, request: read_sinks(database, tenant_no, request.query_params),
    ),
    Page(
        "/channels",
        "channels",
        "channels",
        lambda database, tenant_no, request: read_channels(database, tenant_no, request.query_params),
    ),
    Page(
        "/pings",
        "pings",
        "pings",
        lambda database, tenant_no, request: read_pings(database, tenant_no, request.query_params),
    ),
    Page(
        "/alerts",
        "alerts",
        "alerts",
        lambda database, tenant_no, request: read_alerts(database, tenant_no, request.query_params),
        values={
            "scope_in_words": scope_in_words,
            "when_in_words": when_in_words,
            "duration_in_words": duration_in_words,
        },
    ),
    Page(
        "/incidents",
        "incidents",
        "found",
        lambda database, tenant_no, request: read_incidents_page(database, tenant_no, request.query_params),
    ),
    Page(
        "/incidents/{id}",
        "incident",
        "page",
        lambda database, tenant_no, request: read_incident_page(database, tenant_no, uuid_in(request, "incident")),
    ),
    Page(
        audit.OWN,
        "audit",
        "found",
        lambda database, tenant_no, request: read_audit(database, tenant_no, audit.parse_query(request.query_params)),
        right=Right.AUDIT_READ,
    ),
    Page(
        audit.OF_INSTALLATION,
        "audit",
        "found",
        lambda database, tenant_no, request: read_audit(
            database, tenant_no, audit.parse_query(request.query_params, audit.OF_INSTALLATION)
        ),
        right=Right.TENANTS_MANAGE,
    ),
    Page(
        "/history",
        "history",
        "history",
        lambda database, _tenant_no, _request: read_history(database),
        values={"reasons_in_words": REASONS, "size": size_in_words},
        right=Right.FLEET_MANAGE,
    ),
    Page(
        "/usage",
        "usage",
        "usage",
        lambda database, tenant_no, _request: read_usage_page(database, tenant_no),
    ),
    Page(
        "/users",
        "users",
        "users",
        lambda database, tenant_no, request: read_users(database, tenant_no, request.query_params),
        right=Right.USERS_MANAGE,
    ),
    Page(
        "/secrets",
        "secrets",
        "secrets",
        lambda database, tenant_no, request: read_secrets(database, tenant_no, request.query_params),
        right=Right.SECRETS_MANAGE,
    ),
    Page(
        "/keys",
        "keys",
        "keys",
        lambda database, tenant_no, request: read_keys(database, tenant_no, request.query_params),
        right=Right.KEYS_MANAGE,
    ),
    Page(
        "/functions",
        "functions",
        "functions",
        lambda database, tenant_no, request: read_functions(database, tenant_no, request.query_params),
        values={"in_words": options_in_words, "count_words": workers_in_words},
    ),
    Page(
        "/forecast",
        "forecast",
        "forecast",
        lambda database, tenant_no, request: read_forecast(database, tenant_no, request.query_params),
    ),
    Page(
        "/tenants",
        "tenants",
        "tenants",
        lambda database, _tenant_no, request: read_tenants(database, request.query_params),
        right=Right.TENANTS_MANAGE,
    ),
    Page(
        "/tenants/{name}",
        "tenant",
        "shown",
        lambda database, _tenant_no, request: read_tenant(database, request.path_params["name"]),
        right=Right.TENANTS_MANAGE,
    ),
)


@dataclass(frozen=True, slots=True)
class Site:
    """What serving a page needs."""

    app: FastAPI
    database: Database
    auth: Auth
    renderer: Renderer
    feed: Feed

    async def serve(self, page: Page, request: Request) -> Response:
        try:
            caller = await self.allow(request, page.right)
            view = await page.read(self.database, caller.tenant_no, request)
            views = await self.views(page, caller)
            open_letters = await self.count_letters(request, caller)
            me = await self.me(request, caller)
        except (Unauthorized, Forbidden, NotFound, Unavailable) as error:
            return self.refuse(request, error)
        except Moved as moved:
            return RedirectResponse(moved.address, SEE_OTHER, headers=HEADERS)
        values = {page.name: view, "now": view.now, "open_letters": open_letters, "me": me, "views": views}
        html = self.renderer.page(page.template, **values, **page.values)
        return HTMLResponse(html, headers=HEADERS)

    async def views(self, page: Page, caller: Caller) -> Sequence[ViewRow]:
        """The saved views of a list, of the person and of the tenant."""
        if page.views_of is None:
            return ()
        async with self.database.reading(caller.tenant_no) as connection:
            return await read_views(connection, caller, page.views_of)

    async def shape(self, request: Request) -> Response:
        """The graph of a version of a workflow, which never changes."""
        caller = await self.allow(request, Right.JOBS_READ)
        job_id, version = JobId(uuid_in(request, "job")), number_in(request, "version")
        shape = await read_shape(self.database, caller.tenant_no, job_id, version)
        headers = {"Cache-Control": "private, max-age=86400, immutable", "Vary": "Cookie, Authorization"}
        return Response(shape, media_type="application/json", headers=headers)

    async def run_steps(self, request: Request) -> Response:
        """The states and times of all steps of a run."""
        caller = await self.allow(request, Right.JOBS_READ)
        steps = await read_run_steps(self.database, caller.tenant_no, uuid_in(request, "run"))
        return Response(steps, media_type="application/json", headers={"Cache-Control": "no-store"})

    async def overview(self, request: Request) -> Response:
        """`/`, whose view counts the open dead letters itself."""
        try:
            caller = await self.allow(request, Right.JOBS_READ)
            overview = await read_overview(self.database, caller.tenant_no, is_whole=await self.sees_all(caller))
            me = await self.me(request, caller)
        except (Unauthorized, Forbidden, Unavailable) as error:
            return self.refuse(request, error)
        html = self.renderer.page(
            "page",
            now=overview.now,
            liveness="snapshot",
            fragments=self.renderer.fragments(overview),
            is_new=overview.is_new,
            base_url=base_url_of(request),
            open_letters=overview.open_letters,
            me=me,
        )
        return HTMLResponse(html, headers=HEADERS)

    async def fleet(self, request: Request) -> Response:
        try:
            caller = await self.allow(request, Right.JOBS_READ)
            fleet = await read_fleet(self.database, caller.tenant_no, is_whole=await self.sees_all(caller))
            open_letters = await self.count_letters(request, caller)
            me = await self.me(request, caller)
        except (Unauthorized, Forbidden, Unavailable) as error:
            return self.refuse(request, error)
        html = self.renderer.page(
            "fleet",
            now=fleet.now,
            liveness="snapshot",
            fragments=self.renderer.fragments(fleet),
            open_letters=open_letters,
            me=me,
        )
        return HTMLResponse(html, headers=HEADERS)

    async def report(self, request: Request) -> Response:
        """`/report`, which shows the troubles of the installation to those who see all of it."""
        try:
            caller = await self.allow(request, Right.JOBS_READ)
            found = await read_report(
                self.database, caller.tenant_no, request.query_params, is_whole=await self.sees_all(caller)
            )
            open_letters = await self.count_letters(request, caller)
            me = await self.me(request, caller)
        except (Unauthorized, Forbidden, Unavailable) as error:
            return self.refuse(request, error)
        values = {"found": found, "now": found.now, "count_in_words": count_in_words}
        html = self.renderer.page("report", **values, open_letters=open_letters, me=me)
        return HTMLResponse(html, headers=HEADERS)

    async def schedules(self, read: ReadPreview, request: Request) -> Response:
        open_letters, me = 0, LOCAL_ME
        try:
            caller = await self.allow(request, Right.JOBS_READ)
            with suppress(Unavailable):  # a schedule is previewed without the database
                me = await self.me(request, caller)
                open_letters = await self.count_letters(request, caller)
        except (Unauthorized, Forbidden, Unavailable) as error:
            return self.refuse(request, error)
        form, now = form_of(request.query_params), self.database.clock.now()
        whole = "hx-request" not in request.headers

        def render() -> str:
            shown = preview_form(form, read, now)
            return self.renderer.schedules(form, shown, now, base_url_of(request), open_letters, me, whole=whole)

        # 50 ms for most schedules, half a second for a thousand fires: other requests must not wait for it.
        return HTMLResponse(await asyncio.to_thread(render), headers=HEADERS)

    async def docs(self, render: Callable[[str, bool], str], request: Request) -> Response:
        with_key = "authorization" in request.headers
        try:
            with_key = with_key or await self.auth.session(request) is not None
            await self.auth.caller(request)
        except Forbidden as error:
            return self.refuse(request, error)
        except (Unauthorized, Unavailable):  # it shows nothing of a tenant, and people read it when things fail
            with_key = True
        return HTMLResponse(render(base_url_of(request), with_key), headers=HEADERS)

    async def follow(self, page: str, request: Request) -> Response:
        caller = await self.allow(request, Right.JOBS_READ)
        is_whole = await self.sees_all(caller)
        may_go_on = partial(self.may_follow, request, caller.tenant_no, is_whole)
        changes = self.feed.watch(page, caller.tenant_no, may_go_on, is_whole=is_whole)
        # Proxies must pass on each event at once.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_events(changes), media_type="text/event-stream", headers=headers)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = self.renderer.static.get(name)
        if found is None:
            raise NotFound(f"The pages have no file {name!r}.")
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": OF_SCRIPTS,
        }
        return Response(found.content, media_type=found.kind, headers=headers)

    async def allow(self, request: HTTPConnection, right: Right) -> Caller:
        """The caller, if it has the right that the page needs."""
        caller = await self.auth.caller(request)
        caller.require(right)
        caller.require_all_pools()
        return caller

    async def sees_all(self, caller: Caller) -> bool:
        """Whether it sees the processes and the load of all tenants: an owner, or anyone if there is one tenant."""
        return caller.is_owner or not await self.database.tenants.are_several()

    async def may_follow(self, request: HTTPConnection, tenant_no: TenantNo, is_whole: bool) -> bool:
        """Whether the caller that opened a stream may still read it."""
        with suppress(Unavailable):  # the page shows that the database is away, and continues when it is back
            try:
                caller = await self.allow(request, Right.JOBS_READ)
                return caller.tenant_no == tenant_no and await self.sees_all(caller) == is_whole
            except (Unauthorized, Forbidden):
                return False
        return True

    async def me(self, request: Request, caller: Caller) -> Me:
        me = await read_me(self.database, self.auth, request, caller)
        if "hx-request" in request.headers:
            return me
        async with self.database.connection() as connection:
            return replace(me, open_incidents=await count_open_incidents(connection, caller.tenant_no))

    async def count_letters(self, request: Request, caller: Caller) -> int:
        """The open dead letters. Not counted when a page requests itself again: it keeps its navigation."""
        return 0 if "hx-request" in request.headers else await count_open(self.database, caller.tenant_no)

    def refuse(self, request: Request, error: OndotError) -> Response:
        if type(error) is Unauthorized and not error.facts.get("token_file") and _is_browser(request):
            return _to_sign_in(request)
        status = STATUS[type(error)]
        more = {"Retry-After": str(error.facts.get("retry_after_s", 2))} if status in {429, 503} else {}
        return HTMLResponse(self.renderer.message(error, base_url_of(request)), status, headers=HEADERS | more)


def build_pages(
    app: FastAPI,
    database: Database,
    auth: Auth,
    read_preview: ReadPreview | None = None,
    write_jobs: WriteJobs | None = None,
) -> Feed:
    """Mount the pages on an application. Returns the feed, for its owner to run and close.

    `read_preview` is how the API reads a schedule; without it there is no page that previews one. `write_jobs` is how
    it stores jobs; without it, or without the former, there are no pages that create and edit them.
    """
    writes = read_preview is not None and write_jobs is not None
    renderer = Renderer(previews=read_preview is not None, writes=writes)
    feed = Feed(database, LIVE, renderer.section, renderer.liveness)
    site = Site(app, database, auth, renderer, feed)
    provider = None if database.settings.oidc_issuer is None else Provider(database.settings, database.clock)
    people = SignInPages(database, auth, renderer, SignIn(database), provider, HEADERS)

    # 130 kB take tens of milliseconds, in which no other request is answered; they depend on the address only.
    @lru_cache(maxsize=DOCS_KEPT)
    def render_docs(base_url: str, with_key: bool) -> str:
        reference = read_reference(app.openapi(), base_url, with_key=with_key)
        return renderer.docs(reference, base_url, with_key=with_key)

    routes: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/": site.overview,
        **{page.path: partial(site.serve, page) for page in PAGES},
        "/fleet": site.fleet,
        "/report": site.report,
        "/docs": partial(site.docs, render_docs),
        "/ui/live": partial(site.follow, "overview"),
        "/ui/live/fleet": partial(site.follow, "fleet"),
        "/ui/jobs/{id}/shape/{version}": site.shape,
        "/ui/runs/{id}/steps": site.run_steps,
        "/ui/static/{name}": site.static,
    }
    if read_preview is not None:
        routes["/schedules"] = partial(site.schedules, read_preview)
    router = APIRouter(include_in_schema=False)
    if read_preview is not None and write_jobs is not None:
        # Before the page of a job: `new` is no id.
        for method, path, serve in JobPages(site, write_jobs, read_preview, HEADERS).routes():
            router.add_api_route(path, serve, methods=[method])
    for method, path, serve in FunctionPages(site, write_jobs, HEADERS).routes():
        router.add_api_route(path, serve, methods=[method])
    for path, serve in routes.items():
        router.add_api_route(path, serve, methods=["GET"])
    for method, path, serve in people.routes():
        router.add_api_route(path, serve, methods=[method])
    app.include_router(router)
    return feed


def base_url_of(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _is_browser(request: Request) -> bool:
    """Not a program, which cannot sign in; and not one with a key."""
    wants_page = "text/html" in request.headers.get("accept", "") or "hx-request" in request.headers
    return wants_page and "authorization" not in request.headers


def _to_sign_in(request: Request) -> Response:
    """To the sign-in, and back here afterwards. A part of a page that requests itself again leads the whole page."""
    is_part = "hx-request" in request.headers
    here = urlsplit(request.headers.get("hx-current-url", "")) if is_part else request.url
    path = here.path + (f"?{here.query}" if here.query else "")
    address = "/sign-in" + ("" if path in {"", "/"} else f"?next={quote(path, safe='')}")
    if is_part:
        return Response(status_code=401, headers={"HX-Redirect": address})
    return RedirectResponse(address, SEE_OTHER, headers=HEADERS)


async def _events(changes: AsyncGenerator[dict[str, str]]) -> AsyncIterator[str]:
    async with aclosing(changes):
        yield f"retry: {RECONNECT_MS}\n\n"
        async for fragments in changes:
            yield "".join(_event(name, html) for name, html in fragments.items())


def _event(name: str, html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: {name}\n{lines or EMPTY}\n"
