"""Why a job that events start does not run (E17, S11): the last event of its type, and why it did not match."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ondot.model.explain_facts import Reason, format_instant
from ondot.model.schedule import OnEvent, in_words
from ondot.model.schedule.rule import Schedule


@dataclass(frozen=True, slots=True)
class EventFacts:
    """The last event of the job's type that is kept. `mismatch`: why it does not match; None: it does."""

    rule: OnEvent
    last_id: UUID | None = None
    last_at: datetime | None = None
    mismatch: str | None = None


def explain_event(facts: EventFacts) -> Reason:
    rule = facts.rule
    starts = f"{in_words(Schedule(when=rule))}."
    details: dict[str, object] = {
        "type": rule.type,
        "last_event_id": facts.last_id,
        "last_event_at": facts.last_at,
        "mismatch": facts.mismatch,
    }
    if facts.last_at is None:
        message = f"{starts} No event of this type was received."
        advice = f"Send one: `ondot event send {rule.type} --source {rule.source or rule.source_prefix or '/test'}`."
    elif facts.mismatch is not None:
        message = (
            f"{starts} The last event of this type, at {format_instant(facts.last_at)}, did not match:"
            f" {facts.mismatch}."
        )
        advice = f"See the event: `ondot event get {facts.last_id}`. If it should match, change the filter of the job."
    else:
        message = f"{starts} The last event of this type, at {format_instant(facts.last_at)}, matches."
        advice = f"See what it started: `ondot event get {facts.last_id}`."
    return Reason("waiting_for_event", message, None, advice, details)
