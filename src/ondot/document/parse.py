"""From a body to the model: short forms lengthened, fields checked, instants made of what is relative.

What a later release will bring is refused with those words and never ignored. All faults of a body are told
at once, up to twenty, with pointers into the body as it was written. `now` is the
database's: `in` and the anchor of `every` become instants here, and an `at` of long ago is refused, since
nobody means it.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw, structs
from pydantic import BaseModel, ValidationError

from ondot.document.attempt_parse import name_of, retry_of, target_of
from ondot.document.body import (
    BackfillBody,
    JobBody,
    Missed,
    PreviewBody,
    ResumeBody,
    RunBody,
    ScheduleBody,
)
from ondot.document.defaults import with_own_defaults
from ondot.document.errors import MAX_FAULTS, Written, came, faults_of, refuse, unknown_field
from ondot.document.fields import instant_or_none, not_yet
from ondot.document.json_text import escaped, read_json, snake_case
from ondot.document.limits_parse import (
    changed_at_creation,
    company_faults,
    debounce_of,
    limits_of,
    throttle_of,
    unique_of,
)
from ondot.document.merge_patch import base_of, merged
from ondot.document.render import schedule_out
from ondot.document.schedule_parse import Before, schedule_of
from ondot.document.shorthand import SCHEDULE_KINDS, SHORT, TARGET_KINDS, Path, lengthened
from ondot.model.errors import Fault, InvalidBody, InvalidSchedule, TooLarge
from ondot.model.ids import EPOCH
from ondot.model.job import NO_PAYLOAD, JobSpec
from ondot.model.schedule import Once, Schedule, for_job
from ondot.model.schedule.looks import Looks, allowed

MAX_BATCH: Final = 10_000
MAX_PAYLOAD_BYTES: Final = 1_048_576
MAX_JOB_BYTES: Final = 2 * MAX_PAYLOAD_BYTES
MAX_BATCH_LOOKS: Final = 1_000_000
"""What all schedules of a batch may cost together: about 4 s."""

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])
_WHEN: Final = frozenset({"type", *(name for name, path in SHORT.items() if path[0] == "schedule")})
_LEFT_OUT: Final = frozenset({"payload", "schedule"})
_LONGEST_REMEMBERED: Final = 2048
_FAR_S: Final = 10 * 366 * 86_400
_KINDS: Final = {"schedule": SCHEDULE_KINDS, "target": TARGET_KINDS}
_NOT_YET: Final = {
    ("schedule", "event"): "use `cron`, `every`, `at`, `in` or `rrule`",
    ("target", "grpc"): "use `http`",
    ("target", "publish"): "use `http`",
}
_A_JOB: Final = 'for example {"name": "hello", "url": "https://example.com"}'
_A_PATCH: Final = 'with the fields to change, for example {"timeout": "10m"}'
_A_BACKFILL: Final = 'for example {"from_at": "2026-11-01T00:00:00Z", "to_at": "2026-11-08T00:00:00Z"}'
_A_PREVIEW: Final = 'for example {"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}'

Form = TypeVar("Form", bound=BaseModel)


def job_spec(
    raw: object, now: datetime, *, pointer: str = "", current: JobSpec | None = None, may_be_over: bool = False
) -> JobSpec:
    """The job that a body asks for; with `current` the version that it replaces.

    A schedule without a fire from now on is refused unless it `may_be_over`, as that of code written long ago may.
    Raises InvalidBody or InvalidSchedule with every fault, or TooLarge.
    """
    before = None
    if current is not None and current.schedule is not None:
        before = Before(current.schedule, schedule_out(current.schedule), keeps_anchors=False)
    reading = _read(JobBody, raw, pointer, _A_JOB)
    return _job_spec(reading, now, before, pointer, current=current, may_be_over=may_be_over)


def new_job_spec(raw: object, now: datetime, *, pointer: str = "") -> JobSpec:
    """The same of a JSON body, for a new job, and quickly if jobs like it came before.

    Most jobs differ from others in nothing but the payload and the instant. What the rest of a body means is remembered
    by its text; anything else about when goes the long way, since it depends on `now`.
    """
    if isinstance(raw, dict) and _WHEN.isdisjoint(raw):
        written = raw.get("schedule")
        schedule = None if written is None else _plain_once(written, now)
        if (written is None) is (schedule is None):
            text = _ENCODER.encode({name: value for name, value in raw.items() if name not in _LEFT_OUT})
            known = _remembered(text) if len(text) <= _LONGEST_REMEMBERED else None
            if known is not None and (schedule is None or known.debounce is None):
                return structs.replace(known, payload=_payload(raw.get("payload"), pointer), schedule=schedule)
    return job_spec(raw, now, pointer=pointer)


@lru_cache(maxsize=4096)
def _remembered(text: bytes) -> JobSpec | None:
    """The job that this body asks for; None if it cannot be told without its pointer and the time."""
    try:
        spec = job_spec(_DECODER.decode(text), EPOCH)
    except InvalidBody:
        return None
    return spec if spec.schedule is None else None


def _plain_once(schedule: object, now: datetime) -> Schedule | None:
    """`{"in": 90}` and `{"at": "…Z"}`, not long ago nor in a far century; None if it is anything else."""
    if not isinstance(schedule, dict) or len(schedule) != 1:
        return None
    delay, at = schedule.get("in"), instant_or_none(schedule.get("at"))
    if (type(delay) is int or type(delay) is float) and 0 <= delay <= _FAR_S:
        at = now + timedelta(seconds=delay)
    if at is None or not now <= at <= now + timedelta(seconds=_FAR_S):
        return None
    return Schedule(when=Once(at=at))


def patched_spec(current: JobSpec, raw: object, now: datetime) -> JobSpec:
    """The job as a merge patch (RFC 7396) on its long form makes it; raises as `job_spec` does."""
    assert current.schedule is not None, "submit completes every schedule"
    base = base_of(current)
    schedule = base["schedule"]
    assert schedule is not None
    reading = _read(JobBody, raw, "", _A_PATCH, base=dict(base))
    if reading.long.get("schedule") is None:
        message = "A job keeps a schedule: give another, pause the job, or delete it; `/run` runs it now."
        reading.refuse(("schedule",), message)
    return _job_spec(reading, now, Before(current.schedule, schedule, keeps_anchors=True), "", current=current)


def _job_spec(
    reading: "_Reading[JobBody]",
    now: datetime,
    before: Before | None,
    pointer: str,
    *,
    current: JobSpec | None = None,
    may_be_over: bool = False,
) -> JobSpec:
    if reading.long.get("target") is None:
        reading.refuse(("target",), "Say what to call: give `url`, `function`, `command`, or `target`.")
    schedule = reading.schedule(now, before, may_be_over=may_be_over)
    body = reading.body
    if body is not None and (body.retry.backoff == "listed") != bool(body.retry.delays):
        message = 'For `"backoff": "listed"` give delays, for example ["1s", "1m"]; else leave them out.'
        reading.refuse(("retry", "delays"), message)
    if body is not None and body.pause_after_failures is not None and not _recurs(body.schedule):
        message = "is for jobs that recur, and this one runs once; leave it out, and see `retry` for its attempts."
        reading.refuse(("pause_after_failures",), f"`{reading.name(('pause_after_failures',))}` {message}")
    for path, message in company_faults(reading.long, reading.name, is_new=current is None):
        reading.refuse(path, message)
    if body is None or body.target is None or reading.faults:
        raise refuse(reading.faults, all_of_schedule=reading.all_of_schedule)
    target = target_of(body.target)
    spec = JobSpec(
        name=body.name or name_of(target),
        target=target,
        schedule=schedule,
        payload=_payload(body.payload, pointer),
        pool=body.pool,
        priority=body.priority,
        labels=body.labels,
        retry=retry_of(body.retry),
        timeout_s=body.timeout,
        key=body.key,
        pause_after_failures=body.pause_after_failures,
        limits=limits_of(body),
        start_deadline_s=body.start_deadline,
        cancel_grace_s=body.cancel_grace,
        unique=unique_of(body),
        debounce=debounce_of(body),
        throttle=throttle_of(body),
    )
    for path, message in changed_at_creation(spec, current) if current is not None else ():
        reading.refuse(path, message)
    if reading.faults:
        raise refuse(reading.faults, all_of_schedule=False)
    return with_own_defaults(spec)


def job_specs(raw: object, now: datetime, *, max_bytes: int = MAX_JOB_BYTES) -> list[JobSpec]:
    """The jobs of a batch, all or none. Those that are bytes yet are decoded one at a time, each up to `max_bytes`."""
    jobs = raw.get("jobs") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(jobs, list):
        raise _not_a("/jobs", f"`jobs` must be a list of jobs; {came(jobs)} came.")
    if unknown := list(islice((name for name in raw if name != "jobs"), MAX_FAULTS + 1)):
        faults = [Fault(f"/{escaped(name[:64])}", unknown_field((name,), ["jobs"])) for name in unknown]
        raise refuse(faults, all_of_schedule=False)
    if not 1 <= len(jobs) <= MAX_BATCH:
        raise _not_a("/jobs", f"`jobs` must hold 1 to {MAX_BATCH:,} jobs; {len(jobs):,} came: send several batches.")
    with allowed(MAX_BATCH_LOOKS) as looks:
        return _job_specs(jobs, now, max_bytes, looks)


def _job_specs(jobs: list[object], now: datetime, max_bytes: int, looks: Looks) -> list[JobSpec]:
    specs: list[JobSpec] = []
    refusals: list[InvalidBody] = []
    told = 0
    for i, job in enumerate(jobs):
        pointer = f"/jobs/{i}"
        if looks.is_spent:
            message = "The schedules before this one take too long to look through; send it in another batch."
            raise InvalidSchedule(message, faults=(Fault(f"{pointer}/schedule", message),))
        try:
            body = read_json(job, max_bytes=max_bytes, pointer=pointer) if isinstance(job, Raw) else job
            specs.append(new_job_spec(body, now, pointer=pointer))
        except InvalidBody as refusal:
            refusals.append(refusal)
            told += len(refusal.faults)
            if told >= MAX_FAULTS:
                break
    if refusals:
        all_of_schedule = all(isinstance(refusal, InvalidSchedule) for refusal in refusals)
        raise refuse([fault for refusal in refusals for fault in refusal.faults], all_of_schedule=all_of_schedule)
    return specs


def preview_request(raw: object, now: datetime, *, after: datetime | None = None) -> tuple[Schedule, datetime, int]:
    """The schedule to look at, the instant to look from, and how many fires to tell.

    An `after`, in the body or beside it, takes the place of `now` in all that is relative, and from there on a schedule
    may be over; without one it is judged as that of a job would be.
    """
    reading = _read(PreviewBody, raw, "", _A_PREVIEW)
    after = after or (instant_or_none(reading.long.get("after")) if reading.body is None else reading.body.after)
    schedule = reading.schedule(after or now, may_be_over=after is not None)
    if reading.body is None or schedule is None or reading.faults:
        raise refuse(reading.faults, all_of_schedule=reading.all_of_schedule)
    job_id = reading.body.job_id
    return schedule if job_id is None else for_job(schedule, job_id), after or now, reading.body.n


def run_payload(raw: object) -> Raw | None:
    """The payload for one execution now; None means the job's own, as does a request without a body."""
    if raw is None:
        return None
    reading = _read(RunBody, raw, "", 'for example {"payload": {"region": "us"}}')
    if reading.body is None or reading.faults:
        raise refuse(reading.faults, all_of_schedule=False)
    return _payload(reading.body.payload, "") if "payload" in reading.body.model_fields_set else None


