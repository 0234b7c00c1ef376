"""Which trace an attempt belongs to, if it is recorded (O3). The same in every process, for every attempt."""

from typing import TYPE_CHECKING

from msgspec import Struct

from ondot.model.trace import Part, TraceContext, derive_span_id, parse_traceparent
from ondot.telemetry.trace import Tracer

if TYPE_CHECKING:
    from ondot.flow.lease import Assignment


class Sampled(Struct, frozen=True):
    """`parent_id`: the span above the plan of its execution; None: the plan is the first."""

    trace_id: str
    parent_id: str | None
    state: str | None = None


def sample_trace(tracer: Tracer, assignment: "Assignment") -> Sampled | None:
    """None: it is not recorded."""
    leased, spec, step = assignment.leased, assignment.spec, assignment.step
    if spec is None:
        return None
    own_id = leased.id if step is None else step.run_id
    caller = find_caller(assignment)
    if caller is None:
        # A one-time job was decided by its own id when it was submitted.
        is_first = step is None and leased.origin == "fire" and not spec.recurs
        if not tracer.is_sampled(leased.job_id if is_first else own_id, None):
            return None
        return Sampled(own_id.hex, None if step is None else derive_span_id(own_id, Part.PLAN))
    if not tracer.is_sampled(own_id, caller):
        return None
    parent_id = caller.span_id if step is None else derive_span_id(own_id, Part.PLAN)
    return Sampled(caller.trace_id, parent_id, caller.state)


def find_caller(assignment: "Assignment") -> TraceContext | None:
    """The span that it belongs to: of the request that started it or its run, or that created its one-time job."""
    spec = assignment.spec
    if assignment.trace is not None or spec is None or spec.trace is None or spec.recurs:
        return assignment.trace
    return parse_traceparent(spec.trace, spec.tracestate)
