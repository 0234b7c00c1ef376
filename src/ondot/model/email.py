"""E-mail addresses and the address of an SMTP server (O4). Nothing here quotes a URL: it may have a password."""

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

LONGEST: Final = 254
_ADDRESS: Final = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", re.ASCII)
_EXPECTED: Final = (
    "must be smtp://host, smtps://host, or with a user: smtp://user:password@host:587; the one option is"
    " ?starttls=required or ?starttls=never"
)
_PORTS: Final = {"smtp": 25, "smtps": 465}


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """`starttls`: True: required; False: never; None: if the server offers it. With a password it is required."""

    host: str
    port: int
    is_tls: bool
    starttls: bool | None
    user: str | None = None
    password: str | None = field(default=None, repr=False)


def is_email_address(text: str) -> bool:
    """A plain address: no name before it, no blanks or line breaks, which could become headers or more recipients."""
    return len(text) <= LONGEST and _ADDRESS.fullmatch(text) is not None


def parse_smtp_url(url: str) -> SmtpServer:
    """Raises ValueError with what it must be."""
    try:
        parts = urlsplit(url)
        port = parts.port
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise ValueError(_EXPECTED) from None
    starttls = {"required": True, "never": False, "": None}.get(options.pop("starttls", ""), ...)
    is_clear = url.isprintable() and " " not in url and not parts.fragment and parts.path in {"", "/"}
    if parts.scheme not in _PORTS or not parts.hostname or port == 0 or options or starttls is ... or not is_clear:
        raise ValueError(_EXPECTED)
    if parts.password is not None and starttls is False and parts.hostname not in {"127.0.0.1", "localhost", "::1"}:
        raise ValueError("must not send a password without TLS: leave out ?starttls=never, or use smtps://")
    is_tls = parts.scheme == "smtps"
    if parts.password is not None and starttls is None and not is_tls:
        starttls = True
    return SmtpServer(
        parts.hostname,
        port or _PORTS[parts.scheme],
        is_tls,
        False if is_tls else starttls,
        None if parts.username is None else unquote(parts.username),
        None if parts.password is None else unquote(parts.password),
    )
