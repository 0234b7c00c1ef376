"""What became of the fire of a job at an instant (E17): the answer to "it did not run at nine".

The instant is looked up in the schedule that was in force then (`read_schedule`), and in what is on record: an
execution, a range of skipped fires, one still owed. Where there is no fire, the nearest ones are told instead.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from ondot.model.execution import State
from ondot.model.explain_facts import WHY_ENDED, JobFacts, Range, told
from ondot.model.ids import ExecutionId
from ondot.model.job import JobState
from ondot.model.schedule import GivenUp, Schedule, in_words, next_fire, preview
from ondot.model.schedule.counting import last_fire

NEAR: Final = timedelta(seconds=1)
"""People leave out fractions of a second: a fire this near to an instant is the one that is meant."""
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
    "misfire": "nobody planned them in time, and the misfire policy of the job leaves them out",
    "coalesced": "they were missed, and the misfire policy runs only the latest of those missed",
    "paused": "the job was paused",
    "deleted": "the job was deleted",
    "calendar": "the calendar of the job leaves them out",
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
    """What is on record of an instant: the execution of a fire there, a range of skipped fires around it, one owed."""

    execution: FireExecution | None = None
    skipped: Range | None = None
    owed: Range | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a schedule says of an instant. `fire_at`: its fire there, kept or left out (then `left_out` says why)."""

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
    """What became of the fire at an instant."""

    at: datetime
    code: FireCode
    message: str
    fire_at: datetime | None
    facts: dict[str, Any] = field(default_factory=dict)


def read_schedule(schedule: Schedule, at: datetime) -> Reading:
    """Look an instant up. May take a while, for a schedule of many rules: call it in a thread."""
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
    """What became of the fire at an instant, or, if there is none, which are nearest to it.

    `reading` by the schedule that was in force then; None: there was none. `nearest`: what is on record of the nearest.
    """
    if found.execution is not None:
        return _of_execution(facts, at, found.execution)
    if reading is None:
        message = f"The job was created at {told(facts.created_at)}, after that."
        return FireExplanation(at, "before_job", message, None, {"created_at": facts.created_at})
    if reading.left_out is not None:
        why = {
            "holiday": "it is a holiday",
            "date": "the date is on the calendar's list",
            "weekend": "it is no business day",
            "blackout": "it lies in a black-out",
            "excluded": "an exclude rule takes it",
        }.get(reading.left_out, reading.left_out)
        message = f"The schedule leaves out its fire at {told(reading.fire_at or at)}: {why}."
        return FireExplanation(at, "left_out", message, reading.fire_at, {"reason": reading.left_out})
    if reading.fire_at is None:
        return _not_a_fire(facts, at, reading, nearest)
    return _of_fire(facts, at, reading.fire_at, found)


def _of_execution(facts: JobFacts, at: datetime, execution: FireExecution) -> FireExplanation:
    fire = f"The fire at {told(execution.fire_at)}"
    because = f": {WHY_ENDED.get(execution.reason, execution.reason)}" if execution.reason else ""
    code: FireCode = "executed"
    match execution.state:
        case State.PENDING if execution.ready_at > facts.now:
            code, message = "not_yet", f"{fire} is planned and starts at {told(execution.ready_at)}."
        case State.PENDING | State.BLOCKED:
            code, message = "waiting", f"{fire} is due and waits: its execution is explained by its own."
        case State.RUNNING | State.RETRYING:
            message = f"{fire} is under way: its execution is {execution.state.value}."
        case State.SKIPPED:
            code, message = "skipped", f"{fire} was skipped{because}."
        case State.CANCELLED:
            code, message = "cancelled", f"{fire} was cancelled{because}."
        case State.SUCCEEDED | State.FAILED:
            message = f"{fire} ran and ended {execution.state.value}{because}."
    told_facts = {"execution_id": execution.id, "state": execution.state, "reason": execution.reason}
    return FireExplanation(at, code, message, execution.fire_at, told_facts)


def _of_fire(facts: JobFacts, at: datetime, fire_at: datetime, found: OnRecord) -> FireExplanation:
    """A fire without an execution."""
    fire = f"The fire at {told(fire_at)}"
    if found.skipped is not None:
        skipped = found.skipped
        how_many = "more than were counted" if skipped.count is None else f"{skipped.count:,} in all"
        why = _WHY_SKIPPED.get(skipped.reason, skipped.reason)
        message = f"{fire} was skipped with those {_between(skipped)} ({how_many}): {why}."
        return FireExplanation(at, "skipped", message, fire_at, _of_range(skipped))
    if found.owed is not None:
        message = f"{fire} was missed, and will be run with those {_between(found.owed)}."
        return FireExplanation(at, "catching_up", message, fire_at, _of_range(found.owed))
    code, rest = _without_record(facts, fire_at)
    return FireExplanation(at, code, f"{fire} {rest}.", fire_at)


def _without_record(facts: JobFacts, fire_at: datetime) -> tuple[FireCode, str]:
    is_open = facts.fired_through is None or fire_at > facts.fired_through
    if facts.state is JobState.DELETED and is_open:
        return "deleted", "does not run: the job is deleted"
    if facts.fires_left == 0 and is_open:
        return "ended", f"does not run: the {facts.schedule.max_fires or 0:,} fires of `max_fires` are used up"
    if facts.state is JobState.PAUSED and is_open:
        return "paused", "does not run while the job is paused; a resume says what becomes of it"
    if fire_at > facts.now:
        return "not_yet", "is still to come"
    if facts.timer_at is not None and facts.timer_at <= fire_at:
        why = "no scheduler has come to it"
        if facts.held_at is not None:
            why = f"everything is held since {told(facts.held_at)}"
        return "late_plan", f"is due and not planned: {why}"
    return "no_record", "is not on record: its history may have been dropped with its day"


def _between(of: Range) -> str:
    return f"from {told(of.from_at)} to {told(of.to_at)}"


def _of_range(of: Range) -> dict[str, Any]:
    return {"reason": of.reason, "from_at": of.from_at, "to_at": of.to_at, "count": of.count}


def _not_a_fire(facts: JobFacts, at: datetime, reading: Reading, nearest: OnRecord | None) -> FireExplanation:
    before, after = reading.before_at, reading.after_at
    sides = [f"the one before it is {told(before)}"] if before else []
    sides += [f"the one after it {told(after)}"] if after else []
    words = f": {' and '.join(sides)}" if sides else ""
    message = f"{told(at)} is not a fire of this schedule ({reading.in_words}){words}."
    nearest_at = reading.nearest(at)
    told_facts: dict[str, Any] = {"before_at": before, "after_at": after}
    if nearest is not None and nearest_at is not None:
        near = explain_fire(facts, nearest_at, Reading(reading.in_words, nearest_at), nearest)
        told_facts["nearest"] = {"code": near.code, "message": near.message, "fire_at": near.fire_at} | near.facts
        message = f"{message} {near.message}"
    return FireExplanation(at, "not_a_fire", message, None, told_facts)
