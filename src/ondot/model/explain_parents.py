"""Why a job that depends on others does not run (E17, W1): which of them it waits for, and what to do about it."""

from ondot.model.explain_facts import ExecutionFacts, Reason
from ondot.model.workflow.dependencies import Parent, Parents, ParentState

_ADVICE = {
    ParentState.FAILED: "Run {parent} again, by replaying its dead letter: this runs when that succeeds.",
    ParentState.CANCELLED: "Run {parent} again: `ondot job run {parent}`. This runs when that succeeds.",
    ParentState.SKIPPED: "Run {parent} again: `ondot job run {parent}`. This runs when that succeeds.",
}
_OTHERWISE = "Otherwise leave it out of `depends_on`, or cancel this one: `ondot execution cancel {id}`."


def explain_parents(facts: ExecutionFacts, parents: Parents) -> list[Reason]:
    """What holds it up, jobs that ended without success first."""
    stuck = [parent for parent in parents.some if parent.state is not ParentState.WAITING and _is_open(parent)]
    waiting = [parent for parent in parents.some if parent.state is ParentState.WAITING]
    fields = {
        "total": parents.total,
        "succeeded": parents.succeeded,
        "parents": [{"job_id": parent.id, "name": parent.name, "state": parent.state} for parent in parents.some],
    }
    reasons = []
    for parent in stuck:
        advice = _ADVICE.get(parent.state, "").format(parent=parent.id)
        otherwise = _OTHERWISE.format(id=facts.id)
        message = f"It depends on {_name(parent)}, which {_ended(parent.state)}."
        reasons.append(Reason("blocked", message, None, f"{advice} {otherwise}".strip(), fields))
    left = parents.total - parents.succeeded - len(stuck)
    if left and waiting:
        names = ", ".join(map(_name, waiting)) + (", …" if left > len(waiting) else "")
        reasons.append(Reason("blocked", f"It waits for {left:,} of {_jobs(parents.total)}: {names}.", facts=fields))
    if not reasons:
        reasons.append(Reason("blocked", "The jobs that it waits for have succeeded: it starts now.", facts=fields))
    return reasons


def _is_open(parent: Parent) -> bool:
    return parent.state is not ParentState.SUCCEEDED


def _ended(state: ParentState) -> str:
    match state:
        case ParentState.DELETED:
            return "was deleted before it ran"
        case ParentState.GONE:
            return "is no longer kept"
        case _:
            return f"ended {state.value}"


def _name(parent: Parent) -> str:
    return f"{parent.name} ({parent.id})" if parent.name else str(parent.id)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
