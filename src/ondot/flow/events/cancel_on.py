"""`cancel_on` (S11): an event that cancels executions of a job which an event with the same value started.

It acts on executions that were committed before it. One that waits ends CANCELLED in the transaction of the event, one
that runs is asked to end. Of a list that has not started, only the events with that value are removed; a list that runs
is left alone, because its other events are not concerned.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from ondot.model.execution import CANCEL
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.store.connection import Connection
from ondot.store.endings import end_queued, request_cancels
from ondot.store.event_windows import (
    Filling,
    fill_executions,
    find_to_cancel,
    lock_list,
    read_list,
    set_windows,
)

TRIES: Final = 5
"""A worker takes an execution, or gives it back, while it is cancelled: it is looked for again."""


class Cancelling(Struct, frozen=True):
    """An event that cancels executions of a job."""

    event_id: UUID
    type: str
    job_id: JobId
    key: UUID


async def cancel_on(connection: Connection, tenant_no: TenantNo, hits: Sequence[Cancelling]) -> int:
    """Cancel what these events cancel; returns how many executions."""
    found = await find_to_cancel(connection, tenant_no, [(hit.job_id, hit.key) for hit in hits])
    reasons = {one.execution_id: _reason(hits[one.no]) for one in found if not one.has_list}
    in_lists: dict[ExecutionId, list[Cancelling]] = {}
    for one in found:
        if one.has_list:
            in_lists.setdefault(one.execution_id, []).append(hits[one.no])
    shorter: list[Filling] = []
    for id_ in sorted(in_lists):
        filling = await _shorten(connection, tenant_no, id_, {hit.key.hex for hit in in_lists[id_]})
        if filling is not None and filling.events:
            shorter.append(filling)
        elif filling is not None:
            reasons[id_] = _reason(in_lists[id_][0])
    # Those that leave the queue first: a lease locks the queue before it locks executions.
    cancelled = await _cancel(connection, tenant_no, reasons)
    filled = await fill_executions(connection, tenant_no, shorter) if shorter else {}
    if used := [filling for filling in shorter if filling.execution_id in filled]:
        await set_windows(connection, tenant_no, used)
    return cancelled


async def _cancel(connection: Connection, tenant_no: TenantNo, reasons: dict[ExecutionId, str]) -> int:
    left = dict(sorted(reasons.items()))
    done = 0
    for _ in range(TRIES):
        if not left:
            break
        ended = await end_queued(connection, tenant_no, left, CANCEL)
        by_reason: dict[str, list[ExecutionId]] = {}
        for id_ in left.keys() - set(ended):
            by_reason.setdefault(left[id_], []).append(id_)
        asked: list[ExecutionId] = []
        for reason, ids in by_reason.items():
            asked += await request_cancels(connection, tenant_no, sorted(ids), reason)
        done += len(ended) + len(asked)
        left = {id_: left[id_] for id_ in left.keys() - set(ended) - set(asked)}
    return done


async def _shorten(connection: Connection, tenant_no: TenantNo, id_: ExecutionId, keys: set[str]) -> Filling | None:
    """A list without the events of these values; None: it has started."""
    collected = await lock_list(connection, tenant_no, id_)
    items = None if collected is None else await read_list(connection, tenant_no, id_)
    if collected is None or items is None:
        return None
    kept = [place for place, marks in enumerate(collected.marks) if not keys & set(marks)]
    payload = msgspec.json.encode([items[place] for place in kept]).decode()
    marks = [collected.marks[place] for place in kept]
    return Filling(id_, len(kept), len(payload), collected.is_open, marks, payload, False, None)


def _reason(hit: Cancelling) -> str:
    return f"cancelled by the event {hit.event_id} ({hit.type})"
