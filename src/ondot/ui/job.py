"""`/jobs/{id}`: one job with its latest executions, next fires, limits, and why it does not run (O5, S8, S9, E17).

This module only reads; the page's buttons use the API, and its script reads backfills from the API too. `mark` changes
only if more than the time has changed.
"""

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import msgspec

from ondot.flow.declared_jobs import Declaration, read_declaration
from ondot.flow.explain import JobExplanation, explain_job
from ondot.flow.history.gone import find_why_unknown
from ondot.model.execution import State
from ondot.model.ids import JobId, TenantNo
from ondot.model.job import JobState
from ondot.model.schedule import GivenUp, for_job, in_words, preview, start_delay
from ondot.model.workflow.spec import WorkflowTarget
from ondot.store.database import Database
from ondot.store.executions import ExecutionRow, list_job_executions, list_skipped
from ondot.store.expect import MissRow, list_misses
from ondot.store.jobs import JobRow, get_job
from ondot.store.overview import find_version_created_at
from ondot.ui.dead_letters import Letter, list_open_letters
from ondot.ui.job_events import JobEvents, read_job_events
from ondot.ui.limits import limits_in_words
from ondot.ui.schedules import FireLine, SkippedLine, fire_lines, skipped_lines
from ondot.words.job import WHY_SKIPPED, one_line, target_in_words, took, zone_of_job

EXECUTIONS_SHOWN: Final = 15
FIRES_SHOWN: Final = 5
SKIPPED_SHOWN: Final = 10
LETTERS_SHOWN: Final = 4
MISSES_SHOWN: Final = 10
VALUE_SHOWN: Final = 300
LONGEST_EDITABLE: Final = 64 * 1024
DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Execution:
    id: UUID
    state: State
    origin: str
    fire_at: datetime
    started_at: datetime | None
    took: str | None
    attempts: int
    version: int
    percent: int | None
    message: str


@dataclass(frozen=True, slots=True)
class SkippedRange:
    from_at: datetime
    to_at: datetime
    reason: str
    count: int | None


@dataclass(frozen=True, slots=True)
class DeclaredView:
    """`lines`: field, code, in force, of those that differ."""

    words: str
    is_dropped: bool
    lines: tuple[tuple[str, str, str], ...]
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobView:
    """`why`: why the job is in its state, unless a person set it; `version_at`: when its version was created."""

    now: datetime
    id: UUID
    name: str
    state: JobState
    why: str | None
    schedule: str
    zone: str | None
    recurs: bool
    target: str
    pool: str
    key: str | None
    labels: dict[str, str]
    version: int
    created_at: datetime
    version_at: datetime
    next_fire_at: datetime | None
    starts_late: str | None
    fires: tuple[FireLine, ...]
    excluded: tuple[SkippedLine, ...]
    executions: tuple[Execution, ...]
    skipped: tuple[SkippedRange, ...]
    limits: tuple[tuple[str, str], ...]
    explanation: JobExplanation
    letters: tuple[Letter, ...]
    open_letters: int
    depends_on: tuple[str, ...]
    """The jobs that it waits for, or waited for."""
    steps: int | None
    """Of a workflow: the number of its steps."""
    rule: JobEvents | None
    """Of a job that events start."""
    payload: str | None
    """As JSON, to run it with another; None: too long to edit."""
    declared: DeclaredView | None = None
    """What the code of an app declares of it, if one does."""
    misses: tuple[MissRow, ...] = ()
    """When it did not meet what is expected of it."""

    @property
    def mark(self) -> str:
        """A hash of the view, which stays the same while only the time changes."""
        explanation = replace(
            self.explanation,
            job=replace(self.explanation.job, now=DATE),
            executions=[replace(one, now=DATE) for one in self.explanation.executions],
        )
        return sha256(repr(replace(self, now=DATE, explanation=explanation)).encode()).hexdigest()[:12]


