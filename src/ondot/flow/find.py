"""From what a person types to what may be meant (D5): for the command line, shell completion and the pages' search box.

A text names a thing by its id, by its first characters (four and more), by its key or by its whole name. Otherwise it
suggests those whose names begin with it or contain it. Nothing is found that the caller may not read. Each kind is read
with a deadline, so an answer may lack something: then it says so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Final
from urllib.parse import quote
from uuid import UUID

from ondot.flow.saved_views import owners_seen_by
from ondot.model.access import Caller, Right
from ondot.model.find import LONGEST, NAMES_IT, Candidate, Kind, Sought, order_of
from ondot.model.ids import ExecutionId, JobId
from ondot.model.schedule import in_words
from ondot.model.tenant import TenantState
from ondot.model.workflow.spec import WorkflowTarget
from ondot.store import find as store
from ondot.store.connection import Connection, Record
from ondot.store.database import Database
from ondot.store.dead_letters import find_job_names
from ondot.store.executions import read_executions
from ondot.store.find import Finding
from ondot.store.fleet import list_workers, read_nodes
from ondot.store.jobs import JobRow, get_jobs
from ondot.store.pools import find_pools

MOST: Final = 100
SIMILAR: Final = 500
"""Names among which a misspelt one is looked for."""
NEAR: Final = 3

RIGHTS: Final[Mapping[Kind, Right]] = dict.fromkeys(Kind, Right.JOBS_READ) | {
    Kind.SECRET: Right.SECRETS_MANAGE,
    Kind.KEY: Right.KEYS_MANAGE,
    Kind.USER: Right.USERS_MANAGE,
    Kind.TENANT: Right.TENANTS_MANAGE,
}
BY_POOL: Final = frozenset({Kind.JOB, Kind.WORKFLOW, Kind.EXECUTION, Kind.BACKFILL, Kind.VIEW, Kind.POOL})
"""What a key that is limited to pools finds, of its pools."""
PAGES: Final[Mapping[Kind, str]] = {
    Kind.JOB: "/jobs/{id}",
    Kind.WORKFLOW: "/jobs/{id}",
    Kind.FUNCTION: "/jobs?q=function%3A%22{id}%22",
    Kind.POOL: "/executions?pool={id}",
    Kind.ALERT: "/alerts",
    Kind.INCIDENT: "/incidents/{id}",
    Kind.CHANNEL: "/channels",
    Kind.PING: "/pings",
    Kind.HOOK: "/hooks",
    Kind.VIEW: "/{of}?q={q}",
    Kind.SECRET: "/secrets",
    Kind.KEY: "/keys",
    Kind.USER: "/users",
    Kind.TENANT: "/tenants/{id}",
    Kind.WORKER: "/fleet",
    Kind.NODE: "/fleet",
    Kind.RUN: "/runs/{id}",
    Kind.EXECUTION: "/executions/{id}",
    Kind.DEAD_LETTER: "/executions/{id}",
    Kind.BACKFILL: "/jobs/{job_id}",
    Kind.BULK: "/bulk/{id}",
    Kind.EVENT: "/events/{id}",
}


OF_JOBS: Final = frozenset({Kind.RUN, Kind.EXECUTION, Kind.DEAD_LETTER, Kind.BACKFILL, Kind.BULK, Kind.EVENT})
"""Known by their ids; the name is that of a job, or of a type."""


WITH_CREDENTIALS: Final = frozenset({Kind.CHANNEL, Kind.PING, Kind.HOOK, Kind.KEY, Kind.USER, Kind.SECRET})
"""Kinds whose tables no reader under row security may read."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A text to look for, and the caller. `shows`: whether the caller may know a pool; `sees_fleet`: all processes."""

    caller: Caller
    text: str
    kinds: Collection[Kind]
    limit: int
    is_exact: bool
    shows: Callable[[str], bool]
    sees_fleet: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Best first. `is_cut`: there may be more. `near`: if the text names nothing, names that are similar."""

    candidates: list[Candidate]
    is_cut: bool
    near: list[str]


def kinds_for(caller: Caller, wanted: Collection[Kind]) -> list[Kind]:
    """The kinds to look in. None wanted: all that the caller may read. Raises Forbidden for one that it may not."""
    for kind in wanted:
        caller.require(RIGHTS[kind])
        if kind not in BY_POOL:
            caller.require_all_pools()
    may = [kind for kind in Kind if caller.may(RIGHTS[kind]) and (caller.pools is None or kind in BY_POOL)]
    return [kind for kind in may if not wanted or kind in wanted]


async def find(database: Database, asked: Asked) -> Found:
    candidates: list[Candidate] = []
    names: list[str] = []
    is_cut = False
    kept_back = [kind for kind in asked.kinds if kind in WITH_CREDENTIALS]
    readable = [kind for kind in asked.kinds if kind not in WITH_CREDENTIALS]
    for kinds, opened in ((readable, database.reading(asked.caller.tenant_no)), (kept_back, database.connection())):
        if not kinds:
            continue
        part = replace(asked, kinds=kinds)
        async with opened as connection:
            finding = await _finding(connection, part)
            for look, of in _LOOKS:
                if of.intersection(kinds):
                    candidates += await look(finding, part)
            if not candidates and asked.is_exact:
                names += await _similar_names(finding, part)
        is_cut = is_cut or finding.is_cut
    candidates += await _find_of_installation(database, asked)
    candidates = [each for each in candidates if each.match in NAMES_IT or not asked.is_exact]
    candidates.sort(key=order_of)
    near = [] if candidates or not names else await _nearest(asked, names)
    return Found(candidates[: asked.limit], is_cut or len(candidates) > asked.limit, near)


async def _finding(connection: Connection, asked: Asked) -> Finding:
    caller = asked.caller
    pools = None if caller.pools is None else await find_pools(connection, sorted(caller.pools))
    pool_nos = None if pools is None else list(pools.values())
    return Finding(connection, caller.tenant_no, Sought(asked.text), asked.limit, asked.is_exact, pool_nos)


async def _find_jobs(finding: Finding, asked: Asked) -> list[Candidate]:
    only_workflows = Kind.JOB not in asked.kinds
    ids = await store.find_jobs(finding, only_workflows=only_workflows)
    ids += await store.find_job_ids(finding)
    rows = await get_jobs(finding.connection, finding.tenant_no, [JobId(id_) for id_ in dict.fromkeys(ids)])
    found = _job_candidates(finding, [rows[JobId(id_)] for id_ in dict.fromkeys(ids) if id_ in rows])
    # A definition wins over one-time jobs of its name, which may be millions.
    is_named = any(each.match in NAMES_IT and each.state != "DELETED" for each in found)
    if finding.sought.text and not is_named and not only_workflows and len(found) < finding.limit:
        once = [id_ for id_ in await store.find_once_jobs(finding) if id_ not in rows]
        more = await get_jobs(finding.connection, finding.tenant_no, once)
        found += _job_candidates(finding, [more[id_] for id_ in once if id_ in more])
    return [each for each in found if not only_workflows or each.kind is Kind.WORKFLOW]


def _job_candidates(finding: Finding, rows: Sequence[JobRow]) -> list[Candidate]:
    found = []
    for row in rows:
        match = finding.sought.match(str(row.id), row.spec.name, row.spec.key)
        if match is None:
            continue
        kind = Kind.WORKFLOW if isinstance(row.spec.target, WorkflowTarget) else Kind.JOB
        found.append(
            Candidate(
                kind,
                str(row.id),
                row.spec.name,
                match,
                PAGES[kind].format(id=row.id),
                row.spec.key,
                row.state.value,
                "Once, now" if row.spec.schedule is None else in_words(row.spec.schedule),
                row.next_fire_at,
                is_once=not row.spec.recurs,
            )
        )
    return found


async def _find_executions(finding: Finding, _asked: Asked) -> list[Candidate]:
    ids = [ExecutionId(id_) for id_ in await store.find_execution_ids(finding)]
    rows = await read_executions(finding.connection, finding.tenant_no, ids)
    names = await _job_names(finding, (row.job_id for row in rows))
    return _candidates(
        finding,
        Kind.EXECUTION,
        (
            {
                "id": str(row.id),
                "name": names.get(row.job_id, ""),
                "state": row.state.value,
                "about": f"{row.origin} of {row.fire_at:%Y-%m-%d %H:%M:%S}Z",
            }
            for row in rows
        ),
    )


async def _find_letters(finding: Finding, _asked: Asked) -> list[Candidate]:
    rows = await store.find_by_id(finding, Kind.DEAD_LETTER)
    names = await _job_names(finding, (row["job_id"] for row in rows))
    return _candidates(finding, Kind.DEAD_LETTER, ({**row, "name": names.get(row["job_id"], "")} for row in rows))


async def _find_events(finding: Finding, _asked: Asked) -> list[Candidate]:
    return _candidates(finding, Kind.EVENT, await store.name_events(finding, await store.find_event_ids(finding)))


async def _find_secrets(finding: Finding, _asked: Asked) -> list[Candidate]:
    return _candidates(finding, Kind.SECRET, await store.find_secrets(finding))


async def _find_functions(finding: Finding, _asked: Asked) -> list[Candidate]:
    return _candidates(finding, Kind.FUNCTION, await store.find_functions(finding))


async def _find_pools(finding: Finding, asked: Asked) -> list[Candidate]:
    rows = await store.find_pools(finding)
    return _candidates(finding, Kind.POOL, [row for row in rows if asked.shows(row["name"])])


def _named(kind: Kind) -> "Look":
    async def look(finding: Finding, asked: Asked) -> list[Candidate]:
        owners = owners_seen_by(asked.caller)
        return _candidates(finding, kind, await store.find_named(finding, kind, owners))

    return look


def _by_id(kind: Kind) -> "Look":
    async def look(finding: Finding, _asked: Asked) -> list[Candidate]:
        return _candidates(finding, kind, await store.find_by_id(finding, kind))

    return look


Look = Callable[[Finding, Asked], Awaitable[list[Candidate]]]

_LOOKS: Final[Sequence[tuple[Look, frozenset[Kind]]]] = (
    (_find_jobs, frozenset({Kind.JOB, Kind.WORKFLOW})),
    (_find_functions, frozenset({Kind.FUNCTION})),
    (_find_pools, frozenset({Kind.POOL})),
    *(
        (_named(kind), frozenset({kind}))
        for kind in (Kind.ALERT, Kind.INCIDENT, Kind.CHANNEL, Kind.PING, Kind.HOOK, Kind.VIEW, Kind.KEY, Kind.USER)
    ),
    (_find_secrets, frozenset({Kind.SECRET})),
    *((_by_id(kind), frozenset({kind})) for kind in (Kind.RUN, Kind.BACKFILL, Kind.BULK)),
    (_find_executions, frozenset({Kind.EXECUTION})),
    (_find_letters, frozenset({Kind.DEAD_LETTER})),
    (_find_events, frozenset({Kind.EVENT})),
)


async def _find_of_installation(database: Database, asked: Asked) -> list[Candidate]:
    """Tenants, workers and nodes: they are few, and most of them are in memory."""
    sought, found = Sought(asked.text), []
    if Kind.TENANT in asked.kinds:
        for tenant in (await database.tenants.snapshot()).values():
            if tenant.state is not TenantState.DELETED and (match := sought.match(tenant.name, tenant.name)):
                page = PAGES[Kind.TENANT].format(id=quote(tenant.name, safe=""))
                found.append(Candidate(Kind.TENANT, tenant.name, tenant.name, match, page, state=tenant.state.value))
    if Kind.WORKER in asked.kinds:
        async with database.connection() as connection:
            workers = await list_workers(connection, limit=None, tenant_no=asked.caller.tenant_no)
        for worker in workers:
            shown = [pool for pool in worker.pools if asked.shows(pool)]
            found += _process(sought, Kind.WORKER, worker.id, worker.host, worker.pid, worker.state, shown)
    if Kind.NODE in asked.kinds and asked.sees_fleet:
        async with database.connection() as connection:
            nodes = await read_nodes(connection)
        for node in nodes.rows:
            state = "ALIVE" if node.is_alive else "EXPIRED"
            found += _process(sought, Kind.NODE, node.id, node.host, node.pid, state, ["scheduler"])
    return found


def _process(
    sought: Sought, kind: Kind, id_: UUID, host: str, pid: int, state: str, about: Sequence[str]
) -> list[Candidate]:
    """By its id, as `host:pid`, or by its host. One whose pools the caller may not know is not there."""
    name = f"{host}:{pid}"
    match = sought.match(str(id_), name, host)
    if match is None or not about:
        return []
    return [Candidate(kind, str(id_), name, match, PAGES[kind], state=state, about=", ".join(about))]


def _candidates(finding: Finding, kind: Kind, rows: Iterable[Record | Mapping[str, object]]) -> list[Candidate]:
    found = []
    for row in rows:
        values = dict(row)
        id_, name, key = str(values["id"]), str(values["name"] or ""), values.get("key")
        # The name of a job does not name its executions.
        names = ("",) if kind in OF_JOBS else (name, None if key is None else str(key))
        match = finding.sought.match(id_, *names)
        if match is not None:
            page = PAGES[kind].format_map({each: quote(str(value), safe="") for each, value in values.items()})
            state, about, next_at = values.get("state"), values.get("about"), values.get("next_fire_at")
            found.append(
                Candidate(
                    kind,
                    id_,
                    name,
                    match,
                    page,
                    state=None if state is None else str(state),
                    about=None if about is None else str(about),
                    next_fire_at=next_at if isinstance(next_at, datetime) else None,
                )
            )
    return found


async def _job_names(finding: Finding, ids: Iterable[JobId]) -> dict[JobId, str]:
    wanted = list(set(ids))
    return await find_job_names(finding.connection, finding.tenant_no, wanted) if wanted else {}


async def _similar_names(finding: Finding, asked: Asked) -> list[str]:
    """Names of these kinds among which a misspelt text is looked for."""
    sought = Sought(asked.text[:LONGEST])
    wide = Finding(finding.connection, finding.tenant_no, sought, SIMILAR, is_exact=False, pool_nos=finding.pool_nos)
    names: list[str] = []
    if {Kind.JOB, Kind.WORKFLOW}.intersection(asked.kinds):
        ids = await store.find_similar_jobs(wide, SIMILAR, only_workflows=Kind.JOB not in asked.kinds)
        names += (await _job_names(wide, [JobId(id_) for id_ in ids])).values()
    # An empty text is the beginning of every name; few tenants have many of the others.
    every = Finding(finding.connection, finding.tenant_no, Sought(""), SIMILAR, pool_nos=finding.pool_nos)
    for look, kinds in _LOOKS:
        if kinds & _FEW and kinds.intersection(asked.kinds):
            names += [each.name for each in await look(every, asked)]
    return names


async def _nearest(asked: Asked, names: Sequence[str]) -> list[str]:
    # Thousands of comparisons take some 50 ms: other requests must not wait for them.
    unique = list(dict.fromkeys(names))
    return await asyncio.to_thread(get_close_matches, asked.text[:64], unique, NEAR)


_FEW: Final = frozenset(
    {Kind.FUNCTION, Kind.POOL, Kind.ALERT, Kind.INCIDENT, Kind.CHANNEL, Kind.PING, Kind.HOOK, Kind.VIEW}
    | {Kind.KEY, Kind.USER, Kind.SECRET}
)
