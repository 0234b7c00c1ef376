"""Whether ondot does its work (L7): `/readyz` answers with it, and the dead man's switch is called only if it is so."""

from dataclasses import dataclass

from ondot.model.lineage import held_error
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.lineage import read_lineage
from ondot.store.queue import OldestDue, oldest_due


@dataclass(frozen=True, slots=True)
class Readiness:
    """`held`: why nothing starts on this database. `limit_s`: how long the oldest due fire may wait."""

    due: OldestDue
    limit_s: float
    held: str | None

    @property
    def is_ready(self) -> bool:
        return self.held is None and self.due.lag_s <= self.limit_s


async def read_readiness(database: Database, connection: Connection) -> Readiness:
    due = await oldest_due(connection)
    lineage = await read_lineage(connection)
    why = None if lineage is None else lineage.why_not
    held = None if why is None else held_error(why).message
    return Readiness(due, due.limit_s(database.settings.ready_lag_s), held)
