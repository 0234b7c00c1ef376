"""How nodes share the partitions: evenly, completely, and with few moves."""

from hypothesis import given
from hypothesis import strategies as st

from ondot.model.ids import PARTITIONS
from ondot.model.partition import balance
from tests.proves import proves


@given(st.integers(1, 100))
@proves("C1")
def test_the_shares_of_all_nodes_are_all_partitions_and_differ_by_one_at_most(live_nodes: int) -> None:
    shares = [balance(frozenset(), live_nodes, rank).take for rank in range(live_nodes)]
    assert sum(shares) == PARTITIONS
    assert max(shares) - min(shares) <= 1


@given(st.frozensets(st.integers(0, PARTITIONS - 1)), st.integers(1, 100), st.data())
@proves("C1", "C11")
def test_a_node_gives_back_only_what_is_over_its_share_and_takes_only_up_to_it(
    owned: frozenset[int], live_nodes: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, live_nodes - 1))
    share = balance(frozenset(), live_nodes, rank).take
    step = balance(owned, live_nodes, rank)
    assert set(step.give_back) <= owned
    assert len(owned) - len(step.give_back) + step.take == share
    assert not (step.take and step.give_back)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=12))
@proves("C1", "C2")
def test_nodes_that_come_and_go_settle_with_every_partition_owned_once(changes: list[tuple[bool, int]]) -> None:
    owned: dict[int, set[int]] = {}
    for comes, node in changes:
        if comes:
            owned.setdefault(node, set())
        else:
            owned.pop(node, None)
        for _ in range(2):
            free = set(range(PARTITIONS)) - {partition for held in owned.values() for partition in held}
            for rank, id_ in enumerate(sorted(owned)):
                step = balance(frozenset(owned[id_]), len(owned), rank)
                owned[id_] -= set(step.give_back)
                free |= set(step.give_back)
                taken = set(sorted(free)[: step.take])
                owned[id_] |= taken
                free -= taken
        if owned:
            held = [partition for each in owned.values() for partition in each]
            assert sorted(held) == list(range(PARTITIONS))