async def read_job(database: Database, tenant_no: TenantNo, job_id: JobId) -> JobView:
    """Reads with a bounded number of statements. Raises NotFound."""
    async with database.reading(tenant_no) as connection:
        row = await get_job(connection, tenant_no, job_id)
        if row is None:
            raise await find_why_unknown(database, tenant_no, "job", job_id)
        executions = await list_job_executions(
            connection, tenant_no, row.id, limit=EXECUTIONS_SHOWN, horizon_s=database.settings.horizon_s
        )
        skipped = await list_skipped(connection, tenant_no, row.id, SKIPPED_SHOWN)
        version_at = await find_version_created_at(connection, tenant_no, row.id, row.version)
        open_letters, letters = await list_open_letters(connection, tenant_no, row.id, LETTERS_SHOWN)
        rule = await read_job_events(connection, tenant_no, row)
        declared = None if row.spec.key is None else await read_declaration(connection, tenant_no, row)
        misses = await list_misses(connection, tenant_no, row.id, MISSES_SHOWN) if row.spec.expect else []
    explanation = await explain_job(database, tenant_no, job_id)
    fires, excluded = await asyncio.to_thread(_next_fires, row, database.clock.now())
    return JobView(
        now=database.clock.now(),
        id=row.id,
        name=row.spec.name,
        state=row.state,
        why=row.state_reason,
        schedule="Once, now" if row.spec.schedule is None else in_words(row.spec.schedule),
        zone=zone_of_job(row.spec),
        recurs=row.spec.recurs,
        target=target_in_words(row.spec.target),
        pool=row.spec.pool,
        key=row.spec.key,
        labels=row.spec.labels,
        version=row.version,
        created_at=row.created_at,
        version_at=version_at or row.created_at,
        next_fire_at=row.next_fire_at,
        starts_late=_delay(row),
        fires=fires,
        excluded=excluded,
        executions=tuple(_execution(execution) for execution in executions),
        skipped=tuple(
            SkippedRange(entry.from_at, entry.to_at, WHY_SKIPPED.get(entry.reason, entry.reason), entry.count)
            for entry in skipped
        ),
        limits=limits_in_words(row.spec),
        explanation=explanation,
        letters=tuple(letters),
        open_letters=open_letters,
        depends_on=row.spec.depends_on,
        steps=len(row.spec.target.steps) if isinstance(row.spec.target, WorkflowTarget) else None,
        rule=rule,
        payload=_editable(row),
        declared=None if declared is None else _declared(declared),
        misses=tuple(misses),
    )


def _editable(row: JobRow) -> str | None:
    payload = bytes(row.spec.payload)
    return None if len(payload) > LONGEST_EDITABLE else msgspec.json.format(payload, indent=2).decode()


def _declared(found: Declaration) -> DeclaredView:
    return DeclaredView(
        found.in_words,
        found.row.dropped_at is not None,
        tuple((one.field, _value(one.code), _value(one.in_force)) for one in found.differs),
        tuple(f"{one.app}, release {one.release}, declares it too, and is refused." for one in found.refused),
    )


def _value(value: object) -> str:
    text = value if isinstance(value, str) else "–" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_SHOWN else f"{text[:VALUE_SHOWN]} …"


def _delay(row: JobRow) -> str | None:
    """How long after each fire the job starts because of its jitter or spread, which is the same every time."""
    delay = None if row.spec.schedule is None else start_delay(row.spec.schedule, row.id)
    return took(delay.total_seconds()) if delay else None


def _next_fires(row: JobRow, now: datetime) -> tuple[tuple[FireLine, ...], tuple[SkippedLine, ...]]:
    if row.spec.schedule is None or row.state is not JobState.ACTIVE:
        return (), ()
    try:
        found = preview(for_job(row.spec.schedule, row.id), now, FIRES_SHOWN)
    except GivenUp:  # a job older than the limit on schedules; the rest of its page is useful
        return (), ()
    return fire_lines(found), skipped_lines(found)


def _execution(row: ExecutionRow) -> Execution:
    ran_s = (row.ended_at - row.started_at).total_seconds() if row.ended_at and row.started_at else None
    return Execution(
        id=row.id,
        state=row.state,
        origin=row.origin,
        fire_at=row.fire_at,
        started_at=row.started_at,
        took=None if ran_s is None else took(ran_s),
        attempts=row.attempt_no,
        version=row.job_version,
        percent=None if row.progress is None or row.state is not State.RUNNING else round(row.progress * 100),
        message="" if row.state is State.SUCCEEDED else _message(row.error) or row.reason or row.progress_message or "",
    )


def _message(error: dict[str, Any] | None) -> str:
    return one_line(str((error or {}).get("message") or ""))
