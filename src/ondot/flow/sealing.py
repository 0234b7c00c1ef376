"""Encrypts values with the data key of a tenant (T5): AES-256-GCM, with the place of a value as associated data.

A sealed value that is moved to another tenant, name or version does not open. `mark` is a keyed hash: it shows that two
values are equal to one who has the data key, and nothing to others.
"""

import hmac
import secrets
from base64 import b64decode, b64encode
from hashlib import blake2b
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ondot.model.errors import NoSecretKey

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
MARK_BYTES: Final = 16


class DataKey:
    """One data key of a tenant. Its number is stored beside everything that it sealed."""

    def __init__(self, tenant_no: int, number: int, key: bytes) -> None:
        self.number: Final = number
        self._tenant_no = tenant_no
        self._cipher = AESGCM(key)
        self._mark_key = blake2b(key, digest_size=32, person=b"ondot mark").digest()

    def __repr__(self) -> str:
        return f"<DataKey {self._tenant_no}/{self.number}>"

    def seal(self, value: str, *place: object) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value.encode(), self._context(place))

    def open(self, sealed: bytes, *place: object) -> str:
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], self._context(place)).decode()
        except InvalidTag:
            raise NoSecretKey(
                f"The stored value of {place[1] if len(place) > 1 else place[0]!r} cannot be decrypted: it was changed"
                " outside of ondot. Set it again."
            ) from None

    def mark(self, value: str, *place: object) -> bytes:
        return hmac.digest(self._mark_key, self._context(place) + b"\0\0" + value.encode(), "sha256")[:MARK_BYTES]

    def _context(self, place: tuple[object, ...]) -> bytes:
        return "\0".join(["ondot", str(self._tenant_no), *map(str, place)]).encode()


def wrapping_context(tenant_no: int, number: int) -> bytes:
    return f"ondot data key {tenant_no}/{number}".encode()


def new_data_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def to_text(number: int, sealed: bytes) -> str:
    """A sealed value inside a spec: the number of its key, then base64."""
    return f"{number}:{b64encode(sealed).decode()}"


def from_text(text: str) -> tuple[int, bytes]:
    number, _, sealed = text.partition(":")
    return int(number), b64decode(sealed)
