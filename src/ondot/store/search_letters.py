"""The conditions of a query on dead letters as SQL (O1, E10, P12): a text for each term, with its values as parameters.

They are added to the statements of `store.dead_letters`, which read the letters of one tenant by its own index.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from ondot.model.fingerprint import UNKNOWN
from ondot.model.query.fields import FIELDS
from ondot.model.query.query import Query, Term, instant, whole_id
from ondot.store.search_conditions import Parameters, id_text, label_text, likes, payload_text

_ERROR: Final = r"concat_ws(E'\n', d.error->>'message', d.error->>'code', d.reason)"
_NAME: Final = (
    "coalesce((SELECT b.name FROM ondot.job b WHERE b.id = d.job_id AND b.tenant_no = $1),"
    " (SELECT o.name FROM ondot.find_once($1, d.job_id) o))"
)
_OF_HISTORY: Final = "(SELECT {0} FROM ondot.history h WHERE h.id = d.execution_id AND h.tenant_no = $1)"
_LABELS: Final = f"coalesce({_OF_HISTORY.format('h.labels')}, ondot.labels_of($1, d.job_id))"
"""History is kept for some days, an open letter until a person decides: then the job's labels count."""
_PAYLOAD: Final = (
    "coalesce(d.payload, (SELECT v.spec->'payload' FROM ondot.job_version v"
    " WHERE v.job_id = d.job_id AND v.version = d.job_version AND v.tenant_no = $1),"
    " (SELECT o.spec->'payload' FROM ondot.find_once($1, d.job_id) o))"
)


def letter_condition(query: Query, parameters: Parameters, now: datetime) -> str:
    """The condition on a letter `d`; $1 is the tenant."""
    texts = ["true"]
    for term in query.terms:
        text = _TEXTS[term.name](term, parameters, now)
        texts.append(f"({text}) IS NOT TRUE" if term.is_negated else f"({text})")
    return " AND ".join(texts)


def _word(term: Term, parameters: Parameters, _now: datetime) -> str:
    return f"d.error->>'message' ILIKE ANY ({parameters.add(likes(term, part=True), 'text[]')})"


def _error(term: Term, parameters: Parameters, _now: datetime) -> str:
    return f"{_ERROR} ILIKE ANY ({parameters.add(likes(term, part=True), 'text[]')})"


def _job(term: Term, parameters: Parameters, _now: datetime) -> str:
    ids = [id_ for value in term.values if (id_ := whole_id(value)) is not None]
    by_id = f"d.job_id = ANY ({parameters.add(ids, 'uuid[]')})"
    if len(ids) == len(term.values):
        return by_id
    return f"{by_id} OR {_NAME} ILIKE ANY ({parameters.add(likes(term), 'text[]')})"


def _state(term: Term, _parameters: Parameters, _now: datetime) -> str:
    states = {value.text.lower() for value in term.values}
    if "all" in states:
        return "true"
    # The values are words of the language, so they can be literals: the planner then sees which index serves.
    texts = ["d.resolved_at IS NULL"] if "open" in states else []
    texts += [f"d.resolved_at IS NOT NULL AND d.resolution = '{state}'" for state in sorted(states - {"open"})]
    return " OR ".join(texts)


def _label(term: Term, parameters: Parameters, _now: datetime) -> str:
    return label_text(_LABELS, term, parameters)


def _pool(term: Term, parameters: Parameters, _now: datetime) -> str:
    pools = "(SELECT p.name FROM ondot.pool p WHERE p.pool_no = h.pool_no)"
    return f"{_OF_HISTORY.format(pools)} ILIKE ANY ({parameters.add(likes(term), 'text[]')})"


def _group(term: Term, parameters: Parameters, _now: datetime) -> str:
    prints = [value for value in likes(term) if value.lower() != UNKNOWN]
    text = f"d.error->>'fingerprint' LIKE ANY ({parameters.add(prints, 'text[]')})"
    return text if len(prints) == len(term.values) else f"{text} OR d.error->>'fingerprint' IS NULL"


def _payload(term: Term, parameters: Parameters, _now: datetime) -> str:
    return payload_text(_PAYLOAD, term, parameters)


def _since(term: Term, parameters: Parameters, now: datetime) -> str:
    return f"d.failed_at >= {parameters.add(instant(term.values[0], now), 'timestamptz')}"


def _until(term: Term, parameters: Parameters, now: datetime) -> str:
    return f"d.failed_at < {parameters.add(instant(term.values[0], now), 'timestamptz')}"


def _run(term: Term, parameters: Parameters, _now: datetime) -> str:
    return " OR ".join(id_text("d.run_id", value, parameters) for value in term.values)


def _id(term: Term, parameters: Parameters, _now: datetime) -> str:
    return " OR ".join(id_text("d.execution_id", value, parameters) for value in term.values)


_TEXTS: Final[Mapping[str, Callable[[Term, Parameters, datetime], str]]] = {
    "": _word,
    "error": _error,
    "job": _job,
    "state": _state,
    "label": _label,
    "pool": _pool,
    "group": _group,
    "payload": _payload,
    "since": _since,
    "until": _until,
    "run": _run,
    "id": _id,
}
assert _TEXTS.keys() == FIELDS["dead_letters"].keys() | {""}
