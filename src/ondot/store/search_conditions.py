"""The conditions of a query on executions as SQL (O1, P12): a text for each term, with its values as parameters.

Values never become part of a text. A negated term is `IS NOT TRUE`: an execution without the field matches it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from ondot.model.ids import first_id_at
from ondot.model.query.fields import FIELDS
from ondot.model.query.parse import payload_number
from ondot.model.query.query import (
    MOST_FORMS,
    Op,
    Query,
    Term,
    Value,
    duration_s,
    id_range,
    instant,
    number,
    span,
    whole_id,
)

LIVE, ENDED = "live", "ended"

# What a field is read from, for live executions and for ended ones.
_TOOK: Final = {
    LIVE: "CASE WHEN e.state = 'RUNNING' THEN ondot.clock() - e.started_at END",
    ENDED: "e.ended_at - e.started_at",
}
_WAITED: Final = {
    LIVE: "CASE WHEN e.state = 'RUNNING' THEN e.started_at ELSE ondot.clock() END - e.ready_at",
    ENDED: "coalesce(e.started_at, e.ended_at) - e.ready_at",
}
_ERROR: Final = {
    LIVE: "NULL::text",
    ENDED: "CASE WHEN e.state <> 'SUCCEEDED'"
    " THEN concat_ws(E'\\n', e.error->>'message', e.error->>'code', e.reason) END",
}
_LABELS: Final = {LIVE: "ondot.labels_of($1, e.job_id)", ENDED: "e.labels"}
JOB: Final = (
    "CASE WHEN e.origin = 'step' THEN (SELECT r.job_id FROM ondot.run r WHERE r.id = e.job_id AND r.tenant_no = $1)"
    " ELSE e.job_id END"
)
"""The job of an execution: that of a step is its run's."""
ONCE: Final = (
    "(SELECT {0} FROM ondot.job_once o WHERE o.id = {1} AND o.id >= $5 AND o.id < $6 AND o.tenant_no = $1),"
    " (SELECT {0} FROM ondot.find_once($1, {1}) o WHERE {1} < $5)"
)
"""A column of a one-time job `o`, or NULL. PostgreSQL evaluates the lookups one by one, until one returns a value."""
_OF_JOB: Final = "(SELECT b.name FROM ondot.job b WHERE b.id = {1} AND b.tenant_no = $1)"
_OF_VERSION: Final = (
    "(SELECT v.spec->'payload' FROM ondot.job_version v"
    " WHERE v.job_id = e.job_id AND v.version = e.job_version AND v.tenant_no = $1)"
)
NAME: Final = f"coalesce({_OF_JOB}, {ONCE})".format("o.name", JOB)
ONCE_NAME: Final = f"coalesce({ONCE})".format("o.name", "e.job_id")
PAYLOAD: Final = f"coalesce(e.payload, {_OF_VERSION}, {ONCE})".format("o.spec->'payload'", "e.job_id")
NUMBER: Final = r"'^-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?$'"
"""Numbers of JSON that PostgreSQL can compare without an overflow."""


class Parameters(list[object]):
    """The values of conditions, which follow the first parameters of a statement; `add` returns the place of one."""

    def __init__(self, *, after: int) -> None:
        super().__init__()
        self._after = after

    def add(self, value: object, type_: str) -> str:
        self.append(value)
        return f"${self._after + len(self)}::{type_}"


def needs_job(query: Query) -> bool:
    """Whether a condition reads the job: its name or its payload."""
    return any(not _is_by_id(term) for term in query.named("", "job", "payload"))


def job_ids(query: Query) -> list[UUID] | None:
    """If only executions of certain jobs or steps of one run match: their ids."""
    for term in query.named("job", "run"):
        if not term.is_negated and _is_by_id(term):
            return [id_ for value in term.values if (id_ := whole_id(value)) is not None]
    return None


def _is_by_id(term: Term) -> bool:
    return term.name in {"job", "run"} and all(whole_id(value) is not None for value in term.values)


@dataclass(frozen=True, slots=True)
class Branch:
    """The executions that a condition is for, live or ended, and what it needs. `workers`: those of the hosts that the
    query names."""

    name: str
    parameters: Parameters
    now: datetime
    workers: Sequence[UUID] = ()
    recurring: Mapping[tuple[str, ...], "Recurring"] = field(default_factory=dict)
    """The recurring jobs, by the patterns of a term, if the tenant has not too many."""

    def condition(self, query: Query) -> str:
        """The condition of this branch of the statement."""
        texts = ["true"]
        if not includes_steps(query):
            texts.append("e.origin <> 'step'")
        if self.name == LIVE and not query.asks_for("state", "pending"):
            texts.append("(e.ready_at <= ondot.clock() OR e.attempt_no > 0)")
        if self.name == ENDED and excludes_successes(query):
            # As a literal: the planner then knows that history_not_succeeded has every row.
            texts.append("e.state <> 'SUCCEEDED'")
        for term in query.terms:
            text = _TEXTS[term.name](self, term)
            texts.append(f"({text}) IS NOT TRUE" if term.is_negated else f"({text})")
        return " AND ".join(texts)


