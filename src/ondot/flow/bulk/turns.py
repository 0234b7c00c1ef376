"""The turns of operations (O8): a few items of each, in turn, at the rate that was asked for.

A turn is leased and bounded in items and in time. Operations of different tenants have their turns side by side, so
that a slow one delays no other tenant. Each item is a transaction of its own; dead letters are replayed and discarded
many in one. An operation that starts executions waits while their queue is full (C7). A turn that ends with an error
is tried again later, and after ten in a row the operation stops.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from time import monotonic
from typing import Final
from uuid import UUID

from ondot.flow.bulk.callers import find_caller
from ondot.flow.bulk.items import act_on_execution, act_on_job, act_on_run
from ondot.flow.bulk.letters import act_on_letters
from ondot.flow.bulk.match import next_items
from ondot.flow.dispatch import Dispatcher
from ondot.model.access import Caller
from ondot.model.bulk import STARTS, Kind
from ondot.model.errors import OndotError, Unavailable
from ondot.model.ids import ExecutionId, PoolNo, TenantNo
from ondot.store.bulk import (
    BulkTurn,
    Results,
    claim_items,
    end_turn,
    fail_turn,
    find_before,
    record_items,
    see_items,
    stop_bulk,
    take_bulk,
)
from ondot.store.connection import DATABASE_ERROR, LOCKED, Connection, is_about_content
from ondot.store.database import Database
from ondot.store.pools import count_letters_by_pool, read_pool_depths
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import BULK_ITEMS

TURN_S: Final = 0.25
TURN_WITHIN_S: Final = 1.0
"""A turn of slow items ends early."""
LEASE_S: Final = 10.0
"""If a process dies in a turn, another continues after this."""
ITEMS_A_TURN: Final = 100
ROUNDS_A_PASS: Final = 20
AT_ONCE: Final = 4
"""Operations that have their turns side by side, each of another tenant."""
LOCK_TIMEOUT_MS: Final = 250
NEXT_ROUND_S: Final = 1.0
"""The least time before items that others had locked are tried again."""
MOST_FAILURES: Final = 10
IN_ONE: Final[dict[Kind, int]] = {"dead_letters": ITEMS_A_TURN}
"""How many items share a transaction. Of other kinds each has one of its own: a transaction that holds the gates of one
job while it waits for another job may deadlock with a request."""

log = get_logger()


async def bulk_pass(database: Database, dispatcher: Dispatcher) -> int:
    """Work off operations that are due, for a bounded number of rounds; returns how many items were reached."""
    reached = 0
    for _ in range(ROUNDS_A_PASS):
        turns: list[BulkTurn] = []
        busy: list[TenantNo] = []
        async with database.connection() as connection:
            while len(turns) < AT_ONCE and (turn := await take_bulk(connection, LEASE_S, busy)) is not None:
                turns.append(turn)
                busy.append(turn.tenant_no)
        if not turns:
            break
        results = await asyncio.gather(
            *(_take_turn(database, dispatcher, turn) for turn in turns), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
            reached += result
    return reached


async def _take_turn(database: Database, dispatcher: Dispatcher, turn: BulkTurn) -> int:
    """One turn of one operation; returns how many items it reached. Raises only if the database is away."""
    try:
        return await work_off(database, dispatcher, turn)
    except Unavailable:
        raise
    except Exception as error:  # a pass's boundary: the operations of others go on
        log.exception("bulk.turn_failed", bulk_id=str(turn.id))
        why = f"Its turns keep failing: {type(error).__name__}: {str(error)[:200]}. See the log of the scheduler."
        async with database.connection() as connection:
            await fail_turn(connection, turn, next_s=NEXT_ROUND_S, most=MOST_FAILURES, why=why)
        return 0


async def work_off(database: Database, dispatcher: Dispatcher, turn: BulkTurn) -> int:
    size = min(max(round(turn.per_s * TURN_S), 1), ITEMS_A_TURN)
    async with database.connection() as connection:
        caller = await find_caller(connection, turn)
        if isinstance(caller, str):
            await stop_bulk(connection, turn.tenant_no, turn.id, caller)
            log.warning("bulk.stopped", bulk_id=str(turn.id), why=caller)
            return 0
        ids = await next_items(connection, turn, caller, size)
        were_locked = not ids and bool(turn.later)
        at_end = len(ids) < size
        if were_locked:
            ids = sorted(turn.later)[:size]
        ceiling = database.settings.queue_ceiling
        if ceiling is not None and turn.action in STARTS and await _is_queue_full(connection, turn, ids, ceiling):
            # It waits, as a client does that is refused: no item fails because a queue is full.
            await end_turn(connection, turn, next_s=NEXT_ROUND_S, at_end=False)
            return 0
    until_s = monotonic() + TURN_WITHIN_S
    reached, passed_over = 0, 0
    in_one = IN_ONE.get(turn.kind, 1)
    for first in range(0, len(ids), in_one):
        chunk = ids[first : first + in_one]
        results = await _act(database, dispatcher, turn, chunk, caller, were_locked=were_locked)
        if results is None:
            # Stopped, or another process continues it after a pause of this one.
            return reached
        reached += len(chunk)
        passed_over += len(results.later)
        if monotonic() > until_s and reached < len(ids):
            at_end = False
            break
    next_s = max(reached, 1) / turn.per_s
    if passed_over and at_end:
        next_s = max(next_s, NEXT_ROUND_S)
    async with database.connection() as connection:
        state = await end_turn(connection, turn, next_s=next_s, at_end=at_end)
    if state == "DONE":
        log.info("bulk.done", bulk_id=str(turn.id), action=turn.action, total=turn.total)
    return reached


async def _is_queue_full(connection: Connection, turn: BulkTurn, ids: Sequence[UUID], ceiling: int) -> bool:
    """Whether one of the pools in which these items would start has no room (C7)."""
    if turn.kind == "dead_letters":
        pools = set(await count_letters_by_pool(connection, turn.tenant_no, [ExecutionId(id_) for id_ in ids]))
    else:
        seen = await see_items(connection, turn.tenant_no, turn.kind, ids)
        pools = {item.pool for item in seen.values() if item.pool is not None}
    depths = await read_pool_depths(connection, turn.tenant_no, sorted(pools), ceiling) if pools else {}
    return any(depth >= ceiling for depth in depths.values())


async def _act(
    database: Database,
    dispatcher: Dispatcher,
    turn: BulkTurn,
    ids: Sequence[UUID],
    caller: Caller,
    *,
    were_locked: bool,
) -> Results | None:
    """Claim items, act on them and record the results, in one transaction; None: they are not ours."""
    wakes = _HeldWakes(dispatcher)
    async with database.transaction() as connection:
        if not await claim_items(connection, turn, ids, were_locked=were_locked, lock_timeout_ms=LOCK_TIMEOUT_MS):
            return None
        try:
            # A savepoint: a refusal takes back what was done before it, and not the claim.
            async with connection.transaction():
                results = await _act_on(database.inside(connection), wakes, turn, ids, caller)
        except LOCKED:
            results = Results(later=ids)
        except Unavailable:
            raise
        except OndotError as refusal:
            results = Results(refused=[(id_, refusal.message) for id_ in ids])
        except DATABASE_ERROR as error:
            if not is_about_content(error):
                raise
            results = Results(refused=[(id_, f"It cannot be stored: {error}") for id_ in ids])
        await record_items(connection, turn, results)
    wakes.send()
    for outcome, count in (
        ("done", results.done),
        ("refused", len(results.refused)),
        ("unchanged", results.unchanged),
    ):
        if count:
            BULK_ITEMS.labels(turn.kind, turn.action, outcome).inc(count)
    return results


async def _act_on(
    database: Database, dispatcher: Dispatcher, turn: BulkTurn, ids: Sequence[UUID], caller: Caller
) -> Results:
    if turn.kind == "dead_letters":
        return await act_on_letters(database, dispatcher, turn, ids)
    [id_] = ids
    if turn.kind == "executions":
        return await act_on_execution(database, dispatcher, turn, id_, caller)
    if turn.kind == "runs":
        return await act_on_run(database, dispatcher, turn, id_)
    before = None
    if turn.undo_of is not None and turn.action == "update":
        async with database.connection() as connection:
            before = (await find_before(connection, turn.tenant_no, turn.undo_of, ids)).get(id_)
    return await act_on_job(database, dispatcher, turn, id_, caller, before)


class _HeldWakes(Dispatcher):
    """Keeps wake-ups until the transaction is committed: a worker that looks before finds nothing."""

    def __init__(self, after: Dispatcher) -> None:
        self._after = after
        self._held: list[tuple[PoolNo, datetime]] = []
        self.on_wake = lambda _: None

    def wake(self, pools: Iterable[tuple[PoolNo, datetime]]) -> None:
        self._held.extend(pools)

    def send(self) -> None:
        self._after.wake(self._held)
