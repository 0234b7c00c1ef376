"""A relay between a client and PostgreSQL that can be cut at a chosen word: how replies are lost on purpose."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, urlsplit


class Relay:
    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._writers: set[asyncio.StreamWriter] = set()
        self._request: bytes | None = None
        self._reply: bytes | None = None
        self.url = ""
        self.was_cut = False

    def cut_before_request(self, word: bytes) -> None:
        """Cut the connection instead of passing on what the client sends with this word in it."""
        self._request = word

    def cut_before_reply(self, word: bytes) -> None:
        """Cut the connection instead of passing on what the server answers with this word in it."""
        self._reply = word

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection(self._socket)
        self._writers |= {writer, ours}
        await asyncio.gather(self._pass_on(reader, ours, "_request"), self._pass_on(theirs, writer, "_reply"))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, side: str) -> None:
        with suppress(OSError):
            while chunk := await reader.read(65_536):
                word: bytes | None = getattr(self, side)
                if word is not None and word in chunk:
                    self.was_cut = True
                    break
                writer.write(chunk)
                await writer.drain()
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()


@asynccontextmanager
async def open_relay(url: str) -> AsyncIterator[Relay]:
    """A relay to the server that a URL of `tests.servers` names by the directory of its socket."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    relay = Relay(f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}")
    server = await asyncio.start_server(relay.serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    relay.url = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}?sslmode=disable"
    try:
        yield relay
    finally:
        relay.cut()
        server.close()
        await server.wait_closed()
