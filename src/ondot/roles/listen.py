"""Binds the API's port before anything else starts, so that a port in use is reported at once."""

import socket

from ondot.model.errors import Misconfigured

BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 finds a free one."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise Misconfigured(
            f"Cannot listen on {host}:{port}: {error.strerror}. Is another ondot running there? Choose another port"
            " with --port or ONDOT_PORT."
        ) from error
    return listener
