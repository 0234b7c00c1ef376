"""Keep house: idempotency keys that have aged out, workers and nodes that are gone, and the sweep
of queue rows that were committed too late for any worker to look at them."""

from ondot.flow.dispatch import Dispatcher
from ondot.store.claims import forget_claims
from ondot.store.database import Database
from ondot.store.idempotency import forget_keys
from ondot.store.logs import forget_checkpoints
from ondot.store.nodes import forget_nodes
from ondot.store.queue import sweep_late_ready
from ondot.store.streaks import forget_streaks
from ondot.store.workers import forget_workers
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import SWEPT

ROWS_A_PASS = 1_000

log = get_logger()


async def sweep_pass(database: Database, dispatcher: Dispatcher) -> int:
    """Re-insert what stands below every live worker's bound (callers' long transactions); gives how much."""
    async with database.connection() as connection:
        swept = await sweep_late_ready(connection, ROWS_A_PASS)
    now = database.clock.now()
    dispatcher.wake((pool_no, now) for pool_no in swept)
    count = sum(swept.values())
    if count:
        SWEPT.inc(count)
        log.warning("ready.swept", count=count)
    return count


async def retain_pass(database: Database) -> int:
    """Forget what has aged out; gives how many idempotency keys went."""
    async with database.connection() as connection:
        await forget_workers(connection)
        await forget_nodes(connection)
        await forget_checkpoints(connection, ROWS_A_PASS)
        await forget_streaks(connection, ROWS_A_PASS)
        await forget_claims(connection, ROWS_A_PASS)
        return await forget_keys(connection, ROWS_A_PASS)
