"""Master keys in `ONDOT_SECRET_KEY`, or in the file that `ONDOT_SECRET_KEY_FILE` names (T5).

A key is 32 random bytes in base64. Several are separated by commas or line breaks: the first one wraps, all unwrap, so
that a new key can be added before the old one is removed. The id of a key is a hash of it, which may be shown.
"""

import base64
import secrets
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ondot.model.errors import NoSecretKey
from ondot.ports.kms import Kms
from ondot.settings import MASTER_KEY_BYTES, split_keys

NONCE_BYTES: Final = 12


class LocalKeys(Kms):
    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_id_of(key): AESGCM(key) for key in keys}
        self._master = _id_of(keys[0])

    def __repr__(self) -> str:
        return f"<LocalKeys {', '.join(self._keys)}>"

    @property
    def master(self) -> str:
        return self._master

    def knows(self, master: str) -> bool:
        return master in self._keys

    async def wrap(self, key: bytes, context: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._keys[self._master].encrypt(nonce, key, context)

    async def unwrap(self, master: str, wrapped: bytes, context: bytes) -> bytes:
        if master not in self._keys:
            raise NoSecretKey(
                f"These secrets need the master key {master}, and ONDOT_SECRET_KEY has {', '.join(self._keys)}. Add"
                " the old key to the end of ONDOT_SECRET_KEY, and start this role again.",
                master=master,
            )
        try:
            return self._keys[master].decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)
        except InvalidTag:
            raise NoSecretKey(
                f"A data key was changed after the master key {master} wrapped it. Restore the table ondot.data_key"
                " from a backup, or delete the row and set the secrets again.",
                master=master,
            ) from None


def open_kms(secret_key: str | None) -> LocalKeys | None:
    """The master keys of the settings, which have checked them; None if there is none."""
    keys = [base64.b64decode(key) for key in split_keys(secret_key)]
    return LocalKeys(keys) if keys else None


def generate_key() -> str:
    return base64.b64encode(secrets.token_bytes(MASTER_KEY_BYTES)).decode()


def _id_of(key: bytes) -> str:
    return blake2b(key, digest_size=4, person=b"ondot master key").hexdigest()
