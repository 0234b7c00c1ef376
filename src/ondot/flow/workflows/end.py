"""How a run ends, or waits for a person (W3): the verdict once nothing moves, BLOCKED, `finally` steps, the end.

A run that is to end first stops what it has: steps that wait are CANCELLED, executions in the queue end, those that run
are asked to. Once they have ended its `finally` steps run, under its verdict (ENDING); then its execution moves to
history. A `finally` step that fails turns a success into a failure. The dead letter of a failed step stands for its
run: the run itself has none.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from ondot.flow.workflows.children import (
    CHILD_BLOCKED,
    collect_result,
    count_stuck,
    report_to_parent,
    stop_children,
)
from ondot.flow.workflows.maps import go_on_with_maps
from ondot.flow.workflows.run_pass import Effects, RunPass
from ondot.flow.workflows.waits import stop_waiting
from ondot.model.completion import encode_error
from ondot.model.execution import CANCEL
from ondot.model.gates import encode_stages
from ondot.model.outcome import AttemptError
from ondot.model.own_events import RUN_BLOCKED
from ondot.model.workflow.states import MOVING, RunState, StepState
from ondot.model.workflow.verdict import Counts, find_unhandled, judge_run
from ondot.store.connection import Connection
from ondot.store.endings import end_queued, request_cancels
from ondot.store.executions import get_execution
from ondot.store.own_events import emit_event
from ondot.store.passes import change_run
from ondot.store.reruns import cancel_waiting_steps
from ondot.store.runs import RunRow, end_run, handle_letters, hold_run, requeue_run
from ondot.store.steps import find_all_steps, find_executions_of_run
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import RUNS_BLOCKED, RUNS_ENDED

ASK_AGAIN = timedelta(seconds=5)
"""An execution that returned to the queue at the moment it was cancelled is found by the next look."""
NAMED = 5

GoOn = Callable[[RunPass], Awaitable[None]]

log = get_logger()


async def settle(work: RunPass, go_on: GoOn) -> None:
    """What the state of the steps means for the run."""
    run = work.run
    work.count()
    if run.state in {RunState.RUNNING, RunState.BLOCKED} and (over := _find_timeout(work)) is not None:
        await conclude(work, RunState.FAILED, over, go_on)
    elif run.state is RunState.RUNNING:
        verdict, reason = await _judge(work)
        if verdict is RunState.BLOCKED:
            await _hold(work, reason)
        elif verdict is not RunState.RUNNING:
            await conclude(work, verdict, reason, go_on)
    elif run.state is RunState.BLOCKED and work.graph.sub_workflows:
        await _requeue_if_child_goes_on(work)
    if run.state is RunState.ENDING:
        await _go_on_ending(work, go_on)


async def conclude(work: RunPass, verdict: RunState, reason: str | None, go_on: GoOn) -> None:
    """Decide how the run ends, and stop what it has. `settle` takes it from there."""
    run = work.run
    run.verdict, run.reason = verdict, reason
    run.state = RunState.ENDING
    work.progress.is_ending = True
    if run.active or run.waiting:
        await stop_steps(work, reason or "its run ends")
        await go_on(work)
        work.count()


async def stop_steps(work: RunPass, reason: str) -> None:
    """End the steps that wait, and ask those that run to end. Their ends arrive as any other."""
    progress = work.progress
    progress.load(await find_all_steps(work.connection, work.run.id))
    for no, row in progress.rows.items():
        if row.state is StepState.WAITING and not work.graph.steps[no].is_final:
            progress.end(no, StepState.CANCELLED, reason)
    await stop_waiting(work, reason)
    await cancel_executions(work, reason)
    await go_on_with_maps(work)


async def cancel_executions(work: RunPass, reason: str) -> None:
    run, connection = work.run, work.connection
    await work.make_executions()
    live = [id_ for id_, _ in await find_executions_of_run(connection, run.id)]
    if live:
        ended = set(await end_queued(connection, run.tenant_no, dict.fromkeys(live, reason), CANCEL))
        await request_cancels(connection, run.tenant_no, [id_ for id_ in live if id_ not in ended], reason)
        work.effects.runs.add(run.id)
    await stop_children(work, reason)


async def end_without_spec(connection: Connection, run: RunRow) -> Effects:
    """The version that the run belongs to cannot be read: nothing of it can go on."""
    run.reason = "its definition is gone"
    effects = Effects()
    await _write_end(connection, run, RunState.FAILED, None, effects)
    await change_run(connection, run)
    return effects


async def end_before_begin(connection: Connection, run: RunRow, state: str) -> None:
    """A rerun has ended in the queue: it was cancelled, or could not start in time. Nothing of it has run."""
    execution = await get_execution(connection, run.tenant_no, run.id)
    run.reason = None if execution is None else execution.reason
    run.state = run.verdict = RunState.FAILED if state == "FAILED" else RunState.CANCELLED
    run.look_at = None
    cancelled = await cancel_waiting_steps(connection, run.tenant_no, run.id, run.reason)
    run.waiting, run.failed = 0, run.failed + min(cancelled, run.waiting)
    await change_run(connection, run)
    log.info("run.ended", run_id=str(run.id), job_id=str(run.job_id), state=run.state.value, reason=run.reason)


def next_look(work: RunPass) -> datetime | None:
    """When housekeeping has to look at the run although nothing arrives."""
    run = work.run
    ends = []
    if work.spec.timeout_s is not None and run.started_at is not None:
        ends.append(run.started_at + timedelta(seconds=work.spec.timeout_s))
    if run.state is RunState.BLOCKED and run.blocked_at is not None:
        ends.append(run.blocked_at + timedelta(seconds=work.target.blocked_for_s))
    return min(ends, default=None)


def _find_timeout(work: RunPass) -> str | None:
    run = work.run
    timeout_s = work.spec.timeout_s
    if _is_over(run.started_at, timeout_s, run.now):
        return f"timeout: it did not end within {timeout_s:g} s"
    if run.state is RunState.BLOCKED and _is_over(run.blocked_at, work.target.blocked_for_s, run.now):
        return f"it was BLOCKED for {work.target.blocked_for_s:g} s, and no person retried it"
    return None


def _is_over(since: datetime | None, seconds: float | None, now: datetime) -> bool:
    return since is not None and seconds is not None and since + timedelta(seconds=seconds) <= now


async def _judge(work: RunPass) -> tuple[RunState, str | None]:
    """The run's state by its steps, and the reason if that is no success."""
    run, graph, on_failure = work.run, work.graph, work.target.on_failure
    stuck = await count_stuck(work) if run.active else 0
    if run.active > stuck and (not run.failed or on_failure == "block"):
        return RunState.RUNNING, None
    states: dict[int, StepState] = {}
    if run.failed:
        work.progress.load(await find_all_steps(work.connection, run.id))
        states = {no: row.state for no, row in work.progress.rows.items()}
    counts = Counts(run.waiting, run.active, run.succeeded, run.failed, run.skipped, run.blocked)
    verdict = judge_run(graph, on_failure, counts, states, blocked_children=stuck)
    if verdict in {RunState.RUNNING, RunState.SUCCEEDED}:
        return verdict, None
    failed = find_unhandled(graph, states)
    return verdict, _name_failed(work, failed) if failed else CHILD_BLOCKED


