"""⑧ Replay and discard: what a person does about FAILED executions: one, many, or all that match (E10, O8, T6).

A replay is a new execution of the same job and version, with the old payload or an edited one. Its letter is resolved
in the same transaction, under the lock of its row: two replays of a letter at once make one execution.
By ids everything is done at once. By filter a row in `bulk` is worked off by `bulk_pass`, a bounded number of letters
in each turn, and each turn is a transaction of its own: no lock is held for long, however many letters there are. A
crash at any point loses nothing and repeats nothing, because a resolved letter is not taken again. Letters of
executions that fail again during an operation do not belong to it. A letter that another transaction has locked is
passed over, and may stay open. So an operation that passed one over starts again at the oldest letter: it is DONE only
after a round that passed over none.
Every letter's resolution is recorded in `audit`.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from ondot.flow.dispatch import Dispatcher
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.replay import NotReplayed, Replay, Replayed, make_replays, resolve_replayed
from ondot.flow.work import Work, begin
from ondot.flow.workflows.advance import advance_run
from ondot.flow.workflows.letters import retry_letter
from ondot.flow.workflows.run_pass import Effects
from ondot.model.errors import NotFound
from ondot.model.ids import ExecutionId, TenantNo
from ondot.store.audit import By, record_all, record_change
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
"""The most rows that one transaction locks and makes."""
TURNS_A_PASS = 20
NEXT_ROUND_S = 1.0
"""The least time before letters that were passed over are tried again."""

Result = Literal["replayed", "discarded", "already_resolved", "not_found", "spec_gone", "job_deleted", "not_retried"]

log = get_logger()


@dataclass(frozen=True, slots=True)
class LetterDone:
    """The result for one letter of a request; `detail`: why not, and what to do."""

    id: ExecutionId
    result: Result
    replay_id: ExecutionId | None = None
    detail: str | None = None

    @property
    def is_done(self) -> bool:
        return self.result in {"replayed", "discarded"}


RenderDone = Callable[[list[LetterDone]], str]
Resolve = Callable[[Work, list[LockedLetter]], Awaitable[Iterable[LetterDone]]]


async def replay(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    ids: Sequence[ExecutionId],
    how: Replay,
    *,
    by: By,
    render: RenderDone,
    idempotency: Idempotency | None = None,
) -> str:
    """Run letters again, in one transaction; letters that cannot be are reported, and the others run."""
    made: list[Replayed] = []
    effects: list[Effects] = []

    async def resolve(work: Work, letters: list[LockedLetter]) -> list[LetterDone]:
        steps = [letter for letter in letters if letter.run_id is not None]
        replayed, refused = await _replay_letters(work, _plain(letters), how, by, operation=None)
        retried, not_retried, after = await _retry_steps(work, steps, how, by, operation=None)
        made.extend(replayed)
        effects.extend(after)
        return [
            *(LetterDone(entry.ended.execution_id, "replayed", entry.replay_id) for entry in replayed),
            *(LetterDone(letter.ended.execution_id, "replayed", letter.run_id) for letter in retried),
            *(LetterDone(entry.id, entry.why, detail=entry.detail) for entry in (*refused, *not_retried)),
        ]

    text = await _resolve(database, tenant_no, ids, resolve, render, idempotency, "dead_letters.replayed", by)
    dispatcher.wake((entry.pool_no, entry.ready_at) for entry in made)
    for after in effects:
        after.send(dispatcher)
        for run_id in after.runs:
            await advance_run(database, dispatcher, run_id)
    return text


async def discard(
    database: Database,
    tenant_no: TenantNo,
    ids: Sequence[ExecutionId],
    *,
    by: By,
    render: RenderDone,
    idempotency: Idempotency | None = None,
) -> str:
    """Resolve letters that shall not run again, with the reason why; their history stays."""

    async def resolve(work: Work, letters: list[LockedLetter]) -> list[LetterDone]:
        await _discard_letters(work, letters, by, operation=None)
        return [LetterDone(letter.ended.execution_id, "discarded") for letter in letters]

    return await _resolve(database, tenant_no, ids, resolve, render, idempotency, "dead_letters.discarded", by)


async def _resolve(
    database: Database,
    tenant_no: TenantNo,
    ids: Sequence[ExecutionId],
    resolve: Resolve,
    render: RenderDone,
    idempotency: Idempotency | None,
    event: str,
    by: By,
) -> str:
    """Lock these letters and resolve the open ones; returns the response, with a result for each id."""
    async with begin(database, tenant_no) as work:
        if (earlier := await find_response(work, idempotency)) is not None:
            return earlier
        locked = await lock_letters(work.connection, tenant_no, ids)
        letters = [letter for letter in locked.values() if letter.resolution is None]
        results = {entry.id: entry for entry in await resolve(work, letters)}
        text = render([results.get(id_) or _report_untouched(id_, locked.get(id_)) for id_ in ids])
        await store_response(work, idempotency, text)
    count = sum(entry.is_done for entry in results.values())
    log.info(event, count=count, refused=len(ids) - count, actor=by.actor)
    return text


async def start_bulk(
    database: Database,
    tenant_no: TenantNo,
    action: BulkAction,
    filter: LetterFilter,  # noqa: A002 - the API's word
    how: Replay,
    *,
    per_s: float,
    by: By,
    render: Callable[[BulkRow], str],
    idempotency: Idempotency | None = None,
) -> str:
    """Register an operation on all letters that match now; `bulk_pass` works it off. Returns the response."""
    id_ = database.clock.new_id()
    async with begin(database, tenant_no) as work:
        if (earlier := await find_response(work, idempotency)) is not None:
            return earlier
        total, now = await count_letters(work.connection, tenant_no, filter, bulk_id=id_)
        bulk = NewBulk(id_, action, filter, by.actor, by.reason, per_s, how.payload, how.current_version)
        await insert_bulk(work.connection, tenant_no, bulk, total=total, created_at=now)
        detail = {"filter": filter, "total": total}
        await record_change(work.connection, tenant_no, by, _audit_action(action), id_, detail)
        [row] = await list_bulks(work.connection, tenant_no, id_=id_)
        text = render(row)
        await store_response(work, idempotency, text)
    log.info("bulk.started", bulk_id=str(id_), action=action, total=total, actor=by.actor)
    return text


async def cancel_bulk(database: Database, tenant_no: TenantNo, id_: UUID, *, by: By) -> BulkRow:
    """Take no further letters; resolved ones stay resolved. Cancelling an ended operation changes nothing."""
    async with database.transaction() as connection:
        is_cancelled = await cancel_stored_bulk(connection, tenant_no, id_)
        rows = await list_bulks(connection, tenant_no, id_=id_)
        if not rows:
            raise NotFound(f"There is no operation {id_} on dead letters.")
        if is_cancelled:
            detail = {"done": rows[0].done, "total": rows[0].total}
            await record_change(connection, tenant_no, by, "dead_letter.stop", id_, detail)
            log.info("bulk.cancelled", bulk_id=str(id_), done=rows[0].done, total=rows[0].total, actor=by.actor)
    return rows[0]


async def bulk_pass(database: Database, dispatcher: Dispatcher) -> int:
    """Work off operations that are due, for a bounded number of turns; returns how many letters were taken."""
    taken = 0
    for _ in range(TURNS_A_PASS):
        async with database.transaction() as connection:
            turn = await take_bulk(connection)
            if turn is None:
                break
            letters, made = await _take_turn(connection, database, turn)
        dispatcher.wake((entry.pool_no, entry.ready_at) for entry in made)
        taken += letters
    return taken


async def _take_turn(connection: Connection, database: Database, turn: BulkTurn) -> tuple[int, list[Replayed]]:
    """One turn of one operation: how many letters it took, and the executions it made."""
    work, by = Work(connection, database, turn.tenant_no), By(turn.actor, turn.reason)
    size = min(max(round(turn.per_s * TURN_S), 1), LETTERS_A_TURN)
    letters = await take_letters(connection, turn, size)
    at_end = len(letters) < size
    passed_over = turn.passed_over or await has_passed_over(connection, turn, letters, at_end=at_end)
    made: list[Replayed] = []
    if turn.action == "replay":
        how = Replay(turn.payload, turn.current_version)
        made, refused = await _replay_letters(work, _plain(letters), how, by, operation=turn.id)
        steps = [letter for letter in letters if letter.run_id is not None]
        # Their runs are advanced by housekeeping, and leased by polling.
        retried, not_retried, _ = await _retry_steps(work, steps, how, by, operation=turn.id)
        done = len(made) + len(retried)
        for letter in (*refused, *not_retried):
            log.warning("bulk.refused", bulk_id=str(turn.id), execution_id=str(letter.id), why=letter.detail)
    else:
        await _discard_letters(work, letters, by, operation=turn.id)
        done = len(letters)
    is_over = at_end and not passed_over
    next_s = size / turn.per_s if is_over or not at_end else max(size / turn.per_s, NEXT_ROUND_S)
    await advance_bulk(connection, turn, letters, done=done, next_s=next_s, at_end=at_end, passed_over=passed_over)
    if is_over:
        log.info("bulk.done", bulk_id=str(turn.id), action=turn.action, done=turn.done + done, total=turn.total)
    return len(letters), made


async def _replay_letters(
    work: Work, letters: Sequence[LockedLetter], how: Replay, by: By, *, operation: UUID | None
) -> tuple[list[Replayed], list[NotReplayed]]:
    """Run open letters that are locked again, and resolve them; also returns those that cannot be."""
    made, refused = await make_replays(work, [letter.ended for letter in letters], how)
    await resolve_replayed(work, made, by)
    detail: dict[str, object] = {"operation": operation} | {"edited_payload": how.payload is not None or None}
    entries = [(entry.ended.execution_id, detail | {"replay_id": entry.replay_id}) for entry in made]
    await record_all(work.connection, work.tenant_no, by, "dead_letter.replay", entries)
    return made, refused


def _plain(letters: Sequence[LockedLetter]) -> list[LockedLetter]:
    """Those that are not of steps."""
    return [letter for letter in letters if letter.run_id is None]


async def _retry_steps(
    work: Work, letters: Sequence[LockedLetter], how: Replay, by: By, *, operation: UUID | None
) -> tuple[list[LockedLetter], list[NotReplayed], list[Effects]]:
    """Retry the steps of locked letters in their runs, which resolves the letters; and those that cannot be."""
    retried: list[LockedLetter] = []
    refused: list[NotReplayed] = []
    effects: list[Effects] = []
    for letter in letters:
        after = await retry_letter(work, letter, how.payload, by)
        if isinstance(after, str):
            refused.append(NotReplayed(letter.ended.execution_id, "not_retried", after))
        else:
            retried.append(letter)
            effects.append(after)
    detail = {"operation": operation}
    entries = [(letter.ended.execution_id, detail | {"run_id": letter.run_id}) for letter in retried]
    await record_all(work.connection, work.tenant_no, by, "dead_letter.replay", entries)
    return retried, refused, effects


async def _discard_letters(work: Work, letters: Sequence[LockedLetter], by: By, *, operation: UUID | None) -> None:
    connection, tenant_no = work.connection, work.tenant_no
    ids = [letter.ended.execution_id for letter in letters]
    discards = [(id_, None) for id_ in ids]
    await resolve_letters(connection, tenant_no, discards, "discarded", actor=by.actor, reason=by.reason)
    detail = {"operation": operation}
    await record_all(connection, tenant_no, by, "dead_letter.discard", [(id_, detail) for id_ in ids])


def _report_untouched(id_: ExecutionId, letter: LockedLetter | None) -> LetterDone:
    if letter is None:
        return LetterDone(id_, "not_found", detail=f"There is no dead letter {id_}.")
    what = f"{letter.resolution} by {letter.resolved_by}"
    if letter.replay_id is not None:
        what += f" as execution {letter.replay_id}"
    return LetterDone(id_, "already_resolved", letter.replay_id, f"It was {what}: nothing is left to do.")


def _audit_action(action: BulkAction) -> Literal["dead_letter.replay", "dead_letter.discard"]:
    return "dead_letter.replay" if action == "replay" else "dead_letter.discard"
