"""How nodes share the partitions: evenly, completely, and with few moves."""

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ondot.model.ids import PARTITIONS, NodeId
from ondot.model.partition import balance, bequeath
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


@given(st.frozensets(st.integers(0, PARTITIONS - 1)), st.dictionaries(st.integers(0, 99), st.integers(0, 40)))
@proves("C1", "C11")
def test_what_a_leaving_node_has_goes_to_those_who_have_least_and_all_of_it(
    partitions: frozenset[int], owned: dict[int, int]
) -> None:
    heirs = {NodeId(UUID(int=number)): count for number, count in owned.items()}
    given_to = bequeath(partitions, heirs)
    assert set(given_to) == (partitions if heirs else set())
    gains = Counter(given_to.values())
    after = {node_id: count + gains[node_id] for node_id, count in heirs.items()}
    if gains:
        assert max(after[node_id] for node_id in gains) <= min(after.values()) + 1
