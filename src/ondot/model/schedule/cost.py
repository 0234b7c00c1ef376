"""What a schedule costs to plan (S12, E17). The cost is not stored but measured when a person asks."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ondot.model.schedule.looks import A_SEARCH, A_TURN, allowed
from ondot.model.schedule.rule import GivenUp, Schedule, is_quick, next_fire

MEASURED_FIRES: Final = 100
"""The number of fires that one plan of a job covers."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The most expensive search among the next fires: after which instant, and how many looks it takes."""

    after: datetime
    looks: int
    gave_up: str | None = None

    @property
    def is_planned_apart(self) -> bool:
        return self.looks > A_TURN or self.gave_up is not None


def measure_cost(schedule: Schedule, after: datetime) -> Cost | None:
    """The cost of the fires after an instant, as far as one search may look. None: one look finds each of them."""
    if is_quick(schedule):
        return None
    worst = Cost(after, 0)
    left = A_SEARCH
    for _ in range(MEASURED_FIRES):
        fire_at, gave_up = None, None
        with allowed(A_SEARCH) as looks:
            try:
                fire_at = next_fire(schedule, after)
            except GivenUp as search:
                gave_up = search.message
        spent = A_SEARCH - looks.left
        if spent > worst.looks or gave_up is not None:
            worst = Cost(after, spent, gave_up)
        left -= spent
        if fire_at is None or left <= 0:
            break
        after = fire_at
    return worst
