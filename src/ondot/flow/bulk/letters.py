"""Dead letters of an operation, many in a transaction (E10, O8)."""

from collections.abc import Sequence
from uuid import UUID

from ondot.flow.dead_letters import discard_letters, replay_letters
from ondot.flow.dispatch import Dispatcher
from ondot.flow.replay import Replay
from ondot.flow.work import Work
from ondot.model.bulk import why_missing
from ondot.model.ids import ExecutionId
from ondot.store.bulk import BulkTurn, Results, see_items
from ondot.store.database import Database
from ondot.store.dead_letters import take_letters


async def act_on_letters(database: Database, dispatcher: Dispatcher, turn: BulkTurn, ids: Sequence[UUID]) -> Results:
    """Replay or discard those that are open. Letters that others have locked are left for later."""
    async with database.connection() as connection:
        work = Work(connection, database, turn.tenant_no)
        taken = await take_letters(connection, turn.tenant_no, [ExecutionId(id_) for id_ in ids])
        rest = [id_ for id_ in ids if id_ not in taken]
        seen = await see_items(connection, turn.tenant_no, "dead_letters", rest) if rest else {}
        later = [id_ for id_ in rest if id_ in seen and seen[id_].state == "open"]
        missing = [(id_, why_missing(turn.kind, id_)) for id_ in rest if id_ not in seen]
        unchanged = len(rest) - len(later) - len(missing)
        if turn.action == "discard":
            await discard_letters(work, list(taken.values()), turn.by)
            return Results(done=len(taken), unchanged=unchanged, refused=missing, later=later)
        how = Replay(turn.payload, turn.current_version)
        # The runs of steps are advanced by housekeeping.
        results, made, _ = await replay_letters(work, list(taken.values()), how, turn.by)
    dispatcher.wake((entry.pool_no, entry.ready_at) for entry in made)
    refused = [(entry.id, entry.detail or entry.result) for entry in results if not entry.is_done]
    kept = [(entry.id, None, entry.replay_id) for entry in results if entry.is_done]
    return Results(done=len(kept), kept=kept, unchanged=unchanged, refused=[*missing, *refused], later=later)
