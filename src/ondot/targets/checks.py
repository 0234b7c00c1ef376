"""Tests a connection (E3): resolves its address, connects, logs in, and sends no message.

Of a webhook and a gRPC server only the connection is tested, with TLS if it has it: a call might do something.
"""

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

from ondot.model.addresses import Reach
from ondot.model.broker import BROKER_KINDS, parse_broker
from ondot.model.connection import ConnectionSpec, broker_of
from ondot.model.errors import Misconfigured
from ondot.model.ids import TenantNo
from ondot.targets.addresses import PrivateAddress, ReachOf, UnknownHost, resolve_allowed
from ondot.targets.publish.publishers import open_publisher
from ondot.targets.text import one_line

WITHIN_S: Final = 10.0
NO_RIGHT: Final = (
    "This connection was written by a caller without the scope private-targets: write it with a key that has the scope."
)


class ConnectionChecker:
    def __init__(self, reach_of: ReachOf) -> None:
        self._reach_of = reach_of

    async def check(self, tenant_no: TenantNo, spec: ConnectionSpec) -> str | None:
        """What is wrong with a connection whose credentials are opened, as a sentence; None: nothing."""
        reach = await self._reach_of(tenant_no)
        if spec.only_public:
            reach = reach.only_public(NO_RIGHT)
        if spec.kind not in BROKER_KINDS:
            return await _check_server(spec, reach)
        try:
            publisher = open_publisher(broker_of(spec), reach)
        except Misconfigured as missing:
            return missing.message
        try:
            refusal = await publisher.check(within_s=WITHIN_S)
        finally:
            await publisher.close()
        return None if refusal is None else refusal.message


async def _check_server(spec: ConnectionSpec, reach: Reach) -> str | None:
    if spec.kind == "webhook":
        parts = urlsplit(spec.address)
        tls = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if tls else 80)
    else:
        [server] = parse_broker("kafka", spec.address).servers
        host, port, tls = server.host, server.port, spec.tls
    try:
        async with asyncio.timeout(WITHIN_S):
            [address, *_] = await resolve_allowed(reach, host, port)
            context = ssl.create_default_context(cadata=spec.ca) if tls else None
            name = host if tls else None
            _, writer = await asyncio.open_connection(address, port, ssl=context, server_hostname=name)
            writer.close()
    except (PrivateAddress, UnknownHost) as refusal:
        return str(refusal)
    except TimeoutError:
        return f"No connection to {host}:{port} within {WITHIN_S:g} s."
    except OSError as error:
        return one_line(f"No connection to {host}:{port}: {error.strerror or error}")
    return None
