"""`/executions/{id}`: one execution with its state, the reason, every attempt and its log (O5, E8, E9, E14, E17).

This module only reads; the page's buttons and its log use the API. An open page requests itself again, more often
while the execution is live. `mark` changes only if more than the time has changed, so that text that a person reads or
selects stays in place.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import msgspec

from ondot.flow.explain import explain_execution
from ondot.flow.history.gone import unknown_execution
from ondot.model.execution import TERMINAL, Outcome, State
from ondot.model.explain_facts import Explanation
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.job import JobSpec
from ondot.model.workflow.spec import WorkflowTarget
from ondot.store.database import Database
from ondot.store.dead_letters import LetterRow, get_letter
from ondot.store.executions import AttemptRow, ExecutionRow, get_execution, list_attempts
from ondot.store.workers import find_worker_names
from ondot.ui.run_states import step_name
from ondot.words.job import ORIGINS, one_line, took, zone_of_job

MOST_CHARACTERS: Final = 20_000
"""A longer payload, result or traceback is cut, with a link to the whole."""
MOST_EDITABLE: Final = 200_000
MOST_ATTEMPTS: Final = 50
NOT_FACTS: Final = frozenset({"code", "message", "detail", "fingerprint", "types"})
"""Parts of an error that the page shows elsewhere, or that only programs need (`types`, for retry policies)."""
DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Text:
    """A text that may be long. `bytes`: the size of the whole, if this is only its beginning."""

    content: str
    is_cut: bool = False
    bytes: int | None = None
    why_cut: str | None = None


@dataclass(frozen=True, slots=True)
class Error:
    code: str
    message: str
    detail: Text | None
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """`outcome` None: it is running. `worker_name`: as the fleet lists it."""

    number: int
    outcome: Outcome | None
    worker: str
    worker_name: str | None
    started_at: datetime | None
    ended_at: datetime | None
    took: str | None
    error: Error | None


@dataclass(frozen=True, slots=True)
class Letter:
    """The execution's dead letter. `state`: open, replayed or discarded."""

    state: str
    fingerprint: str | None
    resolved_at: datetime | None
    by: str | None
    reason: str | None
    replay_id: UUID | None


@dataclass(frozen=True, slots=True)
class Step:
    """Which step of which run the execution is. `item`: of a map, from 0."""

    run_id: UUID
    number: int
    name: str
    item: int | None


