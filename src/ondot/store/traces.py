"""The traces that executions belong to, where that is not the trace of their job, and what led to them (O3).

A request with a trace of its own that starts an execution of an existing job leaves a row. Executions of other origins
have none and are not looked up.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ondot.model.ids import ExecutionId, JobId, TenantNo, first_id_at, instant_of
from ondot.model.trace import TraceContext, parse_traceparent
from ondot.store.connection import Connection
from ondot.store.own_events import CAUSED_WITHIN
from ondot.store.queries import load_queries

_SQL = load_queries("traces")

TRACED_ORIGINS: Final = frozenset({"run", "replay", "event"})
"""Of executions that a request may start."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The run that has made another one by a step."""

    run_id: ExecutionId
    job_id: JobId
    job_version: int


async def put_traces(
    connection: Connection, tenant_no: TenantNo, ids: Sequence[ExecutionId], trace: TraceContext | None
) -> None:
    """These new executions belong to this trace. None: to that of their job."""
    if trace is not None and ids:
        await connection.execute(_SQL["put_traces"].text, tenant_no, list(ids), trace.traceparent, trace.state)


async def find_traces(connection: Connection, ids: Collection[ExecutionId]) -> dict[ExecutionId, TraceContext]:
    """Of those that have a trace of their own."""
    rows = await connection.fetch(_SQL["find_traces"].text, list(ids)) if ids else ()
    found = {row["execution_id"]: parse_traceparent(row["traceparent"], row["tracestate"]) for row in rows}
    return {id_: context for id_, context in found.items() if context is not None}


async def find_replayed(
    connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId]
) -> dict[ExecutionId, ExecutionId]:
    """The executions and runs that these repeat."""
    rows = await connection.fetch(_SQL["find_replayed"].text, tenant_no, list(ids)) if ids else ()
    return {ExecutionId(row["id"]): ExecutionId(row["replay_of"]) for row in rows}


async def find_parents(
    connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId]
) -> dict[ExecutionId, Parent]:
    """The runs that made these runs by one of their steps."""
    rows = await connection.fetch(_SQL["find_parents"].text, tenant_no, list(ids)) if ids else ()
    return {row["id"]: Parent(row["parent_run_id"], row["job_id"], row["job_version"]) for row in rows}


async def find_event_traces(
    connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId]
) -> dict[ExecutionId, str]:
    """The `traceparent` of the events that started these, if they have one."""
    if not ids:
        return {}
    oldest = first_id_at(instant_of(min(ids)) - CAUSED_WITHIN)
    rows = await connection.fetch(_SQL["find_event_traces"].text, tenant_no, list(ids), oldest, max(ids))
    return {ExecutionId(row["id"]): row["traceparent"] for row in rows}


async def find_backfill_traces(
    connection: Connection, tenant_no: TenantNo, fires: Sequence[tuple[ExecutionId, JobId, datetime]]
) -> dict[ExecutionId, str]:
    """The `traceparent` of the requests for the backfills that made these, if they had one."""
    if not fires:
        return {}
    rows = await connection.fetch(_SQL["find_backfill_traces"].text, tenant_no, *map(list, zip(*fires, strict=True)))
    return {ExecutionId(row["id"]): row["traceparent"] for row in rows}
