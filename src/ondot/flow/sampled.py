"""Which trace an attempt belongs to, if it is recorded (O3). The same in every process, for every attempt."""

from typing import TYPE_CHECKING

from msgspec import Struct

from ondot.model.trace import Part, derive_span_id, parse_traceparent
from ondot.telemetry.trace import Tracer

if TYPE_CHECKING:
    from ondot.flow.lease import Assignment


class Sampled(Struct, frozen=True):
    """`parent_id`: the span above the plan of its execution; None: the plan is the first."""

    trace_id: str
    parent_id: str | None


def sample_trace(tracer: Tracer, assignment: "Assignment") -> Sampled | None:
    """None: it is not recorded."""
    leased, spec, step = assignment.leased, assignment.spec, assignment.step
    if spec is None:
        return None
    own_id = leased.id if step is None else step.run_id
    if spec.trace is None or spec.recurs:
        # A one-time job was decided by its own id when it was submitted.
        is_first = step is None and leased.origin == "fire" and not spec.recurs
        if not tracer.is_sampled(leased.job_id if is_first else own_id, None):
            return None
        return Sampled(own_id.hex, None if step is None else derive_span_id(own_id, Part.PLAN))
    caller = parse_traceparent(spec.trace)
    if caller is None or not tracer.is_sampled(own_id, caller):
        return None
    return Sampled(caller.trace_id, caller.span_id if step is None else derive_span_id(own_id, Part.PLAN))
