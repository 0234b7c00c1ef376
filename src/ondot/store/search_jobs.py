"""Search of jobs, recurring and one-time, newest first (O1, P12): the same walk and budget as for executions."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from ondot.model.ids import JobId, PoolNo, TenantNo, first_id_at
from ondot.model.query.fields import FIELDS
from ondot.model.query.query import Query, Term, instant
from ondot.store.connection import Connection
from ondot.store.day_bounds import LAST_ID
from ondot.store.jobs import JobRow, get_jobs
from ondot.store.newest import read_kept
from ondot.store.queries import load_queries
from ondot.store.search_conditions import Parameters, id_text, label_text, likes, payload_text, pool_text
from ondot.store.search_walk import BUDGET_S, Walk, id_bounds, of_others

_SQL = load_queries("search")

FIRST = timedelta(hours=1)
RECURRING, ONCE = "recurring", "once"

# What a field is read from, for jobs with versions and for one-time jobs.
_SPEC: Final = {RECURRING: "v.spec", ONCE: "j.spec"}
_KEY: Final = {RECURRING: "j.key", ONCE: "NULL::text"}
_STATES: Final = {
    RECURRING: {
        "active": "j.state = 'ACTIVE' AND ondot.is_live(j.id)",
        "ended": "j.state = 'ACTIVE' AND NOT ondot.is_live(j.id)",
        "paused": "j.state = 'PAUSED'",
        "deleted": "j.state = 'DELETED'",
    },
    ONCE: {"active": "ondot.is_live(j.id)", "ended": "NOT ondot.is_live(j.id)", "paused": "false", "deleted": "false"},
}
_KINDS: Final = {"cron": "cron", "every": "interval", "rrule": "rrule", "event": "event", "once": "once"}


@dataclass(frozen=True, slots=True)
class FoundJobs:
    """As `Found` of executions."""

    rows: list[JobRow]
    next: UUID | None
    searched_through: datetime | None


async def search_jobs(
    connection: Connection,
    tenant_no: TenantNo,
    query: Query,
    after: UUID | None = None,
    limit: int = 50,
    budget_s: float = BUDGET_S,
    *,
    pool_nos: Collection[PoolNo] | None = None,
) -> FoundJobs:
    """One page; `after` is `next` of the page before. `pool_nos`: only of these pools, whatever the query asks for."""
    until_s = time.monotonic() + budget_s
    walk = await start_walk(connection, tenant_no, query, after, pool_nos)
    page = await walk.find_page(limit, until_s)
    rows = await get_jobs(connection, tenant_no, [JobId(id_) for id_ in page.ids]) if page.ids else {}
    found = [rows[JobId(id_)] for id_ in page.ids if id_ in rows]
    return FoundJobs(found, page.next, page.searched_through)


async def match_jobs(
    connection: Connection,
    tenant_no: TenantNo,
    query: Query,
    after_id: UUID | None = None,
    limit: int = 1_000,
    *,
    pool_nos: Collection[PoolNo] | None = None,
    now: datetime | None = None,
) -> list[JobId]:
    """The ids of a page, newest first, however long it takes: empty only at the end."""
    walk = await start_walk(connection, tenant_no, query, after_id, pool_nos, now)
    return [JobId(id_) for id_ in await walk.find(limit, None)]


async def start_walk(
    connection: Connection,
    tenant_no: TenantNo,
    query: Query,
    after: UUID | None,
    pool_nos: Collection[PoolNo] | None,
    now: datetime | None = None,
) -> Walk:
    """`now`: from which durations count back; default: the database's time."""
    kept = await read_kept(connection)
    now = now or kept.now
    parameters = Parameters(after=4)
    text = _SQL["search_jobs"].text
    for branch in (RECURRING, ONCE):
        condition = _condition(query, branch, parameters, now)
        if pool_nos is not None:
            condition += f" AND j.pool_no = ANY ({parameters.add(list(pool_nos), 'integer[]')})"
        text = text.replace(f"true /* {branch} */", f"{of_others('j', tenant_no)} AND {condition}")
    down_to, upper = id_bounds(query, now, timedelta(0))
    return Walk(
        connection,
        kept,
        text,
        lambda from_id, before, limit: [tenant_no, from_id, before, limit],
        parameters,
        first=FIRST,
        before=min(upper, after or LAST_ID),
        down_to=down_to,
    )


