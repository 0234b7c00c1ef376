"""A role in its own network namespace: packets can be dropped, as when a cable is pulled.

The proxy can only stop forwarding; its kernel still acknowledges packets. Here nothing is acknowledged and nothing is
reset, so a connection is truly half-open, and only its own timeouts end it. Needs root, `ip` and `nft`. The host's own
tables are left alone: packets are dropped inside the namespace.
"""

import ipaddress
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from uuid import uuid4

RUN_WITHIN_S = 20
ADDRESSES = ipaddress.IPv4Network("10.128.0.0/9")
TRIES = 5
DROP_ALL = """
table inet cut {
    chain arriving { type filter hook input priority 0; policy drop; iif lo accept; }
    chain leaving { type filter hook output priority 0; policy drop; oif lo accept; }
}
"""


class Namespace:
    """`outside` is the host's address on the link, where a proxy can listen; `inside` the role's."""

    def __init__(self) -> None:
        mark = uuid4().hex[:8]
        self.name = f"ondot-{mark}"
        self._link = f"od{mark}o"
        self._peer = f"od{mark}i"
        network = _free_network()
        self.outside, self.inside = (str(address) for address in network.hosts())
        _run("ip", "netns", "add", self.name)
        try:
            _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", self._peer, "netns", self.name)
            _run("ip", "address", "add", f"{self.outside}/30", "dev", self._link)
            _run("ip", "link", "set", self._link, "up")
            self._inside("ip", "address", "add", f"{self.inside}/30", "dev", self._peer)
            self._inside("ip", "link", "set", self._peer, "up")
            self._inside("ip", "link", "set", "lo", "up")
        except RuntimeError:
            self.remove()
            raise

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command inside; its process id is that of the program itself."""
        return ["ip", "netns", "exec", self.name, *words]

    def cut(self) -> None:
        """Drop all packets, both ways."""
        self._inside("nft", "-f", "-", given=DROP_ALL)

    def repair(self) -> None:
        self._inside("nft", "flush", "ruleset")

    def remove(self) -> None:
        """Removes both ends of its link. A process that runs inside keeps the namespace until it ends."""
        for command in (["ip", "link", "delete", self._link], ["ip", "netns", "delete", self.name]):
            subprocess.run(command, check=False, capture_output=True, timeout=RUN_WITHIN_S)

    def _inside(self, *words: str, given: str | None = None) -> None:
        _run(*self.command(words), given=given)


@cache
def available() -> bool:
    """Whether namespaces can be made and cut on this machine."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nft"))):
        return False
    try:
        namespace = Namespace()
    except RuntimeError:
        return False
    try:
        namespace.cut()
    except RuntimeError:
        return False
    finally:
        namespace.remove()
    return True


def names() -> list[str]:
    """The names of all namespaces of this machine."""
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines()]


@contextmanager
def a_namespace() -> Iterator[Namespace]:
    namespace = Namespace()
    try:
        yield namespace
    finally:
        namespace.remove()


def _free_network() -> ipaddress.IPv4Network:
    """Two addresses to which this host has no route yet; another run may look at the same moment."""
    known = _run("ip", "-4", "route", "show", "table", "all")
    for _ in range(TRIES):
        first = random.SystemRandom().randrange(0, ADDRESSES.num_addresses, 4)
        network = ipaddress.IPv4Network((int(ADDRESSES.network_address) + first, 30))
        if not any(str(address) in known for address in network):
            return network
    raise RuntimeError(f"no free addresses were found in {ADDRESSES}")


def _run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_WITHIN_S, input=given)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout
