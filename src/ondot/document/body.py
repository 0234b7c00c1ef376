"""A job in a request: the fields of the long form, with what they mean and which values they take.

This is the one list of a job's fields for reading: the spec is made of it by name, and messages about faults, the
OpenAPI document and the options of a function come from it. It is strict: no unknown fields, no "3" for 3, no true
for 1. Defaults are the model's. Nested objects are in `attempt`, `limits` and `schedule_body`.
"""

from typing import Annotated, Any, Final

from msgspec import Raw
from pydantic import ConfigDict, Field

from ondot.document.attempt import AttemptDuration, RetryBody, TargetBody, name_of, target_of
from ondot.document.expect import ExpectBody
from ondot.document.fields import LARGEST_INTEGER, Body, Duration, Labels, Parents, PlainText, PoolName
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
from ondot.model.job import JobSpec, Priority
from ondot.model.schedule import Schedule
from ondot.model.target import FunctionTarget
from ondot.model.workflow.spec import WorkflowTarget

_LIMITS: Final = Limits()
_JOB: Final = JobSpec(name="", target=FunctionTarget(name=""))
_DEFAULT_RETRY: Final = RetryBody()


def _add_short_forms(schema: dict[str, Any]) -> None:
    """Adds the short forms to the OpenAPI document, so that tools accept them."""
    for short, long in (*SHORT.items(), *OTHER_SHORT.items()):
        schema["properties"].setdefault(short, {"description": f"Short for `{'.'.join(long)}`."})


class JobBody(Body):
    """A job: what to call, when, and what to do if it fails."""

    model_config = ConfigDict(json_schema_extra=_add_short_forms)

    name: PlainText | None = Field(
        None,
        description="A name for people. Default: the name of its target.",
        examples=["daily-report"],
    )
    schedule: ScheduleBody | None = Field(
        default=None,
        description="When it fires. Default: it runs once, now.",
        examples=[{"cron": "0 9 * * 1-5"}],
    )
    target: TargetBody | None = Field(
        default=None,
        description="What is called.",
        examples=[{"http": {"url": "https://example.com/report"}}],
    )
    payload: Any = Field(default=None, description="Any JSON, sent to the target.", examples=[{"region": "eu"}])
    pool: PoolName = Field(default=_JOB.pool, description="The pool of workers that runs it.", examples=["default"])
    priority: Priority = Field(default=_JOB.priority, description="Its priority within its pool.", examples=["normal"])
    labels: Labels = Field(
        default_factory=dict, description="Your own labels, to find it by.", examples=[{"team": "bi"}]
    )
    retry: RetryBody = Field(
        default_factory=lambda: _DEFAULT_RETRY,
        description="What happens after a failed attempt.",
        examples=[{"max_retries": 3}],
    )
    timeout: AttemptDuration | None = Field(
        default=None,
        description="How long one attempt may take. null: 5 minutes for an HTTP or gRPC call, no limit for a function"
        " or a shell command.",
        examples=["5m"],
    )
    overlap: Overlap = Field(
        default=_LIMITS.overlap,
        description="What happens to a fire while as many executions are live as are allowed (1, or `concurrency`): "
        "it starts anyway, is recorded as skipped, waits, or cancels the running one.",
        examples=["skip"],
    )
    concurrency: AtOnce | None = Field(
        default=None, description="How many of its executions may run at once; the others wait.", examples=[5]
    )
    rate: RateOrNone = Field(
        default=None,
        description=f"How often it may start, {RATE}; the others wait.",
        examples=["10/1m"],
        json_schema_extra=or_text("10/1m"),
    )
    concurrency_key: PlainText | None = Field(
        default=None,
        description="Limits all jobs with this key together: to one at a time, unless `key_concurrency` or "
        "`key_rate` is given.",
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
        description="Executions of all jobs with this key run strictly one after another, in the order in which "
        "they are due, retries included.",
        examples=["account:17"],
    )
    start_deadline: Annotated[Duration, Field(gt=0, le=LONGEST_WAIT_S)] | None = Field(
        default=None,
        description="An execution that has not started this long after it was due is recorded as skipped.",
        examples=["10m"],
    )
    cancel_grace: Annotated[Duration, Field(le=LONGEST_CANCEL_GRACE_S)] = Field(
        default=_JOB.cancel_grace_s,
        description="How long a cancelled attempt has to end by itself.",
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
        description="For jobs without a schedule: of those created soon after each other with one key, the last runs.",
        examples=[{"key": "index:17", "wait": "5s", "max_wait": "1m"}],
    )
    throttle: ThrottleBody | None = Field(
        default=None,
        description="For jobs that run once: how many with one key in a time; others are recorded as skipped.",
        examples=[{"key": "mail:17", "per": "1h", "limit": 1}],
    )
    depends_on: Parents = Field(
        default_factory=list,
        description="One-time jobs, by id or `key`: it runs once when all of them have succeeded.",
        examples=[["extract-7", "0198c5a0-7d3c-7e60-b1b2-3f4a5b6c7d8e"]],
    )
    expect: ExpectBody | None = Field(
        default=None,
        description="What is expected of it; a miss is recorded, and alerts can notify of it. For recurring jobs.",
        examples=[{"end_by": "06:00", "success_every": "26h"}],
    )
    key: PlainText | None = Field(
        default=None, description="Your own id: there is one job for each key.", examples=["report-eu"]
    )
    pause_after_failures: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST_INTEGER,
        description="Pause the job after this many executions in a row ended FAILED; null: never. For recurring jobs.",
        examples=[5],
    )
    metrics: bool = Field(
        default=False,
        description="Whether the job has series of its own in the metrics. For recurring jobs.",
        examples=[True],
    )


def spec_of(body: JobBody, *, schedule: Schedule | None, payload: Raw, workflow: WorkflowTarget | None) -> JobSpec:
    """The spec of a valid body: fields of the same name, and those few that are made of several."""
    assert body.target is not None, "the caller has checked that there is one"
    target = workflow or target_of(body.target)
    spec = to_struct(
        JobSpec,
        body,
        name=body.name or name_of(target),
        target=target,
        schedule=schedule,
        payload=payload,
        limits=_limits_of(body),
        secrets=None,
        trace=None,
        tracestate=None,
    )
    return with_own_defaults(spec)


def _limits_of(body: JobBody) -> Limits | None:
    """None if nothing limits the job."""
    key_concurrency = body.key_concurrency
    if body.concurrency_key is not None and key_concurrency is None and body.key_rate is None:
        key_concurrency = 1
    limits = to_struct(Limits, body, key=body.concurrency_key, key_concurrency=key_concurrency)
    return None if limits == _LIMITS else limits
