"""The functions of each tenant as a process remembers them (D1), and their registration by a worker.

A reading is replaced after `CACHED_S`, and never older than `OLDEST_S`: a request that comes while another reads gets
the one before. Meanwhile a job gets the defaults of the release before, and its payload is checked by that schema.
A function that is not known is looked for again at once, but not more often than each `LOOK_AGAIN_S`: a worker that has
just started is found, and a flood of wrong names costs ten small statements a second.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Final

from ondot.document.functions import KnownFunction, KnownFunctions
from ondot.document.known import check_options
from ondot.flow.served_tenants import TenantNos
from ondot.model.app_release import AppRelease
from ondot.model.errors import NotFound
from ondot.model.execution import State
from ondot.model.explain_facts import FunctionFacts
from ondot.model.function import DeclaredFunction
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.job import JobSpec
from ondot.model.json_schema import Check
from ondot.model.query.query import Query, term
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.executions import list_job_executions
from ondot.store.known_functions import (
    ALL_TENANTS,
    Definition,
    FunctionWorker,
    Mark,
    ReleaseRow,
    get_function,
    list_known,
    list_workers_of_function,
    read_definitions,
    register_functions,
)
from ondot.store.search_jobs import search_jobs
from ondot.telemetry.log import get_logger

if TYPE_CHECKING:
    from ondot.store.jobs import JobRow

CACHED_S: Final = 0.5
OLDEST_S: Final = 1.0
LOOK_AGAIN_S: Final = 0.1
MAX_TENANTS: Final = 1_000
WORKERS_SHOWN: Final = 100
RUNS_SHOWN: Final = 10
MAX_WARNINGS: Final = 20
"""About one job: a workflow may call a thousand functions."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class UnknownFunction:
    """A warning: a job calls a function that no worker has registered."""

    code: str
    detail: str
    function: str
    nearest: str | None


def find_unknown(functions: KnownFunctions, specs: Sequence[JobSpec]) -> dict[int, list[UnknownFunction]]:
    """The warnings about each of these jobs, by its place. A near name is looked for once for each of the first names:
    that takes a millisecond among a thousand, and a batch may have ten thousand."""
    warnings = {}
    known: dict[str, UnknownFunction] = {}
    for place, spec in enumerate(specs):
        if unknown := functions.unknown_in(spec)[:MAX_WARNINGS]:
            for name in unknown:
                if name not in known:
                    known[name] = warn_unknown(name, functions.nearest(name) if len(known) < MAX_WARNINGS else None)
            warnings[place] = [known[name] for name in unknown]
    return warnings


def warn_unknown(name: str, nearest: str | None) -> UnknownFunction:
    advice = "" if nearest is None else f" Did you mean {nearest!r}?"
    return UnknownFunction("unknown-function", f"No worker has registered {name!r}.{advice}", name, nearest)


class Functions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._tenants: dict[TenantNo, _OfTenant] = {}

    async def of(self, tenant_no: TenantNo) -> KnownFunctions:
        """What is known of the functions of a tenant."""
        return await self._entry(tenant_no).read(self._database, CACHED_S)

    async def look_again(self, tenant_no: TenantNo) -> KnownFunctions:
        """The same after a name was not found."""
        return await self._entry(tenant_no).read(self._database, LOOK_AGAIN_S)

    def _entry(self, tenant_no: TenantNo) -> "_OfTenant":
        entry = self._tenants.get(tenant_no)
        if entry is None:
            if len(self._tenants) >= MAX_TENANTS:
                del self._tenants[next(iter(self._tenants))]
            entry = self._tenants[tenant_no] = _OfTenant(tenant_no)
        return entry


