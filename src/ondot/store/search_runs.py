"""Search of runs that have started, newest first (O1, W8, P12): the same walk and budget as for executions."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from ondot.model.ids import ExecutionId, TenantNo, first_id_at
from ondot.model.query.fields import FIELDS
from ondot.model.query.query import Query, Term, duration_s, instant, whole_id
from ondot.store.connection import Connection
from ondot.store.day_bounds import LAST_ID
from ondot.store.newest import read_kept
from ondot.store.queries import load_queries
from ondot.store.run_reads import RunRow, list_runs
from ondot.store.search_conditions import Parameters, id_text, label_text, likes, operator
from ondot.store.search_walk import BUDGET_S, Walk, id_bounds

_SQL = load_queries("search")

FIRST = timedelta(hours=1)
_NAME: Final = (
    "coalesce((SELECT b.name FROM ondot.job b WHERE b.id = r.job_id AND b.tenant_no = $1),"
    " (SELECT o.name FROM ondot.find_once($1, r.job_id) o))"
)
_LABELS: Final = (
    "coalesce((SELECT h.labels FROM ondot.history h"
    " WHERE h.id = r.id AND h.id >= $2 AND h.id < $3 AND h.tenant_no = $1), ondot.labels_of($1, r.job_id))"
)


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """As `Found` of executions."""

    rows: list[RunRow]
    next: UUID | None
    searched_through: datetime | None


async def search_runs(
    connection: Connection,
    tenant_no: TenantNo,
    query: Query,
    after: UUID | None = None,
    limit: int = 50,
    budget_s: float = BUDGET_S,
) -> FoundRuns:
    """One page; `after` is `next` of the page before."""
    until_s = time.monotonic() + budget_s
    walk = await start_walk(connection, tenant_no, query, after)
    page = await walk.find_page(limit, until_s)
    rows = await list_runs(connection, tenant_no, limit=limit, ids=page.ids) if page.ids else []
    return FoundRuns(rows, page.next, page.searched_through)


async def match_runs(
    connection: Connection,
    tenant_no: TenantNo,
    query: Query,
    after_id: UUID | None = None,
    limit: int = 1_000,
    *,
    now: datetime | None = None,
) -> list[ExecutionId]:
    """The ids of a page, newest first, however long it takes: empty only at the end. `now`: from which durations count
    back; default: the database's time."""
    walk = await start_walk(connection, tenant_no, query, after_id, now)
    return [ExecutionId(id_) for id_ in await walk.find(limit, None)]


async def start_walk(
    connection: Connection, tenant_no: TenantNo, query: Query, after: UUID | None, now: datetime | None = None
) -> Walk:
    kept = await read_kept(connection)
    now = now or kept.now
    parameters = Parameters(after=4)
    texts = ["true"]
    for term in query.terms:
        text = _TEXTS[term.name](term, parameters, now)
        texts.append(f"({text}) IS NOT TRUE" if term.is_negated else f"({text})")
    down_to, upper = id_bounds(query, now, timedelta(0))
    return Walk(
        connection,
        kept,
        _SQL["search_runs"].text.replace("true /* runs */", " AND ".join(texts)),
        lambda from_id, before, limit: [tenant_no, from_id, before, limit],
        parameters,
        first=FIRST,
        before=min(upper, after or LAST_ID),
        down_to=down_to,
    )


def _word(term: Term, parameters: Parameters, _now: datetime) -> str:
    return f"{_NAME} ILIKE ANY ({parameters.add(likes(term, part=True), 'text[]')})"


def _job(term: Term, parameters: Parameters, _now: datetime) -> str:
    ids = [id_ for value in term.values if (id_ := whole_id(value)) is not None]
    by_id = f"r.job_id = ANY ({parameters.add(ids, 'uuid[]')})"
    if len(ids) == len(term.values):
        return by_id
    return f"{by_id} OR {_NAME} ILIKE ANY ({parameters.add(likes(term), 'text[]')})"


def _state(term: Term, parameters: Parameters, _now: datetime) -> str:
    return f"r.state = ANY ({parameters.add([value.text.upper() for value in term.values], 'text[]')})"


def _paused(term: Term, parameters: Parameters, _now: datetime) -> str:
    wanted = [value.text.lower() == "yes" for value in term.values]
    return f"r.is_paused = ANY ({parameters.add(wanted, 'boolean[]')})"


def _label(term: Term, parameters: Parameters, _now: datetime) -> str:
    return label_text(_LABELS, term, parameters)


def _took(term: Term, parameters: Parameters, _now: datetime) -> str:
    ran = "extract(epoch FROM coalesce(r.ended_at, ondot.clock()) - r.started_at)"
    wanted = [parameters.add(duration_s(value), "double precision") for value in term.values]
    return " OR ".join(f"{ran} {operator(term)} {each}" for each in wanted)


def _since(term: Term, parameters: Parameters, now: datetime) -> str:
    return f"r.id >= {parameters.add(first_id_at(instant(term.values[0], now)), 'uuid')}"


def _until(term: Term, parameters: Parameters, now: datetime) -> str:
    return f"r.id < {parameters.add(first_id_at(instant(term.values[0], now)), 'uuid')}"


def _parent(term: Term, parameters: Parameters, _now: datetime) -> str:
    return " OR ".join(id_text("r.parent_run_id", value, parameters) for value in term.values)


def _id(term: Term, parameters: Parameters, _now: datetime) -> str:
    return " OR ".join(id_text("r.id", value, parameters) for value in term.values)


_TEXTS: Final[Mapping[str, Callable[[Term, Parameters, datetime], str]]] = {
    "": _word,
    "job": _job,
    "state": _state,
    "paused": _paused,
    "label": _label,
    "took": _took,
    "since": _since,
    "until": _until,
    "parent": _parent,
    "id": _id,
}
assert _TEXTS.keys() == FIELDS["runs"].keys() | {""}
