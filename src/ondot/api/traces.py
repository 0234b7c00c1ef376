"""The trace of a request (O3): `traceparent`, as the W3C standard says. Everything that is not valid is ignored."""

from typing import Final

from starlette.types import Scope

from ondot.model.trace import TraceContext, parse_traceparent
from ondot.telemetry.trace_context import TRACEPARENT

HEADER: Final = b"traceparent"


def caller_trace(scope: Scope) -> TraceContext | None:
    """The span that sent the request. A second header makes both invalid."""
    found = [value for name, value in scope["headers"] if name == HEADER]
    if len(found) != 1:
        return None
    context = parse_traceparent(found[0].decode("latin-1").strip())
    if context is not None:
        TRACEPARENT.set(context.traceparent)
    return context
