"""The facts behind `explain` (E17): a few indexed reads, by the database's clock, that lock nothing.

Any number of executions takes one statement for the executions and four for what they wait for: slots, workers, their
tenant, the queue before them; and one more if suspects are among them. Counts of lines stop at a ceiling.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ondot.model.execution import Outcome, PriorityClass, State
from ondot.model.explain import goes_before
from ondot.model.explain_facts import (
    COUNTED_AT_MOST,
    HOLDERS_SHOWN,
    ExecutionFacts,
    HeldSlots,
    Holder,
    JobFacts,
    Line,
    Pool,
    Range,
    TenantFacts,
)
from ondot.model.explain_fire import NEAR, FireExecution, OnRecord
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo, instant_of, partition_of
from ondot.model.job import JobSpec
from ondot.model.planning import first_execution_id
from ondot.model.retry import SUSPECTS_SHARE
from ondot.store.connection import Connection, Record
from ondot.store.jobs import JobRow
from ondot.store.queries import load_queries

_SQL = load_queries("explain")

LIVE_AT_MOST = 10_000
OTHERS_COUNTED = 20
_WAITS = ("PENDING", "RETRYING")


@dataclass(frozen=True, slots=True)
class FoundExecution:
    """The row of an execution, and the version of the job whose spec it runs."""

    row: Record

    @property
    def version(self) -> tuple[UUID, int]:
        return self.row["job_id"], self.row["job_version"]


async def find_executions(
    connection: Connection, tenant_no: TenantNo, ids: Sequence[ExecutionId]
) -> list[FoundExecution]:
    """Those of these executions that exist, live or ended, in the given order."""
    rows = await connection.fetch(_SQL["explain_executions"].text, tenant_no, ids, COUNTED_AT_MOST)
    found = {row["id"]: FoundExecution(row) for row in rows}
    return [found[id_] for id_ in ids if id_ in found]


async def read_executions(
    connection: Connection,
    tenant_no: TenantNo,
    found: Sequence[FoundExecution],
    specs: Mapping[tuple[UUID, int], JobSpec],
    *,
    heartbeat_s: float,
    names_others: bool = False,
) -> list[ExecutionFacts]:
    """The facts of executions, and for those that wait, what they wait for. `names_others`: also other tenants."""
    waits = [one.row for one in found if one.row["state"] in _WAITS]
    held = await _read_slots(connection, tenant_no, waits) if waits else {}
    workers = await _workers(connection, tenant_no, waits, heartbeat_s) if waits else {}
    suspects = await _suspects(connection, [row for row in waits if row["class"] == PriorityClass.SUSPECT])
    ahead = await _queue_ahead(connection, tenant_no, waits) if waits else {}
    tenants = await _read_tenant(connection, tenant_no, waits, names_others=names_others) if waits else {}
    facts = [_execution(one.row, specs.get(one.version), held, workers, suspects, ahead, heartbeat_s) for one in found]
    return [
        replace(entry, tenant=tenants.get(one.row["pool_no"])) if one.row["state"] in _WAITS else entry
        for entry, one in zip(facts, found, strict=True)
    ]


async def _read_tenant(
    connection: Connection, tenant_no: TenantNo, waits: Sequence[Record], *, names_others: bool
) -> dict[PoolNo, TenantFacts]:
    """The tenant as it is in each pool. Names of others are left out here, so that no sentence can show them."""
    pool_nos = sorted({row["pool_no"] for row in waits})
    rows = await connection.fetch(_SQL["explain_tenant"].text, tenant_no, pool_nos, OTHERS_COUNTED, COUNTED_AT_MOST)
    found = {}
    for row in rows:
        others: list[tuple[str, int]] = msgspec.json.decode(row["others"], type=list[tuple[str, int]])
        if not names_others:
            others = [("", slots) for _, slots in others]
        found[PoolNo(row["pool_no"])] = TenantFacts(
            row["name"],
            is_stopped=row["is_stopped"],
            concurrent=row["concurrent"],
            running=row["running"],
            every_s=row["every_s"],
            burst=row["burst"],
            token_at=row["token_at"],
            others_wait=row["others_wait"],
            others=tuple(others),
            names_others=names_others,
        )
    return found


async def _read_slots(connection: Connection, tenant_no: TenantNo, waits: Sequence[Record]) -> dict[UUID, HeldSlots]:
    gates = {row["gate_id"] for row in waits if row["gate_id"] is not None}
    gates |= {row["pool_gate"] for row in waits if row["pool_concurrency"] is not None}
    if not gates:
        return {}
    rows = await connection.fetch(_SQL["explain_gates"].text, tenant_no, sorted(gates), HOLDERS_SHOWN, LIVE_AT_MOST)
    held: dict[UUID, HeldSlots] = {}
    for row in rows:
        holders = held.get(row["gate_id"], HeldSlots()).holders
        if row["execution_id"] is not None:
            state = State(row["state"]) if row["state"] else None
            holders += (Holder(ExecutionId(row["execution_id"]), row["held_at"], state),)
        held[row["gate_id"]] = HeldSlots(row["held"], holders)
    return held


async def _workers(
    connection: Connection, tenant_no: TenantNo, waits: Sequence[Record], heartbeat_s: float
) -> dict[PoolNo, Record]:
    pool_nos = sorted({row["pool_no"] for row in waits})
    rows = await connection.fetch(_SQL["explain_workers"].text, pool_nos, heartbeat_s, SUSPECTS_SHARE, tenant_no)
    return {PoolNo(row["pool_no"]): row for row in rows}


async def _suspects(connection: Connection, suspects: Sequence[Record]) -> dict[PoolNo, int]:
    pool_nos = sorted({row["pool_no"] for row in suspects})
    if not pool_nos:
        return {}
    rows = await connection.fetch(_SQL["explain_suspects"].text, pool_nos, int(PriorityClass.SUSPECT))
    return {PoolNo(row["pool_no"]): row["suspects"] for row in rows}


async def _queue_ahead(
    connection: Connection, tenant_no: TenantNo, waits: Sequence[Record]
) -> dict[UUID, dict[PriorityClass, int]]:
    lanes = [
        (row["id"], row["pool_no"], int(priority_class), before_at)
        for row in waits
        if row["queued"] and row["ready_at"] <= row["now"]
        for priority_class, before_at in goes_before(PriorityClass(row["class"]), row["ready_at"])
    ]
    if not lanes:
        return {}
    rows = await connection.fetch(
        _SQL["explain_queue"].text, tenant_no, *(list(column) for column in zip(*lanes, strict=True)), COUNTED_AT_MOST
    )
    ahead: dict[UUID, dict[PriorityClass, int]] = {}
    for row in rows:
        ahead.setdefault(row["id"], {})[PriorityClass(row["class"])] = row["ahead"]
    return ahead


def _execution(
    row: Record,
    spec: JobSpec | None,
    held: Mapping[UUID, HeldSlots],
    workers: Mapping[PoolNo, Record],
    suspects: Mapping[PoolNo, int],
    ahead: Mapping[UUID, dict[PriorityClass, int]],
    heartbeat_s: float,
) -> ExecutionFacts:
    return ExecutionFacts(
        id=ExecutionId(row["id"]),
        job_id=JobId(row["job_id"]),
        state=State(row["state"]),
        ready_at=row["ready_at"],
        now=row["now"],
        priority_class=PriorityClass(row["class"]),
        pool=_pool(row, workers.get(row["pool_no"]), suspects.get(row["pool_no"], 0), held),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        worker_id=row["worker_id"],
        worker_host=row["worker_host"],
        worker_beat_at=row["worker_beat_at"],
        heartbeat_s=heartbeat_s,
        attempt_no=row["attempt_no"],
        failures=row["failures"],
        losses=row["losses"],
        reason=row["reason"],
        error=_decode(row["error"]),
        cancel_at=row["cancel_at"],
        cancel_reason=row["cancel_reason"],
        start_by=row["start_by"],
        progress=row["progress"],
        progress_message=row["progress_message"],
        last_outcome=Outcome(row["last_outcome"]) if row["last_outcome"] else None,
        last_error=_decode(row["last_error"]),
        retry=spec.retry if spec else None,
        line=_line(row, held),
        queued=row["queued"],
        queue_ahead=ahead.get(row["id"], {}),
        held_at=row["held_at"],
        held_why=row["held_why"],
    )


def _pool(row: Record, workers: Record | None, suspects: int, held: Mapping[UUID, HeldSlots]) -> Pool:
    fleet = {} if workers is None else {name: value for name, value in workers.items() if name != "pool_no"}
    return Pool(
        row["pool"],
        **fleet,
        suspects=suspects,
        concurrency=row["pool_concurrency"],
        held=held.get(row["pool_gate"], HeldSlots()),
        every_s=row["pool_every_s"],
        burst=row["pool_burst"] or 1,
        token_at=row["pool_token_at"],
    )


def _line(row: Record, held: Mapping[UUID, HeldSlots]) -> Line | None:
    if row["gate_id"] is None or row["stages"] is None:
        return None
    stages: list[dict[str, Any]] = msgspec.json.decode(row["stages"])
    here = stages[row["stage"]]
    return Line(
        here["kind"],
        here["name"],
        row["ahead"],
        first=row["first_in_line"],
        limit=here.get("limit"),
        overlap=here.get("overlap"),
        is_fire=row["is_fire"],
        every_s=here.get("every_s"),
        burst=here.get("burst", 1),
        token_at=row["gate_token_at"],
        held=held.get(row["gate_id"], HeldSlots()),
        beyond=tuple(stage["kind"] for stage in stages[row["stage"] + 1 :]),
    )


async def read_job(connection: Connection, tenant_no: TenantNo, job: JobRow) -> JobFacts:
    """The state of a job, the node that plans it, and what it still owes."""
    row = await connection.fetchrow(
        _SQL["explain_job"].text, tenant_no, job.id, partition_of(job.id), LIVE_AT_MOST, job.spec.pool
    )
    assert row is not None, "the schema has a row for each partition"
    owed = await connection.fetch(_SQL["owed_of_job"].text, tenant_no, job.id)
    assert job.spec.schedule is not None, "submit completes every schedule"
    return JobFacts(
        id=job.id,
        state=job.state,
        schedule=job.spec.schedule,
        created_at=job.created_at,
        updated_at=job.updated_at,
        state_reason=job.state_reason,
        next_fire_at=job.next_fire_at,
        owed=tuple(Range(*entry.values()) for entry in owed),
        **dict(row.items()),
    )


async def find_oldest_live(connection: Connection, tenant_no: TenantNo, job_id: JobId, limit: int) -> list[ExecutionId]:
    rows = await connection.fetch(_SQL["find_oldest_live"].text, tenant_no, job_id, limit)
    return [ExecutionId(row["id"]) for row in rows]


async def read_fire(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, at: datetime, *, recurs: bool = True
) -> tuple[OnRecord, int | None]:
    """The record of the fire at an instant, and the version then in force (None: a one-time job, or no version)."""
    first_id = first_execution_id(at - NEAR if recurs else min(at - NEAR, instant_of(job_id)))
    row = await connection.fetchrow(_SQL["explain_fire"].text, tenant_no, job_id, at, NEAR.total_seconds(), first_id)
    assert row is not None
    execution = skipped = owed = None
    if row["id"] is not None:
        id_, state = ExecutionId(row["id"]), State(row["state"])
        execution = FireExecution(id_, row["fire_at"], row["ready_at"], state, row["reason"])
    if row["skipped_from"] is not None:
        skipped = Range(row["skipped_from"], row["skipped_to"], row["skipped_reason"], row["skipped_count"])
    if row["owed_from"] is not None:
        owed = Range(row["owed_from"], row["owed_to"], row["owed_origin"], row["owed_count"])
    return OnRecord(execution, skipped, owed), row["job_version"]


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
