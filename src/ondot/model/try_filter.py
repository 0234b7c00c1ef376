"""Trying a filter on past events (S11): which match, and of the others the first condition that fails. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from ondot.model.event import Event
from ondot.model.schedule import OnEvent


@dataclass(frozen=True, slots=True)
class Tried:
    """`why`: the condition that failed; None: the event matches."""

    id: UUID
    why: str | None


def try_rule(rule: OnEvent, events: Sequence[tuple[UUID, Event]]) -> list[Tried]:
    return [Tried(id_, why_not(rule, event)) for id_, event in events]


def why_not(rule: OnEvent, event: Event) -> str | None:
    if event.type != rule.type:
        return f'type is "{event.type}", wanted "{rule.type}"'
    pattern = rule.pattern
    mismatch = None if pattern is None else pattern.why_not(event.value)
    return None if mismatch is None else str(mismatch)
