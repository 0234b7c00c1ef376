"""Why a run of a workflow, or a step of it, does not go on (E17, W3): what it waits for, and what to do about it.

`flow.explain_runs` reads the facts. A step that waits names its parents and what they wait for in turn, one level up;
a step or run that is BLOCKED names the steps that failed above it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ondot.model.explain_facts import Code, Explanation, Reason, format_instant, pluralize
from ondot.model.ids import ExecutionId
from ondot.model.workflow.maps import MapCounts
from ondot.model.workflow.spec import Approve, StepSpec, SubWorkflow, Wait
from ondot.model.workflow.states import RunState, StepState

SHOWN = 5
"""Steps that an explanation names."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """A step of a run.

    `event`: the type that it waits for. `due_at`: when its wait ends, or fails. `child`: its run, with its state.
    `error`: of its last attempt, in a line. `waits`: what its execution waits for, or does.
    """

    name: str
    step: StepSpec
    state: StepState
    reason: str | None = None
    items: MapCounts | None = None
    event: str | None = None
    due_at: datetime | None = None
    child: tuple[ExecutionId, str] | None = None
    error: str | None = None
    waits: Explanation | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run. `failed`: steps whose failure nothing handled. `active`: steps that are RELEASED.

    `blocked`, `ended`, `total`: counts of steps without `finally` ones.
    """

    id: ExecutionId
    state: RunState
    verdict: str | None
    reason: str | None
    is_paused: bool
    blocked_until: datetime | None
    ends_at: datetime | None
    total: int
    ended: int
    blocked: int
    active_count: int
    failed_count: int
    active: Sequence[StepFacts]
    failed: Sequence[StepFacts]
    now: datetime


def explain_run(run: RunFacts) -> Explanation:
    """Of a run that has started and has not ended."""
    reasons = tuple(_explain_run(run))
    summary = " ".join(reason.message for reason in reasons[:2])
    return Explanation(run.id, run.state.value, summary, None, reasons, run.now)


def _explain_run(run: RunFacts) -> list[Reason]:
    reasons = list(_explain_pause(run))
    progress = f"{run.ended:,} of {pluralize(run.total, 'step')} {'has' if run.total == 1 else 'have'} ended"
    match run.state:
        case RunState.BLOCKED:
            reasons += [_explain_failure(run, step) for step in run.failed]
            reasons += [_step_reason(step) for step in run.active if step.child is not None]
            if not reasons:
                reasons.append(Reason("blocked", "It waits for a person: nothing moves without one."))
        case RunState.ENDING:
            message = f"It ends {run.verdict}; before, its `finally` steps run{_names(run.active, run.active_count)}."
            reasons.append(Reason("run_ending", message, facts={"verdict": run.verdict}))
        case _:
            facts = {"ended": run.ended, "total": run.total}
            reasons.append(Reason("run_running", f"It runs: {progress}.", run.ends_at, facts=facts))
    if run.state is not RunState.BLOCKED:
        reasons += [_step_reason(step) for step in run.active]
        reasons += [_explain_failure(run, step) for step in run.failed]
    return reasons


def _explain_pause(run: RunFacts) -> list[Reason]:
    if not run.is_paused:
        return []
    message = "It is paused: no further steps start; its timeout goes on."
    return [Reason("run_paused", message, run.ends_at, f"Resume it: `ondot run resume {run.id}`.")]


def _explain_failure(run: RunFacts, step: StepFacts) -> Reason:
    how = "was cancelled" if step.state is StepState.CANCELLED else "failed"
    error = f": {step.error.rstrip('.')}" if step.error else ""
    below = (
        f", and {pluralize(run.blocked, 'step')} cannot run because of it"
        if run.blocked and run.failed_count == 1
        else ""
    )
    until = (
        f" Without a person the run ends FAILED at {format_instant(run.blocked_until)}." if run.blocked_until else ""
    )
    items = f"See which items failed, and why: `ondot run step {run.id} {step.name}`. " if step.step.map else ""
    return Reason(
        "step_failed",
        f"Step {step.name} {how}{error}{below}.{until}",
        run.blocked_until,
        f"{items}Fix the cause, then retry it: `ondot run retry {run.id}`. To go on without it: "
        f"`ondot run skip {run.id} {step.name}`; to end the run: `ondot run give-up {run.id}`.",
        {"step": step.name, "error": step.error, "blocked": run.blocked},
    )


def _step_reason(step: StepFacts) -> Reason:
    code, words = describe_activity(step)
    advice = step.waits.reasons[0].what_to_do if step.waits is not None and step.waits.reasons else None
    facts: dict[str, object] = {"step": step.name}
    if step.child is not None:
        facts["run_id"] = step.child[0]
        advice = f"See what it waits for: `ondot execution explain {step.child[0]}`."
    return Reason(code, f"Step {step.name} {words}.", step.due_at, advice, facts)


