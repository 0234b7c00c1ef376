"""A step of a workflow in a request (W1): its fields, with what they mean and which values they take.

A step takes what a job takes for one execution, short forms too, and its place in the graph. This is the one list of a
step's fields for reading; `workflow` makes steps of the model of it.
"""

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from ondot.document.attempt import AttemptDuration, AttemptTargetBody, RetryBody
from ondot.document.fields import Body, Duration, Labels, PlainText, PoolName, sentence
from ondot.document.limits import MAX_AT_ONCE, RATE, AtOnce, RateOrNone, or_text
from ondot.document.rules import LONGEST_WAIT_S
from ondot.model.access import Role
from ondot.model.job import Priority
from ondot.model.workflow.spec import MAX_ITEMS, Approve, StepSpec, When
from ondot.model.workflow.values import A_REFERENCE

_STEP: Final = StepSpec()
CALLS: Final = ("target", "wait", "approve", "workflow")
"""What a step does: one of these, or nothing."""

Waiting = Annotated[Duration, Field(gt=0, le=LONGEST_WAIT_S)]
Approver = Literal["viewer", "operator", "editor", "admin", "owner"]
assert set(get_args(Approver)) == {role.value for role in Role} - {Role.WORKER.value}


class TolerateBody(Body):
    """How many items may fail: exactly one of `count`, `percent`."""

    count: int | None = Field(default=None, ge=0, le=MAX_ITEMS, description="A number of items.", examples=[5])
    percent: float | None = Field(default=None, ge=0, le=100, description="A part of all items.", examples=[1])

    @model_validator(mode="after")
    def _one(self) -> "TolerateBody":
        if (self.count is None) == (self.percent is None):
            raise sentence("`tolerate` takes exactly one of `count` and `percent`.")
        return self


class MapBody(Body):
    """One execution for each item: exactly one of `over`, `each`."""

    over: Any = Field(
        default=None,
        description=f"A list, or a reference to one, of up to {MAX_ITEMS:,} items.",
        examples=[{"$from": "list.result.files"}],
    )
    each: PlainText | None = Field(
        default=None,
        description="A mapped step: item i of this step follows item i of that one.",
        examples=["process"],
    )
    concurrency: AtOnce | None = Field(default=None, description="How many items run at once.", examples=[50])
    tolerate: TolerateBody | None = Field(
        default=None, description="How many items may fail before the step fails.", examples=[{"percent": 1}]
    )

    @model_validator(mode="after")
    def _one(self) -> "MapBody":
        if (self.over is None) == (self.each is None):
            both = f"`over`, a list such as {A_REFERENCE}, and `each`, the name of a mapped step"
            raise sentence(f"`map` takes exactly one of {both}.")
        return self


class WaitBody(Body):
    """A time, or an event: exactly one of `for`, `event`."""

    for_: Waiting | None = Field(default=None, alias="for", description="How long it waits.", examples=["1h"])
    event: Any = Field(
        default=None,
        description="It ends with the first event of this `type`, `source` and `filter`.",
        examples=[{"type": "com.acme.order.paid"}],
    )
    timeout: Waiting | None = Field(
        default=None, description="It fails if no event has arrived after this.", examples=["1d"]
    )

    @model_validator(mode="after")
    def _one(self) -> "WaitBody":
        if (self.for_ is None) == (self.event is None):
            raise sentence('`wait` takes a time, for example "1h", or {"event": {"type": "…"}}.')
        if self.timeout is not None and self.event is None:
            raise sentence("`wait.timeout` is for events; a time ends by itself.")
        return self


class ApproveBody(Body):
    """A person decides."""

    by: Approver = Field(default="operator", description="The least role that may decide.", examples=["operator"])
    timeout: Waiting | None = Field(default=None, description="It fails if nobody has decided.", examples=["2d"])


assert Approve().by == ApproveBody().by


def _wait(value: object) -> object:
    """`"1h"` in full."""
    return {"for": value} if isinstance(value, (str, int, float)) and not isinstance(value, bool) else value


class StepBody(Body):
    """A step of a workflow: what it calls or waits for, after which steps, and by which rule. Without a target it is a
    join, which succeeds at once."""

    depends_on: list[str] = Field(
        default_factory=list, description="The steps that must have ended before it.", examples=[["list"]]
    )
    target: AttemptTargetBody | None = Field(
        default=None, description="What is called.", examples=[{"function": "list_files"}]
    )
    wait: Annotated[
        WaitBody | None,
        BeforeValidator(_wait),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "object"}, {"type": "null"}]}),
    ] = Field(default=None, description="It waits for a time or an event.", examples=["1h"])
    approve: ApproveBody | None = Field(
        default=None, description="It waits for a person.", examples=[{"by": "operator"}]
    )
    workflow: PlainText | None = Field(
        default=None, description="It is a run of the workflow with this `key`.", examples=["nightly-eu"]
    )
    when: When = Field(
        default=_STEP.when,
        description="What its parents must have done: all succeeded; none failed and one succeeded; one failed; ended.",
        examples=["success"],
    )
    if_: Any = Field(
        default=None,
        alias="if",
        description="A pattern over `payload` and `steps`; it is skipped unless they match.",
        examples=[{"steps": {"list": {"result": {"total": [{"numeric": [">", 0]}]}}}}],
    )
    payload: Any = Field(
        default=None,
        description='Any JSON, with references such as {"$from": "list.result.files"}. Default: that of the run.',
        examples=[{"n": {"$from": "upload.count"}}],
    )
    map: MapBody | None = Field(
        default=None,
        description="It runs once for each item of a list.",
        examples=[{"over": {"$from": "list.result.files"}}],
    )
    finally_: bool = Field(
        default=_STEP.is_final,
        alias="finally",
        description="It runs when the run ends, however that is.",
        examples=[True],
    )
    handles: bool = Field(
        default=_STEP.handles, description="Its success handles the failures above it.", examples=[True]
    )
    default: Any = Field(default=None, description="Its result if it is skipped.", examples=[[]])
    retry: RetryBody | None = Field(
        default=None,
        description="What happens after a failed attempt. Default: as of the workflow.",
        examples=[{"max_retries": 3}],
    )
    timeout: AttemptDuration | None = Field(
        default=None, description="How long one attempt may take; waiting does not count.", examples=["5m"]
    )
    pool: PoolName | None = Field(
        default=None,
        description="The pool of workers that runs it. Default: that of the workflow.",
        examples=["default"],
    )
    priority: Priority | None = Field(
        default=None, description="Its priority within its pool. Default: that of the workflow.", examples=["normal"]
    )
    labels: Labels = Field(
        default_factory=dict, description="Labels beside those of the workflow.", examples=[{"team": "bi"}]
    )
    concurrency: AtOnce | None = Field(
        default=None, description="How many of its executions may run at once, over all runs.", examples=[5]
    )
    rate: RateOrNone = Field(
        default=None,
        description=f"How often it may start, over all runs, {RATE}.",
        examples=["10/1m"],
        json_schema_extra=or_text("10/1m"),
    )
    concurrency_key: PlainText | None = Field(
        default=None,
        description="Limits all executions with this key together: to one at a time, unless `key_concurrency` or "
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
        description="Executions with this key run strictly one after another.",
        examples=["account:17"],
    )
