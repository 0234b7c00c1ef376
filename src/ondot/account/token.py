"""The token of a home: other accounts and relays send it to a server that runs without API keys.

`HOME/token` is readable by the server's account alone. A server that finds none creates it. It is kept, so that it is
valid for all servers of one home and survives their restarts. The client sends it automatically, and only to a server
of the account that owns the token.
"""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ondot.account.sockets import OwnerUnknown, find_listener
from ondot.model.errors import Misconfigured
from ondot.private import check_private, create_private

NAME: Final = "token"
PREFIX: Final = "ondot_token_"
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def keep_token(home: Path) -> str:
    """The token of this home, created if there is none. Raises if the home is not private enough to keep one."""
    path = home / NAME
    try:
        check_private(home)
        _make_directory(home)
        check_private(home)
        if (token := _read(path, os.geteuid())) is None:
            create_private(path, f"{PREFIX}{secrets.token_urlsafe(32)}")
            token = _read(path, os.geteuid())
    except OSError as error:
        raise Misconfigured(
            f"Cannot store the token for other accounts in {home} ({error.strerror}): make it writable for this"
            " account, or choose another home with --home or ONDOT_HOME."
        ) from error
    if token is None:
        raise Misconfigured(f"{path} is not a private file of this account: remove it, and start ondot again.")
    return token


def token_for(url: str, home: Path) -> str | None:
    """The token to send to this URL. None: there is none, or the server there does not belong to this home.

    While our server is not running, another account may listen on its port and wait for the token: it must not get it.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname not in LOOPBACK:
        return None
    path = home / NAME
    try:
        owner = path.lstat().st_uid
        token = _read(path, owner)
    except OSError:
        return None
    if token is None or os.geteuid() not in {0, owner}:
        return None
    hosts = ("127.0.0.1", "::1") if parts.hostname == "localhost" else (parts.hostname,)
    with suppress(OwnerUnknown):
        listeners = [found for host in hosts if (found := find_listener((host, parts.port or 80))) is not None]
        # Also for root's sockets, such as one that a service manager opened: root can read the token anyway.
        return token if listeners and all(found.uid in {owner, 0} for found in listeners) else None
    return token


def _make_directory(home: Path) -> None:
    """With the modes that `ondot up` uses: root's PostgreSQL runs as another account, which must reach its data."""
    for directory in (*reversed(home.parents), home):
        if not directory.exists():
            with suppress(FileExistsError):
                directory.mkdir()
                directory.chmod(0o700 if os.geteuid() else 0o711 if directory == home else 0o755)


def _read(path: Path, owner: int) -> str | None:
    """None: it does not exist, or is not a private file of that account."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor) as file:
        found = os.fstat(descriptor)
        private = stat.S_ISREG(found.st_mode) and found.st_uid == owner and not found.st_mode & 0o077
        token = file.read(200).strip() if private else ""
    return token if token.startswith(PREFIX) and len(token) > len(PREFIX) + 30 else None