def explain_step(
    run: RunFacts, step: StepFacts, parents: int, open_parents: Sequence[StepFacts], left: int
) -> Explanation:
    """`parents`: how many it has; `open_parents`: some of the `left` ones that have not ended."""
    reasons = [*_explain_pause(run)] if step.state is StepState.WAITING else []
    match step.state:
        case StepState.WAITING if step.step.is_final and run.state is not RunState.ENDING:
            reasons.append(
                Reason("waits_for_end", f"Step {step.name} runs when the run ends.", facts={"step": step.name})
            )
        case StepState.WAITING if left:
            reasons += _explain_parents(step, parents, open_parents, left)
        case StepState.WAITING:
            reasons.append(Reason("next", f"Step {step.name} can be released any moment.", facts={"step": step.name}))
        case StepState.RELEASED:
            reasons.append(_step_reason(step))
            reasons += step.waits.reasons if step.waits is not None else ()
        case StepState.BLOCKED:
            because = f": {step.reason}" if step.reason else ""
            reasons.append(Reason("blocked", f"Step {step.name} is blocked{because}.", facts={"step": step.name}))
            reasons += [_explain_failure(run, failed) for failed in run.failed]
        case _:
            reasons.append(_explain_end(run, step))
    summary = " ".join(reason.message for reason in reasons[:2])
    may_at = step.waits.may_start_at if step.waits is not None else None
    return Explanation(run.id, step.state.value, summary, may_at, tuple(reasons), run.now)


def _explain_parents(step: StepFacts, parents: int, some: Sequence[StepFacts], left: int) -> list[Reason]:
    shown = [f"{parent.name}{_aside(parent)}" for parent in some[:SHOWN]]
    more = f" and {left - len(shown):,} more" if left > len(shown) else ""
    facts = {"step": step.name, "parents": parents, "left": left, "waits_for": [parent.name for parent in some[:SHOWN]]}
    if left == 1 and some:
        message = f"Step {step.name} waits for {some[0].name}{_aside(some[0])}."
    else:
        message = f"Step {step.name} waits for {left:,} of {pluralize(parents, 'parent')}: {', '.join(shown)}{more}."
    return [Reason("waits_for_steps", message, facts=facts)]


def _aside(step: StepFacts) -> str:
    """What a parent does, after its name."""
    if step.state is StepState.WAITING:
        return ", which waits itself"
    if step.items is not None:
        return f": {_items(step.items)}"
    return f", which {describe_activity(step)[1]}"


def _items(counts: MapCounts) -> str:
    left = counts.total - counts.succeeded - counts.failed
    failed = f", {counts.failed:,} failed" if counts.failed else ""
    return f"{left:,} of {pluralize(counts.total, 'item')} left{failed}"


def describe_activity(step: StepFacts) -> tuple[Code, str]:
    """What a RELEASED step does, as a verb phrase."""
    match step.step.target:
        case _ if step.items is not None:
            return "waits_for_items", f"runs its items: {_items(step.items)}"
        case Wait():
            return _describe_wait(step)
        case Approve(by=role):
            until = f", until {format_instant(step.due_at)} at most" if step.due_at else ""
            return "waits_for_approval", f"waits for approval by a person, at least {role}{until}"
        case SubWorkflow(key=key):
            state = f", which is {step.child[1]}" if step.child else ""
            return "waits_for_run", f"is a run of the workflow {key}{state}"
        case _ if step.waits is not None and step.waits.state != "RUNNING":
            return "waits_to_start", "waits for a worker"
        case _:
            return "step_running", "runs"


def _describe_wait(step: StepFacts) -> tuple[Code, str]:
    if step.event is None:
        return "waits_for_time", f"waits until {format_instant(step.due_at)}" if step.due_at else "waits"
    until = f", until {format_instant(step.due_at)} at most" if step.due_at else ""
    return "waits_for_event", f"waits for the event {step.event}{until}"


def _explain_end(run: RunFacts, step: StepFacts) -> Reason:
    because = f": {step.reason}" if step.reason else ""
    if step.state is StepState.FAILED and run.state in {RunState.RUNNING, RunState.BLOCKED}:
        return _explain_failure(run, step)
    message = f"Step {step.name} ended {step.state.value}{because}{f': {step.error}' if step.error else ''}"
    return Reason("ended", f"{message.rstrip('.')}.", facts={"step": step.name, "reason": step.reason})


def _names(steps: Sequence[StepFacts], count: int) -> str:
    names = ", ".join(step.name for step in steps[:SHOWN])
    more = ", …" if count > SHOWN else ""
    return f": {names}{more}" if names else ""