class Moved(Exception):
    """The execution is a run, which has a page of its own."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@dataclass(frozen=True, slots=True)
class ExecutionView:
    """`payload`: the execution's own, or its job's; `editable`: the whole payload, if it is short enough to edit.

    `late`: how long after it was ready the last attempt started. `worker_name`: as the fleet lists it.
    """

    now: datetime
    id: UUID
    name: str
    zone: str | None
    job_id: UUID
    version: int
    state: State
    origin: str
    explanation: Explanation
    pool: str
    fire_at: datetime
    ready_at: datetime
    start_by: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    late: str | None
    took: str | None
    attempt: int
    failures: int
    losses: int
    worker: str | None
    worker_name: str | None
    reason: str | None
    cancel_at: datetime | None
    percent: int | None
    progress_message: str | None
    checkpoint: Text | None
    payload: Text
    editable: str | None
    result: Text | None
    error: Error | None
    attempts: tuple[Attempt, ...]
    more_attempts: int
    letter: Letter | None
    replay_of: UUID | None
    step: Step | None
    trace_id: str | None
    trace_url: str | None
    """Where its trace is shown, if the operator has set it."""

    @property
    def is_live(self) -> bool:
        return self.state not in TERMINAL

    @property
    def mark(self) -> str:
        """A hash of the view, which stays the same while only the time changes."""
        still = replace(self, now=DATE, explanation=replace(self.explanation, now=DATE))
        return sha256(repr(still).encode()).hexdigest()[:12]


async def read_execution(database: Database, tenant_no: TenantNo, id_: ExecutionId) -> ExecutionView:
    """Reads with a bounded number of statements. Raises NotFound; Moved if it is a run."""
    async with database.reading(tenant_no) as connection:
        row = await get_execution(connection, tenant_no, id_)
        if row is None:
            raise await unknown_execution(database, tenant_no, id_)
        specs = await database.specs.find(connection, [(row.job_id, row.job_version)])
        spec = specs.get((row.job_id, row.job_version))
        if row.run_id is None and spec is not None and isinstance(spec.target, WorkflowTarget):
            raise Moved(f"/runs/{id_}")
        attempts = await list_attempts(connection, tenant_no, row.id)
        letter = await get_letter(connection, tenant_no, row.id) if row.state is State.FAILED else None
        known = {row.worker_id, *(attempt.worker_id for attempt in attempts)}
        workers = await find_worker_names(connection, [id_ for id_ in known if id_ is not None])
    explanation = await explain_execution(database, tenant_no, id_)
    now = database.clock.now()
    step = _step(row, spec)
    # A payload or a result may have megabytes: formatting them must not block other requests.
    view = await asyncio.to_thread(_view, row, attempts, spec, step, letter, explanation, workers, now)
    url = database.settings.trace_url
    return view if url is None or view.trace_id is None else replace(view, trace_url=_trace_url(url, view.trace_id))


def _view(
    row: ExecutionRow,
    attempts: list[AttemptRow],
    spec: JobSpec | None,
    step: Step | None,
    letter: LetterRow | None,
    explanation: Explanation,
    workers: Mapping[UUID, str],
    now: datetime,
) -> ExecutionView:
    payload = _payload(row, spec)
    waits = row.state in {State.PENDING, State.RETRYING}  # ready_at is the next attempt's
    tries = [_attempt(attempt, workers) for attempt in attempts]
    if row.state in {State.RUNNING, State.SUCCEEDED}:
        outcome = Outcome.SUCCEEDED if row.state is State.SUCCEEDED else None
        last = AttemptRow(row.attempt_no, Outcome.SUCCEEDED, row.worker_id, row.started_at, row.ended_at, None)
        tries.append(replace(_attempt(last, workers), outcome=outcome))
    return ExecutionView(
        now=now,
        id=row.id,
        name=spec.name if spec else f"job {row.job_id}",
        zone=zone_of_job(spec),
        job_id=row.job_id,
        version=row.job_version,
        state=row.state,
        origin=ORIGINS.get(row.origin, row.origin),
        explanation=explanation,
        pool=row.pool,
        fire_at=row.fire_at,
        ready_at=row.ready_at,
        start_by=row.start_by,
        started_at=row.started_at,
        ended_at=row.ended_at,
        late=took((row.started_at - row.ready_at).total_seconds()) if row.started_at and not waits else None,
        took=took((row.ended_at - row.started_at).total_seconds()) if row.ended_at and row.started_at else None,
        attempt=row.attempt_no,
        failures=row.failures,
        losses=row.losses,
        worker=str(row.worker_id) if row.worker_id else None,
        worker_name=_name_of(row.worker_id, workers),
        reason=row.reason,
        cancel_at=row.cancel_at,
        percent=None if row.progress is None else round(row.progress * 100),
        progress_message=row.progress_message,
        checkpoint=None if row.checkpoint is None else format_json(row.checkpoint),
        payload=_cut(payload),
        editable=payload if len(payload) <= MOST_EDITABLE else None,
        result=None if row.result is None else format_result(row.result),
        error=read_error(row.error),
        attempts=tuple(reversed(tries[-MOST_ATTEMPTS:])),
        more_attempts=max(len(tries) - MOST_ATTEMPTS, 0),
        letter=_letter(letter),
        replay_of=row.replay_of,
        step=step,
        trace_id=row.find_trace_id(spec),
        trace_url=None,
    )


def _trace_url(template: str, trace_id: str) -> str:
    return template.replace("{trace_id}", trace_id)


def _step(row: ExecutionRow, spec: JobSpec | None) -> Step | None:
    if row.run_id is None or row.step_no is None:
        return None
    return Step(row.run_id, row.step_no, step_name(spec, row.step_no), row.item_no)


def format_payload(row: ExecutionRow, spec: JobSpec | None) -> Text:
    return _cut(_payload(row, spec))


def _payload(row: ExecutionRow, spec: JobSpec | None) -> str:
    if row.payload is not None:
        return _format_json(row.payload)
    return _format_json(msgspec.json.decode(spec.payload)) if spec else "null"


def _name_of(worker_id: UUID | None, workers: Mapping[UUID, str]) -> str | None:
    """As the fleet names it; one that ended long ago, by the end of its id."""
    return None if worker_id is None else workers.get(worker_id, f"…{str(worker_id)[-12:]}")


def _attempt(row: AttemptRow, workers: Mapping[UUID, str]) -> Attempt:
    ran_s = (row.ended_at - row.started_at).total_seconds() if row.ended_at and row.started_at else None
    return Attempt(
        number=row.attempt_no,
        outcome=row.outcome,
        worker=str(row.worker_id) if row.worker_id else "",
        worker_name=_name_of(row.worker_id, workers),
        started_at=row.started_at,
        ended_at=row.ended_at,
        took=None if ran_s is None else took(ran_s),
        error=read_error(row.error),
    )


def _letter(row: LetterRow | None) -> Letter | None:
    if row is None:
        return None
    fingerprint = (row.error or {}).get("fingerprint")
    return Letter(
        row.resolution or "open", fingerprint, row.resolved_at, row.resolved_by, row.resolved_reason, row.replay_id
    )


def read_error(error: dict[str, Any] | None) -> Error | None:
    if error is None:
        return None
    detail = error.get("detail")
    rest = {name: value for name, value in error.items() if name not in NOT_FACTS}
    return Error(
        code=str(error.get("code") or ""),
        message=str(error.get("message") or "No message."),
        detail=_cut(str(detail)) if detail else None,
        facts=tuple((name, one_line(str(value))) for name, value in rest.items() if value not in (None, "", [], {})),
    )


def format_result(result: Any) -> Text:
    """The result as JSON; the preview if the result is in object storage or was cut."""
    for name in ("$object", "$cut"):
        if isinstance(result, dict) and list(result) == [name] and isinstance(stored := result[name], dict):
            return Text(str(stored.get("preview", "")), True, stored.get("bytes"), stored.get("why"))
    return format_json(result)


def format_json(value: Any) -> Text:
    return _cut(_format_json(value))


def _format_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _cut(text: str) -> Text:
    return Text(text) if len(text) <= MOST_CHARACTERS else Text(text[:MOST_CHARACTERS], is_cut=True)
