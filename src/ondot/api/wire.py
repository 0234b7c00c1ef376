"""From a body to the model: short forms lengthened, fields checked, instants made of what is relative.

What a later release will bring is refused with those words and never ignored. All faults of a body are told
at once, and all of a batch up to a hundred, with pointers into the body as it was written. `now` is the
database's: `in` and the anchor of `every` become instants here, and an `at` of long ago is refused, since
nobody means it.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar, assert_never
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw
from pydantic import BaseModel, ValidationError

from ondot.api.bodies import escaped, snake_case
from ondot.api.faults import MAX_FAULTS, Written, came, faults_of, refuse, unknown_field
from ondot.api.fields import not_yet
from ondot.api.job_body import (
    CalendarBody,
    JobBody,
    PreviewBody,
    RetryBody,
    RunBody,
    ScheduleBody,
    TargetBody,
)
from ondot.api.shorthand import SCHEDULE_KINDS, TARGET_KINDS, Path, lengthened
from ondot.model.errors import Fault, InvalidBody, InvalidSchedule, TooLarge
from ondot.model.job import NO_PAYLOAD, FunctionTarget, HttpTarget, JobSpec, ShellTarget, TargetSpec
from ondot.model.misfire import Misfire
from ondot.model.retry import Retry
from ondot.model.schedule import Blackout, Calendar, Cron, Dst, Interval, Once, Schedule, When, check, next_fire
from ondot.model.schedule.dst import next_instant, zone_info

MAX_BATCH: Final = 10_000
MAX_NAME: Final = 200
MAX_PAYLOAD_BYTES: Final = 1_048_576
LONG_AGO: Final = timedelta(seconds=60)
"""An `at` older than this is refused; a younger one is a clock that goes a little slow, and fires at once."""

_ENCODER: Final = msgspec.json.Encoder()
_KINDS: Final = {"schedule": SCHEDULE_KINDS, "target": TARGET_KINDS}
_NOT_YET: Final = {
    ("schedule", "rrule"): "use `cron`",
    ("schedule", "event"): "use `cron`, `every`, `at` or `in`",
    ("target", "grpc"): "use `http`",
    ("target", "publish"): "use `http`",
}
_A_JOB: Final = 'for example {"name": "hello", "url": "https://example.com"}'
_A_PREVIEW: Final = 'for example {"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}'

# The model's own default objects: msgspec leaves a default out of what is stored only if it is the very same.
_DEFAULT_RETRY: Final = JobSpec(name="", target=FunctionTarget(name="")).retry
_DEFAULT_DST: Final = Cron(expression="").dst
_DEFAULT_MISFIRE: Final = Schedule(when=Cron(expression="")).misfire

Form = TypeVar("Form", bound=BaseModel)


def job_spec(raw: object, now: datetime, *, pointer: str = "") -> JobSpec:
    """The job that a body asks for. Raises InvalidBody or InvalidSchedule with every fault, or TooLarge."""
    reading = _read(JobBody, raw, pointer, _A_JOB)
    if reading.long.get("target") is None:
        reading.refuse(("target",), "Say what to call: give `url`, `function`, `command`, or `target`.")
    schedule = reading.schedule(now)
    body = reading.body
    if body is not None and (body.retry.backoff == "listed") != bool(body.retry.delays):
        message = 'For `"backoff": "listed"` give delays, for example ["1s", "1m"]; else leave them out.'
        reading.refuse(("retry", "delays"), message)
    if body is None or body.target is None or reading.faults:
        raise refuse(reading.faults, all_of_schedule=reading.all_of_schedule)
    target = _target(body.target)
    return JobSpec(
        name=body.name or _name_of(target),
        target=target,
        schedule=schedule,
        payload=_payload(body.payload, pointer),
        pool=body.pool,
        priority=body.priority,
        labels=body.labels,
        retry=_retry(body.retry) if "retry" in body.model_fields_set else _DEFAULT_RETRY,
        timeout_s=body.timeout,
        key=body.key,
    )


def job_specs(raw: object, now: datetime) -> list[JobSpec]:
    """The jobs of a batch, all or none."""
    jobs = raw.get("jobs") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(jobs, list):
        raise _not_a("/jobs", f"`jobs` must be a list of jobs; {came(jobs)} came.")
    if unknown := [name for name in raw if name != "jobs"]:
        faults = [Fault(f"/{escaped(name)}", unknown_field((name,), ["jobs"])) for name in unknown]
        raise refuse(faults, all_of_schedule=False)
    if not 1 <= len(jobs) <= MAX_BATCH:
        raise _not_a("/jobs", f"`jobs` must hold 1 to {MAX_BATCH:,} jobs; {len(jobs):,} came: send several batches.")
    specs: list[JobSpec] = []
    refusals: list[InvalidBody] = []
    told = 0
    for i, job in enumerate(jobs):
        try:
            specs.append(job_spec(job, now, pointer=f"/jobs/{i}"))
        except InvalidBody as refusal:
            refusals.append(refusal)
            told += len(refusal.faults)
            if told >= MAX_FAULTS:
                break
    if refusals:
        all_of_schedule = all(isinstance(refusal, InvalidSchedule) for refusal in refusals)
        raise refuse([fault for refusal in refusals for fault in refusal.faults], all_of_schedule=all_of_schedule)
    return specs


def preview_request(raw: object, now: datetime) -> tuple[Schedule, datetime, int]:
    """The schedule to look at, the instant to look from, and how many fires to tell."""
    reading = _read(PreviewBody, raw, "", _A_PREVIEW)
    schedule = reading.schedule(now)
    if reading.body is None or schedule is None or reading.faults:
        raise refuse(reading.faults, all_of_schedule=reading.all_of_schedule)
    return schedule, reading.body.after or now, reading.body.n


def run_payload(raw: object) -> Raw | None:
    """The payload for one execution now; None means the job's own, as does a request without a body."""
    if raw is None:
        return None
    reading = _read(RunBody, raw, "", 'for example {"payload": {"region": "us"}}')
    if reading.body is None or reading.faults:
        raise refuse(reading.faults, all_of_schedule=False)
    return _payload(reading.body.payload, "") if "payload" in reading.body.model_fields_set else None


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

    def schedule(self, now: datetime) -> Schedule | None:
        """In the model's form. It is looked at even if other fields have faults, to tell all at once."""
        body = getattr(self.body, "schedule", None)
        if self.body is None and isinstance(self.long.get("schedule"), dict):
            try:
                body = ScheduleBody.model_validate(self.long["schedule"])
            except ValidationError:
                return None
        if not isinstance(body, ScheduleBody) or sum(kind is not None for kind in _kinds(body)) != 1:
            return None
        faults, schedule = _schedule(body, now)
        for path, message in faults:
            # An `in` has become an instant, and what is wrong with that is the fault of `in`.
            place = ("schedule", "in") if path == ("at",) and body.in_ is not None else ("schedule", *path)
            self.refuse(place, f"`{self.name(place)}`: {message}")
        return schedule


