"""Verify the audit log of a tenant (T6): no entry is missing, changed, inserted or reordered.

Walks the chain of seals in batches, so that neither a long transaction nor much memory is needed. Each seal must
follow the one before it, have the hash of its content, and, if its key is known, a valid signature; each entry that it
lists must exist and have the digest that it lists. Then every entry must be in a seal or wait for one. The newest seal
must be signed if there is a key: its signature covers the whole chain. `head`: a hash from an old log must still be
in the chain, which shows that the end of the chain was not cut off. Entries that are older than kept history are gone
with their seals (`flow.history.seals`): the chain is verified from the cut on.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from ondot.flow.audit_seal import FIRST_TENANT
from ondot.model.audit_chain import BEFORE_THE_FIRST, FORMAT, REMOVED, Seal, SealKey, is_signed_by
from ondot.model.ids import INSTALLATION, TenantNo, first_id_at, instant_of
from ondot.store.audit_seals import (
    StoredSeal,
    count_open_entries,
    find_cut,
    find_seal_by_hash,
    find_seal_range,
    find_unsealed,
    list_sealed_tenants,
    list_seals,
    read_entries,
)
from ondot.store.database import Database
from ondot.store.day_bounds import LAST_ID
from ondot.store.day_rewrite import read_kept_from
from ondot.store.newest import NO_ID, read_kept

SEALS_AT_ONCE: Final = 100
"""Each lists up to 2,000 entries."""
ENTRIES_AT_ONCE: Final = 5_000
FAULTS_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that does not fit: the seal, the entry if it is about one, and what is wrong."""

    what: str
    seal: int | None = None
    entry: UUID | None = None


@dataclass(slots=True)
class Verdict:
    tenant_no: TenantNo
    entries: int = 0
    seals: int = 0
    waiting: int = 0
    """Entries that wait for their seal: those of the last second."""
    signed: int = 0
    """Seals whose signature was checked."""
    gone: int = 0
    """Entries that seals still list and that are older than kept history."""
    first_seq: int = 1
    """Seals before it were removed with their entries."""
    complete_since: datetime | None = None
    """Entries before it may be gone; None: none is."""
    head_seq: int = 0
    head: bytes | None = None
    fault_count: int = 0
    faults: list[Fault] = field(default_factory=list)
    """The first of them."""

    @property
    def is_intact(self) -> bool:
        return self.fault_count == 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "intact": self.is_intact,
            "entries": self.entries,
            "seals": self.seals,
            "waiting": self.waiting,
            "signed": self.signed,
            "gone": self.gone,
            "first_seal": self.first_seq,
            "complete_since": self.complete_since,
            "head": None if self.head is None else self.head.hex(),
            "head_seal": self.head_seq,
            "fault_count": self.fault_count,
            "faults": [asdict(fault) for fault in self.faults],
        }

    def blame(self, what: str, *, seal: int | None = None, entry: UUID | None = None) -> None:
        self.fault_count += 1
        if len(self.faults) < FAULTS_LISTED:
            self.faults.append(Fault(what, seal, entry))


async def list_logs(database: Database) -> dict[TenantNo, str]:
    """Every log there may be, by the name of its tenant: a log whose seals were all removed is verified too. Not those
    of deleted tenants, whose rows are being removed; the log of the installation has the deletion."""
    tenants = await database.tenants.snapshot()
    names = {INSTALLATION: "installation"} | {number: tenant.name for number, tenant in tenants.items()}
    after = FIRST_TENANT
    while True:
        async with database.connection() as connection:
            batch = await list_sealed_tenants(connection, after, SEALS_AT_ONCE)
        names = {number: f"tenant {number}" for number in batch} | names
        if len(batch) < SEALS_AT_ONCE:
            return {no: name for no, name in sorted(names.items()) if no not in tenants or tenants[no].exists}
        after = batch[-1]


async def verify_audit(
    database: Database,
    tenant_no: TenantNo,
    keys: Sequence[SealKey],
    *,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
    head: bytes | None = None,
) -> Verdict:
    """Check everything, or the seals with entries of a range of time and everything between them."""
    verdict = Verdict(tenant_no)
    from_id = NO_ID if from_at is None else first_id_at(from_at)
    before_id = LAST_ID if to_at is None else first_id_at(to_at)
    async with database.connection() as connection:
        first, last, newest = await find_seal_range(connection, tenant_no, from_id, before_id)
        cut = await find_cut(connection, tenant_no)
        verdict.complete_since, _ = await read_kept_from(connection, tenant_no)
        is_known = head is None or (cut is not None and head == cut.hash)
        if not is_known and await find_seal_by_hash(connection, tenant_no, head or b"") is None:
            older = "" if cut is None else f", or it is of a seal before {cut.seq}, which are not kept any more"
            verdict.blame(
                f"No seal has the hash {(head or b'').hex()}: the end of the chain was removed, or it was rewritten"
                f"{older}."
            )
    verdict.first_seq = 1 if cut is None else cut.seq + 1
    if from_at is None:
        first = verdict.first_seq
    if to_at is None:
        last = newest
    known = {key.id: key for key in keys}
    if cut is not None and (key := known.get(cut.key_id or "")) is not None and not cut.is_signed_by(key):
        verdict.blame(f"The seals up to {cut.seq} were removed without the key that signs the log.", seal=cut.seq)
    before = BEFORE_THE_FIRST if cut is None else cut.hash
    walk = _Walk(verdict, known, before if first == verdict.first_seq else None)
    if first is not None and last:
        # The seal before the first is read too, for its hash.
        async for batch in _read_seals(database, tenant_no, max(first - 2, 0), last):
            await _check_entries(
                database, verdict, [seal for seal in batch if walk.check(seal) and seal.seal.seq >= first]
            )
        if last == newest:
            walk.check_end(newest)
    await _check_unsealed(database, verdict, from_id, before_id)
    async with database.connection() as connection:
        verdict.waiting = await count_open_entries(connection, tenant_no)
    return verdict


