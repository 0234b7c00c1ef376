"""Ids: UUIDv7 everywhere, so that an id sorts by its creation time and leads to its day partition.

The process that will need the id after a lost reply creates it, with the time of the database's clock (`store.clock`),
never with its own.
"""

import struct
from datetime import UTC, datetime, timedelta
from typing import NewType
from uuid import UUID

JobId = NewType("JobId", UUID)
ExecutionId = NewType("ExecutionId", UUID)
LeaseId = NewType("LeaseId", UUID)
WorkerId = NewType("WorkerId", UUID)
NodeId = NewType("NodeId", UUID)

TenantNo = NewType("TenantNo", int)
PoolNo = NewType("PoolNo", int)

INSTALLATION = TenantNo(0)
"""The installation itself: nodes, workers, partitions and leases are its rows."""
DEFAULT_TENANT = TenantNo(1)

PARTITIONS = 64
"""Fixed in the database by the first migration; changing it would move every job."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICKS_A_MILLISECOND = 4096
_MICROSECOND = timedelta(microseconds=1)
_LAST_MS = (datetime(9000, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
_TWO_HALVES = struct.Struct(">QQ")


def ticks_at(at: datetime) -> int:
    """An instant as stored in an id: milliseconds and 12 bits below them (RFC 9562, method 3)."""
    return (at - EPOCH) // _MICROSECOND * TICKS_A_MILLISECOND // 1000


def uuid7(ticks: int, random: int) -> bytes:
    """The id of an instant: 48 bits of milliseconds, 12 below them, 62 of `random`."""
    milliseconds, below = (ticks >> 12) & 0xFFFFFFFFFFFF, ticks & 0xFFF
    return _TWO_HALVES.pack(milliseconds << 16 | 0x7000 | below, 0b10 << 62 | random & 0x3FFFFFFFFFFFFFFF)


def instant_of(id_: UUID) -> datetime:
    """When a UUIDv7 was created, to the millisecond. An invented one may be of any time, up to the year 9000."""
    return EPOCH + timedelta(milliseconds=min(id_.int >> 80, _LAST_MS))


def first_id_at(at: datetime) -> UUID:
    """The smallest id of an instant: the bound of a day partition."""
    return UUID(int=((at - EPOCH) // timedelta(milliseconds=1)) << 80)


def partition_of(job_id: UUID) -> int:
    """The partition of a job: from the random bits, so that jobs created in one burst spread evenly."""
    return job_id.int % PARTITIONS
