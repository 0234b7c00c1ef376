"""The resolver of HTTP calls (T3): it checks what a name resolves to before aiohttp connects."""

import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from ondot.targets.addresses import Allowed


class AllowedResolver(AbstractResolver):
    """Resolves a name only if all of its addresses may be called."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        for entry in found:
            self._allowed.check(host, entry["host"], port)
        return found

    async def close(self) -> None:
        await self._resolver.close()
