"""How scheduler nodes share the partitions (C1): a fair share each, with few moves."""

from dataclasses import dataclass

from ondot.model.ids import PARTITIONS


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
