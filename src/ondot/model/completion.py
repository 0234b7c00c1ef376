"""How an attempt ends its execution or sends it on (E4, E6, E11): one constructor for each transition, and `decide`,
which chooses among them.

A `Completion` is made here and nowhere else, so each carries its `Transition`: the state that is written is the
transition's target. Everything is pure: `decide` gets the attempt, the spec, the report and a source of random numbers.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Protocol, assert_never

import msgspec
from msgspec import Struct, structs

from ondot.model.execution import (
    EXPIRE,
    FAIL,
    RECOVER,
    RETRY,
    RETURN,
    STOP,
    SUCCEED,
    Outcome,
    PriorityClass,
    State,
    Transition,
)
from ondot.model.fingerprint import fingerprint
from ondot.model.ids import ExecutionId
from ondot.model.job import JobSpec
from ondot.model.outcome import AttemptError, Cancelled, Failed, Interrupted, NoFunction, NotBegun, Report, Succeeded
from ondot.model.retry import SUSPECT_FROM, GiveUp, Retry, RetryIn, after_failure, after_loss
from ondot.model.retryable import retryable
from ondot.model.target import FunctionTarget, GrpcTarget, PublishTarget

NO_FUNCTION: Final = "unknown_function"
"""The code of an attempt whose worker does not have the function. SQL writes it, too."""
LOOK_AGAIN_S: Final = 3600.0
"""Such an execution returns to the queue when a worker has registered the function, and after this time at the
latest."""


class AttemptKey(Protocol):
    """Which attempt ended: the fence of its completion."""

    @property
    def id(self) -> ExecutionId: ...
    @property
    def attempt_no(self) -> int: ...


class LeasedAttempt(AttemptKey, Protocol):
    """An attempt with the counts that its retries are decided by, as they were when it was leased."""

    @property
    def failures(self) -> int: ...
    @property
    def losses(self) -> int: ...
    @property
    def has_more_at_end(self) -> bool: ...


class Completion(Struct, frozen=True, gc=False):
    """One outcome to be written: where the execution goes, and what the attempt left behind (JSON as text).

    `pause_after`: failures in a row after which the job is paused. `has_more_at_end`: its end has more to do than to
    record it, such as to return slots. `delay_s`, `retry_at`: the next attempt starts after both; a year away at most.
    """

    execution_id: ExecutionId
    attempt_no: int
    transition: Transition
    outcome: Outcome
    result: str | None = None
    error: str | None = None
    reason: str | None = None
    delay_s: float = 0.0
    priority_class: int = 0
    pause_after: int | None = None
    has_more_at_end: bool = False
    retry_at: datetime | None = None
    labels: dict[str, str] | None = None
    """Of the job, to be found by; None if it has none."""

    @property
    def state(self) -> State:
        state = self.transition.target
        assert state is not None
        return state

    @property
    def is_plain(self) -> bool:
        """A success that changes nothing but its own execution: nearly all are."""
        return self.transition is SUCCEED and self.pause_after is None and not self.has_more_at_end


def succeed(
    attempt: AttemptKey,
    result: str | None = None,
    *,
    pause_after: int | None = None,
    has_more_at_end: bool = False,
    labels: dict[str, str] | None = None,
) -> Completion:
    return Completion(
        attempt.id,
        attempt.attempt_no,
        SUCCEED,
        Outcome.SUCCEEDED,
        result=result,
        pause_after=pause_after,
        has_more_at_end=has_more_at_end,
        labels=labels,
    )


def retry(
    attempt: AttemptKey,
    outcome: Outcome,
    error: AttemptError,
    *,
    delay_s: float,
    priority_class: PriorityClass,
    retry_at: datetime | None = None,
) -> Completion:
    return Completion(
        attempt.id,
        attempt.attempt_no,
        RETRY,
        outcome,
        error=_with_fingerprint(error),
        delay_s=delay_s,
        retry_at=retry_at,
        priority_class=int(priority_class),
    )


def fail(
    attempt: AttemptKey,
    outcome: Outcome,
    error: AttemptError,
    *,
    reason: str,
    result: str | None = None,
    pause_after: int | None = None,
) -> Completion:
    return Completion(
        attempt.id,
        attempt.attempt_no,
        FAIL,
        outcome,
        result=result,
        error=_with_fingerprint(error),
        reason=reason,
        pause_after=pause_after,
    )


def fail_unstorable(completion: Completion, message: str) -> Completion:
    """The completion to write instead of one whose content PostgreSQL rejects."""
    return structs.replace(
        completion,
        transition=FAIL,
        outcome=Outcome.FAILED,
        result=None,
        error=encode_error(AttemptError("unstorable", message)),
        reason="its outcome could not be stored",
    )


def recover(attempt: AttemptKey, error: AttemptError, *, priority_class: PriorityClass) -> Completion:
    return Completion(
        attempt.id,
        attempt.attempt_no,
        RECOVER,
        Outcome.WORKER_LOST,
        error=_with_fingerprint(error),
        priority_class=int(priority_class),
    )


def give_back(
    attempt: AttemptKey, error: AttemptError, *, priority_class: PriorityClass, delay_s: float = 0.0
) -> Completion:
    """No call was made: it costs nothing."""
    return Completion(
        attempt.id,
        attempt.attempt_no,
        RETURN,
        Outcome.PREEMPTED,
        error=encode_error(error),
        delay_s=delay_s,
        priority_class=int(priority_class),
    )


def stop(
    attempt: AttemptKey, *, reason: str, error: AttemptError | None = None, result: str | None = None
) -> Completion:
    return Completion(
        attempt.id,
        attempt.attempt_no,
        STOP,
        Outcome.CANCELLED,
        result=result,
        error=encode_error(error) if error else None,
        reason=reason,
    )


def expire(attempt: AttemptKey, start_by: datetime) -> Completion:
    message = f"It was to start by {start_by.isoformat()}, and a worker took it only after that."
    return Completion(
        attempt.id,
        attempt.attempt_no,
        EXPIRE,
        Outcome.PREEMPTED,
        error=encode_error(AttemptError("expired", message)),
        reason="expired",
    )


def with_labels(completion: Completion, spec: JobSpec | None) -> Completion:
    """The completion with the labels of its job, which history keeps."""
    return structs.replace(completion, labels=spec.labels) if spec is not None and spec.labels else completion


def decide(attempt: LeasedAttempt, spec: JobSpec, report: Report, random: Callable[[], float]) -> Completion:
    """What follows from a report. `random` returns a number in [0, 1), which spreads retries."""
    match report:
        case Succeeded():
            return succeed(
                attempt,
                report.result,
                pause_after=spec.pause_after_failures,
                has_more_at_end=attempt.has_more_at_end,
                labels=spec.labels or None,
            )
        case Failed():
            return with_labels(_decide_failure(attempt, spec, report, random()), spec)
        case Cancelled():
            error = AttemptError("cancelled", report.message, facts={"forced": report.forced})
            return with_labels(stop(attempt, reason="cancelled", error=error, result=report.result), spec)
        case Interrupted():
            losses = attempt.losses + 1
            error = AttemptError(report.code, report.reason, report.detail)
            return decide_loss(attempt, spec, losses, error, priority_class=class_of_retry(spec, losses))
        case NotBegun():
            error = AttemptError("not_begun", report.reason)
            return with_labels(give_back(attempt, error, priority_class=class_of_returned(spec, attempt.losses)), spec)
        case NoFunction():
            error = AttemptError(NO_FUNCTION, report.message, facts={"function": report.function})
            priority_class = class_of_retry(spec, attempt.losses)
            return with_labels(give_back(attempt, error, priority_class=priority_class, delay_s=LOOK_AGAIN_S), spec)
        case _:
            assert_never(report)


def decide_loss(
    attempt: AttemptKey, spec: JobSpec | None, losses: int, error: AttemptError, *, priority_class: PriorityClass
) -> Completion:
    """What follows from the n-th lost worker (`losses`). `spec` None: it cannot be read any more."""
    decision = after_loss(spec.retry if spec else Retry(), losses)
    match decision:
        case RetryIn():
            return with_labels(recover(attempt, error, priority_class=priority_class), spec)
        case GiveUp():
            pause_after = spec.pause_after_failures if spec else None
            failed = fail(attempt, Outcome.WORKER_LOST, error, reason=decision.reason, pause_after=pause_after)
            return with_labels(failed, spec)
        case _:
            assert_never(decision)


def _decide_failure(attempt: LeasedAttempt, spec: JobSpec, failed: Failed, random: float) -> Completion:
    decision = after_failure(
        spec.retry,
        attempt.failures + 1,
        retryable=retryable(spec.retry, failed),
        retry_after_s=failed.retry_after_s,
        random=random,
    )
    error = _explain_default_timeout(spec, failed.error)
    match decision:
        case RetryIn():
            return retry(
                attempt,
                failed.outcome,
                error,
                delay_s=decision.delay_s,
                retry_at=failed.retry_at,
                priority_class=class_of_retry(spec, attempt.losses),
            )
        case GiveUp():
            return fail(
                attempt,
                failed.outcome,
                error,
                result=failed.result,
                reason=decision.reason,
                pause_after=spec.pause_after_failures,
            )
        case _:
            assert_never(decision)


def class_of_retry(spec: JobSpec, losses: int) -> PriorityClass:
    """The class of an attempt after a failure: a function that took two workers with it is a suspect (E6)."""
    if losses >= SUSPECT_FROM and isinstance(spec.target, FunctionTarget):
        return PriorityClass.SUSPECT
    return spec.priority_class


def class_of_returned(spec: JobSpec | None, losses: int) -> PriorityClass:
    """The class of an execution that returns without a failure of its own: served first, unless it is a suspect."""
    is_suspect = spec is not None and class_of_retry(spec, losses) is PriorityClass.SUSPECT
    return PriorityClass.SUSPECT if is_suspect else PriorityClass.RECOVERED


def _explain_default_timeout(spec: JobSpec, error: AttemptError) -> AttemptError:
    """The message of a timeout that the job does not set names the default and how to change it."""
    default_s = spec.attempt_timeout_s
    if error.code != "timeout" or spec.timeout_s is not None or default_s is None:
        return error
    call = {GrpcTarget: "a gRPC call", PublishTarget: "a publish"}.get(type(spec.target), "an HTTP call")
    message = (
        f"It did not end within {default_s:g} s, the default timeout of {call}. If it may take longer,"
        " set the job's `timeout`."
    )
    if error.facts.get("may_be_published"):
        message += " It may be published all the same."
    return replace(error, message=message, facts={**error.facts, "is_default": True})


def encode_error(error: AttemptError) -> str:
    return _encode(error.as_dict())


def _with_fingerprint(error: AttemptError) -> str:
    """The error with the mark by which dead letters are grouped."""
    entry = error.as_dict()
    return _encode(entry | {"fingerprint": fingerprint(entry)})


def _encode(value: dict[str, Any]) -> str:
    """JSON that PostgreSQL can store: it rejects NUL, and half of a surrogate pair cannot be encoded."""
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace")
    return text.decode().replace("\\u0000", "\\ufffd")
