"""⑤ One attempt: a list of small steps, from what was leased to the outcome that is written (E3, E7, E11).

    may it begin → resolve target → call within its deadline → decide what follows

Nothing here knows PostgreSQL: the outcome goes to the completer, which keeps it until the database has it.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import assert_never

from ondot.flow.lease import Assignment
from ondot.model.completion import Completion, decide, expire, stop
from ondot.model.job import FunctionTarget, HttpTarget, JobSpec, ShellTarget, TargetSpec
from ondot.model.outcome import AttemptError, Cancelled, Failed, Interrupted, NotBegun, Report, Succeeded
from ondot.model.retry import SUSPECT_FROM, Retry
from ondot.ports.target import Call, End, Interrupt, Target
from ondot.targets.function.child import STARTS_WITHIN_S, ChildLost
from ondot.targets.reports import timed_out

ENDS_WITHIN_S = 10.0
"""How much longer than its timeout a target may take to end a call before the attempt is reported without it."""

INTERRUPTED = Interrupted("The worker stopped before the attempt ended, its grace was over.")
GONE = JobSpec(name="", target=FunctionTarget(name=""), retry=Retry(max_retries=0))


BeginFunction = Callable[[FunctionTarget, Call, End], Interrupt | None]


@dataclass(frozen=True, slots=True)
class Targets:
    """What this worker can call."""

    http: Target[HttpTarget]
    function: Target[FunctionTarget]
    shell: Target[ShellTarget]
    stuck: Callable[[], int] = lambda: 0
    """How many calls were given up and will not end: what they hold is free only with their process."""
    begin: BeginFunction | None = None
    """Begins a function in this process without a task that waits for it; None: they are called as the others are."""
    is_apart: Callable[[str], bool] = lambda _name: False
    """Whether a function has blocked a loop lately, and so is not to be begun in this process."""
    running: Callable[[], tuple[str, Call] | None] = lambda: None
    """The function that runs in the loop at this moment. Asked from another thread while the loop stands still."""
    heard_of: Callable[[frozenset[str]], None] = lambda _blocking: None
    """Hears which functions have blocked a worker's loop lately."""


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


def begin_function(
    assignment: Assignment,
    begin: BeginFunction,
    make_call: MakeCall,
    may_begin: MayBegin,
    end: Callable[[Completion], None],
) -> Interrupt | None:
    """The same for a function of this process, by callbacks; None: `end` has been told already."""
    spec = assignment.spec
    assert spec is not None
    assert isinstance(spec.target, FunctionTarget)
    if (refusal := _refused(assignment, spec, may_begin)) is not None:
        end(refusal)
        return None

    def told(report: Succeeded | Failed | Cancelled | None) -> None:
        end(_decide(assignment, spec, INTERRUPTED if report is None else report))

    try:
        return begin(spec.target, make_call(assignment, spec), told)
    except Exception as error:  # noqa: BLE001 - a fault of ours must end the attempt, not the worker
        told(_internal(error))
        return None


def is_function_of(assignment: Assignment, targets: Targets) -> bool:
    """Whether it may be begun by `begin_function`: it is no suspect, and has left no checkpoint to be read first."""
    leased, spec = assignment.leased, assignment.spec
    return (
        leased.attempt_no == 1
        and spec is not None
        and isinstance(spec.target, FunctionTarget)
        and not targets.is_apart(spec.target.name)
    )


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


async def _call(spec: JobSpec, targets: Targets, call: Call) -> Succeeded | Failed | Cancelled | Interrupted:
    timeout_s = spec.attempt_timeout_s
    # A cancel may come in the last moment, and its grace is its own.
    more_s = spec.cancel_grace_s + ENDS_WITHIN_S + _start_of_child_s(spec, targets, call)
    try:
        async with asyncio.timeout(None if timeout_s is None else timeout_s + more_s):
            return await _reach(spec.target, targets, call)
    except TimeoutError as error:
        return _internal(error) if timeout_s is None else timed_out(timeout_s)
    except ChildLost as lost:
        return Interrupted(lost.message, code="child_lost", detail=lost.detail)
    except Exception as error:  # noqa: BLE001 - a fault of a target must end the attempt, not the worker
        return _internal(error)


def _internal(error: Exception) -> Failed:
    return Failed(AttemptError("internal", f"{type(error).__name__}: {error}"))


async def _reach(target: TargetSpec, targets: Targets, call: Call) -> Succeeded | Failed | Cancelled:
    match target:
        case HttpTarget():
            return await targets.http.call(target, call)
        case FunctionTarget():
            return await targets.function.call(target, call)
        case ShellTarget():
            return await targets.shell.call(target, call)
        case _:
            assert_never(target)


def _start_of_child_s(spec: JobSpec, targets: Targets, call: Call) -> float:
    """A suspect may have to wait for a process of its own, which imports the whole app."""
    is_apart = isinstance(spec.target, FunctionTarget) and targets.is_apart(spec.target.name)
    return STARTS_WITHIN_S if is_apart or call.losses >= SUSPECT_FROM else 0.0
