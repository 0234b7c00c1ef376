"""Durations and instants as the pages show them; `static/live.js` writes the same words between two events.

Pure, and short on purpose: people in a hurry read these words at a glance, in a column.

One rule for every instant on every page: the server writes it in UTC, marked as UTC, inside a `<time>`; the script
shows it in the reader's own zone. The tooltip has UTC and the job's zone. So a page never mixes zones, and without
JavaScript everything is UTC.
"""

from datetime import UTC, datetime
from typing import Final

from ondot.model.job import JobSpec, TargetSpec
from ondot.model.schedule import Cron, Once, Rrule
from ondot.model.schedule.dst import zone_info
from ondot.model.target import FunctionTarget, GrpcTarget, HttpTarget, PublishTarget, ShellTarget
from ondot.model.workflow.spec import WorkflowTarget

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
WHY_SKIPPED: Final = {
    "paused": "the job was paused",
    "misfire": "missed in an outage; the job's policy does not run them later",
    "coalesced": "missed in an outage; only the latest of them was run",
    "calendar": "excluded by the job's calendar",
    "deleted": "the job was deleted",
}
"""Why fires were recorded and not run, by the recorded reason."""
ORIGINS: Final = {
    "fire": "a fire of its schedule",
    "backfill": "a backfill",
    "run": "run by hand",
    "event": "an event",
    "replay": "a replay",
    "step": "a step of a run",
    "child": "a step of another run",
}
"""What created an execution."""


def elapsed(seconds: float) -> str:
    """A running duration: "12 s", "3 min 05 s", "2 h 10 min", "4 d 3 h"."""
    whole = max(int(seconds), 0)
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min {whole % MINUTE_S:02} s"
    if whole < DAY_S:
        return f"{whole // HOUR_S} h {whole % HOUR_S // MINUTE_S:02} min"
    return f"{whole // DAY_S} d {whole % DAY_S // HOUR_S} h"


def ahead(seconds: float) -> str:
    """A time in the future: "in 12 s", and "now" in the last half second."""
    return "now" if seconds < 0.5 else f"in {elapsed(seconds + 0.5)}"


def away(seconds: float) -> str:
    """A time in the future or in the past: "in 12 s", "12 s ago"."""
    return f"{elapsed(-seconds)} ago" if seconds <= -1 else ahead(seconds)


def took(seconds: float) -> str:
    """A finished duration, with the digits that matter: "4 ms", "1.24 s", "3 min 05 s"."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s" if seconds < MINUTE_S else elapsed(seconds)


def clock(at: datetime, now: datetime) -> str:
    """The time of day, with the date if it is not today: "12:00:05 UTC", "3 Mar 12:00:05 UTC"."""
    utc = at.astimezone(UTC)
    time = f"{utc:%H:%M:%S} UTC"
    if utc.date() == now.astimezone(UTC).date():
        return time
    return f"{utc.day} {utc:%b} {time}" if utc.year == now.year else f"{utc.day} {utc:%b %Y} {time}"


def zones(at: datetime, zone: str | None = None) -> str:
    """The tooltip of a time: the instant in UTC, and in the job's zone if it is another."""
    utc = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if zone is None or zone == "UTC":
        return utc
    return f"{utc} · {at.astimezone(zone_info(zone)):%Y-%m-%d %H:%M:%S} {zone}"


def zone_of_job(spec: JobSpec | None) -> str | None:
    """The zone of the job's schedule; None if it has none: an interval, or an instant in UTC."""
    when = None if spec is None or spec.schedule is None else spec.schedule.when
    if isinstance(when, Once) and when.timezone == "UTC":
        return None
    return when.timezone if isinstance(when, Cron | Rrule | Once) else None


def one_line(text: str) -> str:
    """The text on one line, with single spaces."""
    return " ".join(text.split())


def target_in_words(target: TargetSpec) -> str:
    """What a job calls."""
    match target:
        case HttpTarget():
            return f"{target.method} {target.url}"
        case FunctionTarget():
            return f"function {target.name}"
        case GrpcTarget():
            return f"gRPC {target.place} {target.method}"
        case ShellTarget():
            return " ".join(target.command)
        case PublishTarget():
            return f"publish to {target.place} of {target.connection or target.address}"
        case WorkflowTarget():
            return f"a workflow of {len(target.steps):,} {'step' if len(target.steps) == 1 else 'steps'}"
