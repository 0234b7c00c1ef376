"""What a user registers as a workflow (W1): steps by name, each with its parents, its rule and its target.

It is stored in its job's spec and never changes, like the rest of it. The number of a step is its place among the
steps, from 0; rows of a run name steps by number.
"""

from typing import TYPE_CHECKING, Literal

from msgspec import Raw, Struct

from ondot.model.gates import Limits
from ondot.model.retry import Retry
from ondot.model.target import AttemptTarget

# msgspec reads `Raw | None` as null alone. A field of type Raw may have None as its default, which is left out.
if TYPE_CHECKING:
    Json = Raw | None
else:
    Json = Raw

When = Literal["success", "no_failure", "failure", "ended"]
OnFailure = Literal["block", "fail"]

MAX_STEPS = 10_000
MAX_EDGES = 100_000
MAX_ITEMS = 100_000
MAX_DEPTH = 8
BLOCKED_FOR_S = 7 * 24 * 3600.0


class Wait(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="wait"):
    """A step that ends after a time, or with the first event that matches."""

    for_s: float | None = None
    event: Json = None
    """Of which event it waits: `type`, `source`, `filter`, as the schedule of a job."""
    timeout_s: float | None = None


class Approve(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="approve"):
    """A step that waits for a person of at least this role."""

    by: str = "operator"
    timeout_s: float | None = None


class SubWorkflow(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="sub_workflow"):
    """A step that is a run of another workflow, by its key. Its version is fixed when the step starts."""

    key: str


StepTarget = AttemptTarget | Wait | Approve | SubWorkflow


class Tolerate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many items of a map may fail: a number, or a part of all."""

    count: int | None = None
    percent: float | None = None


class MapSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution for each item: `over` is a list or a `{"$from": …}` that yields one; `each` is the name of a mapped
    step, whose item i is followed by item i of this one."""

    over: Json = None
    each: str | None = None
    concurrency: int | None = None
    tolerate: Tolerate | None = None


class StepSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step. Without a target it is a join. What is None is as the workflow's job has it."""

    depends_on: tuple[str, ...] = ()
    target: StepTarget | None = None
    when: When = "success"
    condition: Json = None
    """`if`: a pattern over the payload and the results of ancestors."""
    payload: Json = None
    """May hold `{"$from": "step.result.path"}` anywhere. None: the payload of the run."""
    map: MapSpec | None = None
    is_final: bool = False
    """`finally`: it runs once, when the run ends."""
    handles: bool = False
    """Its success handles the failures above it: they do not block the run."""
    default: Json = None
    """What its result counts as if it is skipped."""
    retry: Retry | None = None
    timeout_s: float | None = None
    pool: str | None = None
    priority: Literal["high", "normal", "low"] | None = None
    limits: Limits | None = None
    labels: dict[str, str] = {}
    secrets: tuple[str, ...] | None = None
    """As `JobSpec.secrets`."""


class WorkflowTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="workflow"):
    steps: dict[str, StepSpec]
    """In the order in which they were written."""
    on_failure: OnFailure = "block"
    blocked_for_s: float = BLOCKED_FOR_S
    """How long a BLOCKED run waits for a person before it ends FAILED."""
