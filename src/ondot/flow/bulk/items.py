"""One item of an operation: an execution, a job or a run, by the same functions as a request for it alone (O8).

Each is called in the transaction that claims the item (`Database.inside`), so both happen or neither does.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import structs

from ondot.flow.cancel import cancel
from ondot.flow.change.change import delete, pause, resume, update
from ondot.flow.dispatch import Dispatcher
from ondot.flow.replay import Replay
from ondot.flow.retry import retry
from ondot.flow.run_now import run_now
from ondot.flow.workflows.control import cancel_run, pause_run, resume_run
from ondot.flow.workflows.repair import Wanted, repair_run
from ondot.model.access import Caller, Right
from ondot.model.bulk import why_missing
from ondot.model.errors import Conflict, NotFound
from ondot.model.execution import State
from ondot.model.ids import ExecutionId, JobId
from ondot.model.job import JobSpec, JobState
from ondot.model.job_access import check_jobs, limit_reach
from ondot.store.bulk import BulkTurn, Results
from ondot.store.database import Database
from ondot.store.executions import get_execution
from ondot.store.jobs import JobRow, get_job
from ondot.store.run_reads import get_run


async def act_on_execution(
    database: Database, dispatcher: Dispatcher, turn: BulkTurn, id_: UUID, caller: Caller
) -> Results:
    async with database.connection() as connection:
        row = await get_execution(connection, turn.tenant_no, ExecutionId(id_))
    if row is None or not caller.sees(row.pool):
        raise NotFound(why_missing(turn.kind, id_))
    if turn.action == "retry":
        made = await retry(
            database,
            dispatcher,
            turn.tenant_no,
            row.id,
            Replay(turn.payload, turn.current_version),
            by=turn.by,
            render=lambda retried: str(retried.execution.id),
        )
        return Results(done=1, kept=[(id_, None, UUID(made))])
    if row.state is State.CANCELLED or (row.state is State.RUNNING and row.cancel_at is not None):
        return Results(unchanged=1)
    await cancel(database, dispatcher, turn.tenant_no, row.id, by=turn.by)
    return Results(done=1)


async def act_on_job(
    database: Database,
    dispatcher: Dispatcher,
    turn: BulkTurn,
    id_: UUID,
    caller: Caller,
    before: Mapping[str, Any] | None,
) -> Results:
    """`before`: of an undo, how the job was before the operation that is undone."""
    async with database.connection() as connection:
        row = await get_job(connection, turn.tenant_no, JobId(id_))
    if row is None or not caller.sees(row.spec.pool):
        raise NotFound(why_missing(turn.kind, id_))
    match turn.action:
        case "pause":
            now = await pause(database, turn.tenant_no, row.id, by=turn.by)
            return _changed(now, {"state": row.state.value}, is_changed=now.state is not row.state)
        case "resume":
            now = await resume(database, dispatcher, turn.tenant_no, row.id, by=turn.by)
            return _changed(now, {"state": row.state.value}, is_changed=row.state is JobState.PAUSED)
        case "delete":
            await delete(database, turn.tenant_no, row.id, by=turn.by)
            return Results(done=1) if row.state is not JobState.DELETED else Results(unchanged=1)
        case "run":
            payload = None if turn.payload is None else turn.payload.encode()
            made = await run_now(database, dispatcher, turn.tenant_no, row.id, payload, render=str, by=turn.by)
            return Results(done=1, kept=[(id_, None, UUID(made))])
        case _:
            return await _update(database, dispatcher, turn, row, caller, before)


async def _update(
    database: Database,
    dispatcher: Dispatcher,
    turn: BulkTurn,
    row: JobRow,
    caller: Caller,
    before: Mapping[str, Any] | None,
) -> Results:
    replaced = row

    async def compute(job: JobRow, _: datetime) -> JobSpec:
        nonlocal replaced
        replaced = job
        spec = _restore(job, before) if before is not None else change_spec(job.spec, turn.change or {})
        return as_written_by(caller, spec)

    now = await update(database, dispatcher, turn.tenant_no, row.id, compute, only_if_changed=True, by=turn.by)
    was = {"labels": replaced.spec.labels, "priority": replaced.spec.priority, "made": now.version}
    return _changed(now, was, is_changed=now.version != replaced.version)


def as_written_by(caller: Caller, spec: JobSpec) -> JobSpec:
    """The spec as it is stored if this caller writes it. Raises if it may not."""
    check_jobs(caller, [spec])
    if spec.secrets:
        caller.require(Right.SECRETS_USE)
    [spec] = limit_reach(caller, [spec])
    return spec


def change_spec(spec: JobSpec, change: Mapping[str, Any]) -> JobSpec:
    """With labels merged (null removes one) and the priority set."""
    labels = spec.labels | (change.get("labels") or {})
    return structs.replace(
        spec,
        labels={name: value for name, value in labels.items() if value is not None},
        priority=change.get("priority") or spec.priority,
    )


def _restore(job: JobRow, before: Mapping[str, Any]) -> JobSpec:
    """Labels and priority as they were, if nobody has changed the job since."""
    if job.version != before["made"]:
        raise Conflict(
            f"The job {job.id} was changed since: it has version {job.version}, and the operation made version"
            f" {before['made']}. Change it by hand."
        )
    return structs.replace(job.spec, labels=before["labels"], priority=before["priority"])


def _changed(now: JobRow, before: Mapping[str, Any], *, is_changed: bool) -> Results:
    if not is_changed:
        return Results(unchanged=1)
    return Results(done=1, kept=[(now.id, msgspec.json.encode(before).decode(), None)])


async def act_on_run(database: Database, dispatcher: Dispatcher, turn: BulkTurn, id_: UUID) -> Results:
    run_id = ExecutionId(id_)
    async with database.connection() as connection:
        run = await get_run(connection, turn.tenant_no, run_id)
        execution = None if run else await get_execution(connection, turn.tenant_no, run_id)
    if run is None and execution is None:
        raise NotFound(why_missing(turn.kind, id_))
    if run is None:
        if turn.action != "cancel":
            raise Conflict(f"The run {id_} has not started. Cancel it, or wait until it starts.")
        await cancel(database, dispatcher, turn.tenant_no, run_id, by=turn.by)
        return Results(done=1)
    match turn.action:
        case "cancel":
            await cancel_run(database, dispatcher, turn.tenant_no, run_id, by=turn.by)
        case "pause":
            await pause_run(database, dispatcher, turn.tenant_no, run_id, by=turn.by)
        case "resume":
            await resume_run(database, dispatcher, turn.tenant_no, run_id, by=turn.by)
        case _:
            wanted = Wanted("retry")
            await repair_run(database, dispatcher, turn.tenant_no, run_id, wanted, by=turn.by, render=lambda _: "")
    before = {"is_paused": run.is_paused}
    if turn.action in {"pause", "resume"}:
        if run.is_paused == (turn.action == "pause"):
            return Results(unchanged=1)
        return Results(done=1, kept=[(id_, msgspec.json.encode(before).decode(), None)])
    return Results(done=1)
