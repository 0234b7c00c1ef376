"""Counts the wrong keys of each address in a minute: after `ALLOWED` the response is 429 until the minute is over.

Keys have 160 random bits and cannot be guessed; the count slows down clients that keep trying, and makes them visible.
A right key from the same address still works. The memory is bounded: the address that was quiet longest is forgotten
first.
"""

from time import monotonic
from typing import Final

from ondot.model.errors import TooManyWrongKeys
from ondot.model.networks import network_of

ALLOWED: Final = 20
WINDOW_S: Final = 60.0
ADDRESSES_KEPT: Final = 10_000


class WrongKeys:
    def __init__(self, what: str = "API keys") -> None:
        """`what` is sent, for the message."""
        self._what = what
        self._seen: dict[str, tuple[float, int]] = {}
        """By address: the start of its minute, and the wrong keys since then."""

    def count(self, address: str) -> None:
        """Count one more wrong key. Raises if there were too many."""
        now_s = monotonic()
        network = network_of(address)
        started_s, wrong = self._seen.pop(network, (now_s, 0))
        if now_s - started_s >= WINDOW_S:
            started_s, wrong = now_s, 0
        if len(self._seen) >= ADDRESSES_KEPT:
            del self._seen[next(iter(self._seen))]
        self._seen[network] = started_s, wrong + 1
        if wrong >= ALLOWED:
            wait_s = int(WINDOW_S - (now_s - started_s)) + 1
            raise TooManyWrongKeys(
                f"This address sent {ALLOWED} wrong {self._what} within a minute. Send a right one: it works at once."
                f" In {wait_s} s a wrong one gets the usual response again.",
                retry_after_s=wait_s,
            )
