"""A slow connection to PostgreSQL, with a bounded number of bytes a second, for a database with a short deadline."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

from ondot.store.database import Database, open_database
from tests.servers import settings_for
from tests.world import World

BYTES_A_SECOND = 2_000_000
DEADLINE_S = 0.2
LARGE = 100_000
MANY = 20
"""This many large payloads take a second, more than the deadline and the half second for an answer."""
CHUNK = 16_384


def large(number: int) -> str:
    """JSON of a hundred kilobytes, different for each number."""
    return f'"{number:0{LARGE}}"'


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK):
        await asyncio.sleep(len(chunk) / BYTES_A_SECOND)
        writer.write(chunk)
        await writer.drain()


@asynccontextmanager
async def slow_database(world: World) -> AsyncIterator[Database]:
    """The world's database over such a connection, with hurried deadlines."""
    behind = parse_qs(urlsplit(world.url).query)
    socket_path = f"{behind['host'][0]}/.s.PGSQL.{behind['port'][0]}"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(socket_path, limit=CHUNK)
        both = [asyncio.create_task(_carry(reader, server_writer)), asyncio.create_task(_carry(server_reader, writer))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for way in both:
            way.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        for end in (writer, server_writer):
            end.close()

    line = await asyncio.start_server(serve, "127.0.0.1", limit=CHUNK)
    parts = urlsplit(world.url)
    url = f"postgresql://{parts.username}@127.0.0.1:{line.sockets[0].getsockname()[1]}{parts.path}?sslmode=disable"
    # Shorter than settings allow, so that the tests are quick.
    settings = settings_for(url).model_copy(update={"statement_timeout_s": DEADLINE_S})
    database = await open_database(settings, hurried=True)
    database.clock.freeze(world.now)
    try:
        yield database
    finally:
        await database.close()
        line.close()
        await line.wait_closed()
