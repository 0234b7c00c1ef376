"""Whether any job starts by successes of others (S11): plain successes are written by the fast path only if none does.

In the statement of the fast path the question cost 100 µs each time, most of it to plan, of 600 for one success. Here a
process asks at most ten times a second, and only while it writes successes.
"""

from time import monotonic
from typing import Final

from ondot.store.connection import Connection
from ondot.store.own_events import are_successes_followed

KNOWN_S: Final = 0.1


class Followed:
    def __init__(self) -> None:
        self._is_followed = False
        self._read_s: float | None = None

    async def read(self, connection: Connection) -> bool:
        """As it was at most `KNOWN_S` ago."""
        now_s = monotonic()
        if self._read_s is None or now_s - self._read_s > KNOWN_S:
            self._is_followed = await are_successes_followed(connection)
            self._read_s = now_s
        return self._is_followed
