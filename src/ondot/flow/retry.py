"""Retry one execution by hand (E10): the next attempt now, or a replay of what has ended.

One that waits for its next attempt has it now: its backoff is cut short, the attempts it has left stay as they were.
One that has ended, however it did, is run again as a new execution; the letter of a FAILED one becomes replayed.
Whoever asks twice gets one execution: the rows asked about are held, and a replay that has not ended is told instead of
a second one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from ondot.flow.dispatch import Dispatcher
from ondot.flow.replay import Replay, Replayed, make_replays, resolve_replayed
from ondot.flow.submit import Idempotency, earlier_answer, keep_answer
from ondot.model.errors import Conflict, NotFound
from ondot.model.execution import TERMINAL, State
from ondot.model.ids import ExecutionId, PoolNo, TenantNo
from ondot.model.job import JobSpec
from ondot.store.audit import record
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.dead_letters import find_live_replay, hasten_retry, lock_ended, lock_letters
from ondot.store.executions import ExecutionRow, get_execution
from ondot.store.jobs import share_jobs
from ondot.telemetry.log import get_logger

TRIES = 5
"""A row that is being swept is gone when its lock is, and stands elsewhere."""
SOON = timedelta(seconds=2)
"""An attempt that comes so soon is not hastened; more than the second of `hasten_retry`, since clocks are estimates."""

_WHAT_TO_DO = {
    State.PENDING: "It has not run yet: wait for it, or cancel it.",
    State.RUNNING: "It is running: wait for its end, or cancel it first.",
    State.BLOCKED: "It waits for other steps of its workflow: retry the one that failed.",
}

log = get_logger()


@dataclass(frozen=True, slots=True)
class Retried:
    """The execution that runs (again), as it is now, and the spec that it runs if that is known."""

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
    actor: str,
    reason: str | None,
    answer: Callable[[Retried], str],
    idempotency: Idempotency | None = None,
) -> str:
    async with database.transaction() as connection:
        if (earlier := await earlier_answer(connection, tenant_no, idempotency)) is not None:
            return earlier
        found = await get_execution(connection, tenant_no, id_)
        if found is None:
            raise NotFound(f"There is no execution {id_}.")
        if found.state in TERMINAL:
            retried = await _replay(connection, database, tenant_no, found, how, actor=actor, reason=reason)
        else:
            # A delete either ends it before this or waits for this; see `flow.replay` for what has ended.
            await share_jobs(connection, [found.job_id])
            retried = await _hasten(connection, database, tenant_no, found, how)
        detail = {"reason": reason, "replay_id": retried.execution.id if retried.execution.id != id_ else None}
        await record(connection, tenant_no, actor, "execution.retry", id_, detail)
        text = answer(retried)
        await keep_answer(connection, tenant_no, idempotency, text)
    if retried.pool_no is not None:
        dispatcher.wake([(retried.pool_no, retried.execution.ready_at)])
    log.info("execution.retried", execution_id=str(id_), as_execution=str(retried.execution.id), actor=actor)
    return text


async def _hasten(
    connection: Connection, database: Database, tenant_no: TenantNo, found: ExecutionRow, how: Replay
) -> Retried:
    if found.state is State.RETRYING and (how.payload is not None or how.current_version):
        raise Conflict(
            f"The execution {found.id} goes on with the payload and version it has: leave both out,"
            " or cancel it and retry it then."
        )
    for _ in range(TRIES):
        hastened = await hasten_retry(connection, tenant_no, found.id) if found.state is State.RETRYING else None
        now = await get_execution(connection, tenant_no, found.id)
        if now is None or now.state is not State.RETRYING:
            state = now.state if now else found.state
            advice = _WHAT_TO_DO.get(state, "It has ended meanwhile: ask again to run it once more.")
            raise Conflict(f"The execution {found.id} is {state}. {advice}", state=state)
        if hastened is not None or now.ready_at <= database.clock.now() + SOON:
            specs = await database.specs.find(connection, [(now.job_id, now.job_version)])
            return Retried(now, specs.get((now.job_id, now.job_version)), hastened.pool_no if hastened else None)
    raise Conflict(f"The execution {found.id} is being moved in the queue: try again.")


async def _replay(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    found: ExecutionRow,
    how: Replay,
    *,
    actor: str,
    reason: str | None,
) -> Retried:
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
    made, refused = await make_replays(connection, database, tenant_no, [ended], how)
    if refused:
        raise Conflict(refused[0].detail)
    [entry] = made
    if letter is not None and letter.resolution is None:
        await resolve_replayed(connection, tenant_no, made, actor=actor, reason=reason)
    return await _shown(connection, tenant_no, entry)


async def _shown(connection: Connection, tenant_no: TenantNo, made: Replayed) -> Retried:
    execution = await get_execution(connection, tenant_no, made.replay_id)
    assert execution is not None, "it was made in this transaction"
    return Retried(execution, made.spec, made.pool_no)
