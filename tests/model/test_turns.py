"""Whose turn it is among tenants: by weight, in slot-seconds, and nobody waits for longer than a round."""

import heapq
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.model.execution import PriorityClass
from ondot.model.fairness import Lane, Take, Waiting
from ondot.model.ids import PoolNo, TenantNo
from ondot.model.turns import A_FEW, MOST_LANES, Turns
from tests.proves import proves

NOON = datetime(2031, 3, 3, 12, tzinfo=UTC)


class Queue:
    """A queue in memory: how many wait in each lane. It is leased from as the flow does it."""

    def __init__(self, turns: Turns, depths: dict[Lane, int]) -> None:
        self.turns = turns
        self.depths = depths
        self.taken: dict[TenantNo, int] = {lane.tenant_no: 0 for lane in depths}
        self.started = 0

    def lease(self, limit: int) -> dict[Lane, int]:
        entries = [Waiting(lane, NOON) for lane, depth in self.depths.items() if depth]
        self.turns.update(entries)
        takes = self.turns.share_out(self.turns.next_in_turn(), limit)
        left, brought = limit, {}
        for take in takes:
            got = min(take.count, self.depths[take.lane], left)
            left -= got
            self.depths[take.lane] -= got
            self.taken[take.lane.tenant_no] += got
            if got:
                brought[take.lane] = got
            for _ in range(got):
                self.started += 1
                self.turns.start(self.started, take.lane.tenant_no, 0.0)
        self.turns.record(takes, brought, limit)
        return brought


def of(tenant: int, priority_class: PriorityClass = PriorityClass.NORMAL) -> Lane:
    return Lane(PoolNo(1), priority_class, TenantNo(tenant))


DEEP = 10**9
limits = st.integers(1, 1000)
tenants = st.integers(2, 30)


@given(limits, st.integers(1, 10))
@proves("E2")
def test_a_lone_tenant_gets_everything(limit: int, leases: int) -> None:
    queue = Queue(Turns(), {of(7): DEEP, of(7, PriorityClass.LOW): DEEP})
    for _ in range(leases):
        assert queue.lease(limit) == {of(7): limit}


@given(tenants, st.lists(limits, min_size=1, max_size=30))
@proves("E2", "T1")
def test_tenants_of_equal_weight_that_always_wait_get_the_same_within_one(count: int, sizes: list[int]) -> None:
    queue = Queue(Turns(), {of(tenant): DEEP for tenant in range(count)})
    for limit in sizes:
        assert sum(queue.lease(limit).values()) == limit
        assert max(queue.taken.values()) - min(queue.taken.values()) <= 1


@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.lists(limits, min_size=1, max_size=30))
@proves("E2", "T1")
def test_shares_are_by_weight(weights: list[int], sizes: list[int]) -> None:
    queue = Queue(Turns(lambda tenant_no: float(weights[tenant_no])), {of(n): DEEP for n in range(len(weights))})
    for limit in sizes:
        assert sum(queue.lease(limit).values()) == limit
        given_for_weight = [queue.taken[TenantNo(n)] / weight for n, weight in enumerate(weights)]
        assert max(given_for_weight) - min(given_for_weight) <= 2


