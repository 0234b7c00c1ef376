"""Serving: uvicorn on a socket that listens already, until it is told to stop."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

GRACE_S = 3


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: it would end the process by the signal instead of with exit code 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: FastAPI, listener: socket.socket, stop: asyncio.Event) -> None:
    """Until `stop`; requests that are under way get their grace."""
    server = Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="serve")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving
