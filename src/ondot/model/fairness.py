"""Which lanes a worker takes from, and in which order (E2): policy in plain Python, SQL only takes.

A lane is one (class, tenant) of a pool's queue. Lanes are served by how long their head has waited, with a head start
for each class: a class's penalty is the longest that work of a better class may overtake it for. So `low` work that
has waited `PENALTY_S[LOW]` longer than the oldest `high` work goes first: nothing starves, and the bound is stated.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ondot.model.execution import PriorityClass
from ondot.model.ids import PoolNo, TenantNo

PENALTY_S: dict[PriorityClass, float] = {
    PriorityClass.RECOVERED: 0.0,
    PriorityClass.HIGH: 1.0,
    PriorityClass.NORMAL: 10.0,
    PriorityClass.LOW: 60.0,
    PriorityClass.CATCH_UP: 120.0,
    PriorityClass.SUSPECT: 120.0,
}


@dataclass(frozen=True, slots=True)
class Lane:
    pool_no: PoolNo
    priority_class: PriorityClass
    tenant_no: TenantNo


@dataclass(frozen=True, slots=True)
class Waiting:
    """A lane that has work, and since when its head may start."""

    lane: Lane
    ready_at: datetime
    is_limited: bool = False
    """Its pool has limits of its own, which are counted when it is leased from."""


def in_order(waiting: Iterable[Waiting]) -> list[Lane]:
    """The lanes to take from, most deserving first."""
    return [
        entry.lane
        for entry in sorted(
            waiting,
            key=lambda entry: (
                entry.ready_at + timedelta(seconds=PENALTY_S[entry.lane.priority_class]),
                entry.lane.priority_class,
                entry.lane.tenant_no,
            ),
        )
    ]
