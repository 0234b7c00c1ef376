"""Fields that limit a job (E12, E13, E16): rates, unique, debounce, throttle; and which of them exclude each other.

`shorthand` has made objects of short texts ("10/1m", the bare key of `unique`), so a value that is not an object is
rejected with a message that names both forms. Conflicts are looked for in the body as it was written, so that they are
reported together with the faults of the fields. `unique`, `debounce` and `throttle` decide what happens to a job when
it is created: an existing job can lose them, but not get them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from ondot.document.fields import Body, Duration, PlainText
from ondot.document.rules import AT_CREATION, LONGEST_WAIT_S
from ondot.document.shorthand import Path
from ondot.model import gates
from ondot.model.gates import Rate
from ondot.model.job import JobSpec, Throttle

MAX_AT_ONCE: Final = gates.MAX_AT_ONCE

RATE: Final = '"10/1m" or {"limit": 10, "per": "1m", "burst": 1}'
UNIQUE: Final = "no second one with this key while one is live, or `within` a time after one was created"

_RATE: Final = Rate(limit=1, per_s=1)
_THROTTLE: Final = Throttle(key="", per_s=1)


def _a_time(duration_s: float) -> float:
    if not 1 <= duration_s <= gates.LONGEST_PER_S:
        raise ValueError('a limit in a time of 1 second to 30 days, for example "10/1m"')
    return duration_s


AtOnce = Annotated[int, Field(ge=1, le=MAX_AT_ONCE)]
InATime = Annotated[int, Field(ge=1, le=gates.MAX_IN_A_TIME)]
Wait = Annotated[Duration, Field(gt=0, le=LONGEST_WAIT_S)]


class RateBody(Body):
    """A token bucket."""

    limit: InATime = Field(description="How many may start in the time.", examples=[10])
    per: Annotated[Duration, AfterValidator(_a_time)] = Field(description="The time.", examples=["1m"])
    burst: int = Field(
        default=_RATE.burst,
        ge=1,
        description="How many may start at once after a quiet time; with 1 the starts are spaced evenly.",
        examples=[1],
    )

    @field_validator("burst")
    @classmethod
    def _is_within_the_limit(cls, burst: int, info: ValidationInfo) -> int:
        limit = info.data.get("limit")
        if limit is not None and burst > limit:
            raise ValueError(f"at most the `limit`, which is {limit}")
        return burst


class UniqueBody(Body):
    """One job for a key."""

    key: PlainText = Field(description="The key of which there is one.", examples=["invoice:17"])
    within: Wait | None = Field(
        default=None,
        description="Also none within this time after one was created, even if that one has ended.",
        examples=["1h"],
    )


class DebounceBody(Body):
    """Of jobs created soon after each other, the last one."""

    key: PlainText = Field(description="The key that they share.", examples=["index:17"])
    wait: Wait = Field(description="It runs this long after the last one was created.", examples=["5s"])
    max_wait: Wait | None = Field(
        default=None, description="But no later than this long after the first.", examples=["1m"]
    )

    @field_validator("max_wait")
    @classmethod
    def _is_no_shorter(cls, max_wait: float | None, info: ValidationInfo) -> float | None:
        wait = info.data.get("wait")
        if max_wait is not None and wait is not None and max_wait < wait:
            raise ValueError(f"at least `wait`, which is {wait:g} seconds")
        return max_wait


class ThrottleBody(Body):
    """A number of jobs in a time."""

    key: PlainText = Field(description="The key that they share.", examples=["mail:17"])
    per: Wait = Field(description="The time.", examples=["1h"])
    limit: InATime = Field(default=_THROTTLE.limit, description="How many are accepted in the time.", examples=[1])


def _object(words: str) -> BeforeValidator:
    def validate(value: object) -> object:
        if value is None or isinstance(value, dict):
            return value
        raise ValueError(words)

    return BeforeValidator(validate)


RateOrNone = Annotated[
    RateBody | None, _object('a limit and a time, for example "10/1m" or {"limit": 10, "per": "1m", "burst": 1}')
]
UniqueOrNone = Annotated[
    UniqueBody | None, _object('a key, for example "invoice:17" or {"key": "invoice:17", "within": "1h"}')
]


def or_text(example: str) -> Callable[[dict[str, Any]], None]:
    """Adds the short text to the OpenAPI document."""

    def add(schema: dict[str, Any]) -> None:
        schema["anyOf"] = [*schema["anyOf"], {"type": "string", "examples": [example]}]

    return add


_INSTEAD = {
    "unique": "use `overlap` to keep its executions apart, or `key` to have the job once",
    "debounce": "use `overlap` or `rate`",
    "throttle": "use `rate`",
}
"""What a recurring job uses instead."""


def find_conflicts(
    long: Mapping[str, object], name: Callable[[Path], str], *, is_new: bool
) -> Iterator[tuple[Path, str]]:
    """Fields of the long form that exclude or need each other; `name` returns how a field was written."""
    schedule = long.get("schedule")
    recurs = isinstance(schedule, dict) and any(
        schedule.get(kind) is not None for kind in ("cron", "every", "rrule", "event")
    )
    for field, instead in (("key_concurrency", "concurrency"), ("key_rate", "rate")):
        if long.get(field) is not None and long.get("concurrency_key") is None:
            advice = f"give `concurrency_key` too, or use `{instead}` for this job alone"
            yield (field,), f"`{name((field,))}` limits by a key: {advice}."
    for field, instead in _INSTEAD.items():
        if long.get(field) is None:
            continue
        if recurs:
            yield (field,), f"`{name((field,))}` is for jobs that run once, and this one recurs: {instead}."
        elif long.get("key") is not None:
            why = "a job whose `key` exists becomes a new version of that job"
            yield (field,), f"`{name((field,))}` and `key` exclude each other: {why}; leave one of them out."
    if long.get("depends_on"):
        if recurs:
            advice = "make both steps of a workflow, or start it by the event `ondot.execution.succeeded`"
            yield (
                ("depends_on",),
                f"`{name(('depends_on',))}` is for jobs that run once, and this one recurs: {advice}.",
            )
        for field in AT_CREATION:
            if long.get(field) is not None:
                yield (field,), f"`{name((field,))}` and `depends_on` exclude each other: leave one of them out."
    first, *others = [field for field in AT_CREATION if long.get(field) is not None] or [""]
    for field in others:
        why = "each decides alone whether the job runs"
        yield (field,), f"`{name((field,))}` and `{first}` exclude each other: {why}; leave one of them out."
    if long.get("debounce") is not None and is_new and schedule is not None and not recurs:
        advice = f"leave out `{name(('schedule',))}`"
        yield ("debounce",), f"`{name(('debounce',))}` decides itself when the job runs: {advice}."


def find_late_changes(spec: JobSpec, current: JobSpec) -> Iterator[tuple[Path, str]]:
    """Fields that a change of a job sets although only its creation can."""
    for field in AT_CREATION:
        wanted, stored = getattr(spec, field), getattr(current, field)
        if wanted is not None and wanted != stored:
            advice = "leave it as it is, remove it with null, or create another job"
            yield (field,), f"`{field}` decides what happens to a job when it is created: {advice}."
