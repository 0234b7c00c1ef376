"""What an attempt of a step runs (W1): the spec of its step, and what users see of it.

The `job_id` of a step's execution is its run. Users see the job of the workflow, the run, the step and the item.
"""

from collections.abc import Sequence

from msgspec import Struct

from ondot.model.ids import ExecutionId, JobId
from ondot.model.job import JobSpec
from ondot.model.trace import TraceContext
from ondot.model.workflow.graph import compile_graph
from ondot.model.workflow.spec import WorkflowTarget
from ondot.model.workflow.step_spec import step_job_spec
from ondot.store.connection import Connection
from ondot.store.specs import Specs
from ondot.store.steps import find_step_nos


class StepAttempt(Struct, frozen=True):
    """Which step an execution is of, and the spec that its attempts run."""

    job_id: JobId
    run_id: ExecutionId
    step: str
    item_no: int | None
    spec: JobSpec
    is_read: bool = False
    """Another step may read its result."""
    is_of_event: bool = False
    """An event started its run."""
    payload: bytes | None = None
    """The execution's own, if it was asked for; None: that of the spec."""
    trace: TraceContext | None = None
    """Of its run, if that is not its job's."""


async def find_step_attempts(
    connection: Connection,
    specs: Specs,
    executions: Sequence[tuple[ExecutionId, JobId, int]],
    *,
    with_payloads: bool = False,
) -> dict[ExecutionId, StepAttempt]:
    """Of executions of steps, given with their `job_id` and version; those whose definition is gone are left out."""
    if not executions:
        return {}
    steps = await find_step_nos(connection, [id_ for id_, _, _ in executions], with_payloads=with_payloads)
    versions = {id_: (steps[id_][0], version) for id_, _, version in executions if id_ in steps}
    found = await specs.find(connection, versions.values())
    attempts = {}
    for id_, run_id, _ in executions:
        spec = found.get(versions[id_]) if id_ in versions else None
        if spec is None or not isinstance(spec.target, WorkflowTarget):
            continue
        job_id, step_no, item_no, is_of_event, payload, trace = steps[id_]
        graph = compile_graph(spec.target)
        # A workflow with a key may be a step of another, which reads the results of its last steps.
        is_read = bool(graph.children[step_no]) or spec.key is not None
        attempts[id_] = StepAttempt(
            job_id,
            ExecutionId(run_id),
            graph.names[step_no],
            item_no,
            step_job_spec(spec, step_no),
            is_read,
            is_of_event,
            None if payload is None else payload.encode(),
            trace,
        )
    return attempts