@dataclass(frozen=True, slots=True)
class Recurring:
    """All recurring jobs of a tenant, and those of them whose names match."""

    all: Sequence[UUID]
    named: Sequence[UUID]


def name_patterns(term: Term) -> tuple[str, ...]:
    """What the name of a job must match."""
    return tuple(likes(term, part=not term.name))


def _name_text(branch: Branch, term: Term) -> str:
    """Where all recurring jobs are known, their executions are decided by the job's id: only those of one-time jobs
    cost a lookup."""
    patterns = name_patterns(term)
    add = branch.parameters.add
    known = branch.recurring.get(patterns)
    if known is None:
        return f"{NAME} ILIKE ANY ({add(list(patterns), 'text[]')})"
    named, all_ = add(list(known.named), "uuid[]"), add(list(known.all), "uuid[]")
    return (
        f"e.job_id = ANY ({named})"
        f" OR e.job_id <> ALL ({all_}) AND {ONCE_NAME} ILIKE ANY ({add(list(patterns), 'text[]')})"
    )


def _word(branch: Branch, term: Term) -> str:
    return _name_text(branch, term)


def _job(branch: Branch, term: Term) -> str:
    ids = [id_ for value in term.values if (id_ := whole_id(value)) is not None]
    by_id = f"e.job_id = ANY ({branch.parameters.add(ids, 'uuid[]')})"
    if len(ids) == len(term.values):
        return by_id
    return f"{by_id} OR {_name_text(branch, term)}"


def _state(branch: Branch, term: Term) -> str:
    return f"e.state = ANY ({branch.parameters.add([value.text.upper() for value in term.values], 'text[]')})"


def _origin(branch: Branch, term: Term) -> str:
    return f"e.origin = ANY ({branch.parameters.add([value.text.lower() for value in term.values], 'text[]')})"


def _pool(branch: Branch, term: Term) -> str:
    return pool_text("e.pool_no", term, branch.parameters)


def _worker(branch: Branch, term: Term) -> str:
    texts = [f"e.worker_id = ANY ({branch.parameters.add(list(branch.workers), 'uuid[]')})"]
    texts += [text for value in term.values if (text := id_text("e.worker_id", value, branch.parameters))]
    return " OR ".join(texts)


def _error(branch: Branch, term: Term) -> str:
    return f"{_ERROR[branch.name]} ILIKE ANY ({branch.parameters.add(likes(term, part=True), 'text[]')})"


def _took(branch: Branch, term: Term) -> str:
    return _compare_seconds(_TOOK[branch.name], branch, term)


def _waited(branch: Branch, term: Term) -> str:
    return _compare_seconds(_WAITED[branch.name], branch, term)


def _compare_seconds(interval: str, branch: Branch, term: Term) -> str:
    wanted = [branch.parameters.add(duration_s(value), "double precision") for value in term.values]
    return " OR ".join(f"extract(epoch FROM {interval}) {operator(term)} {each}" for each in wanted)


def _attempt(branch: Branch, term: Term) -> str:
    wanted = [branch.parameters.add(number(value), "integer") for value in term.values]
    return " OR ".join(f"e.attempt_no {operator(term)} {each}" for each in wanted)


def _since(branch: Branch, term: Term) -> str:
    """When it was due is the later of its fire and its id's instant."""
    at = instant(term.values[0], branch.now)
    add = branch.parameters.add
    return f"e.id >= {add(first_id_at(at), 'uuid')} OR e.fire_at >= {add(at, 'timestamptz')}"


def _until(branch: Branch, term: Term) -> str:
    at = instant(term.values[0], branch.now)
    add = branch.parameters.add
    return f"e.id < {add(first_id_at(at), 'uuid')} AND e.fire_at < {add(at, 'timestamptz')}"


def _fire(branch: Branch, term: Term) -> str:
    add, [value] = branch.parameters.add, term.values
    if term.op is Op.IS and (day := span(value, branch.now)) is not None:
        return f"e.fire_at >= {add(day[0], 'timestamptz')} AND e.fire_at < {add(day[1], 'timestamptz')}"
    return f"e.fire_at {operator(term)} {add(instant(value, branch.now), 'timestamptz')}"


