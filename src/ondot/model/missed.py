"""Fires that were missed: what a person does about them."""

from datetime import UTC, datetime

from ondot.model.ids import JobId


def what_to_do(job_id: JobId, from_at: datetime, to_at: datetime, *, is_backfilled: bool) -> str | None:
    """The command that runs the fires of a range after all; None once a backfill has them."""
    if is_backfilled:
        return None
    return f"ondot job backfill {job_id} --from {_format(from_at)} --to {_format(to_at)}"


def _format(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
