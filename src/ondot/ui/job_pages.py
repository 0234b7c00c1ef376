"""`/jobs/new`, `/jobs/{id}/edit`, `/jobs/{id}/duplicate`: create and edit jobs by a form (S8, O5).

It works without scripts: the form is sent, and comes back with what is wrong at its inputs. What is stored, checked and
recorded is decided by `WriteJobs`, which is the API's own; this module reads and writes the form. An edit states the
version that it began with: if someone else has stored another, nothing is stored, and the page shows both changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ondot.flow.history.gone import find_why_unknown
from ondot.model.access import Caller, Right
from ondot.model.errors import (
    Conflict,
    Forbidden,
    InvalidBody,
    InvalidRequest,
    NotFound,
    OndotError,
    PreconditionFailed,
    Unauthorized,
    Unavailable,
)
from ondot.model.ids import JobId
from ondot.model.job import JobState
from ondot.model.schedule import Schedule
from ondot.model.schedule.looks import A_REQUEST, allowed
from ondot.store.database import Database
from ondot.store.jobs import JobRow, get_job
from ondot.ui.addresses import uuid_in
from ondot.ui.forms import parse_form, require_form
from ondot.ui.job_form import (
    KINDS,
    LONGEST_REASON,
    NAMES,
    TARGETS,
    Difference,
    Document,
    JobForm,
    build_document,
    document_of,
    fill_form,
    find_differences,
    place_faults,
    read_job_form,
)
from ondot.ui.me import Me
from ondot.ui.render import Renderer
from ondot.ui.schedules import FormErrors, PreviewView, ReadPreview, preview_form, zones

SEE_OTHER: Final = 303
UNPROCESSABLE: Final = 422

Handler = Callable[[Request], Awaitable[Response]]


class WriteJobs(Protocol):
    """How the API stores jobs. Raises as the API does; `warnings` do not stop it."""

    async def read(self, request: Request, /) -> bytes: ...

    async def create(
        self, request: Request, document: object, reason: str | None, /
    ) -> tuple[JobId, tuple[str, ...]]: ...

    async def replace(
        self, request: Request, job_id: JobId, document: object, version: int, reason: str | None, /
    ) -> tuple[JobId, tuple[str, ...]]: ...

    async def warn(self, schedule: Schedule, pool: str, /) -> tuple[str, ...]: ...


class Pages(Protocol):
    """The parts of the site that a form needs."""

    @property
    def database(self) -> Database: ...

    @property
    def renderer(self) -> Renderer: ...

    async def allow(self, request: Request, right: Right, /) -> Caller: ...

    async def me(self, request: Request, caller: Caller, /) -> Me: ...

    async def count_letters(self, request: Request, caller: Caller, /) -> int: ...

    def refuse(self, request: Request, error: OndotError, /) -> Response: ...


@dataclass(frozen=True, slots=True)
class Shown:
    """A form and what is said about it. `job`: the one that is edited; `differences`: what others changed meanwhile."""

    form: JobForm
    title: str
    action: str
    job: JobRow | None = None
    faults: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trouble: str | None = None
    differences: Sequence[Difference] | None = None
    back: str = "/jobs"


@dataclass(frozen=True, slots=True)
class Preview:
    """What the form says about its schedule while a person types."""

    shown: PreviewView | None
    faults: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobPages:
    site: Pages
    writes: WriteJobs
    read_preview: ReadPreview
    headers: Mapping[str, str]

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Method, path, handler."""
        return [
            ("GET", "/jobs/new", self.show_new),
            ("POST", "/jobs/new", self.create),
            ("GET", "/jobs/preview", self.preview),
            ("GET", "/jobs/{id}/edit", self.show_edit),
            ("POST", "/jobs/{id}/edit", self.save),
            ("GET", "/jobs/{id}/duplicate", self.show_duplicate),
        ]

    async def show_new(self, request: Request) -> Response:
        """An empty form, or one with a schedule of `/schedules`."""
        form = read_job_form(request.query_params)
        return await self._answer(request, lambda _caller: _ready(Shown(form, "New job", "/jobs/new")))

    async def show_edit(self, request: Request) -> Response:
        return await self._answer(request, lambda caller: self._edited(request, caller))

    async def show_duplicate(self, request: Request) -> Response:
        async def shown(caller: Caller) -> Shown:
            job = await self._load(request, caller)
            form = replace(fill_form(job.spec), key="", name=f"{job.spec.name} (copy)")
            return Shown(form, f"Duplicate {job.spec.name}", "/jobs/new", back=f"/jobs/{job.id}")

        return await self._answer(request, shown)

    async def preview(self, request: Request) -> Response:
        """The part of the form that changes while a person types a schedule."""
        try:
            await self.site.allow(request, Right.JOBS_WRITE)
        except (Unauthorized, Forbidden, Unavailable) as error:
            return self.site.refuse(request, error)
        preview = await self._preview(read_job_form(request.query_params))
        values = {"preview": preview, "faults": preview.faults, "now": self.site.database.clock.now()}
        return HTMLResponse(self.site.renderer.page("job_preview", **values), headers=dict(self.headers))

    async def create(self, request: Request) -> Response:
        async def store(form: JobForm, document: Document, _caller: Caller) -> tuple[JobId, tuple[str, ...]]:
            return await self.writes.create(request, document, form.reason[:LONGEST_REASON] or None)

        async def start(form: JobForm, _caller: Caller) -> Shown:
            return Shown(form, "New job", "/jobs/new")

        return await self._store(request, start, store)

    async def save(self, request: Request) -> Response:
        async def store(form: JobForm, document: Document, _caller: Caller) -> tuple[JobId, tuple[str, ...]]:
            if not (form.version.isascii() and form.version.isdecimal() and len(form.version) < 10):
                raise InvalidRequest("The form does not say which version it changes. Open it again.")
            job_id, reason = self._id(request), form.reason[:LONGEST_REASON] or None
            return await self.writes.replace(request, job_id, document, int(form.version), reason)

        async def start(form: JobForm, caller: Caller) -> Shown:
            return replace(await self._edited(request, caller), form=form)

        return await self._store(request, start, store)

    # Parts -----------------------------------------------------------------------------------------------------------

    async def _store(
        self,
        request: Request,
        start: Callable[[JobForm, Caller], Awaitable[Shown]],
        store: Callable[[JobForm, Document, Caller], Awaitable[tuple[JobId, tuple[str, ...]]]],
    ) -> Response:
        try:
            caller = await self.site.allow(request, Right.JOBS_WRITE)
            require_form(request)
            form = read_job_form(parse_form(await self.writes.read(request), 2 * len(NAMES)))
            shown = await start(form, caller)
        except OndotError as error:
            return self._refuse(request, error)
        document: Document = {}
        try:
            document = await asyncio.to_thread(build_document, form)
            job_id, warnings = await store(form, document, caller)
        except (Unauthorized, Unavailable) as error:
            return self._refuse(request, error)
        except OndotError as error:
            # Also quotas, rights and limits of size: the form stays, so that nothing typed is lost.
            return await self._form(request, caller, *await self._explain(error, caller, shown, document))
        if not warnings:
            return RedirectResponse(f"/jobs/{job_id}", SEE_OTHER, headers=dict(self.headers))
        values = {"job_id": job_id, "name": form.name, "warnings": warnings}
        return await self._page(request, caller, "job_saved", values, 200)

    async def _explain(self, error: OndotError, caller: Caller, shown: Shown, mine: Document) -> tuple[Shown, int]:
        """The form with what is wrong, and the status of the answer."""
        if isinstance(error, PreconditionFailed):
            return await self._changed(caller, shown, mine), 412
        faults = place_faults(error.faults) if isinstance(error, InvalidBody) else {}
        return replace(shown, faults=faults, trouble=None if faults else error.message), _status(error)

    async def _changed(self, caller: Caller, shown: Shown, mine: Document) -> Shown:
        """Someone else stored a version meanwhile: both changes, and a form that would replace theirs."""
        assert shown.job is not None
        theirs, form = shown.job, shown.form
        version = int(form.version)
        async with self.site.database.reading(caller.tenant_no) as connection:
            specs = await self.site.database.specs.find(connection, {(theirs.id, version)})
        before = specs.get((theirs.id, version))
        differences = find_differences(
            document_of(before) if before else {}, document_of(theirs.spec), {**mine, "name": mine.get("name")}
        )
        return replace(shown, form=replace(form, version=str(theirs.version)), differences=differences)

    async def _edited(self, request: Request, caller: Caller) -> Shown:
        job = await self._load(request, caller)
        form = fill_form(job.spec, job.version)
        address = f"/jobs/{job.id}"
        return Shown(form, f"Edit {job.spec.name}", f"{address}/edit", job, back=address)

    async def _load(self, request: Request, caller: Caller) -> JobRow:
        job_id = self._id(request)
        async with self.site.database.reading(caller.tenant_no) as connection:
            job = await get_job(connection, caller.tenant_no, job_id)
        if job is None:
            raise await find_why_unknown(self.site.database, caller.tenant_no, "job", job_id)
        if job.state is JobState.DELETED and request.url.path.endswith("/edit"):
            raise NotFound(f"The job {job.spec.name!r} is deleted. Duplicate it to have it again.")
        return job

    @staticmethod
    def _id(request: Request) -> JobId:
        return JobId(uuid_in(request, "job"))

    async def _answer(self, request: Request, build: Callable[[Caller], Awaitable[Shown]]) -> Response:
        try:
            caller = await self.site.allow(request, Right.JOBS_WRITE)
            return await self._form(request, caller, await build(caller), 200)
        except (Unauthorized, Forbidden, NotFound, Unavailable) as error:
            return self.site.refuse(request, error)

    async def _form(self, request: Request, caller: Caller, shown: Shown, status: int) -> Response:
        preview = await self._preview(shown.form)
        values = {
            "shown": shown,
            "form": shown.form,
            "faults": {**preview.faults, **shown.faults},
            "preview": preview,
            "kinds": KINDS,
            "targets": TARGETS,
            "zones": zones(),
        }
        return await self._page(request, caller, "job_form", values, status)

    async def _page(
        self, request: Request, caller: Caller, template: str, values: Mapping[str, Any], status: int
    ) -> Response:
        me = await self.site.me(request, caller)
        letters = await self.site.count_letters(request, caller)
        now = self.site.database.clock.now()
        html = self.site.renderer.page(template, **values, now=now, me=me, open_letters=letters)
        return HTMLResponse(html, status, headers=dict(self.headers))

    async def _preview(self, form: JobForm) -> Preview:
        schedule = form.schedule
        if schedule is None or not form.expression:
            return Preview(None, {})
        now = self.site.database.clock.now()
        found = await asyncio.to_thread(preview_form, schedule, self.read_preview, now)
        if isinstance(found, FormErrors):
            return Preview(None, found.faults)

        def read() -> Schedule:
            with allowed(A_REQUEST):
                return self.read_preview(schedule.body(), now)[0]

        return Preview(found, {}, await self.writes.warn(await asyncio.to_thread(read), form.pool))

    def _refuse(self, request: Request, error: OndotError) -> Response:
        if isinstance(error, (Unauthorized, Forbidden, NotFound, Unavailable)):
            return self.site.refuse(request, error)
        html = self.site.renderer.message(error, "")
        return HTMLResponse(html, _status(error), headers=dict(self.headers))


async def _ready(shown: Shown) -> Shown:
    return shown


def _status(error: OndotError) -> int:
    match error:
        case Forbidden():
            return 403
        case NotFound():
            return 404
        case Conflict():
            return 409
        case _:
            return UNPROCESSABLE