def _name_failed(work: RunPass, failed: list[int]) -> str:
    names = ", ".join(work.graph.names[no] for no in failed[:NAMED])
    more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
    return f"{'step' if len(failed) == 1 else 'steps'} {names}{more} failed"


async def _hold(work: RunPass, reason: str | None) -> None:
    """RUNNING → BLOCKED: its slots are for other runs, and it waits for a person."""
    run = work.run
    pause_after = None if run.is_counted else work.spec.pause_after_failures
    work.effects.wake(await hold_run(work.connection, run.id, pause_after), run.now)
    run.state, run.blocked_at, run.reason, run.is_counted = RunState.BLOCKED, run.now, reason, True
    run.look_at = next_look(work)
    await report_to_parent(work, "BLOCKED")
    await emit_event(work.connection, run.tenant_no, RUN_BLOCKED, run.job_id, run.id, reason)
    RUNS_BLOCKED.inc()
    log.warning("run.blocked", run_id=str(run.id), job_id=str(run.job_id), reason=reason)


async def _requeue_if_child_goes_on(work: RunPass) -> None:
    """BLOCKED → PENDING: a child that was BLOCKED goes on, and the run waits for its slots like one that is retried."""
    run = work.run
    verdict, reason = await _judge(work)
    if verdict is RunState.BLOCKED:
        run.reason = reason
        return
    stages = encode_stages(work.spec.limits, run.tenant_no, run.job_id)
    if (queued := await requeue_run(work.connection, run.id, stages, run.priority_class)) is not None:
        work.effects.wake(*queued)
        run.state, run.reason, run.look_at = RunState.PENDING, None, None


async def _go_on_ending(work: RunPass, go_on: GoOn) -> None:
    """Once its steps have ended: the `finally` steps, then the end."""
    run, graph, progress = work.run, work.graph, work.progress
    run.look_at = run.now + ASK_AGAIN if run.active else None
    if run.active:
        return
    if graph.finals:
        await work.load(set(graph.finals))
        if all(progress.rows[no].state is StepState.WAITING for no in graph.finals):
            parents = {parent for no in graph.finals for parent in graph.parents[no]}
            await work.load(parents)
            progress.consider_finals({no: progress.rows[no].state for no in parents})
            await go_on(work)
        if any(progress.rows[no].state in MOVING for no in graph.finals):
            return
        failed = [no for no in graph.finals if progress.rows[no].state is StepState.FAILED]
        if failed and run.verdict is RunState.SUCCEEDED:
            run.verdict, run.reason = RunState.FAILED, _name_failed(work, failed)
    assert run.verdict is not None
    if run.verdict is RunState.SUCCEEDED and run.failed:
        await handle_letters(work.connection, run)
    result = await collect_result(work) if run.verdict is RunState.SUCCEEDED else None
    await _write_end(work.connection, run, run.verdict, work.spec.pause_after_failures, work.effects, result)


async def _write_end(
    connection: Connection,
    run: RunRow,
    verdict: RunState,
    pause_after: int | None,
    effects: Effects,
    result: str | None = None,
) -> None:
    error = None
    if verdict is RunState.FAILED:
        message = f"The run failed: {run.reason}." if run.reason else "The run failed."
        error = encode_error(AttemptError("run_failed", message))
    if verdict is RunState.FAILED and run.is_counted:
        pause_after = None
    ended = await end_run(
        connection, run.id, verdict, reason=run.reason, error=error, pause_after=pause_after, result=result
    )
    if ended is None and verdict is RunState.CANCELLED:
        # It waits for its slots: it was BLOCKED and is retried.
        await end_queued(connection, run.tenant_no, {run.id: run.reason or "cancelled"}, CANCEL)
    if ended is not None:
        effects.wake(ended.pool_no, run.now)
        if ended.awaited_by is not None:
            effects.runs.add(ended.awaited_by)
    run.verdict = run.state = verdict
    run.look_at = None
    RUNS_ENDED.labels(verdict.value).inc()
    log.info("run.ended", run_id=str(run.id), job_id=str(run.job_id), state=verdict.value, reason=run.reason)
