"""Seals over the audit log (T6): the entries that wait for one, and the chain of each tenant, which `flow.audit_seal`
writes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec

from ondot.model.audit_chain import Cut, Seal, SealedEntry
from ondot.model.ids import TenantNo, instant_of
from ondot.store.connection import Connection, Record
from ondot.store.day_bounds import LAST_ID
from ondot.store.newest import NO_ID
from ondot.store.queries import load_queries

_SQL = load_queries("audit_seals")

_LOCK: Final = 0x6F6E646F745365
"""The key of the sealer's advisory lock: the bytes of "ondotSe"."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest seal of a tenant."""

    seq: int
    hash: bytes
    key_id: str | None


@dataclass(frozen=True, slots=True)
class StoredSeal:
    """A seal as it is in the table. `is_consistent`: the columns that repeat its content agree with it."""

    seal: Seal
    is_consistent: bool


@dataclass(frozen=True, slots=True)
class Sealing:
    """For the doctor: entries that wait for a seal, and for how long the oldest has waited."""

    open: int
    waiting_s: float


async def try_seal_lock(connection: Connection) -> bool:
    """Whether this transaction may seal: at most one of the installation does."""
    return bool(await connection.fetchval(_SQL["try_seal_lock"].text, _LOCK))


async def list_open_entries(connection: Connection, limit: int) -> dict[TenantNo, list[UUID]]:
    """The oldest entries that wait for a seal, by tenant and in order."""
    found: dict[TenantNo, list[UUID]] = {}
    for row in await connection.fetch(_SQL["list_open_entries"].text, limit):
        found.setdefault(TenantNo(row["tenant_no"]), []).append(row["id"])
    return found


async def read_entries(connection: Connection, ids: Collection[UUID]) -> dict[UUID, SealedEntry]:
    if not ids:
        return {}
    rows = await connection.fetch(_SQL["read_entries"].text, list(ids), min(ids), max(ids))
    return {row["id"]: SealedEntry(row["id"], tuple(row["columns"])) for row in rows}


async def read_heads(connection: Connection, tenants: Collection[TenantNo]) -> dict[TenantNo, Head]:
    rows = await connection.fetch(_SQL["read_heads"].text, list(tenants))
    return {TenantNo(row["tenant_no"]): Head(row["seq"], row["hash"], row["key_id"]) for row in rows}


async def list_sealed_tenants(connection: Connection, after: TenantNo, limit: int) -> list[TenantNo]:
    return [
        TenantNo(row["tenant_no"]) for row in await connection.fetch(_SQL["list_sealed_tenants"].text, after, limit)
    ]


async def insert_seals(connection: Connection, seals: Sequence[Seal]) -> None:
    rows = [
        {
            "tenant_no": seal.tenant_no,
            "seq": seal.seq,
            "at": seal.at,
            "from_id": _first_id(seal.ids),
            "to_id": _last_id(seal.ids),
            "format": seal.format,
            "ids": seal.ids,
            "digests": seal.digests.hex(),
            "prev": seal.prev.hex(),
            "hash": seal.hash.hex(),
            "key_id": seal.key_id,
            "mac": None if seal.mac is None else seal.mac.hex(),
        }
        for seal in seals
    ]
    await connection.execute(_SQL["insert_seals"].text, msgspec.json.encode(rows).decode())


async def close_entries(connection: Connection, ids: Sequence[UUID]) -> int:
    """These entries are sealed; returns how many waited."""
    return int(await connection.fetchval(_SQL["close_entries"].text, list(ids)))


async def list_seals(
    connection: Connection, tenant_no: TenantNo, *, after: int, through: int, limit: int
) -> list[StoredSeal]:
    return [_seal(row) for row in await connection.fetch(_SQL["list_seals"].text, tenant_no, after, through, limit)]


async def find_seal_range(
    connection: Connection, tenant_no: TenantNo, from_id: UUID, before_id: UUID
) -> tuple[int | None, int | None, int]:
    """The first and last seal with entries of a range of ids, and the number of the newest (0: there is none)."""
    row = await connection.fetchrow(_SQL["find_seal_range"].text, tenant_no, from_id, before_id)
    assert row is not None
    return row["first"], row["last"], row["newest"] or 0


async def find_seal_by_hash(connection: Connection, tenant_no: TenantNo, hash_: bytes) -> int | None:
    found: int | None = await connection.fetchval(_SQL["find_seal_by_hash"].text, tenant_no, hash_)
    return found


async def find_removable_seal(
    connection: Connection, tenant_no: TenantNo, before_id: UUID, limit: int
) -> tuple[int, bytes] | None:
    """The number and hash of the last seal that may go with all before it; looks at `limit` seals."""
    row = await connection.fetchrow(_SQL["find_removable_seal"].text, tenant_no, before_id, limit)
    return (row["seq"], row["hash"]) if row else None


async def cut_seals(connection: Connection, cut: Cut) -> int:
    """Remove the seals up to a cut, and store it; returns how many."""
    values = (cut.tenant_no, cut.seq, cut.hash, cut.key_id, cut.mac)
    return int(await connection.fetchval(_SQL["cut_seals"].text, *values))


async def find_cut(connection: Connection, tenant_no: TenantNo) -> Cut | None:
    row = await connection.fetchrow(_SQL["find_cut"].text, tenant_no)
    return Cut(*row.values()) if row else None


async def find_unsealed(
    connection: Connection, tenant_no: TenantNo, from_id: UUID, before_id: UUID, limit: int
) -> list[UUID]:
    """Entries that are in no seal and do not wait for one, in order."""
    rows = await connection.fetch(_SQL["find_unsealed"].text, tenant_no, from_id, before_id, limit)
    return [row["id"] for row in rows]


async def count_open_entries(connection: Connection, tenant_no: TenantNo) -> int:
    return int(await connection.fetchval(_SQL["count_open_entries"].text, tenant_no))


async def read_sealing(connection: Connection) -> Sealing:
    row = await connection.fetchrow(_SQL["read_sealing"].text)
    assert row is not None
    waiting_s = 0.0 if row["oldest"] is None else (row["now"] - instant_of(row["oldest"])).total_seconds()
    return Sealing(row["open"], waiting_s)


def _seal(row: Record) -> StoredSeal:
    seal = Seal(
        TenantNo(row["tenant_no"]),
        row["seq"],
        row["at"],
        tuple(row["ids"]),
        row["digests"],
        row["prev"],
        row["hash"],
        row["key_id"],
        row["mac"],
        row["format"],
    )
    repeats = (row["count"], row["from_id"], row["to_id"])
    return StoredSeal(seal, repeats == (len(seal.ids), _first_id(seal.ids), _last_id(seal.ids)))


def _first_id(ids: Sequence[UUID]) -> UUID:
    """A seal without entries is in no range."""
    return min(ids, default=LAST_ID)


def _last_id(ids: Sequence[UUID]) -> UUID:
    return max(ids, default=NO_ID)
