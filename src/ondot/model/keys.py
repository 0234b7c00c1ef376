"""The form of an API key (T1): `ondk_<id>_<random><checksum>`.

    ondk_019a84535d2e7c11a0b36f1e2d3c4b5a_5Jq1…27 characters…X2xR1c0aB
         the key's id, public            160 random bits     CRC-32

The prefix lets scanners find a key that was published, and the id says which one it is: it is not secret. The checksum
is over everything before it, so that a key with a typo is refused without a look at the database. It is no protection:
anyone can compute it.

Keys of earlier releases (`ondot_…`) have neither id nor checksum; they work until they are revoked.
"""

import re
import secrets
import string
import zlib
from typing import Final
from uuid import UUID

PREFIX: Final = "ondk_"
ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
RANDOM_LENGTH: Final = 27
"""62 to the power of 27 is more than 2 to the power of 160."""
CHECKSUM_LENGTH: Final = 6
LENGTH: Final = len(PREFIX) + 32 + 1 + RANDOM_LENGTH + CHECKSUM_LENGTH
LONGEST: Final = 128
"""No key is longer, of this release or an earlier one."""

_FORM: Final = re.compile(rf"{PREFIX}([0-9a-f]{{32}})_[0-9A-Za-z]{{{RANDOM_LENGTH + CHECKSUM_LENGTH}}}", re.ASCII)
_FORM_BEFORE: Final = re.compile(r"ondot_(?!token_)[A-Za-z0-9_-]{20,100}", re.ASCII)
"""The token of a home begins with `ondot_token_`: it is no key."""


def new_key(id_: UUID) -> str:
    """A new key with this id, which is that of its row."""
    unchecked = f"{PREFIX}{id_.hex}_{''.join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))}"
    return unchecked + checksum_of(unchecked)


def looks_like_a_key(text: str) -> bool:
    """Whether it is worth a look at the database: its form and its checksum are right."""
    if _FORM.fullmatch(text):
        return checksum_of(text[:-CHECKSUM_LENGTH]) == text[-CHECKSUM_LENGTH:]
    return _FORM_BEFORE.fullmatch(text) is not None


def id_in(key: str) -> UUID | None:
    """The id in a key that looks like one; None for one of an earlier release."""
    return UUID(key[len(PREFIX) : len(PREFIX) + 32]) if key.startswith(PREFIX) else None


def holds_a_key(text: str) -> bool:
    """Whether a key is somewhere in a text, for example in a URL, where it must not be."""
    return PREFIX in text and any(looks_like_a_key(found[0]) for found in _FORM.finditer(text))


def checksum_of(unchecked: str) -> str:
    """CRC-32 in six digits to the base of 62."""
    number, digits = zlib.crc32(unchecked.encode()), ""
    for _ in range(CHECKSUM_LENGTH):
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits
