"""The other end of a connection: its addresses, and what ondot has found out about it while the connection lasts."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Scope

from ondot.account.sockets import Address


@dataclass(slots=True)
class Peer:
    address: Address
    ours: Address
    """The address of our end."""
    on_proven: Callable[[], None]
    """Called once, when a request of the peer is first authorized."""
    is_our_account: bool | None = None
    """None: not looked up yet. It holds for the whole connection: the kernel records the account that created a socket,
    and a socket that is passed to another process keeps it. The process that passes it could relay just as well."""
    is_proven: bool = False

    def prove(self) -> None:
        if not self.is_proven:
            self.is_proven = True
            self.on_proven()


def peer_of(scope: Scope) -> Peer | None:
    """None if the application is called in its own process, without a connection."""
    state = scope.get("state")
    return None if state is None else state.get("peer")
