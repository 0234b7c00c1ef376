"""④b The traces that led to leased executions (O3): of the execution that one repeats, of the event that started it."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from ondot.model.ids import ExecutionId
from ondot.model.job import JobSpec
from ondot.model.trace import Part, TraceContext, derive_span_id, find_trace_id, parse_traceparent
from ondot.store.connection import Connection
from ondot.store.queue import Leased
from ondot.store.trace_links import find_event_traces, find_replayed

Links = tuple[tuple[TraceContext, str], ...]


async def find_links(
    connection: Connection, leased: Sequence[Leased], specs: Mapping[tuple[UUID, int], JobSpec]
) -> dict[ExecutionId, Links]:
    links: dict[ExecutionId, Links] = {}
    for tenant_no in {row.tenant_no for row in leased if row.origin in {"replay", "event"}}:
        own = [row for row in leased if row.tenant_no == tenant_no]
        replays = {row.id: specs.get((row.job_id, row.job_version)) for row in own if row.origin == "replay"}
        for id_, replayed in (await find_replayed(connection, tenant_no, replays)).items():
            spec = replays[id_]
            caller = None if spec is None or spec.recurs else spec.trace
            trace_id, span_id = find_trace_id(caller, replayed), derive_span_id(replayed, Part.PLAN)
            links[id_] = ((TraceContext(trace_id, span_id, is_sampled=True), "the execution that it repeats"),)
        started = [row.id for row in own if row.origin == "event"]
        for id_, traceparent in (await find_event_traces(connection, tenant_no, started)).items():
            if (context := parse_traceparent(traceparent)) is not None:
                links[id_] = ((context, "the event that started it"),)
    return links
