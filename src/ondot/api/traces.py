"""The trace of a request (O3): `traceparent` and `tracestate` of the W3C standard. Invalid headers are ignored."""

from typing import Final

from msgspec import structs
from starlette.types import Scope

from ondot.model.trace import TraceContext, parse_traceparent, parse_tracestate
from ondot.telemetry.trace_context import TRACEPARENT, TRACESTATE

HEADER: Final = b"traceparent"
STATE: Final = b"tracestate"


def caller_trace(scope: Scope) -> TraceContext | None:
    """The span that sent the request. A second header makes both invalid."""
    found = [value for name, value in scope["headers"] if name == HEADER]
    if len(found) != 1:
        return None
    context = parse_traceparent(found[0].decode("latin-1").strip())
    if context is None:
        return None
    # Only with a valid traceparent, which it belongs to.
    states = [value.decode("latin-1") for name, value in scope["headers"] if name == STATE]
    if states:
        context = structs.replace(context, state=parse_tracestate(states))
    TRACEPARENT.set(context.traceparent)
    TRACESTATE.set(context.state)
    return context