def resume_missed(raw: object) -> Missed:
    """What a resumed job does about the fires of its pause; nothing, if the request has no body."""
    if raw is None:
        return "skip"
    reading = _read(ResumeBody, raw, "", 'for example {"missed": "once"}')
    if reading.body is None or reading.faults:
        raise refuse(reading.faults, all_of_schedule=False)
    return reading.body.missed


def backfill_request(raw: object) -> BackfillBody:
    reading = _read(BackfillBody, raw, "", _A_BACKFILL)
    if reading.body is None or reading.faults:
        raise refuse(reading.faults, all_of_schedule=False)
    return reading.body


@dataclass(slots=True)
class _Reading(Generic[Form]):
    """One body on its way: `body` is None if its fields have faults."""

    written: Written
    long: dict[str, object]
    body: Form | None = None
    faults: list[Fault] = field(default_factory=list)
    all_of_schedule: bool = True

    def refuse(self, path: Path, message: str) -> None:
        """A fault at a path of the long form."""
        self.add(path, self.written.fault(self.written.path(path), message))

    def add(self, path: Path, fault: Fault) -> None:
        self.faults.append(fault)
        self.all_of_schedule = self.all_of_schedule and path[:1] == ("schedule",)

    def name(self, path: Path) -> str:
        return ".".join(self.written.path(path))

    def check_kinds(self) -> None:
        """Exactly one kind of schedule and of target, and one that is there already."""
        for place, kinds in _KINDS.items():
            content = self.long.get(place)
            if not isinstance(content, dict):
                continue
            given = [kind for kind in kinds if content.get(kind) is not None]
            if len(given) != 1:
                names = ", ".join(kind for kind in kinds if (place, kind) not in _NOT_YET)
                came_in = " and ".join(f"`{self.name((place, kind))}`" for kind in given) or "none"
                path = (place, given[1]) if given else (place,)
                self.refuse(path, f"`{place}` takes exactly one of {names}; {came_in} came.")
            for kind in given:
                if advice := _NOT_YET.get((place, kind)):
                    self.refuse((place, kind), not_yet(f"`{self.name((place, kind))}`", advice))

    def schedule(self, now: datetime, before: Before | None = None, *, may_be_over: bool = False) -> Schedule | None:
        """In the model's form. It is looked at even if other fields have faults, to tell all at once."""
        if before is not None and self.long.get("schedule") == before.written:
            return before.schedule
        body = getattr(self.body, "schedule", None)
        if self.body is None and isinstance(self.long.get("schedule"), dict):
            try:
                body = ScheduleBody.model_validate(self.long["schedule"])
            except ValidationError:
                return None
        if not isinstance(body, ScheduleBody) or sum(kind is not None for kind in _kinds(body)) != 1:
            return None
        faults, schedule = schedule_of(body, now, before, may_be_over=may_be_over)
        for path, message in faults:
            # An `in` has become an instant, and what is wrong with that is the fault of `in`.
            place = ("schedule", "in") if path == ("at",) and body.in_ is not None else ("schedule", *path)
            self.refuse(place, f"`{self.name(place)}`: {message}")
        return schedule


