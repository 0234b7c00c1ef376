"""Executions whose function the worker that leased them does not have (D1): during a deploy, or because nobody has it.

The worker returns such an execution: no call was made, no attempt is counted. It is due again in an hour. This pass
puts it back into the queue as soon as a live worker of its pool has registered the function, within a second. A worker
without the function may lease it once more while a deploy rolls; then it is returned again, at most once a second.
"""

from ondot.flow.dispatch import Dispatcher
from ondot.store.database import Database
from ondot.store.hasten import hasten
from ondot.store.known_functions import find_known_calls, forget_call
from ondot.telemetry.log import get_logger

AT_ONCE = 200

log = get_logger()


async def known_calls_pass(database: Database, dispatcher: Dispatcher) -> int:
    """Returns how many were put back."""
    async with database.connection() as connection:
        found = await find_known_calls(connection, AT_ONCE)
    count = 0
    for tenant_no, id_ in found:
        # One at a time: each locks its gates, and a lease that takes its row is waited for.
        async with database.transaction() as connection:
            hastened = await hasten(connection, tenant_no, id_, "PENDING")
            await forget_call(connection, tenant_no, id_)
        if hastened is not None:
            count += 1
            dispatcher.wake([(hastened.pool_no, hastened.ready_at)])
    if count:
        log.info("calls.known", count=count)
    return count
