"""The pages: one table of them, the live streams `/ui/live…`, and `/ui/static/…` (O5, S9, E10, E14, E17).

Each page is complete without JavaScript, as a snapshot; with it, fragments are replaced as the feed sends them or as
the page requests itself again. A new page is a module that reads its view, a template, and a line of `PAGES`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Protocol
from uuid import UUID

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from starlette.requests import HTTPConnection

from ondot.model.errors import Forbidden, NotFound, OndotError, TooManyWrongKeys, Unauthorized, Unavailable
from ondot.model.execution import State
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.job import JobState
from ondot.store.database import Database
from ondot.ui import dead_letters, executions, jobs
from ondot.ui.dead_letters import count_open, read_letters
from ondot.ui.execution import read_execution
from ondot.ui.executions import read_executions
from ondot.ui.feed import Feed, Read
from ondot.ui.fleet import read_fleet
from ondot.ui.job import read_job
from ondot.ui.jobs import read_jobs
from ondot.ui.overview import read_overview
from ondot.ui.reference import read_reference
from ondot.ui.render import Renderer
from ondot.ui.schedules import REMARKS, ReadPreview, form_of, preview_form
from ondot.ui.skipped import read_skipped

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
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
# Without scripts, the browser itself sends a form, to this server only.
FORM_HEADERS = HEADERS | {"Content-Security-Policy": POLICY.replace("form-action 'none'", "form-action 'self'")}

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the table. `read` returns the view; the template gets it as `name`, together with `values`."""

    path: str
    template: str
    name: str
    read: Callable[[Database, TenantNo, Request], Awaitable[Any]]
    values: Values = field(default_factory=dict)
    has_form: bool = False
    has_sections: bool = False


PAGES = (
    Page(
        "/jobs",
        "jobs",
        "jobs",
        lambda database, tenant_no, request: read_jobs(database, tenant_no, jobs.parse_query(request.query_params)),
        values={"states": tuple(JobState)},
        has_form=True,
    ),
    Page(
        "/jobs/{id}",
        "job",
        "job",
        lambda database, tenant_no, request: read_job(database, tenant_no, JobId(_uuid(request, "job"))),
        values={"remarks": REMARKS},
    ),
    Page(
        "/executions",
        "executions",
        "found",
        lambda database, tenant_no, request: read_executions(
            database, tenant_no, executions.parse_query(request.query_params)
        ),
        values={"states": tuple(State)},
        has_form=True,
    ),
    Page(
        "/executions/{id}",
        "execution",
        "execution",
        lambda database, tenant_no, request: read_execution(
            database, tenant_no, ExecutionId(_uuid(request, "execution"))
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
        has_form=True,
    ),
    Page(
        "/fleet",
        "fleet",
        "fleet",
        lambda database, tenant_no, _request: read_fleet(database, tenant_no),
        values={"liveness": "snapshot"},
        has_sections=True,
    ),
)


class Auth(Protocol):
    """The tenant of a request. Raises if the request is not allowed."""

    async def tenant(self, request: HTTPConnection, /) -> TenantNo: ...


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
            tenant_no = await self.auth.tenant(request)
            view = await page.read(self.database, tenant_no, request)
            open_letters = await self.count_letters(request, tenant_no)
        except (Unauthorized, Forbidden, NotFound, Unavailable) as error:
            return self.refuse(request, error)
        values = {page.name: view, "now": view.now, "open_letters": open_letters, **page.values}
        if page.has_sections:
            values["fragments"] = self.renderer.fragments(view)
        html = self.renderer.page(page.template, **values)
        return HTMLResponse(html, headers=FORM_HEADERS if page.has_form else HEADERS)

    async def overview(self, request: Request) -> Response:
        """`/`, whose view counts the open dead letters itself."""
        try:
            overview = await read_overview(self.database, await self.auth.tenant(request))
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
        )
        return HTMLResponse(html, headers=HEADERS)

    async def schedules(self, read: ReadPreview, request: Request) -> Response:
        open_letters = 0
        try:
            tenant_no = await self.auth.tenant(request)
            with suppress(Unavailable):  # a schedule is previewed without the database
                open_letters = await self.count_letters(request, tenant_no)
        except (Unauthorized, Forbidden, Unavailable) as error:
            return self.refuse(request, error)
        form, now = form_of(request.query_params), self.database.clock.now()
        whole = "hx-request" not in request.headers

        def render() -> str:
            shown = preview_form(form, read, now)
            return self.renderer.schedules(form, shown, now, base_url_of(request), open_letters, whole=whole)

        # 50 ms for most schedules, half a second for a thousand fires: other requests must not wait for it.
        return HTMLResponse(await asyncio.to_thread(render), headers=FORM_HEADERS)

    async def docs(self, render: Callable[[str, bool], str], request: Request) -> Response:
        with_key = "authorization" in request.headers
        try:
            await self.auth.tenant(request)
        except Forbidden as error:
            return self.refuse(request, error)
        except (Unauthorized, Unavailable):  # it shows nothing of a tenant, and people read it when things fail
            with_key = True
        return HTMLResponse(render(base_url_of(request), with_key), headers=HEADERS)

    async def follow(self, page: str, request: Request) -> Response:
        changes = self.feed.watch(page, await self.auth.tenant(request), partial(_may_go_on, self.auth, request))
        # Proxies must pass on each event at once.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_events(changes), media_type="text/event-stream", headers=headers)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = self.renderer.static.get(name)
        if found is None:
            raise NotFound(f"The pages have no file {name!r}.")
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
        return Response(found.content, media_type=found.kind, headers=headers)

    async def count_letters(self, request: Request, tenant_no: TenantNo) -> int:
        """The open dead letters. Not counted when a page requests itself again: it keeps its navigation."""
        return 0 if "hx-request" in request.headers else await count_open(self.database, tenant_no)

    def refuse(self, request: Request, error: OndotError) -> Response:
        status = STATUS[type(error)]
        more = {"Retry-After": str(error.facts.get("retry_after_s", 2))} if status in {429, 503} else {}
        return HTMLResponse(self.renderer.message(error, base_url_of(request)), status, headers=HEADERS | more)


