"""The master key of a home (T5): `ondot up` with its own PostgreSQL keeps one, so that secrets work without settings.

`HOME/secret-key` is readable by the server's account alone. It is created once and kept: a new one could not read the
secrets that the old one encrypted. Like ONDOT_SECRET_KEY it may have several keys, of which the first encrypts.
"""

import os
import secrets
import stat
from base64 import b64encode
from pathlib import Path
from typing import Final

from ondot.model.errors import Misconfigured
from ondot.private import check_private, create_private

NAME: Final = "secret-key"
KEY_BYTES: Final = 32
MOST_BYTES: Final = 65_536


def keep_secret_key(home: Path) -> str:
    """The master keys of this home, created if there is none."""
    path = home / NAME
    try:
        check_private(home)
        if not path.exists():
            create_private(path, b64encode(secrets.token_bytes(KEY_BYTES)).decode())
        return _read(path)
    except OSError as error:
        raise Misconfigured(
            f"Cannot store the master key of secrets in {path} ({error.strerror}): make it writable for this account,"
            " or set ONDOT_SECRET_KEY; `ondot secret generate-key` creates one."
        ) from error


def find_secret_key(home: Path) -> str | None:
    """The master keys of this home; None if it has none, or if they are not for this account."""
    try:
        return _read(home / NAME)
    except (OSError, Misconfigured):
        return None


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor) as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise Misconfigured(
                f"{path} is not a private file of this account: run `chmod 600 {path}` and `chown` it to this account."
            )
        return file.read(MOST_BYTES).strip()
