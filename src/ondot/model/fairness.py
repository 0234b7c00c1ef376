"""Which lanes a worker takes from, in which order, and how many from each (E2). Policy is here, SQL only takes.

A lane is one (class, tenant) of a pool's queue. A tenant's lanes are served by how long their head has waited, with a
penalty for each class: the longest time for which work of a better class may overtake it. So `low` work that has waited
`PENALTY_S[LOW]` longer than the oldest `high` work goes first. Nothing starves, and the bound is stated. Among tenants
age does not count, because one with a deep backlog would delay all others: there `model.turns` decides.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

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
PENALTIES: Final = [timedelta(seconds=PENALTY_S[priority_class]) for priority_class in PriorityClass]


class Lane(NamedTuple):
    """A tuple, because one survey looks up thousands of them."""

    pool_no: PoolNo
    priority_class: PriorityClass
    tenant_no: TenantNo


class Scope(NamedTuple):
    """Something with limits that count the attempts of its work when they are leased: a pool or a tenant."""

    kind: Literal["pool", "tenant"]
    no: int


Scopes = tuple[Scope, ...]
NO_SCOPES: Final[Scopes] = ()


class Waiting(NamedTuple):
    """A lane that has work, since when its head may start, and the scopes whose limits hold for it."""

    lane: Lane
    ready_at: datetime
    scopes: Scopes = NO_SCOPES


def order_lanes(waiting: Iterable[Waiting]) -> list[Lane]:
    """The lanes of a tenant, most deserving first."""
    return [
        entry.lane
        for entry in sorted(
            waiting,
            key=lambda entry: (
                entry.ready_at + PENALTIES[entry.lane.priority_class],
                entry.lane.priority_class,
                entry.lane.tenant_no,
            ),
        )
    ]


@dataclass(frozen=True, slots=True)
class Take:
    """Up to `count` from one lane."""

    lane: Lane
    count: int