@given(
    st.dictionaries(st.integers(1, 400), st.integers(1, 50), min_size=2, max_size=300),
    st.integers(1, 200),
    st.integers(0, 10**6),
)
@proves("E2", "L6")
def test_no_waiting_tenant_is_passed_over_for_longer_than_a_round(
    depths: dict[int, int], limit: int, deep: int
) -> None:
    """A waiting tenant is served before any other gets more than one lease and its share beyond it."""
    lanes = {of(tenant): depth for tenant, depth in depths.items()} | {of(0): deep}
    queue = Queue(Turns(), dict(lanes))
    leases = 0
    while any(queue.depths.values()):
        before = dict(queue.depths)
        brought = queue.lease(limit)
        leases += 1
        assert brought, "a lease of what waits brings something"
        unserved = [lane for lane, depth in before.items() if depth and queue.depths[lane] == lanes[lane]]
        served = [queue.taken[lane.tenant_no] for lane, depth in before.items() if depth]
        if unserved:
            assert max(served) <= limit + 1
        if leases > 3 * (len(lanes) // min(MOST_LANES, limit) + 1):
            assert not unserved
            break


@proves("E2")
def test_a_tenant_that_returns_has_a_claim_from_now_on_and_not_for_the_past() -> None:
    queue = Queue(Turns(), {of(1): DEEP, of(2): 0})
    for _ in range(10):
        queue.lease(100)
    queue.depths[of(2)] = DEEP
    assert queue.lease(100) == {of(1): 50, of(2): 50}


@proves("E2")
def test_a_tenant_that_leaves_after_more_than_its_share_is_not_level_if_it_returns_at_once() -> None:
    queue = Queue(Turns(), {of(1): 1, of(2): 50})
    assert queue.lease(100) == {of(1): 1, of(2): 50}
    queue.depths[of(1)] = DEEP
    assert queue.lease(20) == {of(1): 20}
    queue.depths[of(2)] = DEEP
    assert queue.lease(20) == {of(1): 20}
    assert queue.lease(20) == {of(1): 15, of(2): 5}


@proves("E2")
def test_the_unused_share_of_a_tenant_goes_to_the_others_in_the_next_lease() -> None:
    queue = Queue(Turns(), {of(1): DEEP, of(2): 1})
    assert queue.lease(100) == {of(1): 50, of(2): 1}
    queue.depths[of(2)] = 1
    assert queue.lease(100) == {of(1): 100 - 1 - A_FEW, of(2): 1}
    queue.depths[of(2)] = DEEP
    assert queue.lease(100) == {of(1): 100 - 1 - A_FEW, of(2): 1 + A_FEW}
    assert queue.lease(100)[of(2)] > 50


@proves("E2")
def test_a_tenants_better_lane_goes_first_and_the_next_gets_the_rest() -> None:
    high, low = of(1, PriorityClass.HIGH), of(1, PriorityClass.LOW)
    queue = Queue(Turns(), {high: DEEP, low: DEEP, of(2): DEEP})
    assert queue.lease(100) == {high: 50, of(2): 50}
    queue.depths[high] = 3
    assert queue.lease(100) == {high: 3, of(2): 50}
    queue.depths[high] = 1
    assert queue.lease(100)[low] > 30


@given(st.integers(MOST_LANES + 1, 500), limits)
@proves("E2", "N6")
def test_one_lease_takes_from_a_bounded_number_of_lanes(count: int, limit: int) -> None:
    turns = Turns()
    entries = [Waiting(of(tenant), NOON) for tenant in range(count)]
    turns.update(entries)
    takes = turns.share_out(turns.next_in_turn(), limit)
    assert 0 < len(takes) <= MOST_LANES
    assert sum(take.count for take in takes) == limit
    assert all(take.count > 0 for take in takes)


@proves("E2")
def test_a_lane_that_was_cut_by_the_limit_does_not_count_as_empty() -> None:
    turns = Turns()
    takes = [Take(of(1), 10), Take(of(2), 10)]
    assert turns.record(takes, {of(1): 10}, limit=10) == []
    assert turns.record(takes, {of(1): 10}, limit=20) == [of(2)]


tenants_lanes = st.lists(
    st.builds(Lane, st.just(PoolNo(1)), st.sampled_from(PriorityClass), st.integers(1, 6).map(TenantNo)),
    min_size=1,
    max_size=20,
    unique=True,
)


@given(
    tenants_lanes, st.lists(st.tuples(st.integers(1, 50), st.lists(st.integers(0, 60))), max_size=8), st.integers(1, 50)
)
@proves("E2", "L6")
def test_each_lane_is_asked_for_at_least_one_and_no_more_than_the_limit(
    lanes: list[Lane], before: list[tuple[int, list[int]]], limit: int
) -> None:
    entries = [Waiting(lane, NOON) for lane in lanes]
    turns = Turns()
    for asked, gave in before:
        turns.update(entries)
        takes = turns.share_out(turns.next_in_turn(), asked)
        turns.record(
            takes, {take.lane: min(count, take.count) for take, count in zip(takes, gave, strict=False)}, asked
        )
    turns.update(entries)
    takes = turns.share_out(turns.next_in_turn(), limit)
    assert takes
    assert all(1 <= take.count <= limit for take in takes)


# Slot-seconds ---------------------------------------------------------------------------------------------------------

Take_s = Callable[[Random], float]


class Fleet:
    """Workers that lease from queues without end, in simulated time: what each tenant's attempts hold is counted."""

    def __init__(self, weights: Mapping[int, float], take_s: Mapping[int, Take_s], slots: list[int], seed: int) -> None:
        self.weights = weights
        self.take_s = take_s
        self.random = Random(seed)
        self.turns = [Turns(lambda tenant_no: weights[tenant_no]) for _ in slots]
        self.free = list(slots)
        self.ends: list[tuple[float, int, int, int]] = []
        self.used_s = dict.fromkeys(weights, 0.0)
        self.running = dict.fromkeys(weights, 0)
        self.started = 0

    def lease(self, worker: int, now_s: float, tenants: list[int]) -> None:
        turns = self.turns[worker]
        turns.accrue(now_s)
        turns.update([Waiting(of(tenant), NOON) for tenant in tenants])
        takes = turns.share_out(turns.next_in_turn(), self.free[worker])
        for take in takes:
            tenant = take.lane.tenant_no
            for _ in range(min(take.count, self.free[worker])):
                self.started += 1
                turns.start(self.started, tenant, now_s)
                self.running[tenant] += 1
                self.free[worker] -= 1
                took_s = self.take_s[tenant](self.random)
                heapq.heappush(self.ends, (now_s + took_s, worker, self.started, tenant))
        turns.record(takes, {take.lane: take.count for take in takes}, 1)

    def run(self, until_s: float, tenants: list[int] | None = None, now_s: float = 0.0) -> dict[int, float]:
        """Returns the slot-seconds that each held in this time. All tenants have work, or these."""
        used_s = dict.fromkeys(self.weights, 0.0)
        tenants = tenants or list(self.weights)
        for worker in range(len(self.turns)):
            self.lease(worker, now_s, tenants)
        while self.ends and self.ends[0][0] < until_s:
            then_s, now_s = now_s, self.ends[0][0]
            for tenant, running in self.running.items():
                used_s[tenant] += running * (now_s - then_s)
            _, worker, key, tenant = heapq.heappop(self.ends)
            self.turns[worker].end(key, now_s)
            self.running[tenant] -= 1
            self.free[worker] += 1
            self.lease(worker, now_s, tenants)
        return used_s


def shares(used_s: Mapping[int, float]) -> dict[int, float]:
    return {tenant: used / sum(used_s.values()) for tenant, used in used_s.items()}


def around(mean_s: float) -> Take_s:
    return lambda random: mean_s * random.uniform(0.5, 1.5)


@given(
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 4.0]), st.sampled_from([0.1, 0.5, 2.0])), min_size=2, max_size=4),
    st.sampled_from([3, 8, 16]),
    st.integers(0, 10**6),
)
@settings(max_examples=8, deadline=None)
@proves("T2", "L6")
def test_slot_seconds_are_shared_by_weight_whatever_an_attempt_takes(
    tenants: list[tuple[float, float]], slots: int, seed: int
) -> None:
    weights = {tenant: weight for tenant, (weight, _) in enumerate(tenants)}
    fleet = Fleet(weights, {tenant: around(mean_s) for tenant, (_, mean_s) in enumerate(tenants)}, [slots], seed)
    until_s = 30 * max(mean_s for _, mean_s in tenants) * max(1.0, sum(weights.values()) / slots)
    for tenant, share in shares(fleet.run(until_s)).items():
        assert share == pytest.approx(weights[tenant] / sum(weights.values()), abs=0.05)


