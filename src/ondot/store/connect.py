"""Opens one connection, to the primary among the hosts of the URL, within three seconds.

A host that vanished does not even refuse. So each connection has TCP give up on data that is not acknowledged for a few
seconds, and a host of the URL does not have to time out before the next one is tried: the next starts when the one
before it has failed, or has not answered for half a second. The first that accepts writes is used.
"""

import asyncio
import os
import socket
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from ondot.model.errors import Misconfigured
from ondot.model.urls import without_secrets
from ondot.store.connection import AWAY, OwnConnection

CONNECT_TIMEOUT_S: Final = 3.0
NEXT_HOST_AFTER_S: Final = 0.5
DEFAULT_PORT: Final = "5432"

UNACKNOWLEDGED_MS: Final = 4_000
"""A connection whose data the peer's kernel has not acknowledged for this long is lost."""
_TCP_OPTIONS: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS}
"""By name, because not every system has all of them."""

Host = tuple[str, int]


async def connect_to_primary(dsn: str, **options: Any) -> OwnConnection:
    """Connect. Raises what asyncpg raises; for several hosts, the error that is more likely to pass.

    Raises Misconfigured for an option of the URL that asyncpg does not accept.
    """
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        hosts = hosts_of(dsn)
        try:
            connection: OwnConnection = await (
                asyncpg.connect(dsn, **options) if len(hosts) < 2 else _first_of(dsn, hosts, options)
            )
        except asyncpg.ClientConfigurationError as error:
            # Without the cause: it quotes a part of the URL, and a log would show it.
            raise Misconfigured(f"ONDOT_DATABASE_URL cannot be used: {without_secrets(str(error), dsn)}.") from None
    _set_keepalive(connection)
    return connection


def hosts_of(url: str) -> list[Host]:
    """The hosts that a URL names, in its order; none if it leaves that to asyncpg and the environment."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    names = parts.netloc.rpartition("@")[2] or query.get("host", [""])[-1]
    if not names:
        return []
    ports = query.get("port", [os.environ.get("PGPORT") or DEFAULT_PORT])[-1].split(",")
    entries = names.split(",")
    if len(ports) != len(entries):
        ports = ports[:1] * len(entries)
    return [_host(entry, port) for entry, port in zip(entries, ports, strict=True)]


def _host(entry: str, port: str) -> Host:
    """`name`, `name:port`, `[address]:port`, or the directory of a socket."""
    if entry.startswith("["):
        name, _, own_port = entry[1:].partition("]")
        own_port = own_port.removeprefix(":")
    elif entry.startswith(("/", "%2F", "%2f")):
        name, own_port = entry, ""
    else:
        name, _, own_port = entry.partition(":")
    return unquote(name), int(own_port or port)


async def _first_of(dsn: str, hosts: Iterable[Host], options: dict[str, Any]) -> OwnConnection:
    # ondot writes, so it needs the primary of several servers, unless the URL says otherwise.
    wanted = parse_qs(urlsplit(dsn).query).get("target_session_attrs", ["primary"])[-1]
    waiting = list(hosts)
    trying: set[asyncio.Task[OwnConnection]] = set()
    errors: list[BaseException] = []
    try:
        while waiting or trying:
            if waiting:
                host, port = waiting.pop(0)
                to_host = options | {"host": host, "port": port, "target_session_attrs": wanted}
                trying.add(asyncio.ensure_future(asyncpg.connect(dsn, **to_host)))
            patience_s = NEXT_HOST_AFTER_S if waiting else None
            done, trying = await asyncio.wait(trying, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (error := task.exception()) is None:
                    done.discard(task)
                    _close_late(trying | done)
                    return task.result()
                errors.append(error)
    except BaseException:
        _close_late(trying)
        raise
    raise next((error for error in errors if isinstance(error, AWAY)), errors[0])


def _close_late(tasks: set[asyncio.Task[OwnConnection]]) -> None:
    """Close connections that are opened too late."""

    def end(task: asyncio.Task[OwnConnection]) -> None:
        if not task.cancelled() and task.exception() is None:
            task.result().terminate()

    for task in tasks:
        task.cancel()
        task.add_done_callback(end)


def _set_keepalive(connection: OwnConnection) -> None:
    """Have the kernel notice that the peer is gone, even while no statement runs."""
    transport: Any = connection._transport  # type: ignore[attr-defined] # asyncpg has no option for it
    link = transport.get_extra_info("socket")
    if link is None or link.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            link.setsockopt(socket.IPPROTO_TCP, option, value)
