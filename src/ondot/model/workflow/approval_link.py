"""Signed links to an approval (W8): who follows one decides a step without signing in.

A link names one generation of one step, and ends. It can be used once, because a step is decided once. The signature is
an HMAC by a key of the installation; a link whose content or signature was changed is no link.
"""

import base64
import hmac
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from ondot.model.ids import TenantNo

DERIVED_FOR: Final = b"ondot approval link\x01"
MAX_LENGTH: Final = 2_000


class ApprovalLink(Struct, frozen=True, array_like=True):
    """`actor`: who made it. `expires_s`: in seconds since 1970."""

    tenant_no: TenantNo
    run_id: UUID
    step: str
    execution_id: UUID
    actor: str
    expires_s: int


_DECODER: Final = msgspec.json.Decoder(ApprovalLink)


def derive_key(master: bytes) -> bytes:
    """The key of links, from a master key of the installation (HKDF-Expand)."""
    return hmac.digest(master, DERIVED_FOR, "sha256")


def sign_link(key: bytes, link: ApprovalLink) -> str:
    content = _encode(msgspec.json.encode(link))
    return f"{content}.{_encode(hmac.digest(key, content.encode(), 'sha256'))}"


def read_link(keys: Sequence[bytes], text: str) -> ApprovalLink | None:
    """None: it is no link of this installation. Whether it has ended is for the caller to say."""
    content, _, signature = text[:MAX_LENGTH].partition(".")
    expected = [_encode(hmac.digest(key, content.encode(), "sha256")) for key in keys]
    if not any(hmac.compare_digest(signature.encode(), one.encode()) for one in expected):
        return None
    try:
        return _DECODER.decode(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
    except (ValueError, msgspec.MsgspecError):
        return None


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
