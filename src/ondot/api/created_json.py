"""The answer to a create, as text: what `answers.job_out` tells of the same job, made for thousands a second.

A batch of a thousand is a megabyte of answers, and through pydantic they took longer than storing the jobs. Here each
is one struct with the fields of `JobOut` in their order; what many jobs share (how they retry, when they are due) is
rendered once, and a payload goes out as the text it is stored as. A test holds both together. To tell ten thousand
different crons takes seconds, so as many schedules are remembered as a batch may hold: if it has to be told a second
time, with its transaction open, that takes a fraction of one.
"""

from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from ondot.document.parse import MAX_BATCH
from ondot.document.render import (
    RateOut,
    TargetOut,
    debounce_out,
    rate_out,
    retry_out,
    schedule_out,
    target_out,
    throttle_out,
    unique_out,
)
from ondot.flow.new_jobs import Accepted
from ondot.model.duration import as_written
from ondot.model.gates import Limits, Overlap
from ondot.model.job import JobState, Priority
from ondot.model.retry import Retry
from ondot.model.schedule import Schedule, in_words

_ENCODER: Final = msgspec.json.Encoder()
_NO_LIMITS: Final = Limits()


class JobText(Struct):
    """The fields of `answers.JobOut`, in their order."""

    id: UUID
    name: str
    state: JobState
    state_reason: str | None
    key: str | None
    version: int
    next_fire_at: datetime | None
    schedule_in_words: str
    schedule: Raw
    target: TargetOut
    payload: Raw
    pool: str
    priority: Priority
    labels: dict[str, str]
    retry: Raw
    timeout: float | None
    overlap: Overlap
    concurrency: int | None
    rate: RateOut | None
    concurrency_key: str | None
    key_concurrency: int | None
    key_rate: RateOut | None
    order_key: str | None
    start_deadline: float | None
    cancel_grace: float
    unique: Any
    debounce: Any
    throttle: Any
    depends_on: tuple[str, ...]
    pause_after_failures: int | None
    created_at: datetime
    updated_at: datetime


class _Batch(Struct):
    items: list[JobText]


def one_text(accepted: list[Accepted]) -> str:
    return _ENCODER.encode(_job_text(accepted[0])).decode()


def batch_text(accepted: list[Accepted]) -> str:
    return _ENCODER.encode(_Batch([_job_text(job) for job in accepted])).decode()


def _job_text(job: Accepted) -> JobText:
    spec = job.spec
    assert spec.schedule is not None, "submit completes every schedule"
    words, schedule = _schedule_text(spec.schedule)
    limits = spec.limits or _NO_LIMITS
    return JobText(
        job.id,
        spec.name,
        job.state,
        job.state_reason,
        spec.key,
        job.version,
        job.next_fire_at,
        words,
        schedule,
        target_out(spec.target),
        spec.payload,
        spec.pool,
        spec.priority,
        spec.labels,
        _retry_text(spec.retry),
        None if spec.timeout_s is None else as_written(spec.timeout_s),
        limits.overlap,
        limits.concurrency,
        None if limits.rate is None else rate_out(limits.rate),
        limits.key,
        limits.key_concurrency,
        None if limits.key_rate is None else rate_out(limits.key_rate),
        limits.order_key,
        None if spec.start_deadline_s is None else as_written(spec.start_deadline_s),
        as_written(spec.cancel_grace_s),
        None if spec.unique is None else unique_out(spec.unique),
        None if spec.debounce is None else debounce_out(spec.debounce),
        None if spec.throttle is None else throttle_out(spec.throttle),
        (),
        spec.pause_after_failures,
        job.created_at,
        job.created_at,
    )


def _schedule_text(schedule: Schedule) -> tuple[str, Raw]:
    """Lists and calendars may have 300 kB each: those are rendered again."""
    is_large = schedule.include or schedule.exclude or schedule.calendar is not None
    return _rendered(schedule) if is_large else _remembered(schedule)


@lru_cache(maxsize=MAX_BATCH)
def _remembered(schedule: Schedule) -> tuple[str, Raw]:
    return _rendered(schedule)


def _rendered(schedule: Schedule) -> tuple[str, Raw]:
    return in_words(schedule), Raw(_ENCODER.encode(schedule_out(schedule)))


@lru_cache(maxsize=1024)
def _retry_text(retry: Retry) -> Raw:
    return Raw(_ENCODER.encode(retry_out(retry)))
