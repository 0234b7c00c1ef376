"""Statements of the self-check (P4, P5, L6). Tables are walked in the order of their keys, a few rows at a time.
The statement that repairs a row checks it again first, and skips it if another transaction has it locked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ondot.model.check import Kind, Place, Suspect
from ondot.model.ids import EPOCH, PoolNo, first_id_at
from ondot.model.planning import Timer
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("check")
_QUEUE = load_queries("endings")

_FIRST = UUID(int=0)

Cursor = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look. `through`: where the next one starts; None at the end of the table."""

    suspects: list[Suspect]
    through: Cursor | None


@dataclass(frozen=True, slots=True)
class Requeued:
    id: UUID
    pool_no: PoolNo
    ready_at: datetime


@dataclass(frozen=True, slots=True)
class Found:
    """How often a kind was found, and the latest example: ids, and what was done."""

    kind: str
    count: int
    first_at: datetime
    last_at: datetime
    example: dict[str, Any]


def walk_start(place: Place, now: datetime) -> Cursor:
    """Where the walk through a table starts. Rows that are added later belong to the next walk, so that it ends."""
    starts: dict[Place, Cursor] = {
        "executions": (_FIRST, first_id_at(now)),
        "ready": (0, 0, 0, EPOCH, _FIRST, now),
        "waiting": (_FIRST, 0, EPOCH, _FIRST),
        "gated": (_FIRST,),
        "slots": (_FIRST, _FIRST),
        "lines": (_FIRST, 0),
        "leases": (_FIRST,),
        "runs": (_FIRST,),
    }
    return starts[place]


async def look_at(connection: Connection, place: Place, cursor: Cursor, limit: int) -> Look:
    """Look at the next rows of a table, after `cursor`."""
    rows = await connection.fetch(_SQL[f"look_at_{place}"].text, *cursor, limit)
    through = tuple(rows[0])[: len(cursor)]
    return Look(_suspects(place, rows, len(cursor)), through if through[0] is not None else None)


async def look_at_timers(connection: Connection, overdue_s: float, limit: int) -> list[Suspect]:
    """Find timers of owned partitions that are overdue, the first of each partition."""
    return _suspects("timers", await connection.fetch(_SQL["look_at_timers"].text, overdue_s, limit))


async def look_at_partitions(connection: Connection) -> list[Suspect]:
    """Find partitions without an owner while there are nodes."""
    return _suspects("partitions", await connection.fetch(_SQL["look_at_partitions"].text))


async def look_at_counts(connection: Connection) -> list[Suspect]:
    """Find tenants with quotas whose running attempts are counted wrong."""
    return _suspects("counts", await connection.fetch(_SQL["look_at_counts"].text))


def _suspects(place: Place, rows: Sequence[Record], width: int = 0) -> list[Suspect]:
    """A row has the columns of the cursor, then the kind, then the key."""
    return [Suspect(Kind(row[width]), place, tuple(row)[width + 1 :]) for row in rows if row[width] is not None]


async def make_partitions(connection: Connection) -> list[int]:
    """Create the partitions that are missing."""
    return [row["partition_no"] for row in await connection.fetch(_SQL["make_partitions"].text)]


async def lease_to_recovery(
    connection: Connection, suspects: Sequence[Suspect], lease_ids: Sequence[UUID]
) -> list[UUID]:
    """Lease executions whose worker is gone or does not hold them, so that recovery finds them."""
    ids, attempt_nos, _ = _columns(suspects)
    return await _ids(connection, "lease_to_recovery", ids, attempt_nos, lease_ids)


async def queue_again(connection: Connection, suspects: Sequence[Suspect]) -> list[Requeued]:
    """Put executions that wait nowhere back into the queue or a line. Needs a transaction: gates are locked first."""
    columns = _columns(suspects)
    await connection.execute(_QUEUE["lock_gates_of_executions"].text, columns[0])
    rows = await connection.fetch(_SQL["line_up_again"].text, *columns)
    rows += await connection.fetch(_SQL["queue_again"].text, *columns)
    return [Requeued(*row) for row in rows]


async def drop_ready(connection: Connection, suspects: Sequence[Suspect]) -> list[UUID]:
    return await _ids(connection, "drop_ready", *_columns(suspects))


async def drop_waiting(connection: Connection, suspects: Sequence[Suspect]) -> list[UUID]:
    """Needs a transaction: gates are locked first, and their lines are called afterwards."""
    return await _at_gates(connection, "drop_waiting", _columns(suspects), 1)


async def drop_gated(connection: Connection, suspects: Sequence[Suspect]) -> list[UUID]:
    return await _ids(connection, "drop_gated", *_columns(suspects))


async def drop_slots(connection: Connection, suspects: Sequence[Suspect]) -> list[UUID]:
    """Needs a transaction: gates are locked first, and their lines are called afterwards."""
    return await _at_gates(connection, "drop_slots", _columns(suspects), 1)


async def call_overlooked(connection: Connection, suspects: Sequence[Suspect]) -> list[UUID]:
    """Have lines looked at that nothing would look at. Needs a transaction: gates are locked first."""
    return await _at_gates(connection, "call_overlooked", _columns(suspects), 0)


async def drop_leases(connection: Connection, suspects: Sequence[Suspect]) -> list[UUID]:
    return await _ids(connection, "drop_leases", _columns(suspects)[0])


async def find_stuck_timers(connection: Connection, suspects: Sequence[Suspect]) -> tuple[list[Timer], datetime | None]:
    """Those of these timers that have not moved since they were found, and the database's time (None: no timer)."""
    rows = await connection.fetch(_SQL["find_stuck_timers"].text, *_columns(suspects))
    return [Timer(*row[:-1]) for row in rows], rows[0]["now"] if rows else None


async def record_found(connection: Connection, kind: Kind, count: int, example: dict[str, Any]) -> None:
    await connection.execute(_SQL["record_found"].text, kind.value, count, msgspec.json.encode(example).decode())


async def list_found(connection: Connection) -> list[Found]:
    """What the self-check has found since the installation was created, by kind; kinds never found are left out."""
    rows = await connection.fetch(_SQL["list_found"].text)
    return [
        Found(kind, count, first_at, last_at, msgspec.json.decode(example))
        for kind, count, first_at, last_at, example in rows
    ]


def _columns(suspects: Sequence[Suspect]) -> list[list[Any]]:
    return [list(column) for column in zip(*(suspect.key for suspect in suspects), strict=True)]


async def _ids(connection: Connection, block: str, *columns: Sequence[Any]) -> list[UUID]:
    return [row["id"] for row in await connection.fetch(_SQL[block].text, *columns)]


async def _at_gates(connection: Connection, block: str, columns: list[list[Any]], gates: int) -> list[UUID]:
    """`gates`: the column with the gates."""
    await connection.execute(_SQL["lock_gates"].text, columns[gates])
    ids = await _ids(connection, block, *columns)
    await connection.execute(_SQL["call_lines"].text, columns[gates])
    return ids
