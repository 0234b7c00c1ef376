"""Channels to gRPC servers (E3, T3): one for each server and its credentials, closed when it was idle for a while.

A channel connects only to addresses that were resolved and checked here: it is opened for the addresses themselves, and
asks no DNS, no proxy of the environment and no service configuration. It repeats no call by itself. A channel that
failed is retired: the next attempt opens another connection, as an HTTP call does. grpcio alone would wait up to two
minutes between connections, and would use a connection to a machine that is gone until the kernel gives it up.
"""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv6Address
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from msgspec import Struct

from ondot import __version__
from ondot.model.addresses import Reach
from ondot.model.grpc import CA, CERTIFICATE, KEY
from ondot.model.ids import TenantNo
from ondot.model.target import GrpcTarget
from ondot.targets.addresses import literal, resolve_allowed

IDLE_S: Final = 60.0
CONNECT_TIMEOUT_S: Final = 10.0
RESOLVED_FOR_S: Final = 10.0
MAX_NAMES: Final = 1_000
"""Names whose addresses are remembered."""
MAX_REPLY: Final = 4 * 1024 * 1024


class Server(Struct, frozen=True):
    """What a channel connects to. Tenants share none, and neither do calls that may reach other addresses."""

    tenant_no: TenantNo
    reach: Reach
    addresses: tuple[str, ...]
    port: int
    authority: str
    """The name that its certificate must have, and that it is called by."""
    tls: bool
    ca: str | None
    certificate: str | None
    key: str | None

    def __repr__(self) -> str:
        return self.authority

    @property
    def uri(self) -> str:
        """Its addresses for grpcio, which resolves nothing. An IPv4 address beside IPv6 ones is written as IPv6."""
        found = [literal(address) for address in self.addresses]
        if not any(isinstance(address, IPv6Address) for address in found):
            return "ipv4:" + ",".join(f"{address}:{self.port}" for address in found)
        mapped = [f"{address}" if isinstance(address, IPv6Address) else f"::ffff:{address}" for address in found]
        return "ipv6:" + ",".join(f"[{address}]:{self.port}" for address in mapped)


@dataclass(slots=True, eq=False)
class Channel:
    server: Server
    wire: Any
    """grpc.aio.Channel"""
    calls: int = 0
    is_retired: bool = False
    closes: asyncio.TimerHandle | None = field(default=None, repr=False)


class Channels:
    def __init__(self, grpc: ModuleType, *, idle_s: float = IDLE_S) -> None:
        self._grpc = grpc
        self._idle_s = idle_s
        self._open: dict[Server, Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._resolved: OrderedDict[tuple[Reach, str, int], tuple[float, list[str]]] = OrderedDict()

    async def find(self, tenant_no: TenantNo, reach: Reach, spec: GrpcTarget, host: str, port: int) -> Server:
        """The server of a call. Raises PrivateAddress or UnknownHost."""
        addresses = await self._resolve(reach, host, port)
        return Server(
            tenant_no=tenant_no,
            reach=reach,
            addresses=tuple(addresses),
            port=port,
            authority=spec.server_name or spec.address,
            tls=spec.tls,
            ca=_text(spec, CA),
            certificate=_text(spec, CERTIFICATE),
            key=_text(spec, KEY),
        )

    @asynccontextmanager
    async def use(self, server: Server) -> AsyncIterator[Channel]:
        channel = self._open.get(server)
        if channel is None:
            channel = self._open[server] = Channel(server, _connect(self._grpc, server))
        if channel.closes is not None:
            channel.closes.cancel()
            channel.closes = None
        channel.calls += 1
        try:
            yield channel
        finally:
            channel.calls -= 1
            if not channel.calls:
                if channel.is_retired:
                    self._close(channel)
                else:
                    channel.closes = asyncio.get_running_loop().call_later(self._idle_s, self._close, channel)

    def retire(self, channel: Channel) -> None:
        """No further call uses it; those that do may end."""
        channel.is_retired = True
        if self._open.get(channel.server) is channel:
            del self._open[channel.server]

    async def close(self) -> None:
        for channel in list(self._open.values()):
            if channel.closes is not None:
                channel.closes.cancel()
            self._close(channel)
        while self._closing:
            await asyncio.wait(self._closing)

    def __len__(self) -> int:
        return len(self._open)

    def _close(self, channel: Channel) -> None:
        self.retire(channel)
        closing = asyncio.ensure_future(channel.wire.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _resolve(self, reach: Reach, host: str, port: int) -> list[str]:
        """Remembered for some seconds, as HTTP calls do: thousands of calls a second would ask as often."""
        now_s = asyncio.get_running_loop().time()
        known = self._resolved.get((reach, host, port))
        if known is not None and known[0] > now_s:
            return known[1]
        addresses = await resolve_allowed(reach, host, port)
        self._resolved[reach, host, port] = now_s + RESOLVED_FOR_S, addresses
        self._resolved.move_to_end((reach, host, port))
        if len(self._resolved) > MAX_NAMES:
            self._resolved.popitem(last=False)
        return addresses


def _connect(grpc: ModuleType, server: Server) -> Any:
    options: Sequence[tuple[str, int | str]] = (
        ("grpc.default_authority", server.authority),
        ("grpc.primary_user_agent", f"ondot/{__version__}"),
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
        # A call that is repeated here would have no record (P7).
        ("grpc.enable_retries", 0),
        # Else a new channel would get the broken connection of the retired one, with its wait.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_TIMEOUT_S * 1000)),
        ("grpc.max_receive_message_length", MAX_REPLY),
        # Only uncompressed replies: a bomb of a few kilobytes would be unpacked before its size is known.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.per_message_decompression", 0),
    )
    if not server.tls:
        return grpc.aio.insecure_channel(server.uri, options=options)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_system_authorities() if server.ca is None else server.ca.encode(),
        private_key=None if server.key is None else server.key.encode(),
        certificate_chain=None if server.certificate is None else server.certificate.encode(),
    )
    return grpc.aio.secure_channel(server.uri, credentials, options=options)


@cache
def _system_authorities() -> bytes | None:
    """Those that HTTP calls trust too; None for the ones that come with grpcio."""
    found: str | None = ssl.get_default_verify_paths().cafile
    return Path(found).read_bytes() if found else None


def _text(spec: GrpcTarget, name: str) -> str | None:
    value = spec.headers.get(name)
    if value is not None and not isinstance(value, str):
        # Never a connection without its credentials.
        raise ValueError(f"the value of {name} is not known to this worker")
    return value
