"""What a user registers: one frozen spec for each version of a job.

It is stored as JSON beside its job and never changed again; an execution names the version it runs, so all its
attempts run the same spec whatever was edited since. Defaults stand here and nowhere else.
"""

from datetime import datetime
from enum import StrEnum
from itertools import zip_longest
from typing import Final, Literal, assert_never

import msgspec
from msgspec import Raw, Struct, structs

from ondot.model.execution import PriorityClass
from ondot.model.gates import Limits
from ondot.model.ids import JobId
from ondot.model.retry import Retry
from ondot.model.schedule import Interval, Once, Rrule, Schedule, When, for_job


class JobState(StrEnum):
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    ENDED = "ENDED"
    DELETED = "DELETED"


Priority = Literal["high", "normal", "low"]

CLASS_OF: dict[Priority, PriorityClass] = {
    "high": PriorityClass.HIGH,
    "normal": PriorityClass.NORMAL,
    "low": PriorityClass.LOW,
}

NO_PAYLOAD = Raw(b"null")


class HttpTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="http"):
    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    connect_timeout_s: float | None = None
    first_byte_timeout_s: float | None = None


class FunctionTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="function"):
    name: str


class ShellTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="shell"):
    command: tuple[str, ...]


class Unique(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """No second job with this key while one lives, nor for `within_s` after one was made."""

    key: str
    within_s: float | None = None


class Debounce(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of jobs with this key that come close together the last runs, `wait_s` after it came."""

    key: str
    wait_s: float
    max_wait_s: float | None = None


class Throttle(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most `limit` jobs with this key in `per_s` seconds; those above it are skipped."""

    key: str
    per_s: float
    limit: int = 1


TargetSpec = HttpTarget | FunctionTarget | ShellTarget

CANCEL_GRACE_S: Final = 10.0
"""The time that a cancelled attempt has to stop by itself, unless the job has a `cancel_grace`."""
HTTP_TIMEOUT_S: Final = 300.0
"""Of one HTTP call, unless the job has a `timeout`. Functions and programs have none: their worker's heartbeat watches
them, and a nightly job that takes an hour is no fault. A receiver that never answers has no heartbeat."""


class JobSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`schedule` is None only before submit: a job without one runs once, at the instant it was accepted.

    `timeout_s` is None for the default of its target. Specs of before this default left out 300 s, the default of then,
    written or not: they have the default of now.
    """

    name: str
    target: TargetSpec
    schedule: Schedule | None = None
    payload: Raw = NO_PAYLOAD
    pool: str = "default"
    priority: Priority = "normal"
    labels: dict[str, str] = {}
    retry: Retry = Retry()
    timeout_s: float | None = None
    key: str | None = None
    pause_after_failures: int | None = None
    limits: Limits | None = None
    start_deadline_s: float | None = None
    cancel_grace_s: float = CANCEL_GRACE_S
    unique: Unique | None = None
    debounce: Debounce | None = None
    throttle: Throttle | None = None

    @property
    def recurs(self) -> bool:
        return self.schedule is not None and not isinstance(self.schedule.when, Once)

    @property
    def attempt_timeout_s(self) -> float | None:
        """How long one attempt may take; None: as long as it likes."""
        if self.timeout_s is not None:
            return self.timeout_s
        match self.target:
            case HttpTarget():
                return HTTP_TIMEOUT_S
            case FunctionTarget() | ShellTarget():
                return None
            case _:
                assert_never(self.target)

    @property
    def priority_class(self) -> PriorityClass:
        return CLASS_OF[self.priority]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(JobSpec)


def encode_spec(spec: JobSpec) -> str:
    return _ENCODER.encode(spec).decode()


def decode_spec(text: str | bytes) -> JobSpec:
    return _DECODER.decode(text)


def completed(spec: JobSpec, job_id: JobId, now: datetime) -> JobSpec:
    """The spec as it is stored: without a schedule once, at the instant it was accepted; `H` has its job's values."""
    schedule = Schedule(when=Once(at=now)) if spec.schedule is None else for_job(spec.schedule, job_id)
    return spec if schedule is spec.schedule else structs.replace(spec, schedule=schedule)


def same_spec(wanted: JobSpec, stored: JobSpec) -> bool:
    """Whether a spec asks for what is stored; where a rule is anchored does not count, if nobody said where."""
    # Through JSON and back, as the stored one went: 60 and 60.0 are the same seconds.
    wanted = decode_spec(encode_spec(anchored_as(wanted, stored)))
    return msgspec.json.encode(wanted) == msgspec.json.encode(stored)


def anchored_as(wanted: JobSpec, stored: JobSpec) -> JobSpec:
    """With the anchors of the stored rules that nobody chose: an upsert of another payload does not move the fires."""
    new, old = wanted.schedule, stored.schedule
    if new is None or old is None or new.start_at != old.start_at:
        return wanted
    schedule = structs.replace(
        new,
        when=_rule_anchored_as(new.when, old.when),
        include=tuple(_rule_anchored_as(*pair) for pair in zip_longest(new.include, old.include) if pair[0]),
        exclude=tuple(_rule_anchored_as(*pair) for pair in zip_longest(new.exclude, old.exclude) if pair[0]),
    )
    return structs.replace(wanted, schedule=schedule)


def _rule_anchored_as(wanted: When, stored: When | None) -> When:
    match wanted, stored:
        case Interval(), Interval(is_anchored=False) if wanted.every_s == stored.every_s and (
            not wanted.is_anchored or wanted.anchor_at == stored.anchor_at
        ):
            return stored
        case Rrule(), Rrule(is_anchored=False) if structs.replace(
            wanted, begins=stored.begins, is_anchored=False
        ) == stored and (not wanted.is_anchored or wanted.begins == stored.begins):
            return stored
        case _:
            return wanted
