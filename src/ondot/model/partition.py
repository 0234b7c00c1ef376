"""How scheduler nodes share the partitions (C1): a fair share each, with few moves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace

from ondot.model.ids import PARTITIONS, NodeId


@dataclass(frozen=True, slots=True)
class Balance:
    """What a node does next: take up to so many free partitions, or give these back."""

    take: int
    give_back: tuple[int, ...]


def balance(owned: frozenset[int], live_nodes: int, rank: int) -> Balance:
    """Decide for the node that is `rank`-th (from 0) of `live_nodes` in the order of their ids.

    Shares differ by at most one, and every node computes the same ones, so what one gives back is what another takes.
    """
    least, extra = divmod(PARTITIONS, max(live_nodes, 1))
    share = least + (1 if rank < extra else 0)
    if len(owned) > share:
        return Balance(take=0, give_back=tuple(sorted(owned)[share:]))
    return Balance(take=share - len(owned), give_back=())


def bequeath(partitions: Iterable[int], heirs: Mapping[NodeId, int]) -> dict[int, NodeId]:
    """Who gets what from a node that leaves: each partition goes to whoever has the fewest by then."""
    least = [(owned, node_id) for node_id, owned in heirs.items()]
    heapify(least)
    given = {}
    for partition_no in sorted(partitions) if least else ():
        owned, node_id = least[0]
        given[partition_no] = node_id
        heapreplace(least, (owned + 1, node_id))
    return given
