"""A job in a request: the fields of the long form, with what they mean and which values they take.

This is the one list of a job's fields for reading: the spec is made of it by name, and short forms, messages about
faults, the OpenAPI document, the flags of the command line and the options of a function refer to it. Checked strictly:
no field that is not known, no "3" for 3, no true for 1. Defaults are the model's. Nested objects are in `attempt`,
`limits` and `schedule_body`.
"""

from typing import Annotated, Any, Final

from msgspec import Raw
from pydantic import ConfigDict, Field
from pydantic.fields import FieldInfo

from ondot.document.attempt import AttemptDuration, RetryBody, TargetBody, name_of, target_of
from ondot.document.errors import find_field
from ondot.document.fields import LARGEST_INTEGER, Body, Duration, Labels, NoParents, PlainText, PoolName
from ondot.document.limits import (
    MAX_AT_ONCE,
    RATE,
    UNIQUE,
    AtOnce,
    DebounceBody,
    RateOrNone,
    ThrottleBody,
    UniqueOrNone,
    or_text,
)
from ondot.document.rules import LONGEST_CANCEL_GRACE_S, LONGEST_WAIT_S
from ondot.document.schedule_body import ScheduleBody
from ondot.document.shorthand import OTHER_SHORT, SHORT
from ondot.document.structs import to_struct, with_own_defaults
from ondot.model.gates import Limits, Overlap
from ondot.model.job import FunctionTarget, JobSpec, Priority
from ondot.model.schedule import Schedule

_LIMITS: Final = Limits()
_JOB: Final = JobSpec(name="", target=FunctionTarget(name=""))
_DEFAULT_RETRY: Final = RetryBody()


def _add_short_forms(schema: dict[str, Any]) -> None:
    """The OpenAPI document knows the short forms too, so that nobody takes them for faults."""
    for short, long in (*SHORT.items(), *OTHER_SHORT.items()):
        schema["properties"][short] = {"description": f"Short for `{'.'.join(long)}`."}


class JobBody(Body):
    """A job: what to call, when, and what to do if it fails."""

    model_config = ConfigDict(json_schema_extra=_add_short_forms)

    name: PlainText | None = Field(
        None,
        description="What people call the job; without one it is called after what it calls.",
        examples=["daily-report"],
    )
    schedule: ScheduleBody | None = Field(
        default=None,
        description="When it fires; without one it runs once, now.",
        examples=[{"cron": "0 9 * * 1-5"}],
    )
    target: TargetBody | None = Field(
        default=None,
        description="What is called.",
        examples=[{"http": {"url": "https://example.com/report"}}],
    )
    payload: Any = Field(default=None, description="Any JSON, handed to the target.", examples=[{"region": "eu"}])
    pool: PoolName = Field(default=_JOB.pool, description="The workers that run it.", examples=["default"])
    priority: Priority = Field(default=_JOB.priority, description="Who goes first in a pool.", examples=["normal"])
    labels: Labels = Field(default_factory=dict, description="Your own words to find it by.", examples=[{"team": "bi"}])
    retry: RetryBody = Field(
        default_factory=lambda: _DEFAULT_RETRY,
        description="What follows a failed attempt.",
        examples=[{"max_retries": 3}],
    )
    timeout: AttemptDuration | None = Field(
        default=None,
        description="How long one attempt may take. null: 5 minutes for an HTTP call, no limit for a function or a"
        " shell command.",
        examples=["5m"],
    )
    overlap: Overlap = Field(
        default=_LIMITS.overlap,
        description="What a fire does that finds as many executions live as are allowed (1, unless `concurrency` says "
        "more): start all the same, be skipped on record, wait, or cancel the running one.",
        examples=["skip"],
    )
    concurrency: AtOnce | None = Field(
        default=None, description="How many of its executions may run at once; those above wait.", examples=[5]
    )
    rate: RateOrNone = Field(
        default=None,
        description=f"How often it may start, {RATE}; those above wait.",
        examples=["10/1m"],
        json_schema_extra=or_text("10/1m"),
    )
    concurrency_key: PlainText | None = Field(
        default=None,
        description="Limits all jobs that name this key together: to one at once, unless `key_concurrency` or "
        "`key_rate` say otherwise.",
        examples=["customer:17"],
    )
    key_concurrency: AtOnce | None = Field(
        default=None,
        description=f"How many executions with the `concurrency_key` may run at once, up to {MAX_AT_ONCE:,}.",
        examples=[2],
    )
    key_rate: RateOrNone = Field(
        default=None,
        description=f"How often executions with the `concurrency_key` may start, {RATE}.",
        examples=["5/s"],
        json_schema_extra=or_text("5/s"),
    )
    order_key: PlainText | None = Field(
        default=None,
        description="Executions of all jobs that name this key run strictly one after another, in the order they are "
        "due, retries included.",
        examples=["account:17"],
    )
    start_deadline: Annotated[Duration, Field(gt=0, le=LONGEST_WAIT_S)] | None = Field(
        default=None,
        description="An execution that has not started so long after it was due is skipped, on record.",
        examples=["10m"],
    )
    cancel_grace: Annotated[Duration, Field(le=LONGEST_CANCEL_GRACE_S)] = Field(
        default=_JOB.cancel_grace_s,
        description="How long a running attempt has to end by itself when it is cancelled.",
        examples=["10s"],
    )
    unique: UniqueOrNone = Field(
        default=None,
        description=f"For jobs that run once: {UNIQUE}.",
        examples=[{"key": "invoice:17", "within": "1h"}],
        json_schema_extra=or_text("invoice:17"),
    )
    debounce: DebounceBody | None = Field(
        default=None,
        description="For jobs without a schedule: of those that come close together with one key, the last runs.",
        examples=[{"key": "index:17", "wait": "5s", "max_wait": "1m"}],
    )
    throttle: ThrottleBody | None = Field(
        default=None,
        description="For jobs that run once: so many with one key in a time; those above are skipped, on record.",
        examples=[{"key": "mail:17", "per": "1h", "limit": 1}],
    )
    depends_on: NoParents = Field(default_factory=list, description="Not there yet.")
    key: PlainText | None = Field(default=None, description="Your own id: one job for each.", examples=["report-eu"])
    pause_after_failures: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST_INTEGER,
        description="Pause the job after so many executions in a row ended FAILED; null: never. For jobs that recur.",
        examples=[5],
    )


def spec_of(body: JobBody, *, schedule: Schedule | None, payload: Raw) -> JobSpec:
    """The spec of a body whose fields are all right: those of the same name, and the few that need a look."""
    assert body.target is not None, "the caller has seen to it that there is one"
    target = target_of(body.target)
    spec = to_struct(
        JobSpec,
        body,
        name=body.name or name_of(target),
        target=target,
        schedule=schedule,
        payload=payload,
        limits=_limits_of(body),
    )
    return with_own_defaults(spec)


def _limits_of(body: JobBody) -> Limits | None:
    """None if nothing limits the job."""
    key_concurrency = body.key_concurrency
    if body.concurrency_key is not None and key_concurrency is None and body.key_rate is None:
        key_concurrency = 1
    limits = to_struct(Limits, body, key=body.concurrency_key, key_concurrency=key_concurrency)
    return None if limits == _LIMITS else limits


def job_field(path: str) -> FieldInfo:
    """A field of a job by its path in the long form, such as `schedule.dst.gap`: its description, type and examples."""
    field = find_field(JobBody, tuple(path.split(".")))
    if field is None:
        raise KeyError(path)
    return field
