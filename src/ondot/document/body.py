"""A job as it stands in a request: the fields of the contract's long form, with what they mean and what they
take.

Checked strictly: no field that is not known, no "3" for 3, no true for 1. The descriptions and examples are
those of the OpenAPI document, and of the messages about faults. Defaults are the model's. What an attempt calls stands
in `attempt_body`, what holds a job back in `limits_body`.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field

from ondot.document.attempt_body import AttemptDuration, RetryBody, TargetBody
from ondot.document.fields import (
    Body,
    Duration,
    Instant,
    InstantOrLocal,
    JobIdText,
    Labels,
    NoParents,
    PlainText,
    PoolName,
)
from ondot.document.limits_body import (
    DAY_S,
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
from ondot.document.shorthand import OTHER_SHORT, SHORT
from ondot.model.gates import Limits, Overlap
from ondot.model.job import FunctionTarget, JobSpec, Priority
from ondot.model.misfire import Misfire
from ondot.model.schedule import Dst

CENTURY_S: Final = 100 * 366 * DAY_S
MAX_RULES: Final = 100
LARGEST_INTEGER: Final = 2**31 - 1

Missed = Literal["skip", "once", "all"]

_MISFIRE: Final = Misfire()
_DST: Final = Dst()
_LIMITS: Final = Limits()
_JOB: Final = JobSpec(name="", target=FunctionTarget(name=""))


class DstBody(Body):
    """What a fire does when the clocks change."""

    gap: Literal["shift", "skip"] = Field(
        default=_DST.gap,
        description="A fire in the hour that is left out: run right after it, or not at all.",
    )
    fold: Literal["first", "last", "both"] = Field(
        default=_DST.fold, description="A fire in the hour that comes twice: which of the two."
    )


class MisfireBody(Body):
    """What is done after an outage about fires that were not planned in time."""

    policy: Literal["skip", "once", "all"] = Field(
        default=_MISFIRE.policy,
        description="None of the missed fires, the latest, or all within the window.",
        examples=["once"],
    )
    grace: Duration = Field(default=_MISFIRE.grace_s, description="How late a fire may be planned.", examples=["60s"])
    window: Duration = Field(
        default=_MISFIRE.window_s, description="For `all`: how old a fire may be.", examples=["1h"]
    )
    limit: int = Field(default=_MISFIRE.limit, description="For `all`: how many at most.", examples=[100])


# One of each, by a factory: pydantic copies plain defaults for every body, a third of the time of a batch.
_DEFAULT_DST: Final = DstBody()
_DEFAULT_MISFIRE: Final = MisfireBody()


class BlackoutBody(Body):
    from_at: Instant = Field(description="The first instant without fires.", examples=["2030-12-24T00:00:00Z"])
    to_at: Instant = Field(description="The first instant with fires again.", examples=["2030-12-27T00:00:00Z"])


def _true_false_or_where(value: object) -> object:
    if isinstance(value, bool) or value in ("next", "previous"):
        return value
    raise ValueError('true or false, or "next" or "previous" to move a fire to that business day')


BusinessDays = Annotated[bool | Literal["next", "previous"], BeforeValidator(_true_false_or_where)]


class CalendarBody(Body):
    """Days and times on which a schedule does not fire."""

    exclude_holidays: str | None = Field(
        default=None,
        max_length=16,
        description="A country, or country and region, whose holidays are left out.",
        examples=["DE"],
    )
    exclude_dates: list[str] = Field(
        default_factory=list, max_length=1000, description="Dates left out.", examples=[["2030-12-24"]]
    )
    business_days: BusinessDays = Field(
        default=False,
        description="Only business days; or move a fire of another day to the next or the previous one.",
        examples=[True],
    )
    blackouts: list[BlackoutBody] = Field(default_factory=list, max_length=1000, description="Windows without fires.")


class RuleBody(Body):
    """One rule of `include` or `exclude`: exactly one of `cron`, `every`, `at`, `rrule`."""

    cron: str | None = Field(
        default=None,
        description='A cron expression of 5 or 6 fields, a macro, or "@every 90s".',
        examples=["0 9 * * 1-5"],
    )
    every: Duration | None = Field(default=None, description="An interval.", examples=["15m"])
    at: InstantOrLocal | None = Field(
        default=None,
        description="One instant; without an offset it is local time in `timezone`.",
        examples=["2030-01-31T09:00:00Z"],
    )
    rrule: str | None = Field(
        default=None,
        description="A recurrence rule (RFC 5545), with or without DTSTART.",
        examples=["FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9"],
    )
    timezone: str | None = Field(
        default=None,
        description="An IANA time zone; UTC if left out, and in a rule that of its schedule.",
        examples=["Europe/Berlin"],
    )
    dst: DstBody = Field(
        default_factory=lambda: _DEFAULT_DST,
        description="For `cron`, `at` and `rrule`: what changes of the clocks do; in a rule that of its schedule.",
    )
    anchor_at: Instant | None = Field(
        default=None,
        description="For `every`, and `rrule` without DTSTART: the instant it counts from; else `start_at`, or now.",
    )


Rules = Annotated[list[RuleBody], Field(max_length=MAX_RULES)]


class ScheduleBody(RuleBody):
    """When: exactly one of `cron`, `every`, `at`, `in`, `rrule`, `event`."""

    in_: Annotated[Duration, Field(le=CENTURY_S)] | None = Field(
        default=None, alias="in", description="Once, after so long.", examples=["10m"]
    )
    event: Any = Field(default=None, description="Not there yet.")
    include: Rules = Field(
        default_factory=list,
        description="Rules whose fires are added: it fires when any of them does.",
        examples=[[{"cron": "0 18 * * 5"}]],
    )
    exclude: Rules = Field(
        default_factory=list,
        description="Rules whose fires are taken away.",
        examples=[[{"cron": "0 9 1 * *"}]],
    )
    jitter: Duration = Field(
        default=0.0, description="Start up to so much later, the same for each fire.", examples=["30s"]
    )
    start_at: Instant | None = Field(default=None, description="No fire before it.", examples=["2030-01-01T00:00:00Z"])
    end_at: Instant | None = Field(default=None, description="No fire after it.", examples=["2031-01-01T00:00:00Z"])
    max_fires: int | None = Field(
        default=None, ge=1, le=LARGEST_INTEGER, description="No more fires than these.", examples=[10]
    )
    misfire: MisfireBody = Field(default_factory=lambda: _DEFAULT_MISFIRE, description="What is done after an outage.")
    calendar: CalendarBody | None = Field(default=None, description="When it does not fire.")


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
    start_deadline: Annotated[Duration, Field(gt=0, le=366 * DAY_S)] | None = Field(
        default=None,
        description="An execution that has not started so long after it was due is skipped, on record.",
        examples=["10m"],
    )
    cancel_grace: Annotated[Duration, Field(le=3600)] = Field(
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


class PreviewBody(Body):
    """A schedule to look at before a job has it."""

    schedule: ScheduleBody = Field(description="The schedule.", examples=[{"cron": "0 9 * * 1-5"}])
    after: Instant | None = Field(
        default=None, description="The fires after this instant, as if it were now; if left out, now."
    )
    n: int = Field(default=10, ge=1, le=1000, description="How many fires.", examples=[10])
    job_id: JobIdText | None = Field(
        default=None, description="For `H` in cron: the job whose spread is shown; without one that of no job."
    )


class RunBody(Body):
    """One execution now."""

    payload: Any = Field(default=None, description="Instead of the job's own payload.", examples=[{"region": "us"}])


class ResumeBody(Body):
    """How a paused job goes on."""

    missed: Missed = Field(
        default="skip",
        description="What is done about the fires of the pause: none of them runs, the latest, or all that the "
        "job's `misfire.window` and `misfire.limit` allow. The others are recorded as skipped.",
        examples=["skip"],
    )


class BackfillBody(Body):
    """A past range to run."""

    from_at: Instant = Field(
        validation_alias=AliasChoices("from_at", "from"),
        description="The first instant of the range.",
        examples=["2026-11-01T00:00:00Z"],
    )
    to_at: Instant = Field(
        validation_alias=AliasChoices("to_at", "to"),
        description="The last instant, included; not in the future.",
        examples=["2026-11-08T00:00:00Z"],
    )
    order: Literal["oldest", "newest"] = Field(default="oldest", description="Which fires go first.")
    concurrency: int = Field(
        default=1, ge=1, le=1000, description="How many of its executions may be under way at once.", examples=[4]
    )
    dry_run: bool = Field(default=False, description="Only count the fires.")