def _read(form: type[Form], raw: object, pointer: str, example: str) -> _Reading[Form]:
    if not isinstance(raw, dict):
        raise _not_a(pointer, f"The body must be a JSON object, {example}; {came(raw)} came.")
    fields = snake_case(raw, pointer)
    assert isinstance(fields, dict)
    long = lengthened(fields)
    reading = _Reading[Form](Written(raw, pointer, long.origins), long.body)
    for path, message in long.faults:
        reading.add((), reading.written.fault(reading.written.spelled(path), message))
    reading.check_kinds()
    try:
        reading.body = form.model_validate(long.body)
    except ValidationError as error:
        for path, fault in faults_of(error, form, reading.written):
            reading.add(path, fault)
    return reading


def _not_a(pointer: str, message: str) -> InvalidBody:
    return InvalidBody(message, faults=(Fault(pointer, message),))


def _target(body: TargetBody) -> TargetSpec:
    if body.http is not None:
        return HttpTarget(url=body.http.url, method=body.http.method, headers=body.http.headers)
    if body.function is not None:
        return FunctionTarget(name=body.function)
    assert body.shell is not None, "check_kinds has seen to it that there is one"
    return ShellTarget(command=tuple(body.shell.command))


def _name_of(target: TargetSpec) -> str:
    """The name of a job whose creator gave none: what it calls, without what may be secret in an address."""
    match target:
        case FunctionTarget():
            return target.name
        case HttpTarget():
            parts = urlsplit(target.url)
            return f"{parts.hostname}{parts.path}"[:MAX_NAME]
        case ShellTarget():
            return target.command[0][:MAX_NAME]
        case _:
            assert_never(target)


