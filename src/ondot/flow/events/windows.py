"""Windows (S11): executions that collect events, by `debounce`, `batch` or both.

A window is one PENDING execution. Each event moves it and replaces its payload (debounce), or is added to its list
(batch). Once a worker has leased it, or it was cancelled, the next event opens a new window. All is in the transaction
of the events. Windows are locked in the order of (job, key). Then executions are taken out of the queue, which waits
for a worker that leases one at this moment and leaves that one alone; only then are executions changed. That is the
order in which a lease locks them too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from ondot.model.event_rules import MAX_BATCH_BYTES, Batch, CancelOn, Debounce, cancel_keys, closes_at, window_key
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.event_windows import (
    Filling,
    FullWindow,
    Marks,
    Opening,
    Window,
    add_cancel_keys,
    add_full_windows,
    close_windows,
    fill_executions,
    link_matches,
    open_executions,
    remove_cancel_keys,
    set_windows,
    take_out_unstarted,
    take_windows,
)

Place = tuple[JobId, UUID]
"""A job and the key of a window."""


class Arrived(Struct, frozen=True):
    """An event that a job collects, with what its execution needs."""

    event_id: UUID
    value: dict[str, object]
    job_id: JobId
    job_version: int
    pool_no: PoolNo
    priority_class: int
    stages: str | None
    start_within_s: float | None
    payload: str | None
    debounce: Debounce | None
    batch: Batch | None
    cancel_on: tuple[CancelOn, ...]

    @property
    def marks(self) -> list[str]:
        return [key.hex for key in cancel_keys(self.cancel_on, self.value)]

    @property
    def size(self) -> int:
        return len(self.payload or "") + 1


@dataclass(slots=True)
class Gathered:
    """Which execution took each (event, job), and the pools to wake."""

    taken: dict[tuple[UUID, JobId], ExecutionId] = field(default_factory=dict)
    wakes: list[tuple[PoolNo, datetime]] = field(default_factory=list)


async def gather(
    connection: Connection, database: Database, tenant_no: TenantNo, arrived: Sequence[Arrived]
) -> Gathered:
    """Put events into the windows of their jobs, in their order."""
    gathered = Gathered()
    left: dict[Place, list[Arrived]] = {}
    for one in arrived:
        left.setdefault((one.job_id, window_key(one.debounce, one.value)), []).append(one)
    while left:
        ids = database.clock.new_ids(len(left))
        wanted = {place: ExecutionId(id_) for place, id_ in zip(left, ids, strict=True)}
        windows = await take_windows(connection, tenant_no, wanted)
        plans = {place: _plan(windows[place], left[place]) for place in left}
        stale = await _fill(connection, tenant_no, gathered, windows, plans)
        await _open(connection, database, tenant_no, gathered, windows, plans, stale)
        # The windows whose executions have started are gone now, and their events open new ones.
        left = {place: left[place] for place in stale}
    links = [(event_id, job_id, id_) for (event_id, job_id), id_ in gathered.taken.items()]
    if links:
        await link_matches(connection, tenant_no, links)
    return gathered


@dataclass(frozen=True, slots=True)
class _Plan:
    """What becomes of a window: the events that it takes, when it closes, and the lists that are full after it."""

    taken: list[Arrived]
    is_full: bool
    ready_at: datetime
    rest: list[list[Arrived]]
    """The last one stays open unless it is full too."""


def _plan(window: Window, arrived: list[Arrived]) -> _Plan:
    newest = arrived[-1]
    debounce, batch = newest.debounce, newest.batch
    closing = closes_at(debounce, batch, window.opened_at, window.now)
    if batch is None:
        return _Plan(arrived, False, closing, [])
    lists: list[list[Arrived]] = [[]]
    events, size = window.events, window.bytes
    for one in arrived:
        if events and (events >= batch.size or size + one.size > MAX_BATCH_BYTES):
            lists.append([])
            events, size = 0, 0
        lists[-1].append(one)
        events, size = events + 1, size + one.size
    first, *rest = lists
    is_full = bool(rest) or window.events + len(first) >= batch.size
    return _Plan(first, is_full, window.now if is_full else closing, rest)


async def _fill(
    connection: Connection,
    tenant_no: TenantNo,
    gathered: Gathered,
    windows: dict[Place, Window],
    plans: dict[Place, _Plan],
) -> list[Place]:
    """Add events to windows that exist; returns those whose executions have started or ended, and are closed."""
    old = {place: window for place, window in windows.items() if not window.is_new}
    if not old:
        return []
    # A window that is due, or at its timeout, keeps its place in the queue.
    moving = {
        window.execution_id
        for place, window in old.items()
        if plans[place].is_full or plans[place].ready_at > window.now
    }
    out = await take_out_unstarted(connection, tenant_no, moving) if moving else set()
    fillings = {
        place: _filling(window, plans[place], is_moving=window.execution_id in moving)
        for place, window in old.items()
        if window.execution_id in out or window.execution_id not in moving
    }
    filled = await fill_executions(connection, tenant_no, list(fillings.values())) if fillings else {}
    used = {place: filling for place, filling in fillings.items() if filling.execution_id in filled}
    if used:
        await set_windows(connection, tenant_no, list(used.values()))
        gathered.wakes += [filled[filling.execution_id] for filling in used.values()]
        await _set_keys(connection, tenant_no, {used[place].execution_id: plans[place].taken for place in used})
        for place, filling in used.items():
            _note(gathered, plans[place].taken, filling.execution_id)
    stale = [place for place in old if place not in used]
    if stale:
        await close_windows(connection, tenant_no, [old[place].execution_id for place in stale])
    return stale


def _filling(window: Window, plan: _Plan, *, is_moving: bool) -> Filling:
    newest = plan.taken[-1] if plan.taken else None
    is_list = newest is not None and newest.batch is not None
    payload = None
    if newest is not None and newest.payload is not None:
        payload = ",".join(one.payload or "null" for one in plan.taken) if is_list else newest.payload
    marks = None if window.marks is None else [*window.marks, *(one.marks for one in plan.taken)]
    return Filling(
        window.execution_id,
        window.events + len(plan.taken),
        window.bytes + sum(one.size for one in plan.taken),
        not plan.is_full,
        marks,
        payload,
        is_list,
        plan.ready_at if is_moving else None,
    )


async def _open(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    gathered: Gathered,
    windows: dict[Place, Window],
    plans: dict[Place, _Plan],
    stale: Sequence[Place],
) -> None:
    """Make the executions of new windows, and those of lists that are full."""
    openings: list[Opening] = []
    new: list[Filling] = []
    full: list[FullWindow] = []
    keys: dict[ExecutionId, list[Arrived]] = {}
    again: list[Arrived] = []
    for place, plan in plans.items():
        if place in stale:
            continue
        window = windows[place]
        if window.is_new:
            openings.append(_opening(window.execution_id, plan.taken, None if plan.is_full else plan.ready_at))
            new.append(_first_filling(window, plan))
            keys[window.execution_id] = plan.taken
            _note(gathered, plan.taken, window.execution_id)
        for number, events in enumerate(plan.rest):
            batch = events[-1].batch
            assert batch is not None
            if number == len(plan.rest) - 1 and len(events) < batch.size:
                again += events
                continue
            id_ = ExecutionId(database.clock.new_id())
            openings.append(_opening(id_, events, None))
            size = sum(one.size for one in events)
            full.append(FullWindow(id_, place[0], place[1], len(events), size, _marks_of(events)))
            keys[id_] = events
            _note(gathered, events, id_)
    if new:
        await set_windows(connection, tenant_no, new)
    if full:
        await add_full_windows(connection, tenant_no, full)
    if openings:
        gathered.wakes += await open_executions(connection, tenant_no, openings)
        await _set_keys(connection, tenant_no, keys, are_new=True)
    if again:
        # Their windows before them are closed by now.
        more = await gather(connection, database, tenant_no, again)
        gathered.taken |= more.taken
        gathered.wakes += more.wakes


def _first_filling(window: Window, plan: _Plan) -> Filling:
    size = sum(one.size for one in plan.taken)
    return Filling(
        window.execution_id, len(plan.taken), size, not plan.is_full, _marks_of(plan.taken), None, False, None
    )


def _opening(id_: ExecutionId, events: Sequence[Arrived], ready_at: datetime | None) -> Opening:
    newest = events[-1]
    payload = newest.payload
    if newest.batch is not None and payload is not None:
        payload = f"[{','.join(one.payload or 'null' for one in events)}]"
    return Opening(
        id_,
        newest.job_id,
        newest.job_version,
        newest.pool_no,
        newest.priority_class,
        newest.stages,
        newest.start_within_s,
        payload,
        ready_at,
    )


def _marks_of(events: Sequence[Arrived]) -> Marks | None:
    """Only of lists: an execution with one event is cancelled as a whole."""
    newest = events[-1]
    return [one.marks for one in events] if newest.batch is not None and newest.cancel_on else None


async def _set_keys(
    connection: Connection,
    tenant_no: TenantNo,
    taken: dict[ExecutionId, list[Arrived]],
    *,
    are_new: bool = False,
) -> None:
    """By which values the executions are found: of the last event, or of all events of a list."""
    with_rules = {id_: events for id_, events in taken.items() if events and events[-1].cancel_on}
    if not with_rules:
        return
    if not are_new and (replaced := [id_ for id_, events in with_rules.items() if events[-1].batch is None]):
        await remove_cancel_keys(connection, tenant_no, replaced)
    keys = [
        (one.job_id, UUID(mark), id_)
        for id_, events in with_rules.items()
        for one in (events if events[-1].batch is not None else events[-1:])
        for mark in one.marks
    ]
    if keys:
        await add_cancel_keys(connection, tenant_no, keys)


def _note(gathered: Gathered, events: Sequence[Arrived], id_: ExecutionId) -> None:
    for one in events:
        gathered.taken[one.event_id, one.job_id] = id_
