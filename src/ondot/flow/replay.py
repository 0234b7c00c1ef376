"""Run again what has ended: a new execution of origin `replay`, for dead letters and for retries by hand (E10).

It runs the same job by the version that failed, or by the current one, in the job's class and pool and through its
gates, with the old payload or another. A job that was deleted may be run so by its old version; one whose version is
gone cannot be, and the execution it is about is reported so. The job is shared before it is read: a replay that follows
an acked change obeys it, and a delete that follows an acked replay ends it (P10).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ondot.model.gates import encode_stages, list_stages
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo
from ondot.model.job import JobSpec, JobState
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.dead_letters import Ended, find_replay_payload, resolve_letters
from ondot.store.executions import insert_execution
from ondot.store.jobs import JobRow, get_jobs, share_jobs


@dataclass(frozen=True, slots=True)
class Replay:
    """How to run again: with another payload (JSON text) than the old one, by the job's current version."""

    payload: str | None = None
    current_version: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """A new execution, when and in which pool it may start."""

    ended: Ended
    replay_id: ExecutionId
    spec: JobSpec
    pool_no: PoolNo
    ready_at: datetime


@dataclass(frozen=True, slots=True)
class Refused:
    """What cannot be run again; `detail` says why, and what to do."""

    id: ExecutionId
    why: Literal["spec_gone", "job_deleted"]
    detail: str


@dataclass(frozen=True, slots=True)
class _ToMake:
    ended: Ended
    job_version: int
    spec: JobSpec


async def make_replays(
    connection: Connection, database: Database, tenant_no: TenantNo, ended: Sequence[Ended], how: Replay
) -> tuple[list[Replayed], list[Refused]]:
    """New executions of what has ended, which the caller holds; and those of which none can be made.

    The jobs are shared after letters and history are locked, by everybody: a filter finds letters first.
    """
    if not ended:
        return [], []
    await share_jobs(connection, {entry.job_id for entry in ended})
    wanted, refused = await _to_make(connection, database, tenant_no, ended, how)
    pools = await database.pools.numbers(connection, tenant_no, {entry.spec.pool for entry in wanted})
    # A new execution stands before its first gate. By the ids of those gates: in that order everybody locks several.
    wanted.sort(key=lambda entry: _first_gate(entry, tenant_no))
    made = []
    for entry, id_ in zip(wanted, database.clock.new_ids(len(wanted)), strict=True):
        payload = how.payload
        if payload is None and entry.ended.own_payload:
            # One at a time: a thousand payloads of a megabyte each do not fit beside each other.
            payload = await find_replay_payload(connection, tenant_no, entry.ended.execution_id)
        pool_no = pools[entry.spec.pool]
        ready_at = await insert_execution(
            connection,
            tenant_no,
            ExecutionId(id_),
            entry.ended.job_id,
            job_version=entry.job_version,
            pool_no=pool_no,
            priority_class=int(entry.spec.priority_class),
            origin="replay",
            payload=payload,
            replay_of=entry.ended.execution_id,
            stages=encode_stages(entry.spec.limits, tenant_no, entry.ended.job_id),
        )
        made.append(Replayed(entry.ended, ExecutionId(id_), entry.spec, pool_no, ready_at))
    return made, refused


async def _to_make(
    connection: Connection, database: Database, tenant_no: TenantNo, ended: Sequence[Ended], how: Replay
) -> tuple[list[_ToMake], list[Refused]]:
    """Which spec each is run by, and which have none."""
    wanted: list[_ToMake] = []
    refused: list[Refused] = []
    jobs: dict[JobId, JobRow] = {}
    if how.current_version:
        jobs = await get_jobs(connection, tenant_no, list({entry.job_id for entry in ended}))
    specs = await database.specs.find(
        connection, [] if how.current_version else [(entry.job_id, entry.job_version) for entry in ended]
    )
    for entry in ended:
        job = jobs.get(entry.job_id)
        if job is not None and job.state is JobState.DELETED:
            detail = f"The job {entry.job_id} is deleted: leave out `version` to replay by the version that failed."
            refused.append(Refused(entry.execution_id, "job_deleted", detail))
            continue
        version = job.version if job is not None else entry.job_version
        spec = job.spec if job is not None else specs.get((entry.job_id, version))
        if spec is None:
            detail = (
                f"Version {version} of the job {entry.job_id} is gone: it cannot be run again."
                " Create the job anew, and discard the letter."
            )
            refused.append(Refused(entry.execution_id, "spec_gone", detail))
            continue
        wanted.append(_ToMake(entry, version, spec))
    return wanted, refused


def _first_gate(entry: _ToMake, tenant_no: TenantNo) -> int:
    limits = entry.spec.limits
    passed = list_stages(limits, tenant_no, entry.ended.job_id) if limits is not None else []
    return passed[0].gate.int if passed else 0


async def resolve_replayed(
    connection: Connection, tenant_no: TenantNo, made: Sequence[Replayed], *, actor: str, reason: str | None
) -> None:
    """Letters that are held and run again now wait for nobody."""
    replays = [(entry.ended.execution_id, entry.replay_id) for entry in made]
    await resolve_letters(connection, tenant_no, replays, "replayed", actor=actor, reason=reason)
