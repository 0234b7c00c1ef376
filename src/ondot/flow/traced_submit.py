"""①d The trace of a request that creates jobs (O3): which of them are recorded, and the span of their submit.

The traceparent of the submit is stored in the spec, so that the worker's spans are its children. If no caller sent one,
the trace of a job is decided by its id, and nothing is stored for a job that is not sampled.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import structs

from ondot.flow.new_jobs import Accepted
from ondot.model.job import JobSpec
from ondot.model.trace import Part, TraceContext, derive_span_id, parse_traceparent
from ondot.telemetry.trace import Span, Tracer


def record_submits(
    tracer: Tracer, caller: TraceContext | None, started_at: datetime, now: Callable[[], datetime]
) -> Callable[[Sequence[Accepted]], None]:
    """To be called after the COMMIT, with the jobs that are new."""

    def record(jobs: Sequence[Accepted]) -> None:
        ended_s = now().timestamp()
        for job in jobs:
            own = None if job.spec.trace is None else parse_traceparent(job.spec.trace, job.spec.tracestate)
            if own is None or own.span_id != derive_span_id(job.id, Part.SUBMIT):
                continue
            tracer.record(
                Span(
                    f"submit {job.spec.pool}",
                    "PRODUCER",
                    own.trace_id,
                    own.span_id,
                    None if caller is None else caller.span_id,
                    started_at.timestamp(),
                    ended_s,
                    {
                        "messaging.system": "ondot",
                        "messaging.destination.name": job.spec.pool,
                        "messaging.operation.name": "submit",
                        "messaging.operation.type": "send",
                        "ondot.job.id": str(job.id),
                        "ondot.job.name": job.spec.name,
                    },
                    state=own.state,
                )
            )

    return record


def set_caller(specs: Sequence[JobSpec], caller: TraceContext) -> list[JobSpec]:
    return [structs.replace(spec, trace=caller.traceparent, tracestate=caller.state) for spec in specs]
