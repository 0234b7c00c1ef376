"""Steps of workflows that wait for an event (S11, W8): the first one that matches after the step has started to wait.

The event ends the wait in its own transaction: the step's arrival and the event commit together. The event is the
result of the step.
"""

from collections.abc import Sequence
from uuid import UUID

from ondot.model.event import Event
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.schedule import OnEvent
from ondot.model.try_filter import why_not
from ondot.store.connection import Connection
from ondot.store.event_waits import add_event_wait, find_event_waits, remove_event_waits
from ondot.store.step_waits import end_wait


async def register(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, token: ExecutionId, rule: OnEvent
) -> None:
    """A step waits from now on, in the transaction that starts it."""
    await add_event_wait(connection, tenant_no, token, run_id, rule)


async def forget(connection: Connection, tenant_no: TenantNo, tokens: Sequence[ExecutionId]) -> None:
    """Steps wait no longer: they timed out, were cancelled or replaced."""
    await remove_event_waits(connection, tenant_no, tokens)


async def end_waits(connection: Connection, tenant_no: TenantNo, events: Sequence[Event]) -> set[ExecutionId]:
    """End the waits that these events match; returns the runs to advance after the commit."""
    waits = await find_event_waits(connection, tenant_no, {event.type for event in events})
    runs: set[ExecutionId] = set()
    over: list[ExecutionId] = []
    for wait in waits:
        event = next((event for event in events if why_not(wait.rule, event) is None), None)
        if event is None:
            continue
        over.append(wait.execution_id)
        # False: it timed out, or its run was cancelled, at this moment.
        if await end_wait(connection, tenant_no, wait.run_id, wait.execution_id, "SUCCEEDED", result=event.text):
            runs.add(wait.run_id)
    if over:
        await remove_event_waits(connection, tenant_no, over)
    return runs