def _condition(query: Query, branch: str, parameters: Parameters, now: datetime) -> str:
    texts = ["true"]
    if branch == RECURRING and not query.asks_for("state", "deleted"):
        texts.append("j.state <> 'DELETED'")
    for term in query.terms:
        text = _TEXTS[term.name](term, branch, parameters, now)
        texts.append(f"({text}) IS NOT TRUE" if term.is_negated else f"({text})")
    return " AND ".join(texts)


Text = Callable[[Term, str, Parameters, datetime], str]


def _word(term: Term, _branch: str, parameters: Parameters, _now: datetime) -> str:
    return f"j.name ILIKE ANY ({parameters.add(likes(term, part=True), 'text[]')})"


def _name(term: Term, _branch: str, parameters: Parameters, _now: datetime) -> str:
    return f"j.name ILIKE ANY ({parameters.add(likes(term), 'text[]')})"


def _state(term: Term, branch: str, _parameters: Parameters, _now: datetime) -> str:
    return " OR ".join(f"({_STATES[branch][value.text.lower()]})" for value in term.values)


def _paused(term: Term, branch: str, _parameters: Parameters, _now: datetime) -> str:
    paused = _STATES[branch]["paused"]
    return " OR ".join(paused if value.text.lower() == "yes" else f"NOT ({paused})" for value in term.values)


def _label(term: Term, _branch: str, parameters: Parameters, _now: datetime) -> str:
    return label_text("j.labels", term, parameters)


def _pool(term: Term, _branch: str, parameters: Parameters, _now: datetime) -> str:
    return pool_text("j.pool_no", term, parameters)


def _target(term: Term, branch: str, parameters: Parameters, _now: datetime) -> str:
    kinds = parameters.add([value.text.lower() for value in term.values], "text[]")
    return f"{_SPEC[branch]} #>> '{{target,kind}}' = ANY ({kinds})"


def _function(term: Term, branch: str, parameters: Parameters, _now: datetime) -> str:
    spec = _SPEC[branch]
    names = parameters.add(likes(term), "text[]")
    return f"{spec} #>> '{{target,kind}}' = 'function' AND {spec} #>> '{{target,name}}' ILIKE ANY ({names})"


def _kind(term: Term, branch: str, parameters: Parameters, _now: datetime) -> str:
    kinds = parameters.add([_KINDS[value.text.lower()] for value in term.values], "text[]")
    return f"{_SPEC[branch]} #>> '{{schedule,when,kind}}' = ANY ({kinds})"


def _key(term: Term, branch: str, parameters: Parameters, _now: datetime) -> str:
    return f"{_KEY[branch]} ILIKE ANY ({parameters.add(likes(term), 'text[]')})"


def _definition(term: Term, branch: str, _parameters: Parameters, _now: datetime) -> str:
    is_one = "false" if branch == ONCE else "j.key IS NOT NULL OR v.spec #>> '{schedule,when,kind}' <> 'once'"
    return " OR ".join(f"({is_one})" if value.text.lower() == "yes" else f"NOT ({is_one})" for value in term.values)


def _payload(term: Term, branch: str, parameters: Parameters, _now: datetime) -> str:
    return payload_text(f"({_SPEC[branch]}->'payload')", term, parameters)


def _since(term: Term, _branch: str, parameters: Parameters, now: datetime) -> str:
    return f"j.id >= {parameters.add(first_id_at(instant(term.values[0], now)), 'uuid')}"


def _until(term: Term, _branch: str, parameters: Parameters, now: datetime) -> str:
    return f"j.id < {parameters.add(first_id_at(instant(term.values[0], now)), 'uuid')}"


def _id(term: Term, _branch: str, parameters: Parameters, _now: datetime) -> str:
    return " OR ".join(id_text("j.id", value, parameters) for value in term.values)


_TEXTS: Final[Mapping[str, Text]] = {
    "": _word,
    "name": _name,
    "state": _state,
    "paused": _paused,
    "label": _label,
    "pool": _pool,
    "target": _target,
    "function": _function,
    "kind": _kind,
    "key": _key,
    "definition": _definition,
    "payload": _payload,
    "since": _since,
    "until": _until,
    "id": _id,
}
assert _TEXTS.keys() == FIELDS["jobs"].keys() | {""}
