"""Why a fire missed what was expected of it, in words (O11): by what became of it, or by `explain` while it lives."""

from contextlib import suppress
from datetime import datetime
from uuid import UUID

from ondot.flow.explain import explain_execution
from ondot.model.errors import NotFound
from ondot.model.expect import Fired, Which
from ondot.model.explain_facts import WHY_ENDED
from ondot.model.ids import ExecutionId, TenantNo
from ondot.store.database import Database
from ondot.words.job import WHY_SKIPPED, elapsed, one_line

LONGEST = 500


async def explain_miss(
    database: Database, tenant_no: TenantNo, which: Which, fired: Fired, due: datetime, execution_id: UUID | None
) -> str:
    """Why it had not started or succeeded when it was due."""
    if fired.state == "MISSED":
        reason = fired.reason or ""
        return "its fire was due and was not planned" if reason == "not planned" else WHY_SKIPPED.get(reason, reason)
    late_at = fired.started_at if which == "start_within" else fired.ended_at if fired.state == "SUCCEEDED" else None
    if late_at is not None:
        did = "started" if which == "start_within" else "succeeded"
        late_s = (late_at - due).total_seconds()
        return f"it {did} {'less than 1 s' if late_s < 1 else elapsed(late_s)} too late"
    if fired.ended_at is not None:
        reason = WHY_ENDED.get(fired.reason or "", fired.reason or "no reason was recorded")
        return one_line(f"it ended {fired.state}: {reason}")[:LONGEST]
    with suppress(NotFound):
        if execution_id is not None:
            explained = await explain_execution(database, tenant_no, ExecutionId(execution_id))
            return one_line(explained.summary)[:LONGEST]
    return f"it was {fired.state}"


def explain_prediction(fired: Fired, took_s: float | None, ends_at: datetime) -> str:
    """Why it will probably miss: "it runs since 05:40, and nine of ten runs take 25 min: it will end at 06:05"."""
    runs = "it runs" if fired.state == "RUNNING" else "it has not started"
    since = f" since {fired.last_started_at:%H:%M:%S} UTC" if fired.state == "RUNNING" and fired.last_started_at else ""
    return f"{runs}{since}, and nine of ten runs take {elapsed(took_s or 0)}: it will end at {ends_at:%H:%M:%S} UTC"
