"""gRPC calls (E3): how a server and a method are written, which metadata a job may set, which statuses are retried.

Metadata are headers of HTTP/2, and a stored target has them as `headers`, under the same rules for credentials. The
certificates and the key of a TLS connection stand there too, under names that ondot reserves: they are sealed, masked
and filled in like any header with credentials, and never sent.
"""

import base64
import binascii
import re
from typing import Final

from ondot.model.headers import why_reserved

MAX_ADDRESS: Final = 300
MAX_METHOD: Final = 300
MAX_DESCRIPTOR_SET: Final = 512 * 1024
"""Characters of base64: a set with all of Google's common protocols has half of it."""
MAX_PEM: Final = 64 * 1024

CA: Final = "ondot-tls-ca"
CERTIFICATE: Final = "ondot-tls-certificate"
KEY: Final = "ondot-tls-secret-key"
TLS_HEADERS: Final = {"ca": CA, "certificate": CERTIFICATE, "key": KEY}

A_METHOD: Final = "billing.v1.Invoices/Create"
AN_ADDRESS: Final = "billing.example.com:443"

RETRIED: Final = frozenset(
    {"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "INTERNAL", "UNAVAILABLE"}
)
"""Statuses that may pass. CANCELLED: it was not ondot that cancelled the call."""

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})", re.ASCII)
_METHOD: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*/[A-Za-z_]\w*", re.ASCII)
_NAME: Final = re.compile(r"[0-9a-z_.-]{1,256}", re.ASCII)
_TEXT: Final = re.compile(r"[\x20-\x7e]*")
_OF_GRPC: Final = frozenset({"content-type", "user-agent", "accept-encoding", "content-encoding"})


def parse_address(text: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises ValueError with the end of a sentence about it."""
    found = _ADDRESS.fullmatch(text) if len(text) <= MAX_ADDRESS else None
    if found is None or not 1 <= int(found[2]) <= 65_535:
        raise ValueError(f"a host and its port without a scheme, for example {AN_ADDRESS}")
    return found[1].strip("[]").lower().rstrip("."), int(found[2])


def parse_method(text: str) -> str:
    """The method as it is stored: also `/pkg.Service/Method` and `pkg.Service.Method` are accepted."""
    written = text.removeprefix("/")
    if "/" not in written:
        written = "/".join(written.rpartition(".")[::2])
    if len(written) > MAX_METHOD or not _METHOD.fullmatch(written):
        raise ValueError(f"a service with its package, and a method, for example {A_METHOD}")
    return written


def why_not_metadata(name: str) -> str | None:
    """Why a job may not set this metadata, as a sentence that states what to do; None if it may."""
    if not _NAME.fullmatch(name):
        lower = ", in lower case" if name.lower() != name else ""
        return f"{name[:60]!r} is not a name of gRPC metadata: use a-z, 0-9, - _ and .{lower}, for example x-team."
    if name.startswith("grpc-") or name in _OF_GRPC:
        return f"gRPC sets the metadata {name} itself: leave it out."
    return why_reserved(name)


def why_not_value(name: str, value: str) -> str | None:
    """What the value of this metadata must be, as the end of a sentence; None if it may be sent."""
    if name.endswith("-bin"):
        try:
            decode_binary(value)
        except ValueError:
            return "base64, because the name ends in -bin"
        return None
    return None if _TEXT.fullmatch(value) else "text of printable ASCII; for other bytes use a name that ends in -bin"


def decode_binary(value: str) -> bytes:
    """The bytes of a `-bin` value, with or without padding. Raises ValueError."""
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def is_retried(status: str) -> bool:
    return status in RETRIED
