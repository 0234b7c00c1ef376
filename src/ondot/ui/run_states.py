"""The state of a step as people see it, from its row and its execution (W9).

A released step is queued, running or between two attempts, as its execution is; a step that waits for a time, an event
or a person has none, and is named after what it waits for.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ondot.model.ids import ExecutionId
from ondot.model.job import JobSpec
from ondot.model.target import FunctionTarget, GrpcTarget, HttpTarget, PublishTarget, ShellTarget
from ondot.model.workflow.spec import Approve, StepSpec, SubWorkflow, Wait, WorkflowTarget
from ondot.store.run_views import RunExecution, ThinStep

STATES: Final = (
    "WAITING",
    "PENDING",
    "RUNNING",
    "RETRYING",
    "APPROVAL",
    "SUCCEEDED",
    "FAILED",
    "SKIPPED",
    "BLOCKED",
    "CANCELLED",
)
WORDS: Final = {"PENDING": "queued", "APPROVAL": "needs approval"}
"""Where the word is not the state's name."""
LETTERS: Final = dict(zip(STATES, "WPRTASFKBC", strict=True))
"""One letter for each: the script `run_picture.js` has the same table."""
KINDS: Final[Mapping[type, str]] = {
    HttpTarget: "http",
    GrpcTarget: "grpc",
    PublishTarget: "publish",
    FunctionTarget: "function",
    ShellTarget: "shell",
    Wait: "wait",
    Approve: "approval",
    SubWorkflow: "workflow",
}
LIVE: Final = frozenset({"PENDING", "RUNNING", "RETRYING"})


def words_of(state: str) -> str:
    return WORDS.get(state, state.lower())


def shown_state(spec: StepSpec, step: ThinStep | None, executions: Mapping[ExecutionId, RunExecution]) -> str:
    """`executions`: those of the run's steps, by id. A step without a row waits: its run has not started."""
    if step is None or step.state == "WAITING":
        return "WAITING"
    if step.state != "RELEASED":
        return step.state
    if isinstance(spec.target, Approve):
        return "APPROVAL"
    if isinstance(spec.target, Wait):
        return "WAITING"
    if spec.map is not None or isinstance(spec.target, SubWorkflow) or step.execution_id is None:
        return "RUNNING"
    now = executions.get(step.execution_id)
    return now.state if now is not None and now.state in LIVE else "PENDING" if now is None else "RUNNING"


def kind_of(spec: StepSpec) -> str:
    """What the step calls or waits for, in a word."""
    return "join" if spec.target is None else KINDS[type(spec.target)]


def target_of(spec: StepSpec) -> str:  # noqa: PLR0911 - one for each kind
    """What the step calls or waits for, in words."""
    match spec.target:
        case HttpTarget(method=method, url=url):
            return f"{method} {url}"
        case GrpcTarget(place=place, method=method):
            return f"gRPC {place} {method}"
        case PublishTarget(place=place):
            return f"publish to {place}"
        case FunctionTarget(name=name):
            return f"function {name}"
        case ShellTarget(command=command):
            return " ".join(command)
        case Wait(for_s=for_s):
            return "an event" if for_s is None else f"{for_s:g} s"
        case Approve(by=by):
            return f"a person: {by} or above"
        case SubWorkflow(key=key):
            return f"workflow {key}"
        case None:
            return "nothing: it joins its parents"


def by_id(executions: Sequence[RunExecution]) -> dict[ExecutionId, RunExecution]:
    return {one.id: one for one in executions}


def step_name(spec: JobSpec | None, number: int) -> str:
    """The name of a step of a workflow; its number if the spec is gone."""
    target = spec.target if spec is not None else None
    names = list(target.steps) if isinstance(target, WorkflowTarget) else []
    return names[number] if number < len(names) else f"step {number}"