async def _read_seals(
    database: Database, tenant_no: TenantNo, after: int, through: int
) -> AsyncIterator[list[StoredSeal]]:
    while after < through:
        async with database.connection() as connection:
            batch = await list_seals(connection, tenant_no, after=after, through=through, limit=SEALS_AT_ONCE)
        if not batch:
            return
        yield batch
        after = batch[-1].seal.seq


class _Walk:
    """Checks each seal against the one before it."""

    def __init__(self, verdict: Verdict, keys: dict[str, SealKey], before: bytes | None) -> None:
        """`before`: the hash before the first seal; None: the first that is read is somewhere in the chain."""
        self._verdict = verdict
        self._keys = keys
        self._last: Seal | None = None
        self._before = before
        self._is_signed = False
        self._first_unsigned: int | None = None

    def check(self, stored: StoredSeal) -> bool:
        """Whether the list of entries of this seal can be compared with the log."""
        seal, verdict = stored.seal, self._verdict
        verdict.seals += 1
        verdict.head_seq, verdict.head = seal.seq, seal.hash
        self._check_place(seal)
        self._last = seal
        self._check_signature(seal)
        if seal.format != FORMAT:
            verdict.blame(
                f"Seal {seal.seq} has format {seal.format}: verify it with the release that wrote it.", seal=seal.seq
            )
            return False
        if seal.hash != seal.expected_hash or not stored.is_consistent:
            verdict.blame(f"Seal {seal.seq} was changed: its hash does not fit its content.", seal=seal.seq)
        return len(seal.digests) == len(seal.ids) * 32

    def _check_place(self, seal: Seal) -> None:
        last = self._last
        if last is None and self._before is None:
            return
        expected = self._verdict.first_seq if last is None else last.seq + 1
        if seal.seq != expected:
            missing = f"Seal {expected} is" if seal.seq == expected + 1 else f"Seals {expected} to {seal.seq - 1} are"
            self._verdict.blame(f"{missing} missing.", seal=expected)
        elif seal.prev != (self._before if last is None else last.hash):
            self._verdict.blame(f"Seal {seal.seq} does not follow the seal before it.", seal=seal.seq)

    def _check_signature(self, seal: Seal) -> None:
        key = self._keys.get(seal.key_id or "")
        self._is_signed = False
        if key is None:
            # Without a key, or with one that is not used any more: a later signature has to cover it.
            self._first_unsigned = self._first_unsigned or seal.seq
        elif is_signed_by(seal, key):
            self._verdict.signed += 1
            self._is_signed = True
            self._first_unsigned = None
        else:
            self._verdict.blame(f"Seal {seal.seq} has a wrong signature.", seal=seal.seq)

    def check_end(self, newest: int) -> None:
        if self._last is not None and self._last.seq != newest:
            self._verdict.blame(f"Seal {newest} is missing.", seal=newest)
        if self._keys and self._last is not None and not self._is_signed and self._first_unsigned is not None:
            self._verdict.blame(
                f"The seals from {self._first_unsigned} on are not signed with a known key (the newest has"
                f" {self._last.key_id or 'none'}).",
                seal=self._first_unsigned,
            )


async def _check_entries(database: Database, verdict: Verdict, batch: Sequence[StoredSeal]) -> None:
    kept_id = NO_ID if verdict.complete_since is None else first_id_at(verdict.complete_since)
    listed = [(stored.seal, number) for stored in batch for number in range(len(stored.seal.ids))]
    for start in range(0, len(listed), ENTRIES_AT_ONCE):
        part = listed[start : start + ENTRIES_AT_ONCE]
        async with database.connection() as connection:
            entries = await read_entries(connection, [seal.ids[number] for seal, number in part])
        for seal, number in part:
            id_, digest = seal.ids[number], seal.digest_of(number)
            entry = entries.get(id_)
            if entry is None and id_ < kept_id:
                verdict.gone += 1
                continue
            verdict.entries += 1
            if digest == REMOVED:
                verdict.blame(f"Entry {_name(id_)} was removed before it was sealed.", seal=seal.seq, entry=id_)
            elif entry is None:
                verdict.blame(f"Entry {_name(id_)} is missing.", seal=seal.seq, entry=id_)
            elif entry.digest != digest:
                verdict.blame(f"Entry {_name(id_)} was changed.", seal=seal.seq, entry=id_)


async def _check_unsealed(database: Database, verdict: Verdict, from_id: UUID, before_id: UUID) -> None:
    """Entries that no seal lists: oldest first within each window of days."""
    async with database.connection() as connection:
        kept = await read_kept(connection)
    windows = list(kept.windows(before=before_id if before_id != LAST_ID else None, down_to=from_id))
    found: list[UUID] = []
    for from_, before in windows:
        async with database.connection() as connection:
            found[:0] = await find_unsealed(connection, verdict.tenant_no, from_, before, FAULTS_LISTED)
    for id_ in found:
        verdict.blame(f"Entry {_name(id_)} is in no seal: it was inserted past the log.", entry=id_)


def _name(id_: UUID) -> str:
    return f"{id_} of {instant_of(id_):%Y-%m-%d %H:%M:%S} UTC"
