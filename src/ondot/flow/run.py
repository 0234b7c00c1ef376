"""⑤ One attempt: a list of small steps, from what was leased to the outcome that is written (E3, E7, E11).

    may it begin → resolve target → call within its deadline → decide what follows

Nothing here knows PostgreSQL: the outcome goes to the completer, which keeps it until the database has it.
"""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from ondot.flow.lease import Assignment
from ondot.model.execution import Outcome, PriorityClass, State
from ondot.model.job import FunctionTarget, HttpTarget, JobSpec, ShellTarget
from ondot.model.outcome import AttemptError, Failed, Interrupted, NotBegun, Report, Succeeded
from ondot.model.retry import GiveUp, Retry, RetryIn, after_failure, after_loss
from ondot.ports.target import Call, Target
from ondot.store.executions import Completion
from ondot.targets.reports import timed_out

ENDS_WITHIN_S = 10.0
"""How much longer than its timeout a target may take to end a call before the attempt is reported without it."""

GONE = JobSpec(name="", target=FunctionTarget(name=""), retry=Retry(max_retries=0))


@dataclass(frozen=True, slots=True)
class Targets:
    """What this worker can call."""

    http: Target[HttpTarget]
    function: Target[FunctionTarget]
    shell: Target[ShellTarget]


MakeCall = Callable[[Assignment, JobSpec], Call]
MayBegin = Callable[[], str | None]
"""Why no call may be begun now (the worker is stopping, or may have been declared lost), or None."""


async def run_attempt(assignment: Assignment, targets: Targets, make_call: MakeCall, may_begin: MayBegin) -> Completion:
    """Run one attempt; never raises but for its own cancellation."""
    spec = assignment.spec
    if spec is None:
        return decide(
            assignment,
            GONE,
            Failed(AttemptError("spec_gone", "The job's definition is gone."), retryable=False),
        )
    if assignment.over:
        return Completion(
            assignment.leased.id,
            assignment.leased.attempt_no,
            State.CANCELLED,
            Outcome.CANCELLED,
            reason=assignment.over,
        )
    if reason := may_begin():
        return decide(assignment, spec, NotBegun(reason))
    try:
        report: Report = await _call(spec, targets, make_call(assignment, spec))
    except asyncio.CancelledError:
        report = Interrupted("The worker stopped before the attempt ended, its grace was over.")
    return decide(assignment, spec, report)


async def _call(spec: JobSpec, targets: Targets, call: Call) -> Succeeded | Failed:
    try:
        async with asyncio.timeout(spec.timeout_s + ENDS_WITHIN_S):
            match spec.target:
                case HttpTarget():
                    return await targets.http.call(spec.target, call)
                case FunctionTarget():
                    return await targets.function.call(spec.target, call)
                case ShellTarget():
                    return await targets.shell.call(spec.target, call)
                case _:
                    assert_never(spec.target)
    except TimeoutError:
        return timed_out(spec.timeout_s)
    except Exception as error:  # noqa: BLE001 - a fault of a target must end the attempt, not the worker
        return Failed(AttemptError("internal", f"{type(error).__name__}: {error}"))


def decide(assignment: Assignment, spec: JobSpec, report: Report) -> Completion:
    """What follows from a report: the row that will be written."""
    leased = assignment.leased
    match report:
        case Succeeded():
            return Completion(
                leased.id,
                leased.attempt_no,
                State.SUCCEEDED,
                Outcome.SUCCEEDED,
                result=report.result,
                pause_after=spec.pause_after_failures,
            )
        case Failed():
            decision = after_failure(
                spec.retry,
                leased.failures + 1,
                retryable=report.retryable,
                retry_after_s=report.retry_after_s,
                random=random.random(),  # noqa: S311 - spreads retries, guards nothing
            )
            return _failed(assignment, spec, decision, report.outcome, report.error, report.result)
        case Interrupted():
            error = AttemptError("worker_stopped", report.reason)
            return _failed(assignment, spec, after_loss(spec.retry, leased.losses + 1), Outcome.WORKER_LOST, error)
        case NotBegun():
            return Completion(
                leased.id,
                leased.attempt_no,
                State.PENDING,
                Outcome.PREEMPTED,
                error=encode({"code": "not_begun", "message": report.reason}),
                priority_class=int(PriorityClass.RECOVERED),
            )
        case _:
            assert_never(report)


def _failed(
    assignment: Assignment,
    spec: JobSpec,
    decision: RetryIn | GiveUp,
    outcome: Outcome,
    error: AttemptError,
    result: str | None = None,
) -> Completion:
    leased = assignment.leased
    match decision:
        case RetryIn():
            return Completion(
                leased.id,
                leased.attempt_no,
                State.RETRYING,
                outcome,
                error=encode(error.as_dict()),
                delay_s=decision.delay_s,
                priority_class=int(spec.priority_class),
            )
        case GiveUp():
            return Completion(
                leased.id,
                leased.attempt_no,
                State.FAILED,
                outcome,
                result=result,
                error=encode(error.as_dict()),
                reason=decision.reason,
                pause_after=spec.pause_after_failures,
            )
        case _:
            assert_never(decision)


def encode(value: dict[str, Any]) -> str:
    """JSON that PostgreSQL can store: it refuses NUL, and nobody can write half of a surrogate pair."""
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace")
    return text.decode().replace("\\u0000", "\\ufffd")
