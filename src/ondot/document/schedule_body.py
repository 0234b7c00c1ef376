"""A schedule in a request: the fields of the long form, their meaning and their values (S1 to S4, S10)."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from ondot.document.events import EventBody
from ondot.document.fields import LARGEST_INTEGER, Body, Duration, Instant, InstantOrLocal
from ondot.document.rules import DAY_S
from ondot.model.misfire import Misfire, MissedPolicy
from ondot.model.schedule import Dst

CENTURY_S: Final = 100 * 366 * DAY_S
MAX_RULES: Final = 100

_MISFIRE: Final = Misfire()
_DST: Final = Dst()


class DstBody(Body):
    """What happens to a fire when the clocks change."""

    gap: Literal["shift", "skip"] = Field(
        default=_DST.gap,
        description="A fire in the skipped hour (clocks go forward): run right after it, or not at all.",
    )
    fold: Literal["first", "last", "both"] = Field(
        default=_DST.fold, description="A fire in the repeated hour (clocks go back): run in which of the two."
    )


class MisfireBody(Body):
    """What happens after an outage to fires that were not planned in time."""

    policy: MissedPolicy = Field(
        default=_MISFIRE.policy,
        description="Run none of the missed fires, the latest, or all within the window.",
        examples=["once"],
    )
    grace: Duration = Field(default=_MISFIRE.grace_s, description="How late a fire may be planned.", examples=["60s"])
    window: Duration = Field(
        default=_MISFIRE.window_s, description="For `all`: how old a fire may be.", examples=["1h"]
    )
    limit: int = Field(default=_MISFIRE.limit, description="For `all`: how many at most.", examples=[100])


# Shared, by a factory: pydantic copies plain defaults for every body, which took a third of the time of a batch.
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
        description="A country, or country and region, on whose holidays it does not fire.",
        examples=["DE"],
    )
    exclude_dates: list[str] = Field(
        default_factory=list, max_length=1000, description="Dates on which it does not fire.", examples=[["2030-12-24"]]
    )
    business_days: BusinessDays = Field(
        default=False,
        description="Fire only on business days, or move a fire of another day to the next or the previous one.",
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
        description="An IANA time zone. Default: UTC, and in a rule that of its schedule.",
        examples=["Europe/Berlin"],
    )
    dst: DstBody = Field(
        default_factory=lambda: _DEFAULT_DST,
        description="For `cron`, `at` and `rrule`: what happens when the clocks change. In a rule the default is "
        "that of its schedule.",
    )
    anchor_at: Instant | None = Field(
        default=None,
        description="For `every`, and `rrule` without DTSTART: the instant it counts from. Default: `start_at` or now.",
    )


Rules = Annotated[list[RuleBody], Field(max_length=MAX_RULES)]


class ScheduleBody(RuleBody):
    """When: exactly one of `cron`, `every`, `at`, `in`, `rrule`, `event`."""

    in_: Annotated[Duration, Field(le=CENTURY_S)] | None = Field(
        default=None, alias="in", description="Once, after this time.", examples=["10m"]
    )
    event: EventBody | None = Field(
        default=None,
        description="Events that start it, instead of instants.",
        examples=[{"type": "com.acme.order.paid", "source": "/shop"}],
    )
    include: Rules = Field(
        default_factory=list,
        description="Rules whose fires are added: it fires when any of them does.",
        examples=[[{"cron": "0 18 * * 5"}]],
    )
    exclude: Rules = Field(
        default_factory=list,
        description="Rules whose fires are removed.",
        examples=[[{"cron": "0 9 1 * *"}]],
    )
    jitter: Duration = Field(
        default=0.0, description="Start up to this much later, by the same delay for each fire.", examples=["30s"]
    )
    spread: Duration = Field(
        default=0.0,
        description="Start up to this much later, by the delay at which the least other work is due. It is chosen when"
        " the job is created, and kept.",
        examples=["10m"],
    )
    offset: Duration | None = Field(
        default=None, description="The delay that was chosen within `spread`. Leave it out.", examples=["127s"]
    )
    start_at: Instant | None = Field(
        default=None, description="No fire before this instant.", examples=["2030-01-01T00:00:00Z"]
    )
    end_at: Instant | None = Field(
        default=None, description="No fire after this instant.", examples=["2031-01-01T00:00:00Z"]
    )
    max_fires: int | None = Field(
        default=None, ge=1, le=LARGEST_INTEGER, description="The number of fires after which it ends.", examples=[10]
    )
    misfire: MisfireBody = Field(
        default_factory=lambda: _DEFAULT_MISFIRE, description="What happens to missed fires after an outage."
    )
    calendar: CalendarBody | None = Field(default=None, description="When it does not fire.")
