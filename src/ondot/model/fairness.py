"""Which lanes a worker takes from, in which order, and how many from each (E2). Policy is here, SQL only takes.

A lane is one (class, tenant) of a pool's queue. A tenant's lanes are served by how long their head has waited, with a
penalty for each class: the longest time for which work of a better class may overtake it. So `low` work that has waited
`PENALTY_S[LOW]` longer than the oldest `high` work goes first. Nothing starves, and the bound is stated. Among tenants
age does not count, because one with a deep backlog would delay all others: `Turns` gives each tenant its share, and the
one that got least goes first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
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
_PENALTIES = [timedelta(seconds=PENALTY_S[priority_class]) for priority_class in PriorityClass]

MOST_LANES = 100
"""Lanes that one lease takes from: with more tenants than that, some have their turn in the next lease."""
A_FEW = 8
"""Asked of a lane beyond its last yield, if that was less than asked: when it yields this too, it has become deep."""


class Lane(NamedTuple):
    """A tuple, because one survey looks up thousands of them."""

    pool_no: PoolNo
    priority_class: PriorityClass
    tenant_no: TenantNo


class Scope(NamedTuple):
    """Something with limits that count the attempts of its work when they are leased: a pool, by its number."""

    kind: Literal["pool"]
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
                entry.ready_at + _PENALTIES[entry.lane.priority_class],
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


class Turns:
    """Whose turn it is among tenants: deficit round robin, by what each got so far, divided by its weight.

    A tenant that starts to wait, or waits again, starts level with the one that got least: its claim counts from now
    on, not for what it did not need before. Each worker keeps its own turns; if each shares fairly, all together do.
    """

    def __init__(self, weight: Callable[[TenantNo], float] = lambda _: 1.0) -> None:
        self._weight = weight
        self._given: dict[TenantNo, float] = {}
        self._level = 0.0
        self._few: dict[Lane, int] = {}
        """Lanes that yielded less than was asked of them, and what is asked of them next: others get the rest."""

    def update(self, waiting: Iterable[Waiting]) -> None:
        """Take over which lanes wait by a new survey."""
        lanes = {entry.lane for entry in waiting}
        tenants = {lane.tenant_no for lane in lanes}
        known = [self._given[tenant_no] for tenant_no in tenants if tenant_no in self._given]
        self._level = max(self._level, min(known, default=self._level)) if tenants else 0.0
        new = dict.fromkeys(tenants - self._given.keys(), self._level)
        # A tenant that left with more than the others have now is not level with them if it returns at once.
        known_before = {
            tenant_no: max(given, self._level)
            for tenant_no, given in self._given.items()
            if tenant_no in tenants or (tenants and given > self._level)
        }
        self._given = known_before | new
        self._few = {lane: few for lane, few in self._few.items() if lane in lanes}

    def order(self, waiting: Iterable[Waiting]) -> list[Lane]:
        """All lanes, tenant by tenant: the one that got least first, and for each the most deserving lane first."""
        order: dict[TenantNo, list[Lane]] = {}
        for lane in order_lanes(waiting):
            order.setdefault(lane.tenant_no, []).append(lane)
        # The sort is stable: among level tenants, the one whose head has waited longest goes first.
        return [lane for tenant_no in sorted(order, key=self._given_to) for lane in order[tenant_no]]

    def share_out(self, lanes: Sequence[Lane], limit: int) -> list[Take]:
        """How many to take from each of these lanes, which are in their order, up to the limit in total.

        Tenants that got least are raised until all are level, then all of them by weight.
        """
        lanes = lanes[:MOST_LANES]
        tenants = [(tenant_no, list(own)) for tenant_no, own in groupby(lanes, key=lambda lane: lane.tenant_no)]
        if len(tenants) == 1:
            return [Take(lane, limit) for lane in lanes]
        shares = self._share_by_tenant(tenants, limit)
        return [
            take for (_, own), share in zip(tenants, shares, strict=True) for take in self._takes_of_one(own, share)
        ]

    def record(self, takes: Sequence[Take], taken: Mapping[Lane, int], limit: int) -> list[Lane]:
        """Record what a lease yielded. Returns the lanes that are empty now, as far as it could see."""
        is_cut = sum(taken.values()) >= limit
        emptied = []
        for take in takes:
            got = taken.get(take.lane, 0)
            tenant_no = take.lane.tenant_no
            self._given[tenant_no] = self._given_to(tenant_no) + got / self._weight(tenant_no)
            if got < take.count and not is_cut:
                self._few[take.lane] = got + A_FEW
                emptied.append(take.lane)
            else:
                self._few.pop(take.lane, None)
        return emptied

    def _takes_of_one(self, lanes: list[Lane], share: int) -> Iterator[Take]:
        """A tenant's share from its first lane; from the next ones the part that those before may lack."""
        for lane in lanes:
            if share <= 0:
                return
            yield Take(lane, share)
            share -= self._few.get(lane, share)

    def _given_to(self, tenant_no: TenantNo) -> float:
        return self._given.get(tenant_no, self._level)

    def _share_by_tenant(self, tenants: Sequence[tuple[TenantNo, list[Lane]]], limit: int) -> list[int]:
        """What each tenant gets of the limit, in whole numbers, and no more than it is likely to have."""
        rooms = [sum(self._few.get(lane, limit) for lane in own) for _, own in tenants]
        starts = [self._given_to(tenant_no) for tenant_no, _ in tenants]
        weights = [self._weight(tenant_no) for tenant_no, _ in tenants]
        level = _fill_level(starts, weights, rooms, limit)
        shares = [
            min(room, max(int((level - start) * weight), 0))
            for start, weight, room in zip(starts, weights, rooms, strict=True)
        ]
        rest = limit - sum(shares)
        for n, room in enumerate(rooms):
            more = min(1, rest, room - shares[n])
            shares[n] += more
            rest -= more
        return shares


def _fill_level(starts: Sequence[float], weights: Sequence[float], rooms: Sequence[int], amount: float) -> float:
    """The level to which an amount fills vessels, each with the height where it starts, its width and its volume."""
    changes = sorted(
        change
        for start, weight, room in zip(starts, weights, rooms, strict=True)
        for change in ((start, weight), (start + room / weight, -weight))
    )
    level, width = changes[0][0], 0.0
    for height, wider in changes:
        poured = (height - level) * width
        if poured >= amount:
            break
        amount -= poured
        level, width = height, width + wider
    else:
        return level
    return level + amount / width
