"""Requests about a job that are not its fields: preview a schedule, run now, resume, backfill."""

from datetime import datetime
from typing import Any, Final, Literal

from msgspec import Raw
from pydantic import AliasChoices, Field

from ondot.document.errors import invalid_body
from ondot.document.fields import Body, Instant, JobIdText, instant_or_none
from ondot.document.reading import encode_payload, read
from ondot.document.schedule_body import ScheduleBody
from ondot.model.misfire import MissedPolicy
from ondot.model.schedule import Schedule, for_job

_A_BACKFILL: Final = 'for example {"from_at": "2026-11-01T00:00:00Z", "to_at": "2026-11-08T00:00:00Z"}'
_A_PREVIEW: Final = 'for example {"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}'


class PreviewBody(Body):
    """A schedule to preview before a job has it."""

    schedule: ScheduleBody = Field(description="The schedule.", examples=[{"cron": "0 9 * * 1-5"}])
    after: Instant | None = Field(
        default=None, description="Preview the fires after this instant, as if it were now. Default: now."
    )
    n: int = Field(default=10, ge=1, le=1000, description="How many fires.", examples=[10])
    job_id: JobIdText | None = Field(
        default=None, description="For `H` in cron: the job whose values are used; without one, those of no job."
    )


class RunBody(Body):
    """One execution now."""

    payload: Any = Field(default=None, description="Instead of the job's own payload.", examples=[{"region": "us"}])


class ResumeBody(Body):
    """How a paused job continues."""

    missed: MissedPolicy | None = Field(
        default=None,
        description="Which fires of the pause run: none, the latest, or all that the job's `misfire.window` and "
        "`misfire.limit` allow. The others are recorded as skipped. Default: none; for a job that events start, as its "
        "`misfire.policy` says.",
        examples=["skip"],
    )


class BackfillBody(Body):
    """A range in the past whose fires are run."""

    from_at: Instant = Field(
        validation_alias=AliasChoices("from_at", "from"),
        description="The first instant of the range.",
        examples=["2026-11-01T00:00:00Z"],
    )
    to_at: Instant = Field(
        validation_alias=AliasChoices("to_at", "to"),
        description="The last instant, included; not in the future.",
        examples=["2026-11-08T00:00:00Z"],
    )
    order: Literal["oldest", "newest"] = Field(default="oldest", description="Which fires go first.")
    concurrency: int = Field(
        default=1, ge=1, le=1000, description="How many of its executions may run at once.", examples=[4]
    )
    dry_run: bool = Field(default=False, description="Only count the fires.")


def preview_request(raw: object, now: datetime, *, after: datetime | None = None) -> tuple[Schedule, datetime, int]:
    """The schedule, the instant from which to preview it, and the number of fires.

    An `after`, in the body or as argument, replaces `now` for everything relative, and the schedule may be over by
    then. Without one the schedule is checked like that of a job.
    """
    reading = read(PreviewBody, raw, "", _A_PREVIEW)
    after = after or (instant_or_none(reading.long.get("after")) if reading.body is None else reading.body.after)
    schedule = reading.schedule(after or now, may_be_over=after is not None)
    if reading.body is None or schedule is None or reading.faults:
        raise invalid_body(reading.faults, all_of_schedule=reading.all_of_schedule)
    job_id = reading.body.job_id
    return schedule if job_id is None else for_job(schedule, job_id), after or now, reading.body.n


def run_payload(raw: object) -> Raw | None:
    """The payload for one execution now; None, as for a request without a body, means the job's own."""
    if raw is None:
        return None
    reading = read(RunBody, raw, "", 'for example {"payload": {"region": "us"}}')
    if reading.body is None or reading.faults:
        raise invalid_body(reading.faults, all_of_schedule=False)
    return encode_payload(reading.body.payload, "") if "payload" in reading.body.model_fields_set else None


def resume_missed(raw: object) -> MissedPolicy | None:
    """What a resumed job does about the fires of its pause; None: as it does by itself."""
    if raw is None:
        return None
    reading = read(ResumeBody, raw, "", 'for example {"missed": "once"}')
    if reading.body is None or reading.faults:
        raise invalid_body(reading.faults, all_of_schedule=False)
    return reading.body.missed


def backfill_request(raw: object) -> BackfillBody:
    reading = read(BackfillBody, raw, "", _A_BACKFILL)
    if reading.body is None or reading.faults:
        raise invalid_body(reading.faults, all_of_schedule=False)
    return reading.body
