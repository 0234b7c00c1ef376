"""How a command calls a server: over HTTP with the SDK, or the database itself for operators.

Heavy modules are imported here, when a command needs them. The database of a running `ondot up` is found by its home,
so that `ondot doctor` and `ondot key create` need no URL.
"""

import os
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ondot.model.urls import without_userinfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ondot.contexts import Server
    from ondot.sdk.client import Client
    from ondot.settings import Settings
    from ondot.store.database import Database

Answer = TypeVar("Answer")


def ask(question: "Callable[[Client], Awaitable[Answer]]", *, tenant: str | None = None) -> Answer:
    """Call the server of ONDOT_URL or of a context. `tenant`: an owner acts for it."""
    from ondot.model.errors import Unauthorized

    server = find_server()
    try:
        return ask_server(question, replace(server, tenant=tenant or server.tenant))
    except Unauthorized as refusal:
        if server.unused is None:
            raise
        raise Unauthorized(
            f"{refusal.message} The key of the context {server.unused} is not sent to {without_userinfo(server.url)},"
            " because that URL does not come from the context: unset ONDOT_URL, or set ONDOT_API_KEY beside it."
        ) from refusal


def find_server() -> "Server":
    """Where commands go: by --context, ONDOT_URL, ONDOT_CONTEXT, `ondot context use`, ondot.toml, or the default."""
    from ondot.contexts import server_of
    from ondot.settings import load_settings

    settings = load_settings()
    server = server_of(settings)
    if server.context is None or server.key:
        return server
    from ondot.account.token import token_for
    from ondot.settings import default_home

    # Without a key in the context no other key may be looked for; the token of this machine's own server is none.
    return replace(server, key=token_for(server.url, settings.home or default_home()) or "")


def ask_server(question: "Callable[[Client], Awaitable[Answer]]", server: "Server") -> Answer:
    import asyncio

    from ondot.sdk.client import Client
    from ondot.telemetry.trace_context import enter_trace_of

    async def main() -> Answer:
        # A program that a job runs continues the trace of its attempt.
        enter_trace_of(os.environ)
        async with Client(server.url, server.key, tenant=server.tenant) as client:
            return await question(client)

    return asyncio.run(main())


def database_settings(**flags: Any) -> "Settings":
    """The settings, with the URL of a running `ondot up` of this home if none was given.

    Only warnings are logged, to standard error: standard output is the command's answer, which may be JSON.
    """
    from ondot.settings import load_settings
    from ondot.telemetry.log import configure_logs

    settings = load_settings(**flags)
    configure_logs(settings.log_format, "warning", role="command")
    if settings.database_url is None and (url := _embedded_url(settings.home)):
        from ondot.account.secret_key import find_secret_key
        from ondot.settings import default_home

        home = (settings.home or default_home()).expanduser().absolute()
        secret_key = settings.secret_key or find_secret_key(home)
        return settings.model_copy(update={"database_url": url, "secret_key": secret_key})
    return settings


def _embedded_url(home: Path | None) -> str | None:
    from ondot.settings import default_home

    place = (home or default_home()).expanduser().absolute()
    try:
        lines = (place / "data" / "postmaster.pid").read_text().splitlines()
    except OSError:
        return None
    if len(lines) < 5 or not Path(lines[4]).is_dir():
        return None
    from ondot.embedded.server import url_of
    from ondot.private import check_private

    # The home of another account would lead to its database, and to its jobs.
    check_private(place)
    return url_of(Path(lines[4]), lines[3])


def ask_database(question: "Callable[[Database], Awaitable[Answer]]") -> Answer:
    """Call the database itself, if its schema fits this release."""
    import asyncio

    settings = database_settings()

    async def main() -> Answer:
        async with _open(settings) as database:
            return await question(database)

    return asyncio.run(main())


@asynccontextmanager
async def _open(settings: "Settings") -> "AsyncIterator[Database]":
    from ondot.store.database import check_server, open_database
    from ondot.store.migrate import check_schema

    database = await open_database(settings)
    try:
        await check_server(database)
        async with database.connection() as connection:
            await check_schema(connection)
        await database.read_clock()
        yield database
    finally:
        await database.close()
