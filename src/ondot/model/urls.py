"""URLs that may contain secrets: how the database's is written, and how it is shown without them (P12, T5).

`place_of` builds the text for people from the parts that contain no secret and copies nothing else: an unknown part is
not shown. A database URL that two parsers could split differently is rejected (`fault_of`). In `u:s3cr3t#x@h` a common
parser sees the host `u` and the port `s3cr3t`, so the password would be in every error about the connection. No message
here quotes the URL.
"""

import re
from typing import Final
from urllib.parse import SplitResult, unquote_plus, urlsplit

SCHEMES: Final = frozenset({"postgresql", "postgres"})
HIDDEN: Final = "***"
POSTGRESQL: Final = 5432

_BEGIN: Final = "must begin with postgresql://, e.g. postgresql://user:password@host/database"
_ENCODE: Final = (
    "is ambiguous: in a user name, password or option write # as %23, / as %2F, ? as %3F, @ as %40, % as %25, a blank"
    " as %20; a port is a number, and options are name=value"
)
_BLANK_OR_CONTROL: Final = re.compile(r"[\s\x00-\x20\x7f]")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%\w-]+\]|[^:@\[\]]*)(:[0-9]+)?")
_OPTION: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*=[^=]*")
_PORTS: Final = re.compile("[0-9,]*")
_WITHOUT_SECRETS: Final = frozenset(
    {"host", "port", "user", "dbname", "database", "sslmode", "target_session_attrs", "service"}
)


def fault_of(url: str) -> str | None:
    """What is wrong with a database URL, as the end of a sentence; None if all parsers agree on it."""
    scheme, colon, _ = url.partition("://")
    if not colon or scheme not in SCHEMES:
        return _BEGIN
    parts = _split(url)
    if parts is None or "#" in url or "\\" in url or _BLANK_OR_CONTROL.search(url):
        return _ENCODE
    userinfo, _, hosts = parts.netloc.rpartition("@")
    options = parts.query.split("&") if parts.query else []
    is_clear = (
        "@" not in userinfo + parts.path + parts.query
        and all(_HOST.fullmatch(host) for host in hosts.split(","))
        and all(_OPTION.fullmatch(option) for option in options)
        and all(_PORTS.fullmatch(value) for name, value in _options(parts) if name == "port")
    )
    return None if is_clear else _ENCODE


def place_of(url: str) -> str:
    """A database URL for people: user, host and database, nothing more."""
    if fault_of(url) is not None:
        return "the database of ONDOT_DATABASE_URL"
    parts = urlsplit(url)
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user = userinfo.partition(":")[0]
    where = "&".join(f"{name}={value}" for name, value in _options(parts) if name in {"host", "port"})
    return f"{parts.scheme}://{user}{user and '@'}{hosts}{parts.path}{where and '?'}{where}"


def hosts_in(url: str) -> list[tuple[str, int]]:
    """The hosts and ports of a database URL; this machine for a Unix socket or no host."""
    parts = _split(url)
    if parts is None:
        return []
    options = dict(_options(parts))
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if "host" in options:
        ports = options.get("port", "").split(",")
        hosts = unquote_plus(options["host"]).split(",")
        hosts = [f"{host}:{ports[min(n, len(ports) - 1)]}" for n, host in enumerate(hosts)]
    found = []
    for written in hosts:
        bracketed = written.startswith("[")
        host, _, port = written.removeprefix("[").partition("]:" if bracketed else ":")
        host = host.removesuffix("]")
        found.append((host if host and not host.startswith("/") else "127.0.0.1", int(port) if port else POSTGRESQL))
    return found


def without_secrets(text: str, url: str) -> str:
    """A library's message about a database URL, without the URL's secrets."""
    parts = _split(url)
    if parts is None:
        return text.replace(url, HIDDEN)
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    hidden = [password, *(value for name, value in _options(parts) if name not in _WITHOUT_SECRETS)]
    written = {url, *hidden, *map(unquote_plus, hidden)} - {""}
    for secret in sorted(written, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def without_userinfo(url: str) -> str:
    """A server's URL for people, without user name, password and options."""
    parts = _split(url)
    if parts is None:
        return HIDDEN
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def host_of(url: str) -> str:
    """The host that a call to this address connects to, in lower case, without brackets; empty if there is none.

    By the parser of the HTTP client: another parser might see another host in the same text.
    """
    from yarl import URL

    try:
        return (URL(url).raw_host or "").lower().rstrip(".")
    except ValueError:
        return ""


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port. Credentials that were given for one origin are not sent to another."""
    from yarl import URL

    try:
        parts = URL(url)
    except ValueError:
        return "", "", None
    return parts.scheme, host_of(url), parts.port


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        # Its message quotes the part with the password.
        return None


def _options(parts: SplitResult) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (option.partition("=") for option in parts.query.split("&")) if name]
