"""A spec in the contract's long form: what an answer shows, and what a patch is laid upon.

Durations in seconds, instants in RFC 3339 with `Z`, every field written out, whatever it came in as: a spec that
was read can be sent again and means the same. So where an interval or a rule without DTSTART counts from goes
out as `anchor_at`, also if nobody chose it, and a rule of `include` or `exclude` names its own zone.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, assert_never

import msgspec
from typing_extensions import TypedDict

from ondot.model.duration import as_written
from ondot.model.gates import Limits, Overlap, Rate
from ondot.model.job import (
    Debounce,
    FunctionTarget,
    HttpTarget,
    JobSpec,
    Priority,
    ShellTarget,
    TargetSpec,
    Throttle,
    Unique,
)
from ondot.model.retry import Backoff, Retry
from ondot.model.schedule import Calendar, Cron, Dst, Interval, Once, Schedule, When
from ondot.model.schedule.dst import zone_info
from ondot.model.schedule.rrule import Rrule, begins_of

Seconds = int | float


class DstOut(TypedDict):
    gap: str
    fold: str


class MisfireOut(TypedDict):
    policy: str
    grace: Seconds
    window: Seconds
    limit: int


class BlackoutOut(TypedDict):
    from_at: str
    to_at: str


class CalendarOut(TypedDict):
    exclude_holidays: str | None
    exclude_dates: list[str]
    business_days: bool | Literal["next", "previous"]
    blackouts: list[BlackoutOut]


class RuleOut(TypedDict, total=False):
    """One of `cron`, `every`, `at`, `rrule`, and what goes with it."""

    cron: str
    every: Seconds
    at: str
    rrule: str
    timezone: str
    dst: DstOut
    anchor_at: str


class ScheduleOut(RuleOut, total=False):
    """When a job fires."""

    include: list[RuleOut]
    exclude: list[RuleOut]
    jitter: Seconds
    start_at: str | None
    end_at: str | None
    max_fires: int | None
    misfire: MisfireOut
    calendar: CalendarOut | None


class HttpOut(TypedDict):
    url: str
    method: str
    headers: dict[str, str]
    connect_timeout: Seconds | None
    first_byte_timeout: Seconds | None


class ShellOut(TypedDict):
    command: list[str]


class TargetOut(TypedDict, total=False):
    """One of `http`, `function`, `shell`."""

    http: HttpOut
    function: str
    shell: ShellOut


class RetryOut(TypedDict):
    max_retries: int
    backoff: Backoff
    initial: Seconds
    factor: Seconds
    max: Seconds
    jitter: bool
    delays: list[Seconds]
    max_worker_losses: int
    retry_on: list[str]
    never_on: list[str]


class RateOut(TypedDict):
    limit: int
    per: Seconds
    burst: int


class UniqueOut(TypedDict):
    key: str
    within: Seconds | None


class DebounceOut(TypedDict):
    key: str
    wait: Seconds
    max_wait: Seconds | None


class ThrottleOut(TypedDict):
    key: str
    per: Seconds
    limit: int


class LimitsOut(TypedDict):
    """What stands flat in the long form."""

    overlap: Overlap
    concurrency: int | None
    rate: RateOut | None
    concurrency_key: str | None
    key_concurrency: int | None
    key_rate: RateOut | None
    order_key: str | None


class SpecOut(LimitsOut):
    name: str
    key: str | None
    schedule: ScheduleOut | None
    target: TargetOut
    payload: Any
    pool: str
    priority: Priority
    labels: dict[str, str]
    retry: RetryOut
    timeout: Seconds | None
    start_deadline: Seconds | None
    cancel_grace: Seconds
    unique: UniqueOut | None
    debounce: DebounceOut | None
    throttle: ThrottleOut | None
    depends_on: list[str]
    pause_after_failures: int | None


def spec_out(spec: JobSpec) -> SpecOut:
    return {
        "name": spec.name,
        "key": spec.key,
        "schedule": schedule_out(spec.schedule) if spec.schedule is not None else None,
        "target": target_out(spec.target),
        "payload": msgspec.json.decode(spec.payload),
        "pool": spec.pool,
        "priority": spec.priority,
        "labels": spec.labels,
        "retry": retry_out(spec.retry),
        "timeout": _seconds_out(spec.timeout_s),
        **limits_out(spec.limits or Limits()),
        "start_deadline": _seconds_out(spec.start_deadline_s),
        "cancel_grace": as_written(spec.cancel_grace_s),
        "unique": unique_out(spec.unique) if spec.unique is not None else None,
        "debounce": debounce_out(spec.debounce) if spec.debounce is not None else None,
        "throttle": throttle_out(spec.throttle) if spec.throttle is not None else None,
        "depends_on": [],
        "pause_after_failures": spec.pause_after_failures,
    }


def schedule_out(schedule: Schedule) -> ScheduleOut:
    misfire = schedule.misfire
    return {
        **rule_out(schedule.when),
        "include": _rules_out(schedule.include),
        "exclude": _rules_out(schedule.exclude),
        "jitter": as_written(schedule.jitter_s),
        "start_at": _instant_out(schedule.start_at),
        "end_at": _instant_out(schedule.end_at),
        "max_fires": schedule.max_fires,
        "misfire": {
            "policy": misfire.policy,
            "grace": as_written(misfire.grace_s),
            "window": as_written(misfire.window_s),
            "limit": misfire.limit,
        },
        "calendar": calendar_out(schedule.calendar) if schedule.calendar is not None else None,
    }


def calendar_out(calendar: Calendar) -> CalendarOut:
    return {
        "exclude_holidays": calendar.exclude_holidays,
        "exclude_dates": list(calendar.exclude_dates),
        "business_days": calendar.business_days,
        "blackouts": [
            {"from_at": _rfc_3339(blackout.from_at), "to_at": _rfc_3339(blackout.to_at)}
            for blackout in calendar.blackouts
        ],
    }


def rule_out(rule: When) -> RuleOut:
    match rule:
        case Cron(expression=expression, timezone=timezone, dst=dst):
            return {"cron": expression, "timezone": timezone, "dst": _dst_out(dst)}
        case Rrule(text=text, timezone=timezone, dst=dst):
            told: RuleOut = {"rrule": text, "timezone": timezone, "dst": _dst_out(dst)}
            return told if begins_of(text) is not None else {**told, "anchor_at": _rfc_3339(_began(rule))}
        case Interval(every_s=every_s, anchor_at=anchor_at):
            return {"every": as_written(every_s), "anchor_at": _rfc_3339(anchor_at)}
        case Once(at=at, timezone=timezone):
            return {"at": _rfc_3339(at)} if timezone == "UTC" else {"at": _rfc_3339(at), "timezone": timezone}
    assert_never(rule)


def _rules_out(rules: Sequence[When]) -> list[RuleOut]:
    return [rule_out(rule) for rule in rules]


def _dst_out(dst: Dst) -> DstOut:
    return {"gap": dst.gap, "fold": dst.fold}


def _began(rrule: Rrule) -> datetime:
    """An instant at which the zone's clock shows `begins`: it came from one, so there is one."""
    return rrule.begins.replace(tzinfo=zone_info(rrule.timezone))


