"""Which lane is served next: better classes first, no lane waits longer than its bound, and tenants take turns."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ondot.model.execution import PriorityClass
from ondot.model.fairness import A_FEW, MOST_LANES, PENALTY_S, Lane, Take, Turns, Waiting, order_lanes
from ondot.model.ids import DEFAULT_TENANT, PoolNo, TenantNo
from tests.proves import proves

NOON = datetime(2031, 3, 3, 12, tzinfo=UTC)


def waiting(priority_class: PriorityClass, since_s: float) -> Waiting:
    """A lane of that class whose head has waited that long."""
    return Waiting(Lane(PoolNo(1), priority_class, DEFAULT_TENANT), NOON - timedelta(seconds=since_s))


lanes = st.lists(
    st.builds(waiting, st.sampled_from(PriorityClass), st.floats(0, 300)),
    unique_by=lambda entry: entry.lane.priority_class,
)


@proves("E2")
def test_every_class_has_a_bound_and_a_better_class_has_no_longer_one() -> None:
    penalties = [PENALTY_S[priority_class] for priority_class in PriorityClass]
    assert penalties == sorted(penalties)


@proves("E2")
def test_the_better_class_goes_first_if_lanes_have_waited_equally_long() -> None:
    entries = [waiting(priority_class, 5) for priority_class in reversed(PriorityClass)]
    assert [lane.priority_class for lane in order_lanes(entries)] == list(PriorityClass)


@given(lanes)
@proves("E2", "L6")
def test_a_lane_is_overtaken_only_by_work_within_its_bound(entries: list[Waiting]) -> None:
    ready_at = {entry.lane: entry.ready_at for entry in entries}
    order = order_lanes(entries)
    assert sorted(order, key=str) == sorted(ready_at, key=str)
    for place, lane in enumerate(order):
        for earlier in order[:place]:
            bound = PENALTY_S[lane.priority_class] - PENALTY_S[earlier.priority_class]
            assert (ready_at[earlier] - ready_at[lane]).total_seconds() <= bound


@given(lanes, st.randoms())
@proves("E2")
def test_the_order_does_not_depend_on_the_order_of_the_survey(entries: list[Waiting], random: object) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert order_lanes(shuffled) == order_lanes(entries)


# Tenants --------------------------------------------------------------------------------------------------------------


class Queue:
    """A queue in memory: how many wait in each lane. It is leased from as the flow does it."""

    def __init__(self, turns: Turns, depths: dict[Lane, int]) -> None:
        self.turns = turns
        self.depths = depths
        self.taken: dict[TenantNo, int] = {lane.tenant_no: 0 for lane in depths}

    def lease(self, limit: int) -> dict[Lane, int]:
        entries = [Waiting(lane, NOON) for lane, depth in self.depths.items() if depth]
        self.turns.update(entries)
        takes = self.turns.share_out(self.turns.order(entries), limit)
        left, brought = limit, {}
        for take in takes:
            got = min(take.count, self.depths[take.lane], left)
            left -= got
            self.depths[take.lane] -= got
            self.taken[take.lane.tenant_no] += got
            if got:
                brought[take.lane] = got
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
    takes = turns.share_out(turns.order(entries), limit)
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
        takes = turns.share_out(turns.order(entries), asked)
        turns.record(
            takes, {take.lane: min(count, take.count) for take, count in zip(takes, gave, strict=False)}, asked
        )
    turns.update(entries)
    takes = turns.share_out(turns.order(entries), limit)
    assert takes
    assert all(1 <= take.count <= limit for take in takes)