class _OfTenant:
    def __init__(self, tenant_no: TenantNo) -> None:
        self._tenant_no = tenant_no
        self._known = KnownFunctions({})
        self._marks: list[Mark] = []
        self._definitions: dict[str, tuple[Definition, Check | None]] = {}
        self._read_s = float("-inf")
        self._reading = asyncio.Lock()

    async def read(self, database: Database, max_age_s: float) -> KnownFunctions:
        age_s = monotonic() - self._read_s
        if age_s >= max_age_s and not (self._reading.locked() and age_s < OLDEST_S):
            async with self._reading:
                if monotonic() - self._read_s >= max_age_s:  # else another caller has read it meanwhile
                    await self._read(database)
        return self._known

    async def _read(self, database: Database) -> None:
        read_s = monotonic()
        async with database.connection() as connection:
            marks = await list_known(connection, self._tenant_no)
            if marks != self._marks:
                missing = {mark.digest for mark in marks} - self._definitions.keys()
                found = await read_definitions(connection, self._tenant_no, missing) if missing else []
                self._definitions |= {one.digest: (one, _compile(one)) for one in found}
                wanted = {mark.digest for mark in marks}
                self._definitions = {key: one for key, one in self._definitions.items() if key in wanted}
                self._known = self._build(marks)
                self._marks = marks
        self._read_s = read_s

    def _build(self, marks: Sequence[Mark]) -> KnownFunctions:
        releases: dict[str, list[Mark]] = {}
        for mark in marks:
            if mark.digest in self._definitions:
                releases.setdefault(mark.name, []).append(mark)
        return KnownFunctions({name: self._function(name, of_name) for name, of_name in releases.items()})

    def _function(self, name: str, marks: Sequence[Mark]) -> KnownFunction:
        definition, _ = self._definitions[marks[0].digest]
        checks = [self._definitions[mark.digest][1] for mark in marks if mark.is_live]
        return KnownFunction(
            name,
            check_options(name, definition.options),
            definition.argument_defaults,
            # One without a schema takes anything.
            [check for check in checks if check is not None] if None not in checks else (),
            is_live=marks[0].is_live,
        )


def _compile(definition: Definition) -> Check | None:
    if definition.schema is None:
        return None
    try:
        return Check(definition.schema)
    except (ValueError, RecursionError) as error:
        log.warning("function.schema_ignored", function=definition.name, why=str(error))
        return None


@dataclass(frozen=True, slots=True)
class FunctionRun:
    """The latest execution of a job that calls a function."""

    execution_id: ExecutionId
    job_id: JobId
    job_name: str
    state: State
    fire_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class FunctionView:
    """All that is known of a function: its releases, the one in force first; its live workers and latest executions."""

    releases: list[ReleaseRow]
    workers: list[FunctionWorker]
    latest: list[FunctionRun]


async def find_function(connection: Connection, tenant_no: TenantNo, name: str) -> FunctionFacts:
    """Which live workers have a function, for an explanation."""
    workers = await list_workers_of_function(connection, tenant_no, name, WORKERS_SHOWN)
    if workers:
        return FunctionFacts(name, is_known=True, pools=frozenset(pool for worker in workers for pool in worker.pools))
    marks = await list_known(connection, tenant_no)
    if any(mark.name == name for mark in marks):
        return FunctionFacts(name, is_known=True)
    return FunctionFacts(name, is_known=False, nearest=_nearest(marks, name))


def _nearest(marks: Sequence[Mark], name: str) -> str | None:
    return KnownFunctions({mark.name: KnownFunction(mark.name, {}) for mark in marks}).nearest(name)


async def read_function(database: Database, tenant_no: TenantNo, name: str) -> FunctionView:
    """Raises NotFound, with the name that was probably meant."""
    async with database.reading(tenant_no) as connection:
        releases = await get_function(connection, tenant_no, name)
        if not releases:
            marks = await list_known(connection, tenant_no)
            raise NotFound(warn_unknown(name, _nearest(marks, name)).detail)
        workers = await list_workers_of_function(connection, tenant_no, name, WORKERS_SHOWN)
        latest = await _find_latest(connection, tenant_no, name, database.settings.horizon_s)
    return FunctionView(releases, workers, latest)


async def _find_latest(connection: Connection, tenant_no: TenantNo, name: str, horizon_s: float) -> list[FunctionRun]:
    """Of its newest jobs, and of its newest definitions, which may be old. Within the time that a search may take."""
    jobs: dict[JobId, JobRow] = {}
    for terms in ([term("function", name)], [term("function", name), term("definition", "yes")]):
        found = await search_jobs(connection, tenant_no, Query("jobs", tuple(terms)), limit=RUNS_SHOWN)
        jobs |= {row.id: row for row in found.rows}
    runs = []
    for row in jobs.values():
        for run in await list_job_executions(connection, tenant_no, row.id, limit=1, horizon_s=horizon_s):
            runs.append(FunctionRun(run.id, row.id, row.spec.name, run.state, run.fire_at, run.ended_at))
    return sorted(runs, key=lambda run: run.fire_at, reverse=True)[:RUNS_SHOWN]


async def register(
    database: Database, app: AppRelease, functions: Sequence[DeclaredFunction], tenant_nos: TenantNos
) -> None:
    """Register the functions of a worker's app for the tenants that it serves; None: for all."""
    async with database.connection() as connection:
        for tenant_no in sorted(tenant_nos) if tenant_nos is not None else [ALL_TENANTS]:
            await register_functions(connection, tenant_no, app, functions)
    log.info("functions.registered", app=app.app, release=app.release, count=len(functions))
