"""⑤ One attempt: a list of small steps, from what was leased to the outcome that is written (E3, E7, E11).

    may it begin → resolve target → call within its deadline → decide what follows

Nothing here knows PostgreSQL: the outcome goes to the completer, which keeps it until the database has it.
"""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ondot.flow.lease import Assignment
from ondot.model.completion import Completion, decide, expire, stop
from ondot.model.job import FunctionTarget, JobSpec
from ondot.model.outcome import AttemptError, Cancelled, Failed, Interrupted, NotBegun, Report, Succeeded, timed_out
from ondot.model.retry import Retry
from ondot.ports.target import Call, CallReport, Interrupt, Target, Targets

ENDS_WITHIN_S = 10.0
"""How much longer than its timeout a target may take to end a call before the attempt is reported without it."""

INTERRUPTED = Interrupted("The worker stopped before the attempt ended, its grace was over.")
GONE = JobSpec(name="", target=FunctionTarget(name=""), retry=Retry(max_retries=0))

MakeCall = Callable[[Assignment, JobSpec], Call]
MayBegin = Callable[[], str | None]
"""Why no call may be begun now (the worker is stopping, or may have been declared lost), or None."""


async def run_attempt(assignment: Assignment, targets: Targets, make_call: MakeCall, may_begin: MayBegin) -> Completion:
    """Run one attempt; never raises but for its own cancellation."""
    spec = assignment.spec
    if spec is None:
        return _gone(assignment)
    if (refusal := _refused(assignment, spec, may_begin)) is not None:
        return refusal
    try:
        report: Report = await _call(spec, targets, make_call(assignment, spec))
    except asyncio.CancelledError:
        report = INTERRUPTED
    return _decide(assignment, spec, report)


def begin_attempt(
    assignment: Assignment,
    target: Target[Any],
    make_call: MakeCall,
    may_begin: MayBegin,
    end: Callable[[Completion], None],
) -> Interrupt | None:
    """The same by callbacks, without a task; None: `end` has already been called."""
    spec = assignment.spec
    assert spec is not None
    if (refusal := _refused(assignment, spec, may_begin)) is not None:
        end(refusal)
        return None

    def complete(report: Succeeded | Failed | Cancelled | None) -> None:
        end(_decide(assignment, spec, INTERRUPTED if report is None else report))

    try:
        return target.begin(spec.target, make_call(assignment, spec), complete)
    except Exception as error:  # noqa: BLE001 - a fault of ours must end the attempt, not the worker
        complete(_internal(error))
        return None


def direct_target(assignment: Assignment, targets: Targets) -> Target[Any] | None:
    """The target, if the attempt may go to `begin_attempt`: a later attempt has to read its checkpoint first."""
    spec = assignment.spec
    if spec is None or assignment.leased.attempt_no > 1:
        return None
    target = targets.get(type(spec.target))
    return target if target is not None and target.can_begin(spec.target) else None


def _decide(assignment: Assignment, spec: JobSpec, report: Report) -> Completion:
    return decide(assignment.leased, spec, report, random.random())  # noqa: S311 - spreads retries, guards nothing


def _gone(assignment: Assignment) -> Completion:
    error = AttemptError("spec_gone", "The job's definition is gone.")
    return _decide(assignment, GONE, Failed(error, retryable=False))


def _refused(assignment: Assignment, spec: JobSpec, may_begin: MayBegin) -> Completion | None:
    """What becomes of an attempt whose call is not to be made."""
    if assignment.over:
        return stop(assignment.leased, reason=assignment.over)
    if (late := _too_late(assignment)) is not None:
        return late
    if reason := may_begin():
        return _decide(assignment, spec, NotBegun(reason))
    return None


def _too_late(assignment: Assignment) -> Completion | None:
    """The end of an execution whose first call would begin after its start deadline."""
    leased = assignment.leased
    never_called = leased.failures == 0 and leased.losses == 0
    if leased.start_by_s is None or leased.started_s <= leased.start_by_s or not never_called:
        return None
    return expire(leased, datetime.fromtimestamp(leased.start_by_s, UTC))


async def _call(spec: JobSpec, targets: Targets, call: Call) -> CallReport:
    timeout_s = spec.attempt_timeout_s
    try:
        target = targets[type(spec.target)]
        # A cancel may come in the last moment, and its grace is its own.
        more_s = spec.cancel_grace_s + ENDS_WITHIN_S + target.startup_s(spec.target, call)
        async with asyncio.timeout(None if timeout_s is None else timeout_s + more_s):
            return await target.call(spec.target, call)
    except TimeoutError as error:
        return _internal(error) if timeout_s is None else timed_out(timeout_s)
    except Exception as error:  # noqa: BLE001 - a fault of a target must end the attempt, not the worker
        return _internal(error)


def _internal(error: Exception) -> Failed:
    return Failed(AttemptError("internal", f"{type(error).__name__}: {error}"))
