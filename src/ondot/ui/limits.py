"""What limits a job, in words, for its page (E12, E13, E16). Pure: a spec in, pairs of a title and a sentence out."""

from collections.abc import Iterator
from typing import Final

from ondot.model.gates import Limits, Rate
from ondot.model.job import JobSpec
from ondot.model.retry import Retry
from ondot.model.schedule.words import duration

OVERLAP: Final = {
    "skip": "A fire is skipped while an execution before it has not ended",
    "queue": "A fire waits until the execution before it has ended",
    "cancel": "A fire ends the execution that still runs, and takes its place",
}

Said = tuple[str, str]


def limits_in_words(spec: JobSpec) -> tuple[Said, ...]:
    """Only what is set; but the retries and the time of an attempt, which every job has, always."""
    return (*_gates(spec.limits or Limits()), *_keys(spec), *_times(spec))


def _gates(limits: Limits) -> Iterator[Said]:
    if limits.overlap in OVERLAP:
        yield "Overlap", OVERLAP[limits.overlap]
    if limits.order_key is not None:
        yield "Order", f"One after the other, in the order of their fires, with all that has the key {limits.order_key}"
    if limits.concurrency is not None:
        yield "Concurrency", f"At most {limits.concurrency:,} at a time"
    if limits.rate is not None:
        yield "Rate", rate_in_words(limits.rate)
    if limits.key_concurrency is not None:
        yield "Concurrency by key", f"At most {limits.key_concurrency:,} at a time of all that has the key {limits.key}"
    if limits.key_rate is not None:
        yield "Rate by key", f"{rate_in_words(limits.key_rate)}, of all that has the key {limits.key}"


def _keys(spec: JobSpec) -> Iterator[Said]:
    if spec.unique is not None:
        within = f", nor within {duration(spec.unique.within_s)} after one was made" if spec.unique.within_s else ""
        yield "Unique", f"No second job with the key {spec.unique.key} while one lives{within}"
    if spec.debounce is not None:
        at_most = f", {duration(spec.debounce.max_wait_s)} at most" if spec.debounce.max_wait_s else ""
        wait = duration(spec.debounce.wait_s)
        yield "Debounce", f"Of those with the key {spec.debounce.key} the last runs, {wait} after it came{at_most}"
    if spec.throttle is not None:
        per = duration(spec.throttle.per_s)
        yield (
            "Throttle",
            f"At most {spec.throttle.limit:,} in {per} with the key {spec.throttle.key}; others are skipped",
        )


def _times(spec: JobSpec) -> Iterator[Said]:
    if spec.start_deadline_s is not None:
        yield "Start deadline", f"Skipped if it has not started {duration(spec.start_deadline_s)} after it was due"
    yield "Timeout", timeout_in_words(spec)
    yield "Retries", retries_in_words(spec.retry)


def timeout_in_words(spec: JobSpec) -> str:
    if spec.attempt_timeout_s is None:
        return "None: an attempt may take as long as it likes"
    default = ", the default of an HTTP call" if spec.timeout_s is None else ""
    return f"At most {duration(spec.attempt_timeout_s)} for each attempt{default}"


def rate_in_words(rate: Rate) -> str:
    burst = f", up to {rate.burst:,} of them at once" if rate.burst > 1 else ""
    return f"At most {rate.limit:,} in {duration(rate.per_s)}{burst}"


def retries_in_words(retry: Retry) -> str:
    if not retry.max_retries:
        return "None: the first failure is for good"
    count = "1 retry" if retry.max_retries == 1 else f"Up to {retry.max_retries:,} retries"
    match retry.backoff:
        case "exponential":
            return f"{count}, after {duration(retry.initial_s)} and then ever longer, up to {duration(retry.max_s)}"
        case "linear":
            return (
                f"{count}, after {duration(retry.initial_s)} and each time as much more, up to {duration(retry.max_s)}"
            )
        case "fixed":
            return f"{count}, {duration(retry.initial_s)} apart"
        case "listed":
            return f"{count}, after {', '.join(duration(delay) for delay in retry.delays_s)}"
