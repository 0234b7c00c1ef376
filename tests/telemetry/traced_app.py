"""Functions for a worker whose attempts are traced: `ondot worker tests.telemetry.traced_app:app`."""

from opentelemetry import trace

from ondot import Context, Ondot

app = Ondot()


@app.job
async def flaky(ctx: Context) -> str | None:
    """Fails once; then a library in it records a span of its own."""
    if ctx.attempt == 1:
        raise ValueError("not yet")
    with trace.get_tracer("library").start_as_current_span("inner"):
        return ctx.traceparent


@app.job
def plain(ctx: Context) -> str:
    """In a thread."""
    with trace.get_tracer("library").start_as_current_span("in a thread"):
        return f"{ctx.traceparent} {ctx.tracestate}"
