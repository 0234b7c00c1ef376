"""Runs uvicorn with ondot's own protocol, on a socket that already listens, until `stop` is set."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn
from fastapi import FastAPI

from ondot.api.protocol import Connections, Protocol

GRACE_S = 3
IDLE_S = 15
"""How long an idle connection is kept for another request; longer than the SDK's clients keep theirs, which is 5 s."""


class Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process by the signal instead of with exit code 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: FastAPI, listener: socket.socket, stop: asyncio.Event, trusted_proxies: str | None = None) -> None:
    """Serve until `stop`; requests that are running then have `GRACE_S` to end."""
    # Every connection inherits it. uvloop sets it by itself, asyncio only for some sockets: without it the body of a
    # response waits 40 ms for the client's acknowledgement of the head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = Server(
        uvicorn.Config(
            app,
            http=partial(Protocol, Connections()),  # type: ignore[arg-type]
            ws="none",
            timeout_keep_alive=IDLE_S,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
            # uvicorn would believe any client on loopback.
            proxy_headers=trusted_proxies is not None,
            forwarded_allow_ips=trusted_proxies,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="serve")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving
