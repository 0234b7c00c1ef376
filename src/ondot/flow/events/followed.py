"""Whether anything follows successes and starts (S11): the fast paths of completing and leasing leave out what nobody
wants.

In the statement of the fast path the question cost 100 µs each time, most of it to plan, of 600 for one success. Here a
process asks at most ten times a second, and only while it writes successes or leases.
"""

from time import monotonic
from typing import Final

from ondot.store.connection import Connection
from ondot.store.own_events import FollowedEvents, read_followed

KNOWN_S: Final = 0.1
KNOWN_AT_LEASE_S: Final = 1.0
"""A lease asks less often: beside a worker that writes successes it never has to."""


class Followed:
    """Shared by all that completes and leases in a worker."""

    def __init__(self) -> None:
        self._known = FollowedEvents()
        self._read_s: float | None = None

    async def read(self, connection: Connection, within_s: float = KNOWN_S) -> FollowedEvents:
        """As it was at most `within_s` ago."""
        now_s = monotonic()
        if self._read_s is None or now_s - self._read_s > within_s:
            self._known = await read_followed(connection)
            self._read_s = now_s
        return self._known