@proves("T2")
def test_long_jobs_of_one_tenant_get_the_same_time_as_short_ones_of_another() -> None:
    fleet = Fleet({1: 1.0, 2: 1.0}, {1: around(20.0), 2: around(0.5)}, [20], 7)
    assert shares(fleet.run(400.0))[1] == pytest.approx(0.5, abs=0.05)


@proves("T2")
def test_jobs_of_an_hour_hold_about_their_share_of_the_slots_before_the_first_has_ended() -> None:
    """Until then it is not known how long they take: they may hold a few slots more, and are charged for them."""
    fleet = Fleet({1: 1.0, 2: 1.0}, {1: around(3600.0), 2: around(0.5)}, [20], 7)
    fleet.run(100.0)
    assert 10 <= fleet.running[1] <= 12


@proves("T2")
def test_one_attempt_in_a_hundred_that_takes_long_is_charged_for_it() -> None:
    rare: Take_s = lambda random: 30.0 if random.random() < 0.01 else 0.1  # noqa: E731
    fleet = Fleet({1: 1.0, 2: 1.0}, {1: rare, 2: around(0.2)}, [10], 3)
    assert shares(fleet.run(200.0))[1] == pytest.approx(0.5, abs=0.05)


@proves("T2")
def test_several_workers_share_by_weight_if_each_does() -> None:
    fleet = Fleet({1: 1.0, 2: 2.0, 3: 4.0}, {1: around(1.0), 2: around(0.2), 3: around(0.05)}, [1, 3, 7], 11)
    for tenant, share in shares(fleet.run(60.0)).items():
        assert share == pytest.approx({1: 1, 2: 2, 3: 4}[tenant] / 7, abs=0.03)


