"""The evidence of a fault run, read once: the database's tables, the receiver's books, the journal, the fault log.

Plain rows and lines, by job, of the first tenant; `tests.faults.tenant_checks` reads those of the others. Nothing here
judges, and nothing asks ondot.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from tests.faults.audit import APART, Run, read_run
from tests.faults.journal import Operation, read_journal
from tests.faults.ledger import Call, read_books
from tests.faults.oracle import ClockStep

Name = TypeVar("Name")
Thing = TypeVar("Thing")

CLOCK_STEPS = ("postgres.clock_forward", "postgres.clock_back")

_EXECUTIONS = f"""
SELECT id, job_id, job_version, fire_at, origin, state, class, losses, payload::text AS payload, true AS ended,
       reason, ended_at FROM ondot.history WHERE tenant_no = 1 AND job_id NOT IN {APART}
UNION ALL
SELECT id, job_id, job_version, fire_at, origin, state, class, losses, payload::text, false, NULL, NULL
FROM ondot.execution WHERE tenant_no = 1 AND job_id NOT IN {APART}
"""
_JOBS = f"""
SELECT id, name, state, version, true AS is_moved FROM ondot.job WHERE tenant_no = 1 AND id NOT IN {APART}
UNION ALL
SELECT id, name, 'ACTIVE', 1, false FROM ondot.job_once o
WHERE tenant_no = 1 AND id NOT IN {APART} AND NOT EXISTS (SELECT FROM ondot.job j WHERE j.id = o.id)
"""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    target: str
    began_s: float
    ended_s: float
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fired:
    """One execution in the database."""

    id: UUID
    job_id: UUID
    version: int
    fire_at: datetime
    origin: str
    state: str
    reason: str | None
    class_no: int
    losses: int
    has_ended: bool
    ended_at: datetime | None
    mark: str | None
    """The mark in the payload of a run-now."""
    started_at: datetime | None
    """When its first attempt started."""
    called_at: datetime | None
    """When the receiver got its first call."""

    @property
    def is_fire(self) -> bool:
        return self.origin in {"fire", "backfill"}


@dataclass(frozen=True, slots=True)
class SkippedRange:
    from_at: datetime
    to_at: datetime
    reason: str
    count: int | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class JobRow:
    id: UUID
    name: str
    state: str
    version: int


@dataclass(slots=True)
class Evidence:
    run: Run
    calls: Sequence[Call]
    operations: Mapping[str, Sequence[Operation]]
    """By the name of the job, in the order of the requests."""
    faults: Sequence[Fault]
    steps: Sequence[ClockStep]
    jobs: Mapping[str, Sequence[JobRow]]
    marks: Mapping[tuple[UUID, int], str | None]
    """The mark in the payload of each version of a job."""
    fired: Mapping[UUID, Sequence[Fired]]
    ranges: Mapping[UUID, Sequence[SkippedRange]]
    owed: int
    workers: Mapping[UUID, datetime | None]
    """When each incarnation ended; None: it lives."""

    def is_off(self, from_at: datetime, to_at: datetime) -> bool:
        """Whether the database's clock was off at some time in between: then two clocks cannot be compared.

        Both are instants of that clock: if it was set back in between, the second is earlier than the first.
        """
        return is_clock_off(self.steps, from_at, to_at)


def is_clock_off(steps: Sequence[ClockStep], from_at: datetime, to_at: datetime) -> bool:
    from_at, to_at = sorted((from_at, to_at))
    return any(step.from_at <= to_at and from_at <= step.to_at for step in steps)


def read_faults(path: Path) -> list[Fault]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Fault(entry["kind"], entry["target"], entry["began_s"], entry["ended_s"], entry.get("detail") or {})
        for entry in map(json.loads, lines)
    ]


async def read_evidence(connection: asyncpg.Connection, books: Path, acks: Path, faults: Path) -> Evidence:
    calls = read_books(books)
    run = await read_run(connection, calls)
    log = read_faults(faults)
    return Evidence(
        run=run,
        calls=calls,
        operations=_by_job(read_journal(acks)),
        faults=log,
        steps=[step_of(fault) for fault in log if fault.kind in CLOCK_STEPS],
        jobs=_grouped((row["name"], _job(row)) for row in await connection.fetch(_JOBS)),
        marks=await _read_marks(connection),
        fired=_grouped((row["job_id"], fired) for row, fired in await _read_fired(connection, run, calls)),
        ranges=_grouped(
            (
                row["job_id"],
                SkippedRange(row["from_at"], row["to_at"], row["reason"], row["count"], row["at"]),
            )
            for row in await connection.fetch("SELECT * FROM ondot.skipped WHERE tenant_no = 1 ORDER BY from_at")
        ),
        owed=await connection.fetchval("SELECT count(*) FROM ondot.owed WHERE tenant_no = 1"),
        workers={row["id"]: row["ended_at"] for row in await connection.fetch("SELECT id, ended_at FROM ondot.worker")},
    )


async def _read_fired(
    connection: asyncpg.Connection, run: Run, calls: Sequence[Call]
) -> list[tuple[asyncpg.Record, Fired]]:
    called: dict[UUID, float] = {}
    for call in calls:
        called[call.execution_id] = min(call.at_s, called.get(call.execution_id, call.at_s))
    found = []
    for row in await connection.fetch(_EXECUTIONS):
        id_ = row["id"]
        attempts = run.executions[id_].attempts if id_ in run.executions else ()
        fired = Fired(
            id=id_,
            job_id=row["job_id"],
            version=row["job_version"],
            fire_at=row["fire_at"],
            origin=row["origin"],
            state=row["state"],
            reason=row["reason"],
            class_no=row["class"],
            losses=row["losses"],
            has_ended=row["ended"],
            ended_at=row["ended_at"],
            mark=_mark(row["payload"]),
            started_at=min((attempt.started_at for attempt in attempts), default=None),
            called_at=datetime.fromtimestamp(called[id_], UTC) if id_ in called else None,
        )
        found.append((row, fired))
    return found


async def _read_marks(connection: asyncpg.Connection) -> dict[tuple[UUID, int], str | None]:
    payload = "(spec->'payload')::text AS payload"
    rows = await connection.fetch(f"SELECT job_id, version, {payload} FROM ondot.job_version WHERE tenant_no = 1")
    once = await connection.fetch(f"SELECT id, {payload} FROM ondot.job_once WHERE tenant_no = 1")
    found = {(row["id"], 1): _mark(row["payload"]) for row in once}
    return found | {(row["job_id"], row["version"]): _mark(row["payload"]) for row in rows}


def _mark(payload: str | None) -> str | None:
    decoded = json.loads(payload) if payload else None
    return decoded.get("mark") if isinstance(decoded, dict) else None


def _job(row: asyncpg.Record) -> JobRow:
    return JobRow(row["id"], row["name"], row["state"], row["version"])


def _by_job(operations: Sequence[Operation]) -> dict[str, list[Operation]]:
    by_job = _grouped((operation.job, operation) for operation in operations)
    for asked in by_job.values():
        asked.sort(key=lambda operation: operation.asked_s)
    return by_job


def _grouped(pairs: Iterable[tuple[Name, Thing]]) -> dict[Name, list[Thing]]:
    grouped: defaultdict[Name, list[Thing]] = defaultdict(list)
    for name, thing in pairs:
        grouped[name].append(thing)
    return grouped


def step_of(fault: Fault) -> ClockStep:
    """By either clock, with some room at both ends: a node's estimate of the clock follows a moment later."""
    room, by = timedelta(seconds=2), timedelta(seconds=float(fault.detail["seconds"]))
    from_at, to_at = datetime.fromtimestamp(fault.began_s, UTC), datetime.fromtimestamp(fault.ended_s, UTC)
    return ClockStep(from_at + min(by, timedelta(0)) - room, to_at + max(by, timedelta(0)) + room, by)
