"""`/functions` and `/functions/{name}`: what workers can run, and a form that runs it (D1).

The form works without scripts: it is sent, and comes back with what is wrong at its inputs; a run that has started
leads to its execution. `WriteJobs`, which is the API's own, decides what is stored and checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import QueryParams

from ondot.flow.known_functions import FunctionView, read_function
from ondot.model.access import Caller, Right
from ondot.model.errors import Forbidden, InvalidBody, NotFound, OndotError, Unauthorized, Unavailable
from ondot.model.ids import JobId, TenantNo
from ondot.model.text import MAX_NAME
from ondot.store.database import Database
from ondot.store.executions import list_job_executions
from ondot.store.known_functions import FunctionRow, list_functions
from ondot.ui.forms import parse_form, require_form
from ondot.ui.function_form import FunctionForm, build_form, place_faults, read_payload
from ondot.ui.job_pages import Handler, Pages, WriteJobs
from ondot.words.function import options_in_words, workers_in_words

PAGE: Final = 100
SEE_OTHER: Final = 303
MORE_FIELDS: Final = 10


@dataclass(frozen=True, slots=True)
class FunctionsView:
    now: datetime
    rows: list[FunctionRow]
    q: str
    next: str | None


async def read_functions(database: Database, tenant_no: TenantNo, query: QueryParams) -> FunctionsView:
    q, after = query.get("q", "").strip()[:MAX_NAME], query.get("after", "")[:MAX_NAME]
    async with database.reading(tenant_no) as connection:
        rows = await list_functions(
            connection, tenant_no, after=after.replace("\0", ""), part=q.replace("\0", "") or None, limit=PAGE + 1
        )
    return FunctionsView(database.clock.now(), rows[:PAGE], q, rows[PAGE - 1].name if len(rows) > PAGE else None)


@dataclass(frozen=True, slots=True)
class FunctionPages:
    site: Pages
    writes: WriteJobs | None
    headers: Mapping[str, str]

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Method, path, handler."""
        routes: list[tuple[str, str, Handler]] = [("GET", "/functions/{name:path}", self.show)]
        return routes if self.writes is None else [*routes, ("POST", "/functions/{name:path}", self.run)]

    async def show(self, request: Request) -> Response:
        try:
            caller = await self.site.allow(request, Right.JOBS_READ)
            view = await self._read(request, caller)
        except (Unauthorized, Forbidden, NotFound, Unavailable) as error:
            return self.site.refuse(request, error)
        return await self._page(request, caller, _Shown(view, build_form(view.releases[0].schema)), 200)

    async def run(self, request: Request) -> Response:
        """Create a job that runs it once, now, and go to its execution."""
        assert self.writes is not None
        try:
            caller = await self.site.allow(request, Right.JOBS_WRITE)
            view = await self._read(request, caller)
            require_form(request)
            form = build_form(view.releases[0].schema)
            sent = parse_form(await self.writes.read(request), 2 * len(form.inputs) + MORE_FIELDS)
        except (Unauthorized, Forbidden, NotFound, Unavailable) as error:
            return self.site.refuse(request, error)
        except OndotError as error:
            html = self.site.renderer.message(error, "")
            return HTMLResponse(html, 422, headers=dict(self.headers))
        form = build_form(view.releases[0].schema, sent)
        payload, faults = read_payload(form, sent)
        trouble: list[str] = []
        if not faults:
            try:
                body = {"function": view.releases[0].name, "payload": payload}
                job_id, _ = await self.writes.create(request, body, None)
                return RedirectResponse(await self._target(caller, job_id), SEE_OTHER, headers=dict(self.headers))
            except (Unauthorized, Unavailable) as error:
                return self.site.refuse(request, error)
            except InvalidBody as refusal:
                faults, trouble = place_faults(form, refusal.faults)
            except OndotError as error:
                trouble = [error.message]
        return await self._page(request, caller, _Shown(view, form, faults, trouble), 422)

    async def _read(self, request: Request, caller: Caller) -> FunctionView:
        return await read_function(self.site.database, caller.tenant_no, request.path_params["name"][:MAX_NAME])

    async def _target(self, caller: Caller, job_id: JobId) -> str:
        """The execution; or the job, if a scheduler plans it in a moment."""
        database = self.site.database
        async with database.reading(caller.tenant_no) as connection:
            runs = await list_job_executions(
                connection, caller.tenant_no, job_id, limit=1, horizon_s=database.settings.horizon_s
            )
        return f"/executions/{runs[0].id}" if runs else f"/jobs/{job_id}"

    async def _page(self, request: Request, caller: Caller, shown: "_Shown", status: int) -> Response:
        values: dict[str, Any] = {
            "function": shown.view.releases[0],
            "releases": shown.view.releases,
            "workers": shown.view.workers,
            "latest": shown.view.latest,
            "form": shown.form,
            "faults": shown.faults,
            "trouble": shown.trouble,
            "writes": self.writes is not None,
            "in_words": options_in_words,
            "count_words": workers_in_words,
        }
        me = await self.site.me(request, caller)
        letters = await self.site.count_letters(request, caller)
        now = self.site.database.clock.now()
        html = self.site.renderer.page("function", **values, now=now, me=me, open_letters=letters)
        return HTMLResponse(html, status, headers=dict(self.headers))


@dataclass(frozen=True, slots=True)
class _Shown:
    view: FunctionView
    form: FunctionForm
    faults: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)
