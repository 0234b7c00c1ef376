"""⑧ Replay and discard: what a person does about FAILED executions by name (E10, T6). Those of a filter or a query are
the items of an operation, see `flow.bulk`.

A replay is a new execution of the same job and version, with the old payload or an edited one. Its letter is resolved
in the same transaction, under the lock of its row: two replays of a letter at once make one execution.
Every letter's resolution is recorded in `audit`, or by the one entry of its operation.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ondot.flow.dispatch import Dispatcher
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.replay import NotReplayed, Replay, Replayed, make_replays, resolve_replayed
from ondot.flow.work import Work, begin
from ondot.flow.workflows.advance import advance_run
from ondot.flow.workflows.letters import retry_letter
from ondot.flow.workflows.run_pass import Effects
from ondot.model.ids import ExecutionId, TenantNo
from ondot.store.audit import By, record_all
from ondot.store.database import Database
from ondot.store.dead_letters import LockedLetter, lock_letters, resolve_letters
from ondot.telemetry.log import get_logger

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
        done, replayed, after = await replay_letters(work, letters, how, by)
        made.extend(replayed)
        effects.extend(after)
        return done

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
        await discard_letters(work, letters, by)
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


async def replay_letters(
    work: Work, letters: Sequence[LockedLetter], how: Replay, by: By
) -> tuple[list[LetterDone], list[Replayed], list[Effects]]:
    """Run open letters that are locked again, and resolve them: the result for each, the executions that were made,
    and what is left to do for runs after the commit."""
    steps = [letter for letter in letters if letter.run_id is not None]
    made, refused = await _replay_plain(work, [letter for letter in letters if letter.run_id is None], how, by)
    retried, not_retried, effects = await _retry_steps(work, steps, how, by)
    done = [
        *(LetterDone(entry.ended.execution_id, "replayed", entry.replay_id) for entry in made),
        *(LetterDone(letter.ended.execution_id, "replayed", letter.run_id) for letter in retried),
        *(LetterDone(entry.id, entry.why, detail=entry.detail) for entry in (*refused, *not_retried)),
    ]
    return done, made, effects


async def _replay_plain(
    work: Work, letters: Sequence[LockedLetter], how: Replay, by: By
) -> tuple[list[Replayed], list[NotReplayed]]:
    """Run open letters that are locked again, and resolve them; also returns those that cannot be."""
    made, refused = await make_replays(work, [letter.ended for letter in letters], how, by)
    await resolve_replayed(work, made, by)
    detail: dict[str, object] = {"edited_payload": how.payload is not None or None}
    entries = [(entry.ended.execution_id, detail | {"replay_id": entry.replay_id}) for entry in made]
    await record_all(work.connection, work.tenant_no, by, "dead_letter.replay", entries)
    return made, refused


async def _retry_steps(
    work: Work, letters: Sequence[LockedLetter], how: Replay, by: By
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
    entries = [(letter.ended.execution_id, {"run_id": letter.run_id}) for letter in retried]
    await record_all(work.connection, work.tenant_no, by, "dead_letter.replay", entries)
    return retried, refused, effects


async def discard_letters(work: Work, letters: Sequence[LockedLetter], by: By) -> None:
    """Resolve open letters that are locked."""
    connection, tenant_no = work.connection, work.tenant_no
    ids = [letter.ended.execution_id for letter in letters]
    discards = [(id_, None) for id_ in ids]
    await resolve_letters(connection, tenant_no, discards, "discarded", actor=by.actor, reason=by.reason)
    await record_all(connection, tenant_no, by, "dead_letter.discard", [(id_, {}) for id_ in ids])


def _report_untouched(id_: ExecutionId, letter: LockedLetter | None) -> LetterDone:
    if letter is None:
        return LetterDone(id_, "not_found", detail=f"There is no dead letter {id_}.")
    what = f"{letter.resolution} by {letter.resolved_by}"
    if letter.replay_id is not None:
        what += f" as execution {letter.replay_id}"
    return LetterDone(id_, "already_resolved", letter.replay_id, f"It was {what}: nothing is left to do.")
