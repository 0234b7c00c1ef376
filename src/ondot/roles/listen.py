"""Binds the API's port before anything else starts, so that a port in use is reported at once; and shows in the
database where the API listens, because no tenant's job may call it (T3)."""

import re
import socket
from collections.abc import Iterator
from ipaddress import IPv6Address
from pathlib import Path

from ondot.model.errors import Misconfigured
from ondot.store.database import Database
from ondot.store.listeners import remove_listener, show_listener

BACKLOG = 1024
SHOW_EVERY_S = 60.0

_LOCAL_4 = re.compile(r"\|-- ([0-9.]+)\n +/32 host LOCAL")


def listen(
    host: str, port: int, then: str = "Is another ondot running there? Choose another port with --port or ONDOT_PORT."
) -> socket.socket:
    """A listening socket; port 0 finds a free one. `then`: what to do if it cannot listen."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise Misconfigured(f"Cannot listen on {host}:{port}: {error.strerror or error}. {then}") from error
    return listener


class ShownListener:
    """One row of this process in the database, written again each minute."""

    def __init__(self, database: Database, listener: socket.socket) -> None:
        self._database = database
        self._id = database.clock.new_id()
        self._host, self._port = listener.getsockname()[:2]

    async def one_pass(self) -> int:
        is_anywhere = self._host in {"0.0.0.0", "::"}  # noqa: S104 - what it is bound to, not what it binds
        addresses = sorted(set(find_addresses())) if is_anywhere else [self._host]
        async with self._database.connection() as connection:
            await show_listener(
                connection, self._id, socket.gethostname(), addresses, self._port, self._database.settings.url
            )
        return 0

    async def remove(self) -> None:
        async with self._database.connection() as connection:
            await remove_listener(connection, self._id)


def find_addresses() -> Iterator[str]:
    """The addresses of this machine: as the kernel lists them, or else those of its name."""
    yield "127.0.0.1"
    try:
        yield from _LOCAL_4.findall(Path("/proc/net/fib_trie").read_text())
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            yield str(IPv6Address(bytes.fromhex(line.split()[0])))
    except (OSError, ValueError):
        try:
            yield from (str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(socket.gethostname(), None))
        except OSError:
            return