@proves("T2", "L6")
def test_a_tenant_that_arrives_after_a_flood_gets_the_next_free_slot() -> None:
    fleet = Fleet({1: 1.0, 2: 1.0}, {1: around(1.0), 2: around(1.0)}, [10], 5)
    fleet.run(20.0, [1])
    turns = fleet.turns[0]
    turns.update([Waiting(of(1), NOON), Waiting(of(2), NOON)])
    assert turns.share_out(turns.next_in_turn(), 1)[0] == Take(of(2), 1)


@proves("T2")
def test_a_new_worker_starts_with_the_tenant_that_holds_fewest_slots_for_its_weight() -> None:
    """Without it the first attempts of many small workers all go to the oldest backlog."""
    older, newer = Waiting(of(1), NOON), Waiting(of(2), NOON.replace(hour=13))
    turns = Turns()
    turns.update([older, newer])
    assert turns.share_out(turns.next_in_turn(), 1)[0].lane.tenant_no == 1
    for held, first in (({1: 9.0}, 2), ({1: 1.0, 2: 9.0}, 1)):
        turns = Turns()
        turns.update([older, newer])
        turns.begin_from({TenantNo(tenant): slots for tenant, slots in held.items()})
        assert turns.share_out(turns.next_in_turn(), 1)[0].lane.tenant_no == first
    turns = Turns(lambda tenant_no: {1: 10.0, 2: 1.0}[tenant_no])
    turns.update([older, newer])
    turns.begin_from({TenantNo(1): 9.0, TenantNo(2): 1.0})
    assert turns.share_out(turns.next_in_turn(), 1)[0].lane.tenant_no == 1


