"""The account that owns a TCP socket of this machine, from the kernel's tables.

The kernel is asked for one socket by its two addresses (`sock_diag`, 12 µs). Where it does not answer, the same facts
are in `/proc/net/tcp` and `tcp6`; reading them took 10 ms on a machine with a large table, so they come second. On a
system with neither, the owner is unknown and everybody needs the token.
"""

import os
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

ESTABLISHED: Final = 1
LISTEN: Final = 10

Address = tuple[str, int]

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ERROR: Final = 2
_HEADER: Final = struct.Struct("=IHHII")
_ASKED: Final = struct.Struct("=BBBBI")
_PORTS: Final = struct.Struct("!HH")
_ANY_COOKIE: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_FACTS: Final = struct.Struct("=IIIII")
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_EVERY_UID: Final = "0 0 4294967295"


class OwnerUnknown(OSError):
    """This system does not show which account owns a socket."""


@dataclass(frozen=True, slots=True)
class Socket:
    state: int
    uid: int
    inode: int

    def belongs_to(self, uid: int) -> bool:
        """Whether a process of that account has its end open. A socket that its process has closed shows inode 0 and
        uid 0 while its data is still read: it does not belong to root."""
        return self.state == ESTABLISHED and self.inode != 0 and self.uid == uid


def find_socket(local: Address, remote: Address) -> Socket | None:
    """The socket with these two ends; None: there is none. Raises `OwnerUnknown`."""
    try:
        return ask_kernel(local, remote)
    except OSError:
        return read_tables(local, remote)


def find_listener(at: Address) -> Socket | None:
    """The socket that listens there; None: there is none. Raises `OwnerUnknown`."""
    anywhere = "::" if ":" in at[0] else "0.0.0.0"  # noqa: S104 - the address of no peer
    found = find_socket(at, (anywhere, 0))
    return found if found is not None and found.state == LISTEN else None


def our_uid() -> int:
    """The account of this process. Raises `OwnerUnknown` if the kernel shows every foreign account as this one."""
    uid = os.geteuid()
    if _is_overflow(uid):
        raise OwnerUnknown(f"uid {uid} is shown for every account outside of this user namespace")
    return uid


@cache
def _is_overflow(uid: int) -> bool:
    """In a user namespace every account from outside is shown as 65534: a process that runs as 65534 itself would
    mistake each of them for its own."""
    with suppress(OSError):
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
        return uid == overflow and " ".join(Path("/proc/self/uid_map").read_text().split()) != _EVERY_UID
    return False


def ask_kernel(local: Address, remote: Address) -> Socket | None:
    """By `sock_diag`. Raises OSError where there is no such thing."""
    if sys.platform != "linux":
        raise OwnerUnknown("no sock_diag on this system")
    ends = ip_address(local[0]), ip_address(remote[0])
    family = socket.AF_INET6 if ends[0].version == 6 else socket.AF_INET
    wanted = _PORTS.pack(local[1], remote[1]) + b"".join(end.packed.ljust(16, b"\0") for end in ends)
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + wanted + _ANY_COOKIE
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    # One socket for each question costs 10 µs more, but an answer cannot belong to another question or thread.
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as netlink:
        netlink.connect((0, 0))
        netlink.send(_HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + asked)
        answer = netlink.recv(8192)
    kind_of_answer = _HEADER.unpack_from(answer)[1]
    if kind_of_answer == _ERROR:
        number = -int(struct.unpack_from("=i", answer, _HEADER.size)[0])
        if number == 2:  # ENOENT: no such socket
            return None
        raise OSError(number, os.strerror(number))
    at = _HEADER.size
    state = answer[at + 1]
    ports = answer[at + 4 : at + 8]
    if state != LISTEN and ports != wanted[:4]:
        return None
    _, _, _, uid, inode = _FACTS.unpack_from(answer, at + 4 + len(wanted) + len(_ANY_COOKIE))
    return Socket(state, uid, inode)


def read_tables(local: Address, remote: Address) -> Socket | None:
    """By `/proc/net/tcp` and `tcp6`. Raises `OwnerUnknown` where they are not there."""
    tables = [text for path in _TABLES if (text := _read(path)) is not None]
    if not tables:
        raise OwnerUnknown("no /proc/net/tcp on this system")
    listening = remote[1] == 0
    for text in tables:
        for line in text.splitlines()[1:]:
            cells = line.split()
            state = int(cells[3], 16)
            if listening != (state == LISTEN):
                continue
            here, there = _end(cells[1]), _end(cells[2])
            same = here[1] == local[1] and (
                (listening and here[0].is_unspecified) or here[0] == _plain(ip_address(local[0]))
            )
            if same and (listening or there == (_plain(ip_address(remote[0])), remote[1])):
                found = Socket(state, int(cells[7]), int(cells[9]))
                # The remains of an older connection with the same two ends may be listed before the live one.
                if state in {ESTABLISHED, LISTEN}:
                    return found
    return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None


def _end(written: str) -> tuple[IPv4Address | IPv6Address, int]:
    """`0100007F:04B0`: the address in words of 32 bits in this machine's byte order, and the port."""
    address, _, port = written.partition(":")
    words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
    return _plain(ip_address(b"".join(words))), int(port, 16)


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address of a mapped one: a Java client's is `::ffff:127.0.0.1`."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
