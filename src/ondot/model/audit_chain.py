"""The chain of seals over a tenant's audit log (T6): what is hashed, and how it is signed.

A seal lists the entries that it covers, in order, with a digest of each. Its hash covers that list and the hash of the
seal before it, so that one hash stands for the whole log up to then. The hash needs no key, so that anyone can compare
it with a head in an old log. The signature needs one that is not in the database: a person who can write to the
database can compute new hashes, but cannot sign them. The signature of the newest seal covers all before it, so that
keys can be rotated without keeping the old ones.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from ondot.model.ids import EPOCH, TenantNo

FORMAT: Final = 1
"""Which columns a digest covers, and in which order. A new column needs a new number; old seals keep theirs."""
DIGEST_BYTES: Final = 32
BEFORE_THE_FIRST: Final = bytes(DIGEST_BYTES)
REMOVED: Final = bytes(DIGEST_BYTES)
"""The digest of an entry that was removed before it was sealed."""

Column = str | None


@dataclass(frozen=True, slots=True)
class SealedEntry:
    """An entry as it is hashed: its columns as PostgreSQL writes them as text, in the order of the format."""

    id: UUID
    columns: tuple[Column, ...]

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(b"ondot audit entry\0" + self.id.bytes + _join(self.columns)).digest()


@dataclass(frozen=True, slots=True)
class Seal:
    tenant_no: TenantNo
    seq: int
    at: datetime
    ids: tuple[UUID, ...]
    digests: bytes
    prev: bytes
    hash: bytes
    key_id: str | None = None
    mac: bytes | None = None
    format: int = FORMAT

    @property
    def expected_hash(self) -> bytes:
        """The hash that belongs to the content of this seal."""
        head = f"{self.format} {self.tenant_no} {self.seq} {_microseconds(self.at)} {len(self.ids)}\0".encode()
        return hashlib.sha256(
            b"ondot audit seal\0" + head + self.prev + b"".join(id_.bytes for id_ in self.ids) + self.digests
        ).digest()

    def digest_of(self, number: int) -> bytes:
        return self.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class SealKey:
    """A secret that signs seals. Its id is stored with them."""

    secret: bytes

    def __repr__(self) -> str:
        return f"SealKey({self.id})"

    @property
    def id(self) -> str:
        return hashlib.sha256(b"ondot audit key\0" + self.secret).hexdigest()[:12]

    def sign(self, hash_: bytes) -> bytes:
        return hmac.digest(self.secret, b"ondot audit seal\0" + hash_, "sha256")


def make_seal(
    tenant_no: TenantNo,
    before: tuple[int, bytes] | None,
    at: datetime,
    entries: Sequence[tuple[UUID, bytes]],
    key: SealKey | None,
) -> Seal:
    """The seal after `before` (its number and hash; None: the first) over these entries: ids and digests."""
    seq, prev = before or (0, BEFORE_THE_FIRST)
    ids = tuple(id_ for id_, _ in entries)
    digests = b"".join(digest for _, digest in entries)
    draft = Seal(tenant_no, seq + 1, at, ids, digests, prev, b"")
    hash_ = draft.expected_hash
    signature = (None, None) if key is None else (key.id, key.sign(hash_))
    return Seal(tenant_no, seq + 1, at, ids, digests, prev, hash_, *signature)


def is_signed_by(seal: Seal, key: SealKey) -> bool:
    return seal.mac is not None and hmac.compare_digest(seal.mac, key.sign(seal.hash))


@dataclass(frozen=True, slots=True)
class Cut:
    """The last seal of a log that was removed, because its entries are older than kept history."""

    tenant_no: TenantNo
    seq: int
    hash: bytes
    key_id: str | None = None
    mac: bytes | None = None

    @property
    def content(self) -> bytes:
        """What is signed."""
        return hashlib.sha256(b"ondot audit cut\0" + f"{self.tenant_no} {self.seq}\0".encode() + self.hash).digest()

    def is_signed_by(self, key: SealKey) -> bool:
        return self.mac is not None and hmac.compare_digest(self.mac, key.sign(self.content))


def make_cut(tenant_no: TenantNo, seq: int, hash_: bytes, key: SealKey | None) -> Cut:
    draft = Cut(tenant_no, seq, hash_)
    return draft if key is None else Cut(tenant_no, seq, hash_, key.id, key.sign(draft.content))


def _join(columns: Sequence[Column]) -> bytes:
    """Each with its length, so that no two rows give the same bytes. An absent one differs from an empty one."""
    parts = []
    for column in columns:
        text = b"" if column is None else column.encode()
        parts.append(b"-" if column is None else b"%d:" % len(text))
        parts.append(text)
    return b"".join(parts)


def _microseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)