@proves("L6", "N6")
def test_more_tenants_than_one_lease_takes_from_have_their_turn_without_another_survey() -> None:
    turns = Turns()
    turns.update([Waiting(of(tenant), NOON) for tenant in range(1000)])
    served: set[int] = set()
    for number in range(1000 // MOST_LANES):
        lanes = turns.next_in_turn()
        takes = turns.share_out(lanes, MOST_LANES)
        for take in takes:
            turns.start((number, take.lane), take.lane.tenant_no, 0.0)
        served |= {take.lane.tenant_no for take in takes}
        turns.record(takes, {take.lane: take.count for take in takes}, MOST_LANES)
        turns.start_round()
    assert len(served) == 1000


# Rooms and reserved slots ---------------------------------------------------------------------------------------------

counts = st.integers(0, 50)


@given(
    st.dictionaries(st.integers(1, 8), st.tuples(counts, counts, counts), min_size=1, max_size=8),
    st.integers(1, 60),
    st.integers(1, 60),
)
@proves("E13", "T2", "P11")
def test_shares_keep_to_the_room_of_each_tenant_and_leave_what_is_held_free_for_others(
    tenants: dict[int, tuple[int, int, int]], limit: int, free: int
) -> None:
    limit = min(limit, free)
    rooms = {TenantNo(tenant): room for tenant, (room, _, _) in tenants.items() if room % 2}
    held_free = {TenantNo(tenant): held for tenant, (_, held, _) in tenants.items() if held % 2}
    turns = Turns()
    entries = [Waiting(of(tenant, c), NOON) for tenant in tenants for c in (PriorityClass.HIGH, PriorityClass.LOW)]
    turns.update(entries)
    takes = turns.share_out(turns.next_in_turn(), limit, free=free, rooms=rooms, held_free=held_free)
    got: dict[int, int] = {}
    for take in takes:
        got[take.lane.tenant_no] = got.get(take.lane.tenant_no, 0) + take.count
    if rooms or held_free:
        assert all(count <= rooms.get(TenantNo(tenant), limit) for tenant, count in got.items())
        assert sum(got.values()) <= limit
        common = max(free - sum(held_free.values()), 0)
        beyond = sum(max(count - held_free.get(TenantNo(tenant), 0), 0) for tenant, count in got.items())
        assert beyond <= common


@proves("T2")
def test_a_tenant_gets_its_reserved_slots_while_others_wait() -> None:
    turns = Turns()
    turns.update([Waiting(of(1), NOON), Waiting(of(2), NOON)])
    takes = turns.share_out(turns.next_in_turn(), 10, free=10, held_free={TenantNo(2): 10})
    assert takes == [Take(of(2), 10)]
    turns.update([Waiting(of(1), NOON)])
    assert turns.share_out(turns.next_in_turn(), 10, free=10, held_free={TenantNo(2): 10}) == []
    assert turns.share_out([of(1)], 10, free=12, held_free={TenantNo(2): 10}) == [Take(of(1), 2)]


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=8), st.floats(0.1, 15.0))
@proves("L6", "T2")
def test_attempts_that_start_at_once_are_charged_as_if_each_had_started_by_itself(
    took_s: list[float], accrued_s: float
) -> None:
    as_one, each_by_itself = Turns(), Turns()
    as_one.start_all(range(len(took_s)), TenantNo(1), 0.0)
    for key in range(len(took_s)):
        each_by_itself.start(key, TenantNo(1), 0.0)
    ends = sorted((end_s, key) for key, end_s in enumerate(took_s))
    for turns in (as_one, each_by_itself):
        for end_s, key in ends:
            if end_s > accrued_s:
                turns.accrue(accrued_s)
            turns.end(key, end_s)
        assert not turns.slots_held()
        turns.start("another", TenantNo(2), 0.0)
        turns.update([Waiting(of(1), NOON), Waiting(of(2), NOON)])
    shares = [
        {take.lane.tenant_no: take.count for take in turns.share_out([of(1), of(2)], 1_000)}
        for turns in (as_one, each_by_itself)
    ]
    assert shares[0].keys() == shares[1].keys()
    assert all(abs(shares[0][tenant] - shares[1][tenant]) <= 1 for tenant in shares[0])
