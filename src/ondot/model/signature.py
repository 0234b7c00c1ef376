"""Signatures of outgoing calls, by the Standard Webhooks specification (T3).

A call carries `webhook-id`, `webhook-timestamp` (seconds of the attempt) and `webhook-signature`: one `v1,<base64>` for
each key in force, separated by blanks. Signed are the exact bytes of `id.timestamp.body`, with HMAC-SHA256. A key is
written as `whsec_` and base64 of 24 to 64 bytes.

A tenant has one root key, and each host gets a key of its own that is derived from it: a receiver that knows its key
cannot forge calls to another.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

PREFIX: Final = "whsec_"
SIGNING_HEADER: Final = "webhook-signature"
"""In the headers of a stored target: the job's own secret. As a header it is reserved, so it is never sent."""
LEAST_BYTES, MOST_BYTES = 24, 64
TOLERANCE_S: Final = 300

_VERSION: Final = "v1,"
_FOR_HOSTS: Final = b"ondot webhook host v1\0"
_INTEGER: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_HOST: Final = re.compile(r"[a-z0-9._-]{1,253}|[0-9a-f:.]{2,45}", re.ASCII)


def write_secret(key: bytes) -> str:
    return PREFIX + base64.b64encode(key).decode()


def parse_secret(text: str) -> bytes:
    """The key of a secret. Raises ValueError with what it must be; never with the secret itself."""
    encoded = text.strip().removeprefix(PREFIX)
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"a secret is {PREFIX} and base64, for example from `ondot webhook secret`") from None
    if not LEAST_BYTES <= len(key) <= MOST_BYTES:
        raise ValueError(f"a secret has {LEAST_BYTES} to {MOST_BYTES} bytes after base64; this one has {len(key)}")
    return key


def derive_key(root: bytes, host: str) -> bytes:
    """The key of one host, in the form that `signing_host` returns."""
    return hmac.digest(root, _FOR_HOSTS + host.encode(), "sha256")


def signing_host(written: str) -> str:
    """The host that a key belongs to, of a URL, a host with a port or a host. Raises ValueError."""
    text = written.strip()
    try:
        host = urlsplit(text if "://" in text else f"//{text if text.count(':') < 2 or '[' in text else f'[{text}]'}")
        name = (host.hostname or "").rstrip(".")
        name = name if name.isascii() else name.encode("idna").decode()
    except (ValueError, UnicodeError):
        name = ""
    # urlsplit removes line breaks and tabs.
    if not text.isprintable() or not _HOST.fullmatch(name):
        raise ValueError(f"{written[:100]!r} is not a host; write, for example, api.example.com")
    return name


def sign(keys: Sequence[bytes], message_id: str, timestamp: str, body: bytes) -> str:
    """The header `webhook-signature`: a signature with each key, in their order."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return " ".join(_VERSION + base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys)


def find_fault(
    keys: Sequence[bytes],
    *,
    message_id: str,
    timestamp: str,
    signatures: str,
    body: bytes,
    now_s: float,
    tolerance_s: float = TOLERANCE_S,
) -> str | None:
    """Why a receiver must not trust a call, as a sentence; None: it is authentic, and not old."""
    if not message_id or not signatures:
        return "The call has no webhook-id or no webhook-signature."
    if not _INTEGER.fullmatch(timestamp):
        return f"webhook-timestamp must be whole seconds since 1970, got {timestamp[:40]!r}."
    age_s = now_s - int(timestamp)
    if abs(age_s) > tolerance_s:
        why = "is it a replay?" if age_s > 0 else "is this machine's clock right?"
        return f"The call is {age_s:.0f} s old, and at most {tolerance_s:g} s are accepted: {why}"
    expected = [each.encode() for each in sign(keys, message_id, timestamp, body).split()]
    given = [each.encode() for each in signatures.split() if each.startswith(_VERSION)]
    if not given:
        return "webhook-signature has no signature of version v1."
    # All are compared, so that the time does not depend on which one matches.
    matches = [hmac.compare_digest(each, own) for each in given[:20] for own in expected]
    if not any(matches):
        return "No signature matches: the body, the headers or the secret differ from those that were signed."
    return None
