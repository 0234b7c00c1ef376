"""How many wrong keys each address sent in the last minute: after some, the answer is 429 until the minute is over.

Keys have 160 random bits and are not guessed; this is for what keeps trying, and for whoever watches it. A right key
from the same address works all the same. In bounded memory: the address that was quiet longest is forgotten first.
"""

from ipaddress import ip_address
from time import monotonic
from typing import Final

from ondot.model.errors import TooManyWrongKeys

ALLOWED: Final = 20
WINDOW_S: Final = 60.0
ADDRESSES_KEPT: Final = 10_000


class WrongKeys:
    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}
        """By address: when its minute began, and how many since."""

    def note(self, address: str) -> None:
        """One more. Raises if that is too many."""
        now_s = monotonic()
        network = network_of(address)
        began_s, count = self._seen.pop(network, (now_s, 0))
        if now_s - began_s >= WINDOW_S:
            began_s, count = now_s, 0
        if len(self._seen) >= ADDRESSES_KEPT:
            del self._seen[next(iter(self._seen))]
        self._seen[network] = began_s, count + 1
        if count >= ALLOWED:
            wait_s = int(WINDOW_S - (now_s - began_s)) + 1
            raise TooManyWrongKeys(
                f"{ALLOWED} wrong API keys came from this address within a minute. Send the right one, which works at"
                f" once. After {wait_s} s wrong ones are answered with 401 again.",
                retry_after_s=wait_s,
            )


def network_of(address: str) -> str:
    """An IPv6 address by its /64, which one machine has whole."""
    if ":" not in address:
        return address
    try:
        return str(ip_address(int(ip_address(address.partition("%")[0])) >> 64 << 64))
    except ValueError:
        return address
