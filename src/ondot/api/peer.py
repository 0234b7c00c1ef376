"""The other end of a connection: its addresses and what is known about it, for as long as the connection lasts."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Scope

from ondot.account.sockets import Address


@dataclass(slots=True)
class Peer:
    address: Address
    ours: Address
    """Our own end."""
    on_proven: Callable[[], None]
    """Called once: the peer has shown that it may ask."""
    is_our_account: bool | None = None
    """None: not looked up yet. It holds for the whole connection: the kernel notes the account that made a socket, and
    a socket that is passed on to another process keeps it. Whoever passes it on could as well relay."""
    is_proven: bool = False

    def prove(self) -> None:
        if not self.is_proven:
            self.is_proven = True
            self.on_proven()


def peer_of(scope: Scope) -> Peer | None:
    """None: the application is called in its own process, without a connection."""
    state = scope.get("state")
    return None if state is None else state.get("peer")