def _read(
    form: type[Form], raw: object, pointer: str, example: str, *, base: dict[str, object] | None = None
) -> _Reading[Form]:
    """A body in its long form, checked; with a base the body is a patch, and what is checked is the base with it."""
    if not isinstance(raw, dict):
        raise _not_a(pointer, f"The body must be a JSON object, {example}; {came(raw)} came.")
    fields = snake_case(raw, pointer)
    assert isinstance(fields, dict)
    long = lengthened(fields, is_patch=base is not None)
    body = long.body if base is None else merged(base, long.body, form)
    reading = _Reading[Form](Written(raw, pointer, long.origins), body)
    for path, message in long.faults:
        reading.add((), reading.written.fault(reading.written.spelled(path), message))
    reading.check_kinds()
    try:
        reading.body = form.model_validate(body)
    except ValidationError as error:
        for path, fault in faults_of(error, form, reading.written):
            reading.add(path, fault)
    return reading


def _not_a(pointer: str, message: str) -> InvalidBody:
    return InvalidBody(message, faults=(Fault(pointer, message),))


def _payload(payload: object, pointer: str) -> Raw:
    if payload is None:
        return NO_PAYLOAD
    encoded = _ENCODER.encode(payload)
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise TooLarge(
            f"The payload has {len(encoded):,} bytes, and at most {MAX_PAYLOAD_BYTES:,} are taken; "
            "store it elsewhere and send its address.",
            pointer=f"{pointer}/payload",
            bytes=len(encoded),
            max_bytes=MAX_PAYLOAD_BYTES,
        )
    return Raw(encoded)


def _kinds(body: ScheduleBody) -> tuple[object, ...]:
    """What can be translated; `check_kinds` has refused the others."""
    return body.cron, body.every, body.at, body.in_, body.rrule


def _recurs(body: ScheduleBody | None) -> bool:
    return body is not None and body.at is None and body.in_ is None
