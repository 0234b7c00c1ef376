"""How scheduler nodes agree which of them owns a partition (C6): `ONDOT_COORDINATION` chooses.

A node beats to renew its lease, learns its standing from the reply, and takes or gives back partitions towards a fair
share. What it owns it may plan until its lease is over, by its own monotonic clock from before the beat was sent. Two
nodes that both believe they own a partition do the work twice and nothing worse: PostgreSQL's rows change by
compare-and-set.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from ondot.model.errors import Unavailable
from ondot.model.ids import NodeId

Connection_contra = TypeVar("Connection_contra", contravariant=True)
"""To PostgreSQL: the one of the thread that beats."""


class CoordinatorAway(Unavailable):
    """The lease could not be renewed. PostgreSQL answered."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The reply to a node's beat: its partitions, how many nodes are alive, and its rank among them.

    `now`: by the database's clock. `next_expiry_s`: how soon the lease of another node ends if it does not beat; None:
    there is no other, or the coordinator reports by itself when a lease ends.
    """

    now: datetime
    owned: frozenset[int]
    live_nodes: int
    rank: int
    next_expiry_s: float | None


class Coordinator(Protocol[Connection_contra]):
    """Of one node. All but `leave` are called by the thread that beats, one at a time."""

    name: str
    """As people read it: "PostgreSQL"."""
    on_change: Callable[[], None]
    """Called in that thread when a beat is worth while now: a partition may be free."""

    @property
    def node_id(self) -> NodeId: ...

    async def beat(self, connection: Connection_contra) -> Standing:
        """Join or renew the lease. Raises if that is not certain; CoordinatorAway if PostgreSQL is not the reason."""

    async def take(self, connection: Connection_contra, at_most: int) -> frozenset[int]:
        """Take free partitions; returns those that it got."""

    async def give_back(self, connection: Connection_contra, partitions: Sequence[int]) -> None:
        """Free partitions for other nodes. The node has stopped planning them."""

    async def disconnect(self) -> None:
        """Close what belongs to the loop of that thread, which ends."""

    async def leave(self) -> int:
        """Hand over the partitions to the other nodes; returns how many. The thread that beats has ended."""