def _run(branch: Branch, term: Term) -> str:
    texts = [id_text("e.job_id", value, branch.parameters) for value in term.values]
    return f"e.origin = 'step' AND ({' OR '.join(texts)})"


def _id(branch: Branch, term: Term) -> str:
    return " OR ".join(id_text("e.id", value, branch.parameters) for value in term.values)


def _label(branch: Branch, term: Term) -> str:
    return label_text(_LABELS[branch.name], term, branch.parameters)


def _payload(branch: Branch, term: Term) -> str:
    return payload_text(PAYLOAD, term, branch.parameters)


_TEXTS: Final[Mapping[str, Callable[[Branch, Term], str]]] = {
    "": _word,
    "job": _job,
    "state": _state,
    "origin": _origin,
    "pool": _pool,
    "worker": _worker,
    "error": _error,
    "took": _took,
    "waited": _waited,
    "attempt": _attempt,
    "since": _since,
    "until": _until,
    "fire": _fire,
    "run": _run,
    "id": _id,
    "label": _label,
    "payload": _payload,
}
assert _TEXTS.keys() == FIELDS["executions"].keys() | {""}


def operator(term: Term) -> str:
    return "=" if term.op is Op.IS else term.op.value


def likes(term: Term, *, part: bool = False) -> list[str]:
    """Patterns for ILIKE ANY."""
    most = max(MOST_FORMS // len(term.values), 4)
    return [pattern for value in term.values for pattern in value.as_ilikes(part=part, most=most)]


def pool_text(column: str, term: Term, parameters: Parameters) -> str:
    pools = "(ARRAY(SELECT p.pool_no FROM ondot.pool p WHERE p.name ILIKE ANY "
    return f"{column} = ANY {pools}({parameters.add(likes(term), 'text[]')})))"


def includes_steps(query: Query) -> bool:
    """Steps of runs are listed only if they are asked for."""
    return query.asks_for("origin", "step") or query.asks_for("run")


def excludes_successes(query: Query) -> bool:
    """Whether no execution that succeeded can match."""
    states = [{value.text.lower() for value in term.values} for term in query.named("state") if not term.is_negated]
    denied = [{value.text.lower() for value in term.values} for term in query.named("state") if term.is_negated]
    return (
        any("succeeded" not in some for some in states)
        or any("succeeded" in some for some in denied)
        or query.asks_for("error")
    )


def id_text(column: str, value: Value, parameters: Parameters) -> str:
    try:
        first, last = id_range(value)
    except ValueError:
        return ""
    if first == last:
        return f"{column} = {parameters.add(first, 'uuid')}"
    return f"{column} BETWEEN {parameters.add(first, 'uuid')} AND {parameters.add(last, 'uuid')}"


def label_text(labels: str, term: Term, parameters: Parameters) -> str:
    [key] = term.path
    exact = [value.text for value in term.values if not value.has_stars]
    texts = [
        # Containment can use an index; it has no wildcards.
        f"{labels} @> {parameters.add(msgspec.json.encode({key: text}).decode(), 'text')}::jsonb"
        for text in exact
    ]
    patterns = [value.as_like() for value in term.values if value.has_stars]
    if patterns:
        column = f"{labels}->>{parameters.add(key, 'text')}"
        texts.append(f"{column} LIKE ANY ({parameters.add(patterns, 'text[]')})")
    return " OR ".join(texts)


def payload_text(payload: str, term: Term, parameters: Parameters) -> str:
    value_at = f"({payload} #>> {parameters.add(list(term.path), 'text[]')})"
    if term.op is not Op.IS:
        wanted = parameters.add(payload_number(term.values[0]), "text")
        # CASE: a cast is made only of a text that it accepts.
        return f"CASE WHEN {value_at} ~ {NUMBER} THEN {value_at}::numeric {term.op.value} {wanted}::numeric END"
    exact = [value.text for value in term.values if not value.has_stars]
    patterns = [value.as_like() for value in term.values if value.has_stars]
    texts = []
    if "null" in exact:
        texts.append(f"({payload} #> {parameters.add(list(term.path), 'text[]')})::text = 'null'")
    if exact:
        texts.append(f"{value_at} = ANY ({parameters.add(exact, 'text[]')})")
    if patterns:
        texts.append(f"{value_at} LIKE ANY ({parameters.add(patterns, 'text[]')})")
    return " OR ".join(texts)
