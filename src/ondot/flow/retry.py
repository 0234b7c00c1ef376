"""Retry one execution by hand (E10): its next attempt now, or a replay if it has ended.

An execution that waits for its next attempt starts it now: its backoff is cut short, and the attempts it has left stay
the same. An ended execution, however it ended, is run again as a new one; the letter of a FAILED one becomes replayed.
Two requests at once make one execution: the rows are locked, and a second request is refused while a replay is live.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from ondot.flow.dispatch import Dispatcher
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.replay import Replay, make_replays, resolve_replayed
from ondot.flow.work import Work, begin
from ondot.model.errors import Conflict, NotFound
from ondot.model.execution import TERMINAL, State
from ondot.model.ids import ExecutionId, PoolNo, TenantNo
from ondot.model.job import JobSpec
from ondot.store.audit import By, record_change
from ondot.store.database import Database
from ondot.store.dead_letters import find_live_replay, lock_ended, lock_letters
from ondot.store.executions import ExecutionRow, get_execution
from ondot.store.hasten import hasten
from ondot.store.jobs import share_jobs
from ondot.telemetry.log import get_logger

TRIES = 5
"""When the lock of a row that is being swept is free, the row has been moved."""
SOON = timedelta(seconds=2)
"""An attempt due this soon is left alone; more than the second of `hasten`, because clocks are estimates."""

_WHAT_TO_DO = {
    State.PENDING: "It has not run yet: wait for it, or cancel it.",
    State.RUNNING: "It is running: wait for its end, or cancel it first.",
    State.BLOCKED: "It waits for others: retry the one that failed.",
}

log = get_logger()


@dataclass(frozen=True, slots=True)
class Retried:
    """The execution that runs (again), as it is now, and its spec if that is still stored."""

    execution: ExecutionRow
    spec: JobSpec | None
    pool_no: PoolNo | None


async def retry(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    id_: ExecutionId,
    how: Replay,
    *,
    by: By,
    render: Callable[[Retried], str],
    idempotency: Idempotency | None = None,
) -> str:
    """Run an execution again, or sooner; returns the response."""
    async with begin(database, tenant_no) as work:
        if (earlier := await find_response(work, idempotency)) is not None:
            return earlier
        found = await get_execution(work.connection, tenant_no, id_)
        if found is None:
            raise NotFound(f"There is no execution {id_}.")
        if found.run_id is not None and found.state in TERMINAL:
            raise Conflict(
                f"The execution {id_} is a step of the run {found.run_id}: retry it there, so that the steps after it"
                f" follow: POST /v1/runs/{found.run_id}/retry.",
                run_id=found.run_id,
            )
        if found.state in TERMINAL:
            retried = await _replay(work, found, how, by)
        else:
            # A delete either ends it before this or waits for this; `flow.replay` does the same for ended executions.
            await share_jobs(work.connection, [found.job_id])
            retried = await _hasten(work, found, how)
        detail = {"replay_id": retried.execution.id if retried.execution.id != id_ else None}
        await record_change(work.connection, tenant_no, by, "execution.retry", id_, detail)
        text = render(retried)
        await store_response(work, idempotency, text)
    if retried.pool_no is not None:
        dispatcher.wake([(retried.pool_no, retried.execution.ready_at)])
    log.info("execution.retried", execution_id=str(id_), as_execution=str(retried.execution.id), actor=by.actor)
    return text


async def _hasten(work: Work, found: ExecutionRow, how: Replay) -> Retried:
    """Start the next attempt of an execution that waits for it."""
    connection, tenant_no = work.connection, work.tenant_no
    if found.state is State.RETRYING and (how.payload is not None or how.current_version):
        raise Conflict(
            f"The execution {found.id} continues with its own payload and version: leave both out,"
            " or cancel it and retry it then."
        )
    for _ in range(TRIES):
        hastened = await hasten(connection, tenant_no, found.id, "RETRYING") if found.state is State.RETRYING else None
        now = await get_execution(connection, tenant_no, found.id)
        if now is None or now.state is not State.RETRYING:
            state = now.state if now else found.state
            advice = _WHAT_TO_DO.get(state, "It has ended meanwhile: ask again to run it once more.")
            raise Conflict(f"The execution {found.id} is {state}. {advice}", state=state)
        if hastened is not None or now.ready_at <= work.database.clock.now() + SOON:
            specs = await work.database.specs.find(connection, [(now.job_id, now.job_version)])
            return Retried(now, specs.get((now.job_id, now.job_version)), hastened.pool_no if hastened else None)
    raise Conflict(f"The execution {found.id} is being moved in the queue: try again.")


async def _replay(work: Work, found: ExecutionRow, how: Replay, by: By) -> Retried:
    """Run an ended execution again, as a new one."""
    connection, tenant_no = work.connection, work.tenant_no
    ended = await lock_ended(connection, tenant_no, found.id)
    if ended is None:
        raise NotFound(f"The history of the execution {found.id} is no longer kept.")
    letter = (await lock_letters(connection, tenant_no, [found.id])).get(found.id)
    if letter is not None and letter.resolution == "replayed":
        raise Conflict(
            f"The execution {found.id} was replayed by {letter.resolved_by} as {letter.replay_id}: retry that one.",
            replay_id=letter.replay_id,
        )
    if (live := await find_live_replay(connection, tenant_no, ended)) is not None:
        raise Conflict(
            f"The execution {found.id} is being run again as {live}: wait for its end, or cancel that one.",
            replay_id=live,
        )
    made, refused = await make_replays(work, [ended], how, by)
    if refused:
        raise Conflict(refused[0].detail)
    [entry] = made
    if letter is not None and letter.resolution is None:
        await resolve_replayed(work, made, by)
    execution = await get_execution(connection, tenant_no, entry.replay_id)
    assert execution is not None, "it was made in this transaction"
    return Retried(execution, entry.spec, entry.pool_no)
