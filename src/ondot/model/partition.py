"""How scheduler nodes share the partitions (C1): a fair share each, with few moves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace

from ondot.model.ids import PARTITIONS, NodeId


@dataclass(frozen=True, slots=True)
class Balance:
    """What a node does next: take up to `take` free partitions, or release those in `give_back`."""

    take: int
    give_back: tuple[int, ...]


def balance(owned: frozenset[int], live_nodes: int, rank: int) -> Balance:
    """Decide for the node that is `rank`-th (from 0) of `live_nodes` in the order of their ids.

    Shares differ by at most one, and every node computes the same shares, so the partitions that one releases are those
    that another takes.
    """
    least, extra = divmod(PARTITIONS, max(live_nodes, 1))
    share = least + (1 if rank < extra else 0)
    if len(owned) > share:
        return Balance(take=0, give_back=tuple(sorted(owned)[share:]))
    return Balance(take=share - len(owned), give_back=())


def bequeath(partitions: Iterable[int], heirs: Mapping[NodeId, int]) -> dict[int, NodeId]:
    """The new owners of a leaving node's partitions: each goes to the node with the fewest at that point."""
    least = [(owned, node_id) for node_id, owned in heirs.items()]
    heapify(least)
    given = {}
    for partition_no in sorted(partitions) if least else ():
        owned, node_id = least[0]
        given[partition_no] = node_id
        heapreplace(least, (owned + 1, node_id))
    return given