def target_out(target: TargetSpec) -> TargetOut:
    match target:
        case HttpTarget():
            return {
                "http": {
                    "url": target.url,
                    "method": target.method,
                    "headers": target.headers,
                    "connect_timeout": _seconds_out(target.connect_timeout_s),
                    "first_byte_timeout": _seconds_out(target.first_byte_timeout_s),
                }
            }
        case FunctionTarget(name=name):
            return {"function": name}
        case ShellTarget(command=command):
            return {"shell": {"command": list(command)}}
    assert_never(target)


def retry_out(retry: Retry) -> RetryOut:
    return {
        "max_retries": retry.max_retries,
        "backoff": retry.backoff,
        "initial": as_written(retry.initial_s),
        "factor": as_written(retry.factor),
        "max": as_written(retry.max_s),
        "jitter": retry.jitter,
        "delays": [as_written(delay_s) for delay_s in retry.delays_s],
        "max_worker_losses": retry.max_worker_losses,
        "retry_on": list(retry.retry_on),
        "never_on": list(retry.never_on),
    }


def limits_out(limits: Limits) -> LimitsOut:
    return {
        "overlap": limits.overlap,
        "concurrency": limits.concurrency,
        "rate": rate_out(limits.rate) if limits.rate is not None else None,
        "concurrency_key": limits.key,
        "key_concurrency": limits.key_concurrency,
        "key_rate": rate_out(limits.key_rate) if limits.key_rate is not None else None,
        "order_key": limits.order_key,
    }


def rate_out(rate: Rate) -> RateOut:
    return {"limit": rate.limit, "per": as_written(rate.per_s), "burst": rate.burst}


def unique_out(unique: Unique) -> UniqueOut:
    return {"key": unique.key, "within": _seconds_out(unique.within_s)}


def debounce_out(debounce: Debounce) -> DebounceOut:
    return {
        "key": debounce.key,
        "wait": as_written(debounce.wait_s),
        "max_wait": _seconds_out(debounce.max_wait_s),
    }


def throttle_out(throttle: Throttle) -> ThrottleOut:
    return {"key": throttle.key, "per": as_written(throttle.per_s), "limit": throttle.limit}


def _seconds_out(duration_s: float | None) -> Seconds | None:
    return None if duration_s is None else as_written(duration_s)


def _instant_out(at: datetime | None) -> str | None:
    return None if at is None else _rfc_3339(at)


def _rfc_3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
