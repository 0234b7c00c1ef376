"""Run an ended execution again: a new execution of origin `replay`, for dead letters and for retries by hand (E10).

It runs the same job by the version that failed, or by the current one, in the job's class and pool and through its
gates, with the old payload or another. A deleted job can be run again by its old version. An execution whose version is
gone cannot be, and is reported. The job is shared before it is read: a replay that follows an acknowledged change obeys
it, and a delete that follows an acknowledged replay ends it (P10).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ondot.flow.work import Work
from ondot.model.gates import encode_stages, list_stages
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo
from ondot.model.job import JobSpec, JobState
from ondot.store.audit import By
from ondot.store.dead_letters import Ended, find_replay_payload, resolve_letters
from ondot.store.dependencies import look_again
from ondot.store.executions import insert_execution
from ondot.store.jobs import JobRow, get_jobs, share_jobs
from ondot.store.traces import put_traces


@dataclass(frozen=True, slots=True)
class Replay:
    """How to run again: with another payload (JSON text), and by the job's current version, or as it ran before."""

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
class NotReplayed:
    """An execution that cannot be run again; `detail`: why, and what to do."""

    id: ExecutionId
    why: Literal["spec_gone", "job_deleted", "not_retried"]
    detail: str


@dataclass(frozen=True, slots=True)
class _ToMake:
    ended: Ended
    job_version: int
    spec: JobSpec


async def make_replays(
    work: Work, ended: Sequence[Ended], how: Replay, by: By
) -> tuple[list[Replayed], list[NotReplayed]]:
    """Make new executions of ended ones that the caller has locked; and those for which none can be made.

    Every caller shares the jobs after it has locked letters and history: a filter finds letters first.
    """
    if not ended:
        return [], []
    connection, database, tenant_no = work.connection, work.database, work.tenant_no
    await share_jobs(connection, {entry.job_id for entry in ended})
    wanted, refused = await _choose_specs(work, ended, how)
    pools = await database.pools.register(connection, {entry.spec.pool for entry in wanted})
    # A new execution waits at its first gate. Every transaction locks several gates in the order of their ids.
    wanted.sort(key=lambda entry: _first_gate(entry, tenant_no))
    made = []
    for entry, id_ in zip(wanted, database.clock.new_ids(len(wanted)), strict=True):
        payload = how.payload
        if payload is None and entry.ended.own_payload:
            # One at a time: a thousand payloads of a megabyte each do not fit into memory.
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
    await put_traces(connection, tenant_no, [entry.replay_id for entry in made], by.trace)
    if once := {entry.ended.job_id for entry in made if not entry.spec.recurs}:
        await look_again(connection, once)
    return made, refused


async def _choose_specs(work: Work, ended: Sequence[Ended], how: Replay) -> tuple[list[_ToMake], list[NotReplayed]]:
    """The spec that each is run by, and those that have none."""
    wanted: list[_ToMake] = []
    refused: list[NotReplayed] = []
    jobs: dict[JobId, JobRow] = {}
    if how.current_version:
        jobs = await get_jobs(work.connection, work.tenant_no, list({entry.job_id for entry in ended}))
    specs = await work.database.specs.find(
        work.connection, [] if how.current_version else [(entry.job_id, entry.job_version) for entry in ended]
    )
    for entry in ended:
        job = jobs.get(entry.job_id)
        if job is not None and job.state is JobState.DELETED:
            detail = f"The job {entry.job_id} is deleted: leave out `version` to replay by the version that failed."
            refused.append(NotReplayed(entry.execution_id, "job_deleted", detail))
            continue
        version = job.version if job is not None else entry.job_version
        spec = job.spec if job is not None else specs.get((entry.job_id, version))
        if spec is None:
            detail = (
                f"Version {version} of the job {entry.job_id} is gone: it cannot be run again."
                " Create the job again, and discard the letter."
            )
            refused.append(NotReplayed(entry.execution_id, "spec_gone", detail))
            continue
        wanted.append(_ToMake(entry, version, spec))
    return wanted, refused


def _first_gate(entry: _ToMake, tenant_no: TenantNo) -> int:
    limits = entry.spec.limits
    passed = list_stages(limits, tenant_no, entry.ended.job_id) if limits is not None else []
    return passed[0].gate.int if passed else 0


async def resolve_replayed(work: Work, made: Sequence[Replayed], by: By) -> None:
    """Resolve locked letters whose executions run again now."""
    replays = [(entry.ended.execution_id, entry.replay_id) for entry in made]
    await resolve_letters(work.connection, work.tenant_no, replays, "replayed", actor=by.actor, reason=by.reason)
