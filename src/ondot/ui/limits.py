"""The limits of a job in words, for its page (E12, E13, E16). Pure: a spec in, pairs of title and sentence out."""

from collections.abc import Iterator
from typing import Final

from ondot.model.expect import in_words, zone_of
from ondot.model.gates import Limits, Rate
from ondot.model.job import JobSpec
from ondot.model.retry import Retry
from ondot.model.schedule.words import duration
from ondot.model.target import GrpcTarget, PublishTarget

OVERLAP: Final = {
    "skip": "A fire is skipped while an earlier execution has not ended",
    "queue": "A fire waits until the earlier execution has ended",
    "cancel": "A fire cancels the execution that is still running, and runs instead",
}

Line = tuple[str, str]


def limits_in_words(spec: JobSpec) -> tuple[Line, ...]:
    """Only the limits that are set; timeout and retries always, because every job has them."""
    return (*_gates(spec.limits or Limits()), *_keys(spec), *_expectations(spec), *_times(spec))


def _gates(limits: Limits) -> Iterator[Line]:
    if limits.overlap in OVERLAP:
        yield "Overlap", OVERLAP[limits.overlap]
    if limits.order_key is not None:
        yield "Order", f"One at a time, in the order of their fires, among executions with the key {limits.order_key}"
    if limits.concurrency is not None:
        yield "Concurrency", f"At most {limits.concurrency:,} at a time"
    if limits.rate is not None:
        yield "Rate", rate_in_words(limits.rate)
    if limits.key_concurrency is not None:
        yield "Concurrency by key", f"At most {limits.key_concurrency:,} at a time with the key {limits.key}"
    if limits.key_rate is not None:
        yield "Rate by key", f"{rate_in_words(limits.key_rate)}, with the key {limits.key}"


def _keys(spec: JobSpec) -> Iterator[Line]:
    if spec.unique is not None:
        within = f", or within {duration(spec.unique.within_s)} after one was created" if spec.unique.within_s else ""
        yield "Unique", f"No second job with the key {spec.unique.key} while one is live{within}"
    if spec.debounce is not None:
        longest_s = spec.debounce.max_wait_s
        at_most = f", but at most {duration(longest_s)} after the first" if longest_s else ""
        wait = duration(spec.debounce.wait_s)
        yield "Debounce", f"Only the last job with the key {spec.debounce.key} runs, {wait} after it arrived{at_most}"
    if spec.throttle is not None:
        per = duration(spec.throttle.per_s)
        yield (
            "Throttle",
            f"At most {spec.throttle.limit:,} in {per} with the key {spec.throttle.key}; others are skipped",
        )


def _expectations(spec: JobSpec) -> Iterator[Line]:
    if spec.expect is not None:
        zone = zone_of(spec.schedule)
        words = "; ".join(in_words(which, spec.expect, zone) for which in spec.expect.given)
        yield "Expected", f"It {words}"


def _times(spec: JobSpec) -> Iterator[Line]:
    if spec.start_deadline_s is not None:
        yield "Start deadline", f"Skipped if it has not started {duration(spec.start_deadline_s)} after it was due"
    yield "Timeout", timeout_in_words(spec)
    yield "Retries", retries_in_words(spec.retry)


def timeout_in_words(spec: JobSpec) -> str:
    if spec.attempt_timeout_s is None:
        return "None: an attempt may take any time"
    calls = {GrpcTarget: "gRPC calls", PublishTarget: "messages to brokers"}.get(type(spec.target), "HTTP calls")
    default = f", the default for {calls}" if spec.timeout_s is None else ""
    return f"At most {duration(spec.attempt_timeout_s)} for each attempt{default}"


def rate_in_words(rate: Rate) -> str:
    burst = f", in bursts of up to {rate.burst:,}" if rate.burst > 1 else ""
    return f"At most {rate.limit:,} in {duration(rate.per_s)}{burst}"


def retries_in_words(retry: Retry) -> str:
    if not retry.max_retries:
        return "None: the first failure is final"
    count = "1 retry" if retry.max_retries == 1 else f"Up to {retry.max_retries:,} retries"
    first, longest = duration(retry.initial_s), duration(retry.max_s)
    match retry.backoff:
        case "exponential":
            return f"{count}, after {first}, then with growing delays, up to {longest}"
        case "linear":
            return f"{count}, after {first}, then each time {first} later, up to {longest}"
        case "fixed":
            return f"{count}, {first} after {'the' if retry.max_retries == 1 else 'each'} failure"
        case "listed":
            return f"{count}, after {', '.join(duration(delay) for delay in retry.delays_s)}"
