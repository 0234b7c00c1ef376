"""What happened to a job's fire at an instant (E17): the answer to "it did not run at nine".

The instant is looked up in the schedule in force at that time (`read_schedule`) and in the records: an execution, a
range of skipped fires, or a range still owed. Where there is no fire, the nearest ones are shown.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from ondot.model.execution import State
from ondot.model.explain_facts import WHY_ENDED, JobFacts, Range, format_instant
from ondot.model.ids import ExecutionId
from ondot.model.job import JobState
from ondot.model.schedule import GivenUp, Schedule, in_words, next_fire, preview
from ondot.model.schedule.counting import last_fire

NEAR: Final = timedelta(seconds=1)
"""People leave out fractions of a second: a fire this close to an instant is the one they mean."""
_LOOKED_BACK: Final = tuple(timedelta(days=days) for days in (1, 40, 400, 4_000))
_MICROSECOND: Final = timedelta(microseconds=1)

FireCode = Literal[
    "executed",
    "waiting",
    "not_yet",
    "skipped",
    "cancelled",
    "left_out",
    "catching_up",
    "late_plan",
    "paused",
    "deleted",
    "ended",
    "before_job",
    "not_a_fire",
    "no_record",
]

_WHY_SKIPPED: Final = {
    "misfire": "no scheduler planned them in time, and the job's misfire policy skips such fires",
    "coalesced": "they were missed, and the job's misfire policy runs only the latest missed fire",
    "paused": "the job was paused",
    "deleted": "the job was deleted",
    "calendar": "the job's calendar excludes them",
}


@dataclass(frozen=True, slots=True)
class FireExecution:
    id: ExecutionId
    fire_at: datetime
    ready_at: datetime
    state: State
    reason: str | None


@dataclass(frozen=True, slots=True)
class OnRecord:
    """The records of an instant: the execution of its fire, a range of skipped fires around it, a range still owed."""

    execution: FireExecution | None = None
    skipped: Range | None = None
    owed: Range | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a schedule has at an instant. `fire_at`: its fire, kept or left out (`left_out` is then the reason)."""

    in_words: str
    fire_at: datetime | None = None
    left_out: str | None = None
    before_at: datetime | None = None
    after_at: datetime | None = None

    def nearest(self, at: datetime) -> datetime | None:
        sides = [side for side in (self.before_at, self.after_at) if side is not None]
        return min(sides, key=lambda side: abs(side - at), default=None)


@dataclass(frozen=True, slots=True)
class FireExplanation:
    at: datetime
    code: FireCode
    message: str
    fire_at: datetime | None
    facts: dict[str, Any] = field(default_factory=dict)


def read_schedule(schedule: Schedule, at: datetime) -> Reading:
    """Look up an instant. A schedule of many rules may take long: call it in a thread."""
    words = in_words(schedule)
    try:
        fire_at = next_fire(schedule, at - NEAR - _MICROSECOND)
        if fire_at is not None and fire_at <= at + NEAR:
            return Reading(words, fire_at)
        coming = preview(schedule, at - NEAR - _MICROSECOND, 1)
        for entry in coming.skipped[:1]:
            left_at = datetime.fromisoformat(entry.local)
            if left_at.tzinfo is not None and abs(left_at - at) <= NEAR:
                return Reading(words, left_at.astimezone(at.tzinfo), entry.reason)
        before_at = None
        for back in _LOOKED_BACK:
            before_at = before_at or last_fire(schedule, at - back, at)
        after_at = coming.fires[0].fire_at if coming.fires else None
        return Reading(words, before_at=before_at, after_at=after_at)
    except (GivenUp, OverflowError):
        return Reading(words)


def explain_fire(
    facts: JobFacts, at: datetime, reading: Reading | None, found: OnRecord, nearest: OnRecord | None = None
) -> FireExplanation:
    """What happened to the fire at an instant or, if there is none, which fires are nearest.

    `reading`: by the schedule in force at that time; None: there was none. `nearest`: the records of the nearest fire.
    """
    if found.execution is not None:
        return _of_execution(facts, at, found.execution)
    if reading is None:
        message = f"The job did not exist yet: it was created at {format_instant(facts.created_at)}."
        return FireExplanation(at, "before_job", message, None, {"created_at": facts.created_at})
    if reading.left_out is not None:
        why = {
            "holiday": "it is a holiday",
            "date": "the date is on the calendar's list",
            "weekend": "it is not a business day",
            "blackout": "it is in a blackout",
            "excluded": "an exclude rule matches it",
        }.get(reading.left_out, reading.left_out)
        message = f"The schedule excludes its fire at {format_instant(reading.fire_at or at)}: {why}."
        return FireExplanation(at, "left_out", message, reading.fire_at, {"reason": reading.left_out})
    if reading.fire_at is None:
        return _not_a_fire(facts, at, reading, nearest)
    return _of_fire(facts, at, reading.fire_at, found)


