"""The spec of a job for one step, so that an attempt of a step runs like one of any job (W1).

Pool, priority, retry and labels are the workflow's unless the step has its own. Limits, timeout and schedule of the
workflow are those of its runs, and no step inherits them.

The payload here is the one that was written: with `{"$from": …}` it was resolved when the step was released, and the
execution has its own. References to secrets are filled in only where this payload has them: values that `$from` brought
are plain data.
"""

from collections.abc import Iterator

from ondot.model.job import JobSpec
from ondot.model.target import AttemptTarget
from ondot.model.workflow.graph import compile_graph
from ondot.model.workflow.spec import WorkflowTarget


def list_attempt_specs(spec: JobSpec) -> Iterator[tuple[str | None, JobSpec]]:
    """The specs of all attempts that a job may make: its own, or that of each step that calls something, with its name.

    Rules about what a job may call, and where, look at all of these: a workflow is no way around a rule.
    """
    if not isinstance(spec.target, WorkflowTarget):
        yield None, spec
        return
    for no, (name, step) in enumerate(spec.target.steps.items()):
        if isinstance(step.target, AttemptTarget):
            yield name, step_job_spec(spec, no)


def step_job_spec(spec: JobSpec, step_no: int) -> JobSpec:
    """The spec of attempts of a step that calls something. `spec` is that of the workflow's job."""
    assert isinstance(spec.target, WorkflowTarget)
    step = compile_graph(spec.target).steps[step_no]
    assert isinstance(step.target, AttemptTarget), "other steps have no attempts"
    return JobSpec(
        name=spec.name,
        target=step.target,
        payload=spec.payload if step.payload is None else step.payload,
        pool=spec.pool if step.pool is None else step.pool,
        priority=spec.priority if step.priority is None else step.priority,
        labels={**spec.labels, **step.labels} if step.labels else spec.labels,
        secrets=step.secrets,
        retry=spec.retry if step.retry is None else step.retry,
        timeout_s=step.timeout_s,
        limits=step.limits,
        cancel_grace_s=spec.cancel_grace_s,
        trace=None if spec.recurs else spec.trace,
        tracestate=None if spec.recurs else spec.tracestate,
    )
