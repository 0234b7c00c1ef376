"""⑧ Replay and discard: what a person does about FAILED executions, one, many or all that match (E10, O8, T6).

A replay is a new execution of the same job and version, with the old payload or an edited one; its letter becomes
resolved in the same transaction, under the lock of its row: two who replay a letter at once make one execution.
By ids all is done at once. By filter a row in `bulk` is worked off by `bulk_pass`, a bounded number of letters at a
turn and each turn a transaction of its own: no lock is held for long, however many letters there are, and a crash at
any point loses nothing and repeats nothing, since a letter that is resolved is not taken again. What fails again while
an operation goes on is not its own. A letter that somebody else holds is passed over, and since they may let go of it
as it was, an operation that passed one over begins again at the oldest: it is DONE only after a round without.
Everything is recorded in `audit`, for each letter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from ondot.flow.dispatch import Dispatcher
from ondot.flow.replay import Refused, Replay, Replayed, make_replays, resolve_replayed
from ondot.flow.submit import Idempotency, earlier_answer, keep_answer
from ondot.model.errors import NotFound
from ondot.model.ids import ExecutionId, TenantNo
from ondot.store.audit import record, record_all
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.dead_letters import (
    BulkAction,
    BulkRow,
    BulkTurn,
    LetterFilter,
    LockedLetter,
    NewBulk,
    advance_bulk,
    count_letters,
    has_passed_over,
    insert_bulk,
    list_bulks,
    lock_letters,
    resolve_letters,
    take_bulk,
    take_letters,
)
from ondot.store.dead_letters import cancel_bulk as cancel_stored_bulk
from ondot.telemetry.log import get_logger

DEFAULT_PER_S = 50
TURN_S = 0.25
LETTERS_A_TURN = 100
"""At most: how many rows a transaction locks and makes."""
TURNS_A_PASS = 20
NEXT_ROUND_S = 1.0
"""At least, before letters that somebody held are looked at again."""

Result = Literal["replayed", "discarded", "already_resolved", "not_found", "spec_gone", "job_deleted"]

log = get_logger()


@dataclass(frozen=True, slots=True)
class LetterDone:
    """What became of one letter that was asked for; `detail` says why not, and what to do."""

    id: ExecutionId
    result: Result
    replay_id: ExecutionId | None = None
    detail: str | None = None

    @property
    def is_done(self) -> bool:
        return self.result in {"replayed", "discarded"}


async def replay(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    ids: Sequence[ExecutionId],
    how: Replay,
    *,
    actor: str,
    reason: str | None,
    answer: Callable[[list[LetterDone]], str],
    idempotency: Idempotency | None = None,
) -> str:
    """Run letters again, in one transaction; those that cannot be are told, and do not hinder the others."""
    async with database.transaction() as connection:
        if (earlier := await earlier_answer(connection, tenant_no, idempotency)) is not None:
            return earlier
        locked = await lock_letters(connection, tenant_no, ids)
        letters = [letter for letter in locked.values() if letter.resolution is None]
        made, refused = await _replay_letters(
            connection, database, tenant_no, letters, how, actor=actor, reason=reason, operation=None
        )
        results = {entry.id: LetterDone(entry.id, entry.why, detail=entry.detail) for entry in refused}
        for entry in made:
            id_ = entry.ended.execution_id
            results[id_] = LetterDone(id_, "replayed", entry.replay_id)
        text = answer([results.get(id_) or _untouched(id_, locked.get(id_)) for id_ in ids])
        await keep_answer(connection, tenant_no, idempotency, text)
    dispatcher.wake((entry.pool_no, entry.ready_at) for entry in made)
    log.info("dead_letters.replayed", count=len(made), refused=len(ids) - len(made), actor=actor)
    return text


async def discard(
    database: Database,
    tenant_no: TenantNo,
    ids: Sequence[ExecutionId],
    *,
    actor: str,
    reason: str,
    answer: Callable[[list[LetterDone]], str],
    idempotency: Idempotency | None = None,
) -> str:
    """Letters that nobody wants to run again, with the reason why; their history stays."""
    async with database.transaction() as connection:
        if (earlier := await earlier_answer(connection, tenant_no, idempotency)) is not None:
            return earlier
        locked = await lock_letters(connection, tenant_no, ids)
        letters = [letter for letter in locked.values() if letter.resolution is None]
        await _discard_letters(connection, tenant_no, letters, actor=actor, reason=reason, operation=None)
        done = {letter.ended.execution_id for letter in letters}
        text = answer(
            [LetterDone(id_, "discarded") if id_ in done else _untouched(id_, locked.get(id_)) for id_ in ids]
        )
        await keep_answer(connection, tenant_no, idempotency, text)
    log.info("dead_letters.discarded", count=len(done), refused=len(ids) - len(done), actor=actor)
    return text


async def start_bulk(
    database: Database,
    tenant_no: TenantNo,
    action: BulkAction,
    filter: LetterFilter,  # noqa: A002 - the API's word
    how: Replay,
    *,
    per_s: float,
    actor: str,
    reason: str | None,
    answer: Callable[[BulkRow], str],
    idempotency: Idempotency | None = None,
) -> str:
    """Register an operation on all letters that match now; `bulk_pass` works it off."""
    id_ = database.clock.new_id()
    async with database.transaction() as connection:
        if (earlier := await earlier_answer(connection, tenant_no, idempotency)) is not None:
            return earlier
        total, now = await count_letters(connection, tenant_no, filter, bulk_id=id_)
        bulk = NewBulk(id_, action, filter, actor, reason, per_s, how.payload, how.current_version)
        await insert_bulk(connection, tenant_no, bulk, total=total, created_at=now)
        await record(
            connection, tenant_no, actor, _audited(action), id_, {"filter": filter, "total": total, "reason": reason}
        )
        [row] = await list_bulks(connection, tenant_no, id_=id_)
        text = answer(row)
        await keep_answer(connection, tenant_no, idempotency, text)
    log.info("bulk.started", bulk_id=str(id_), action=action, total=total, actor=actor)
    return text


async def cancel_bulk(database: Database, tenant_no: TenantNo, id_: UUID, *, actor: str) -> BulkRow:
    """No further letters; what was done stays done. Twice is once, and an operation that is done stays done."""
    async with database.transaction() as connection:
        is_cancelled = await cancel_stored_bulk(connection, tenant_no, id_)
        rows = await list_bulks(connection, tenant_no, id_=id_)
        if not rows:
            raise NotFound(f"There is no operation {id_} on dead letters.")
        if is_cancelled:
            detail = {"done": rows[0].done, "total": rows[0].total}
            await record(connection, tenant_no, actor, "dead_letter.stop", id_, detail)
            log.info("bulk.cancelled", bulk_id=str(id_), done=rows[0].done, total=rows[0].total, actor=actor)
    return rows[0]


async def bulk_pass(database: Database, dispatcher: Dispatcher) -> int:
    """Give operations whose turn has come their turns, a bounded number; gives how many letters were looked at."""
    looked_at = 0
    for _ in range(TURNS_A_PASS):
        async with database.transaction() as connection:
            turn = await take_bulk(connection)
            if turn is None:
                break
            letters, made = await _give_turn(connection, database, turn)
        dispatcher.wake((entry.pool_no, entry.ready_at) for entry in made)
        looked_at += letters
    return looked_at


async def _give_turn(connection: Connection, database: Database, turn: BulkTurn) -> tuple[int, list[Replayed]]:
    """One turn of one operation: how many letters it came to, and the executions made."""
    size = min(max(round(turn.per_s * TURN_S), 1), LETTERS_A_TURN)
    letters = await take_letters(connection, turn, size)
    at_end = len(letters) < size
    passed_over = turn.passed_over or await has_passed_over(connection, turn, letters, at_end=at_end)
    made: list[Replayed] = []
    if turn.action == "replay":
        made, refused = await _replay_letters(
            connection,
            database,
            turn.tenant_no,
            letters,
            Replay(turn.payload, turn.current_version),
            actor=turn.actor,
            reason=turn.reason,
            operation=turn.id,
        )
        done = len(made)
        for letter in refused:
            log.warning("bulk.refused", bulk_id=str(turn.id), execution_id=str(letter.id), why=letter.detail)
    else:
        await _discard_letters(
            connection, turn.tenant_no, letters, actor=turn.actor, reason=turn.reason, operation=turn.id
        )
        done = len(letters)
    is_over = at_end and not passed_over
    next_s = size / turn.per_s if is_over or not at_end else max(size / turn.per_s, NEXT_ROUND_S)
    await advance_bulk(connection, turn, letters, done=done, next_s=next_s, at_end=at_end, passed_over=passed_over)
    if is_over:
        log.info("bulk.done", bulk_id=str(turn.id), action=turn.action, done=turn.done + done, total=turn.total)
    return len(letters), made


async def _replay_letters(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    letters: Sequence[LockedLetter],
    how: Replay,
    *,
    actor: str,
    reason: str | None,
    operation: UUID | None,
) -> tuple[list[Replayed], list[Refused]]:
    """Run letters that are held and open again, and resolve them; with those that cannot be."""
    made, refused = await make_replays(connection, database, tenant_no, [letter.ended for letter in letters], how)
    await resolve_replayed(connection, tenant_no, made, actor=actor, reason=reason)
    await record_all(
        connection,
        tenant_no,
        actor,
        "dead_letter.replay",
        [
            (
                entry.ended.execution_id,
                _detail(reason, operation)
                | {"replay_id": entry.replay_id, "edited_payload": how.payload is not None or None},
            )
            for entry in made
        ],
    )
    return made, refused


async def _discard_letters(
    connection: Connection,
    tenant_no: TenantNo,
    letters: Sequence[LockedLetter],
    *,
    actor: str,
    reason: str | None,
    operation: UUID | None,
) -> None:
    ids = [letter.ended.execution_id for letter in letters]
    await resolve_letters(connection, tenant_no, [(id_, None) for id_ in ids], "discarded", actor=actor, reason=reason)
    detail = _detail(reason, operation)
    await record_all(connection, tenant_no, actor, "dead_letter.discard", [(id_, detail) for id_ in ids])


def _untouched(id_: ExecutionId, letter: LockedLetter | None) -> LetterDone:
    if letter is None:
        return LetterDone(id_, "not_found", detail=f"There is no dead letter {id_}.")
    what = f"{letter.resolution} by {letter.resolved_by}"
    if letter.replay_id is not None:
        what += f" as execution {letter.replay_id}"
    return LetterDone(id_, "already_resolved", letter.replay_id, f"It was {what}: nothing is left to do.")


def _detail(reason: str | None, operation: UUID | None) -> dict[str, object]:
    return {"reason": reason, "operation": operation}


def _audited(action: BulkAction) -> Literal["dead_letter.replay", "dead_letter.discard"]:
    return "dead_letter.replay" if action == "replay" else "dead_letter.discard"