def _of_execution(facts: JobFacts, at: datetime, execution: FireExecution) -> FireExplanation:
    fire = f"The fire at {format_instant(execution.fire_at)}"
    because = f": {WHY_ENDED.get(execution.reason, execution.reason)}" if execution.reason else ""
    code: FireCode = "executed"
    match execution.state:
        case State.PENDING if execution.ready_at > facts.now:
            code, message = "not_yet", f"{fire} is planned and starts at {format_instant(execution.ready_at)}."
        case State.PENDING | State.BLOCKED:
            code, message = "waiting", f"{fire} is due and waits: see the explanation of its execution."
        case State.RUNNING | State.RETRYING:
            message = f"{fire} has started: its execution is {execution.state.value}."
        case State.SKIPPED:
            code, message = "skipped", f"{fire} was skipped{because}."
        case State.CANCELLED:
            code, message = "cancelled", f"{fire} was cancelled{because}."
        case State.SUCCEEDED | State.FAILED:
            message = f"{fire} ran and ended {execution.state.value}{because}."
    details = {"execution_id": execution.id, "state": execution.state, "reason": execution.reason}
    return FireExplanation(at, code, message, execution.fire_at, details)


def _of_fire(facts: JobFacts, at: datetime, fire_at: datetime, found: OnRecord) -> FireExplanation:
    """A fire without an execution."""
    fire = f"The fire at {format_instant(fire_at)}"
    if found.skipped is not None:
        skipped = found.skipped
        how_many = "too many to count" if skipped.count is None else f"{skipped.count:,} in all"
        why = _WHY_SKIPPED.get(skipped.reason, skipped.reason)
        message = f"{fire} was skipped with all fires {_between(skipped)} ({how_many}): {why}."
        return FireExplanation(at, "skipped", message, fire_at, _of_range(skipped))
    if found.owed is not None:
        message = f"{fire} was missed and will run with the other missed fires {_between(found.owed)}."
        return FireExplanation(at, "catching_up", message, fire_at, _of_range(found.owed))
    code, rest = _without_record(facts, fire_at)
    return FireExplanation(at, code, f"{fire} {rest}.", fire_at)


def _without_record(facts: JobFacts, fire_at: datetime) -> tuple[FireCode, str]:
    is_open = facts.fired_through is None or fire_at > facts.fired_through
    if facts.state is JobState.DELETED and is_open:
        return "deleted", "does not run: the job is deleted"
    if facts.fires_left == 0 and is_open:
        return "ended", f"does not run: the job has fired `max_fires` times ({facts.schedule.max_fires or 0:,})"
    if facts.state is JobState.PAUSED and is_open:
        return "paused", "does not run while the job is paused; resuming the job decides whether it runs"
    if fire_at > facts.now:
        return "not_yet", "is in the future"
    if facts.timer_at is not None and facts.timer_at <= fire_at:
        why = "no scheduler has planned it"
        if facts.held_at is not None:
            why = f"nothing starts since {format_instant(facts.held_at)}"
        return "late_plan", f"is due and not planned: {why}"
    return "no_record", "has no record: its history may have been deleted by retention"


def _between(of: Range) -> str:
    return f"from {format_instant(of.from_at)} to {format_instant(of.to_at)}"


def _of_range(of: Range) -> dict[str, Any]:
    return {"reason": of.reason, "from_at": of.from_at, "to_at": of.to_at, "count": of.count}


def _not_a_fire(facts: JobFacts, at: datetime, reading: Reading, nearest: OnRecord | None) -> FireExplanation:
    before, after = reading.before_at, reading.after_at
    sides = [f"the one before it is {format_instant(before)}"] if before else []
    sides += [f"the one after it {format_instant(after)}"] if after else []
    words = f": {' and '.join(sides)}" if sides else ""
    message = f"{format_instant(at)} is not a fire of this schedule ({reading.in_words}){words}."
    nearest_at = reading.nearest(at)
    details: dict[str, Any] = {"before_at": before, "after_at": after}
    if nearest is not None and nearest_at is not None:
        near = explain_fire(facts, nearest_at, Reading(reading.in_words, nearest_at), nearest)
        details["nearest"] = {"code": near.code, "message": near.message, "fire_at": near.fire_at} | near.facts
        message = f"{message} {near.message}"
    return FireExplanation(at, "not_a_fire", message, None, details)
