"""The pages, `/` and the live streams `/ui/live…` first, and `/ui/static/…` (O5, S9, E10, E14, E17).

Each page is whole without JavaScript, a snapshot; with it, fragments are swapped in as the feed sends them or as the
page asks for itself again. Names and messages come from users and are hostile until escaped: Jinja escapes everything,
and the policy below keeps the browser from running or loading anything that is not a file of ours, whatever slips
through.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any, Protocol, TypeVar
from uuid import UUID

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import HTTPConnection

from ondot import __version__
from ondot.model.errors import Forbidden, NotFound, OndotError, TooManyWrongKeys, Unauthorized, Unavailable
from ondot.model.execution import State
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.job import JobState
from ondot.model.text import visible
from ondot.store.database import Database
from ondot.ui import dead_letters, executions
from ondot.ui.dead_letters import LettersView, count_open, read_letters
from ondot.ui.examples import EXAMPLE_ID
from ondot.ui.execution import ExecutionView, read_execution
from ondot.ui.executions import ExecutionsView, read_executions
from ondot.ui.feed import Feed, Liveness, Read
from ondot.ui.fleet import FleetView, read_fleet
from ondot.ui.job import JobView, read_job
from ondot.ui.jobs import JobsView, asked_of, read_jobs
from ondot.ui.overview import Overview, read_overview
from ondot.ui.reference import Reference, read_reference
from ondot.ui.schedules import EXAMPLES, FIELD_OF, REMARKS, Form, ReadPreview, Refused, Told, form_of, tell, zones
from ondot.ui.skipped import SkippedView, read_skipped
from ondot.words import job as words

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
_WRITTEN = re.compile(r"\b(\d{4}-\d\d-\d\d) (\d\d:\d\d(?::\d\d)?) UTC\b")
"""An instant inside a sentence, as `model` writes it."""
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
RECONNECT_MS = 1000
DOCS_KEPT = 16
EMPTY = "data:\n"
LIVE: Mapping[str, Read] = {"overview": read_overview, "fleet": read_fleet}
"""The pages that are read once a second for all who watch."""
STATUS: dict[type[OndotError], int] = {
    Unauthorized: 401,
    TooManyWrongKeys: 429,
    Forbidden: 403,
    NotFound: 404,
    Unavailable: 503,
}
# A form that is sent by hand, where there is no script, may go to this server.
FORM_HEADERS = HEADERS | {"Content-Security-Policy": POLICY.replace("form-action 'none'", "form-action 'self'")}

View = TypeVar("View")


class Auth(Protocol):
    """Who asks; raises if they may not."""

    async def tenant(self, request: HTTPConnection, /) -> TenantNo: ...


@dataclass(frozen=True, slots=True)
class StaticFile:
    """Named with its hash in the page, so that a browser keeps it until a release changes it."""

    content: bytes
    kind: str
    hash: str


class Pages:
    """The templates and the files they name."""

    def __init__(self, *, previews: bool = False) -> None:
        self.static = _load_static()
        self._templates = Environment(
            loader=PackageLoader("ondot.ui"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_seen,
        )
        self._templates.globals.update(version=__version__, static=self.address, words=words, previews=previews)
        self._templates.filters["breakable"] = breakable
        self._templates.filters["instants"] = mark_instants

    def address(self, name: str) -> str:
        return f"/ui/static/{name}?v={self.static[name].hash}"

    def section(self, name: str, section: object, now: datetime) -> str:
        return self._templates.get_template(f"{name}.html").render(section=section, now=now)

    def liveness(self, liveness: Liveness, now: datetime | None) -> str:
        return self._templates.get_template("live.html").render(liveness=liveness, now=now)

    def page(self, overview: Overview, base_url: str) -> str:
        return self._templates.get_template("page.html").render(
            now=overview.now,
            liveness="snapshot",
            fragments=self._fragments(overview.sections, overview.now),
            is_new=overview.is_new,
            base_url=base_url,
            open_letters=overview.open_letters,
        )

    def fleet(self, fleet: FleetView, open_letters: int) -> str:
        return self._templates.get_template("fleet.html").render(
            now=fleet.now,
            liveness="snapshot",
            fragments=self._fragments(fleet.sections, fleet.now),
            open_letters=open_letters,
        )

    def _fragments(self, sections: Mapping[str, object], now: datetime) -> dict[str, Markup]:
        return {
            name: Markup(self.section(name, section, now))  # noqa: S704 - escaped when it was rendered
            for name, section in sections.items()
        }

    def docs(self, reference: Reference, base_url: str, *, with_key: bool) -> str:
        return self._templates.get_template("docs.html").render(
            reference=reference, base_url=base_url, with_key=with_key, example_id=EXAMPLE_ID
        )

    def jobs(self, jobs: JobsView, open_letters: int) -> str:
        return self._templates.get_template("jobs.html").render(
            jobs=jobs, now=jobs.now, states=tuple(JobState), open_letters=open_letters
        )

    def job(self, job: JobView, open_letters: int) -> str:
        return self._templates.get_template("job.html").render(
            job=job, now=job.now, remarks=REMARKS, open_letters=open_letters
        )

    def executions(self, found: ExecutionsView, open_letters: int) -> str:
        return self._templates.get_template("executions.html").render(
            found=found, now=found.now, states=tuple(State), open_letters=open_letters
        )

    def skipped(self, found: SkippedView, open_letters: int) -> str:
        return self._templates.get_template("skipped.html").render(
            found=found, now=found.now, open_letters=open_letters
        )

    def execution(self, execution: ExecutionView, open_letters: int) -> str:
        return self._templates.get_template("execution.html").render(
            execution=execution, now=execution.now, open_letters=open_letters
        )

    def letters(self, letters: LettersView, open_letters: int) -> str:
        return self._templates.get_template("dead_letters.html").render(
            letters=letters, now=letters.now, open_letters=open_letters
        )

    def schedules(
        self, form: Form, told: Told | Refused, now: datetime, base_url: str, open_letters: int, *, whole: bool
    ) -> str:
        """The page; or only what changes when somebody types."""
        values: dict[str, Any] = {
            "form": form,
            "told": told if isinstance(told, Told) else None,
            "faults": told.faults if isinstance(told, Refused) else {},
            "fields": [*dict.fromkeys(FIELD_OF.values()), "form"],
            "examples": EXAMPLES,
            "now": now,
            "as_json": json.dumps(form.schedule(), indent=2, ensure_ascii=False),
            "command": form.command(),
            "curl": form.curl(base_url),
            "zones": zones() if whole else (),
            "open_letters": open_letters,
        }
        return self._templates.get_template("schedules.html" if whole else "schedule_fragment.html").render(values)

    def message(self, error: OndotError, base_url: str) -> str:
        return self._templates.get_template("message.html").render(error=error, base_url=base_url)


def build_pages(app: FastAPI, database: Database, auth: Auth, read_preview: ReadPreview | None = None) -> Feed:
    """Mount the pages on an application; gives the feed, for its owner to run and to close.

    `read_preview` is how the API reads a schedule; without it there is no page that previews one.
    """
    pages = Pages(previews=read_preview is not None)
    feed = Feed(database, LIVE, pages.section, pages.liveness)
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def first_page(request: Request) -> Response:
        base_url = str(request.base_url).rstrip("/")
        try:
            overview = await read_overview(database, await auth.tenant(request))
        except (Unauthorized, Forbidden, Unavailable) as error:
            return _refused(pages.message(error, base_url), error)
        return HTMLResponse(pages.page(overview, base_url), headers=HEADERS)

    async def shown(
        request: Request,
        read: Callable[[TenantNo], Awaitable[View]],
        render: Callable[[View, int], str],
        headers: Mapping[str, str] = HEADERS,
    ) -> Response:
        try:
            tenant_no = await auth.tenant(request)
            view = await read(tenant_no)
            open_letters = await _badge(request, database, tenant_no)
        except (Unauthorized, Forbidden, NotFound, Unavailable) as error:
            return _refused(pages.message(error, str(request.base_url).rstrip("/")), error)
        return HTMLResponse(render(view, open_letters), headers=headers)

    @router.get("/jobs")
    async def jobs_page(request: Request) -> Response:
        asked = asked_of(request.query_params)
        return await shown(request, lambda tenant_no: read_jobs(database, tenant_no, asked), pages.jobs, FORM_HEADERS)

    @router.get("/jobs/{job_id}")
    async def job_page(request: Request, job_id: str) -> Response:
        return await shown(
            request, lambda tenant_no: read_job(database, tenant_no, JobId(_uuid(job_id, "job"))), pages.job
        )

    @router.get("/executions")
    async def executions_page(request: Request) -> Response:
        asked = executions.asked_of(request.query_params)
        return await shown(
            request, lambda tenant_no: read_executions(database, tenant_no, asked), pages.executions, FORM_HEADERS
        )

    @router.get("/executions/{execution_id}")
    async def execution_page(request: Request, execution_id: str) -> Response:
        return await shown(
            request,
            lambda tenant_no: read_execution(database, tenant_no, ExecutionId(_uuid(execution_id, "execution"))),
            pages.execution,
        )

    @router.get("/skipped")
    async def skipped_page(request: Request) -> Response:
        return await shown(
            request, lambda tenant_no: read_skipped(database, tenant_no, request.query_params), pages.skipped
        )

    @router.get("/dead-letters")
    async def letters_page(request: Request) -> Response:
        asked = dead_letters.asked_of(request.query_params)
        return await shown(
            request, lambda tenant_no: read_letters(database, tenant_no, asked), pages.letters, FORM_HEADERS
        )

    @router.get("/fleet")
    async def fleet_page(request: Request) -> Response:
        return await shown(request, lambda tenant_no: read_fleet(database, tenant_no), pages.fleet)

    if read_preview is not None:
        _add_schedules(router, pages, database, auth, read_preview)

    # 130 kB take tens of milliseconds, in which nothing else is answered; they change with the address only.
    @lru_cache(maxsize=DOCS_KEPT)
    def render_docs(base_url: str, with_key: bool) -> str:
        return pages.docs(read_reference(app.openapi(), base_url, with_key=with_key), base_url, with_key=with_key)

    @router.get("/docs")
    async def docs(request: Request) -> Response:
        base_url = str(request.base_url).rstrip("/")
        with_key = "authorization" in request.headers
        try:
            await auth.tenant(request)
        except Forbidden as error:
            return _refused(pages.message(error, base_url), error)
        except (Unauthorized, Unavailable):  # it tells nothing of a tenant, and is read when things do not work
            with_key = True
        return HTMLResponse(render_docs(base_url, with_key), headers=HEADERS)

    async def followed(request: Request, page: str) -> Response:
        changes = feed.watch(page, await auth.tenant(request), partial(_may_go_on, auth, request))
        # Proxies must pass each event on as it comes.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_events(changes), media_type="text/event-stream", headers=headers)

    @router.get("/ui/live")
    async def live(request: Request) -> Response:
        return await followed(request, "overview")

    @router.get("/ui/live/fleet")
    async def live_fleet(request: Request) -> Response:
        return await followed(request, "fleet")

    @router.get("/ui/static/{name}")
    async def static(name: str) -> Response:
        found = pages.static.get(name)
        if found is None:
            raise NotFound(f"There is no file {name!r} among the page's.")
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
        return Response(found.content, media_type=found.kind, headers=headers)

    app.include_router(router)
    return feed


def _add_schedules(router: APIRouter, pages: Pages, database: Database, auth: Auth, read: ReadPreview) -> None:
    @router.get("/schedules")
    async def schedules(request: Request) -> Response:
        base_url = str(request.base_url).rstrip("/")
        open_letters = 0
        try:
            tenant_no = await auth.tenant(request)
            with suppress(Unavailable):  # what a schedule means is known without a database
                open_letters = await _badge(request, database, tenant_no)
        except (Unauthorized, Forbidden, Unavailable) as error:
            return _refused(pages.message(error, base_url), error)
        form, now = form_of(request.query_params), database.clock.now()
        whole = "hx-request" not in request.headers

        def render() -> str:
            return pages.schedules(form, tell(form, read, now), now, base_url, open_letters, whole=whole)

        # 50 ms for most schedules, half a second for a thousand fires: nothing else should wait for them.
        return HTMLResponse(await asyncio.to_thread(render), headers=FORM_HEADERS)


async def _badge(request: Request, database: Database, tenant_no: TenantNo) -> int:
    """How many dead letters are open; not counted for a page that asks for itself again, and keeps its navigation."""
    return 0 if "hx-request" in request.headers else await count_open(database, tenant_no)


def _uuid(text: str, what: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"There is no {what} {text[:60]!r}.") from None


def breakable(name: str) -> Markup:
    """A name that may be wrapped after an underscore, as browsers do after a hyphen by themselves."""
    return Markup("_<wbr>").join(escape(part) for part in visible(name).split("_"))


def _seen(value: object) -> object:
    """What a template writes: text with what cannot be seen shown, and all else as it is."""
    return visible(value) if type(value) is str else value


def _refused(html: str, error: OndotError) -> Response:
    status = STATUS[type(error)]
    more = {"Retry-After": str(error.facts.get("retry_after_s", 2))} if status in {429, 503} else {}
    return HTMLResponse(html, status, headers=HEADERS | more)


async def _may_go_on(auth: Auth, request: HTTPConnection) -> bool:
    """Whether the key that a stream was opened with is still good."""
    with suppress(Unavailable):  # the page says that the database is away, and goes on when it is back
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


def _load_static() -> dict[str, StaticFile]:
    found = {}
    for entry in files("ondot.ui").joinpath("static").iterdir():
        kind = KINDS.get("." + entry.name.rpartition(".")[2])
        if kind:
            content = entry.read_bytes()
            found[entry.name] = StaticFile(content, kind, hashlib.sha256(content).hexdigest()[:12])
    return found


def mark_instants(text: str) -> Markup:
    """A sentence, escaped, with each instant in it as a `<time>` that the page's script shows in the reader's zone."""
    parts: list[Markup] = []
    end = 0
    for found in _WRITTEN.finditer(text):
        try:
            at = datetime.fromisoformat(f"{found[1]}T{found[2]}+00:00")
        except ValueError:
            continue  # text of a user, such as 2026-99-99 12:00 UTC
        parts.append(escape(text[end : found.start()]))
        parts.append(
            Markup('<time class="clock" datetime="{}" data-clock="date" title="{}">{}</time>').format(
                at.isoformat(), words.zones(at), found[0]
            )
        )
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])
