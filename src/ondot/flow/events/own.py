"""ondot's own events (S11): ends of executions, blocked runs and paused jobs start jobs that subscribe to them.

The statement that ends an execution writes a row into an inbox, if jobs of the tenant start by such events. A pass of
housekeeping takes rows in their order, makes events of them, and receives these like those of a sender, in the
transaction that removes the rows: each is matched exactly once. `ondothops` grows with each event that leads to the
next; an event above `MAX_HOPS` is stored, and starts nothing.
"""

from collections.abc import Sequence
from typing import Any, Final

from ondot.flow.events.receive import EventReceiver
from ondot.model.event import Event, read_event
from ondot.model.ids import TenantNo
from ondot.model.job import JobSpec
from ondot.model.own_events import HOPS, MAX_HOPS
from ondot.model.sink_event import shorten_error
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.jobs import get_jobs
from ondot.store.own_events import (
    Ended,
    OwnEventRow,
    find_ended,
    find_hops,
    find_own_tenants,
    take_own_events,
)
from ondot.store.subscriptions import share_subscriptions
from ondot.telemetry.log import get_logger

AT_ONCE: Final = 500
TENANTS_AT_ONCE: Final = 100

log = get_logger()


class OwnEvents:
    def __init__(self, database: Database, receiver: EventReceiver) -> None:
        self._database = database
        self._receiver = receiver

    async def one_pass(self) -> int:
        """Match what waits in the inbox; returns how many events."""
        async with self._database.connection() as connection:
            tenants = await find_own_tenants(connection, TENANTS_AT_ONCE)
        return sum([await self._match(tenant_no) for tenant_no in tenants])

    async def _match(self, tenant_no: TenantNo) -> int:
        async with self._database.transaction() as connection:
            # First of all, as every sender: no subscription changes until this commits.
            await share_subscriptions(connection, tenant_no)
            rows = await take_own_events(connection, tenant_no, AT_ONCE)
            if not rows:
                return 0
            events = await self._events(connection, tenant_no, rows)
            near = [event for event, hops in events if hops <= MAX_HOPS]
            far = [event for event, hops in events if hops > MAX_HOPS]
            stored = [
                await self._receiver.store(connection, tenant_no, near) if near else None,
                await self._receiver.store(connection, tenant_no, far, may_match=False) if far else None,
            ]
        for event in far:
            log.warning("event.refused", tenant_no=tenant_no, type=event.type, source=event.source, why="too many hops")
        for one in stored:
            if one is not None:
                self._receiver.report(one)
        return len(rows)

    async def _events(
        self, connection: Connection, tenant_no: TenantNo, rows: Sequence[OwnEventRow]
    ) -> list[tuple[Event, int]]:
        ids = {row.execution_id for row in rows if row.execution_id is not None}
        ended = await find_ended(connection, tenant_no, ids)
        hops = await find_hops(connection, tenant_no, ids)
        jobs = await get_jobs(connection, tenant_no, sorted({row.job_id for row in rows}))
        made = []
        for row in rows:
            spec = jobs[row.job_id].spec if row.job_id in jobs else None
            led = 1 + (hops.get(row.execution_id, 0) if row.execution_id is not None else 0)
            outcome = None if row.execution_id is None else ended.get(row.execution_id)
            value = _value(row, spec, outcome, led)
            made.append((read_event(value, from_outside=False), led))
        return made


def _value(row: OwnEventRow, spec: JobSpec | None, ended: Ended | None, hops: int) -> dict[str, Any]:
    data: dict[str, Any] = {"job_id": str(row.job_id)}
    if spec is not None:
        data |= {"job": spec.name, "labels": dict(spec.labels)}
    if row.execution_id is not None:
        data["execution_id"] = str(row.execution_id)
    if row.reason is not None:
        data["reason"] = row.reason
    if ended is not None:
        data |= {
            "state": ended.state,
            "origin": ended.origin,
            "reason": ended.reason,
            "attempt": ended.attempt_no,
            "fire_at": ended.fire_at.isoformat(),
            "ended_at": ended.ended_at.isoformat(),
            "error": shorten_error(ended.error),
            "result": ended.result,
        }
        if ended.is_cut:
            data["result_left_out"] = True
    return {
        "specversion": "1.0",
        "id": str(row.execution_id) if row.execution_id is not None and ended is not None else f"own-{row.no}",
        "source": f"/jobs/{row.job_id}",
        "type": row.type,
        "subject": str(row.execution_id or row.job_id),
        "time": row.at.isoformat(),
        HOPS: hops,
        "data": data,
    }
