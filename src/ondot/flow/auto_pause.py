"""Pause the jobs that keep failing (S12): one pass of housekeeping.

Complete counts failures in a row in `streak`, in the transaction that writes the outcome, and never touches the job
itself; this pass pauses the jobs that have reached their limit. A resumed job starts a new count.
"""

from ondot.flow.change.change import pause
from ondot.model.errors import Conflict, NotFound
from ondot.model.explain_facts import pluralize
from ondot.store.audit import ONDOT, By
from ondot.store.database import Database
from ondot.store.streaks import find_streaks_over, forget_streak
from ondot.telemetry.log import get_logger

JOBS_A_PASS = 100

log = get_logger()


async def pause_failing_pass(database: Database) -> int:
    """Pause the jobs that have failed as often in a row as they may; returns how many there were."""
    async with database.connection() as connection:
        streaks = await find_streaks_over(connection, JOBS_A_PASS)
    for streak in streaks:
        reason = f"{pluralize(streak.failures, 'failure')} in a row"
        try:
            await pause(database, streak.tenant_no, streak.job_id, because=reason, by=By(ONDOT, reason))
        except (Conflict, NotFound):
            pass  # deleted in the meantime
        else:
            log.warning("job.paused", job_id=str(streak.job_id), reason=reason, then="fix it, then resume it")
        async with database.connection() as connection:
            await forget_streak(connection, streak.tenant_no, streak.job_id)
    return len(streaks)
