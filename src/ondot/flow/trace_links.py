"""④b The traces that led to leased executions (O3): of the execution that one repeats, the run that made it by a step,
the event that started it, the request for its backfill. Looked up only if traces are recorded."""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from ondot.model.ids import ExecutionId
from ondot.model.job import JobSpec
from ondot.model.trace import Part, TraceContext, derive_span_id, find_trace_id, parse_traceparent
from ondot.store.connection import Connection
from ondot.store.queue import Leased
from ondot.store.specs import Specs
from ondot.store.traces import (
    find_backfill_traces,
    find_event_traces,
    find_parents,
    find_replayed,
    find_traces,
)

Links = tuple[tuple[TraceContext, str], ...]

LINKED_ORIGINS: Final = frozenset({"replay", "run", "child", "event", "backfill"})


async def find_links(
    connection: Connection, stored: Specs, leased: Sequence[Leased], specs: Mapping[tuple[UUID, int], JobSpec]
) -> dict[ExecutionId, Links]:
    links: dict[ExecutionId, Links] = {}
    for tenant_no in {row.tenant_no for row in leased if row.origin in LINKED_ORIGINS}:
        own = [row for row in leased if row.tenant_no == tenant_no]
        again = {row.id: specs.get((row.job_id, row.job_version)) for row in own if row.origin in {"replay", "run"}}
        replayed = await find_replayed(connection, tenant_no, again)
        parents = await find_parents(connection, tenant_no, [row.id for row in own if row.origin == "child"])
        of_parents = await stored.find(connection, [(one.job_id, one.job_version) for one in parents.values()])
        traces = await find_traces(connection, {*replayed.values(), *(one.run_id for one in parents.values())})
        for id_, old in replayed.items():
            links[id_] = ((_plan_of(old, traces.get(old), again[id_]), "the execution that it repeats"),)
        for id_, parent in parents.items():
            spec = of_parents.get((parent.job_id, parent.job_version))
            plan = _plan_of(parent.run_id, traces.get(parent.run_id), spec)
            links[id_] = ((plan, "the run that made it"),)
        started = [row.id for row in own if row.origin == "event"]
        fires = [(row.id, row.job_id, row.fire_at) for row in own if row.origin == "backfill"]
        for found, how in (
            (await find_event_traces(connection, tenant_no, started), "the event that started it"),
            (await find_backfill_traces(connection, tenant_no, fires), "the request for its backfill"),
        ):
            for id_, traceparent in found.items():
                if (context := parse_traceparent(traceparent)) is not None:
                    links[id_] = ((context, how),)
    return links


def _plan_of(id_: ExecutionId, trace: TraceContext | None, spec: JobSpec | None) -> TraceContext:
    """The plan of an execution. `trace`: its own, if it is not that of its job."""
    of_job = None if spec is None or spec.recurs else spec.trace
    trace_id = find_trace_id(of_job, id_) if trace is None else trace.trace_id
    return TraceContext(trace_id, derive_span_id(id_, Part.PLAN), is_sampled=True)