def _retry(body: RetryBody) -> Retry:
    return Retry(
        max_retries=body.max_retries,
        backoff=body.backoff,
        initial_s=body.initial,
        factor=body.factor,
        max_s=body.max,
        jitter=body.jitter,
        delays_s=tuple(body.delays),
        max_worker_losses=body.max_worker_losses,
    )


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
    """What `_when` can translate; `check_kinds` has refused the others."""
    return body.cron, body.every, body.at, body.in_


def _schedule(body: ScheduleBody, now: datetime) -> tuple[list[tuple[Path, str]], Schedule | None]:
    """The schedule, or what is wrong with it: paths relative to it."""
    faults = _faults_of_company(body)
    when, when_faults = _when(body, now)
    faults.extend(when_faults)
    if when is None:
        return faults, None
    schedule = Schedule(
        when=when,
        jitter_s=body.jitter,
        start_at=body.start_at,
        end_at=body.end_at,
        max_fires=body.max_fires,
        misfire=_misfire(body) if "misfire" in body.model_fields_set else _DEFAULT_MISFIRE,
        calendar=_calendar(body.calendar) if body.calendar is not None else None,
    )
    try:
        check(schedule, now)
    except InvalidSchedule as refusal:
        faults.extend((tuple(fault.pointer.strip("/").split("/")), fault.message) for fault in refusal.faults)
    if not faults and schedule.end_at is not None and not isinstance(when, Once) and next_fire(schedule, now) is None:
        faults.append((("end_at",), "It has no fire from now on; give a later end_at."))
    return faults, None if faults else schedule


def _faults_of_company(body: ScheduleBody) -> list[tuple[Path, str]]:
    """Fields beside a kind that has no use for them: taken in silence, they would promise something."""
    faults: list[tuple[Path, str]] = []
    if "dst" in body.model_fields_set and body.cron is None and body.at is None:
        faults.append((("dst",), "It is for `cron`: intervals and delays measure real time; leave it out."))
    if body.anchor_at is not None and body.every is None:
        faults.append((("anchor_at",), "It is for `every`; leave it out."))
    return faults


def _when(body: ScheduleBody, now: datetime) -> tuple[When | None, list[tuple[Path, str]]]:
    dst = Dst(gap=body.dst.gap, fold=body.dst.fold) if "dst" in body.model_fields_set else _DEFAULT_DST
    zone = body.timezone or "UTC"
    if body.cron is not None:
        return Cron(expression=body.cron, timezone=zone, dst=dst), []
    try:
        zone_info(zone)
    except InvalidSchedule as refusal:
        return None, [(("timezone",), fault.message) for fault in refusal.faults]
    if body.every is not None:
        return Interval(every_s=body.every, anchor_at=body.anchor_at or body.start_at or now), []
    if body.in_ is not None:
        return Once(at=now + timedelta(seconds=body.in_)), []
    assert body.at is not None, "the caller has seen to it that there is one"
    return _once(body.at, body.timezone, dst, now)


def _once(at: datetime, zone: str | None, dst: Dst, now: datetime) -> tuple[When | None, list[tuple[Path, str]]]:
    if at.tzinfo is None:
        if zone is None:
            message = f'It needs its offset from UTC ("{at.isoformat()}Z"), or a `timezone` whose local time it is.'
            return None, [(("at",), message)]
        # From a few days before, so that every change of the zone's clock near it is seen.
        instant = next_instant(lambda after: at if at > after else None, zone, dst, at - timedelta(days=3))
        if instant is None:
            return None, [(("at",), f"The clock of {zone} never shows this time; take another, or dst.gap shift.")]
        at = instant.replace(tzinfo=UTC)
    if at < now - LONG_AGO:
        past = timedelta(seconds=round((now - at).total_seconds()))
        return None, [(("at",), f"It lies {past} in the past; give an instant to come, or leave it out to run now.")]
    return Once(at=at), []


def _misfire(body: ScheduleBody) -> Misfire:
    misfire = body.misfire
    return Misfire(policy=misfire.policy, grace_s=misfire.grace, window_s=misfire.window, limit=misfire.limit)


def _calendar(body: CalendarBody) -> Calendar | None:
    """A calendar that leaves out nothing is none: planning need not ask it at every fire."""
    calendar = Calendar(
        exclude_holidays=body.exclude_holidays,
        exclude_dates=tuple(body.exclude_dates),
        business_days=body.business_days,
        blackouts=tuple(Blackout(from_at=blackout.from_at, to_at=blackout.to_at) for blackout in body.blackouts),
    )
    return None if calendar == Calendar() else calendar