def build_pages(app: FastAPI, database: Database, auth: Auth, read_preview: ReadPreview | None = None) -> Feed:
    """Mount the pages on an application. Returns the feed, for its owner to run and close.

    `read_preview` is how the API reads a schedule; without it there is no page that previews one.
    """
    renderer = Renderer(previews=read_preview is not None)
    feed = Feed(database, LIVE, renderer.section, renderer.liveness)
    site = Site(app, database, auth, renderer, feed)

    # 130 kB take tens of milliseconds, in which no other request is answered; they depend on the address only.
    @lru_cache(maxsize=DOCS_KEPT)
    def render_docs(base_url: str, with_key: bool) -> str:
        reference = read_reference(app.openapi(), base_url, with_key=with_key)
        return renderer.docs(reference, base_url, with_key=with_key)

    routes: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/": site.overview,
        **{page.path: partial(site.serve, page) for page in PAGES},
        "/docs": partial(site.docs, render_docs),
        "/ui/live": partial(site.follow, "overview"),
        "/ui/live/fleet": partial(site.follow, "fleet"),
        "/ui/static/{name}": site.static,
    }
    if read_preview is not None:
        routes["/schedules"] = partial(site.schedules, read_preview)
    router = APIRouter(include_in_schema=False)
    for path, serve in routes.items():
        router.add_api_route(path, serve, methods=["GET"])
    app.include_router(router)
    return feed


def base_url_of(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _uuid(request: Request, what: str) -> UUID:
    text = request.path_params["id"]
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"There is no {what} {text[:60]!r}.") from None


async def _may_go_on(auth: Auth, request: HTTPConnection) -> bool:
    """Whether the key that opened a stream is still valid."""
    with suppress(Unavailable):  # the page shows that the database is away, and continues when it is back
        try:
            await auth.tenant(request)
        except Unauthorized:
            return False
    return True


async def _events(changes: AsyncGenerator[dict[str, str]]) -> AsyncIterator[str]:
    async with aclosing(changes):
        yield f"retry: {RECONNECT_MS}\n\n"
        async for fragments in changes:
            yield "".join(_event(name, html) for name, html in fragments.items())


def _event(name: str, html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: {name}\n{lines or EMPTY}\n"
