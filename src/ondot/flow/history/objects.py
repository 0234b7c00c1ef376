"""Deletes from storage the results and logs of executions that are gone (O1, E14).

A day of `object` that was replaced stays, detached, until all objects that it alone names are deleted: it is the list.
So nothing is deleted before the rewriting has committed, and a deletion that fails is found again. An object that is
missing is no error.
"""

from ondot.model.errors import Unavailable
from ondot.ports.objects import Objects
from ondot.store.database import Database
from ondot.store.day_rewrite import GoneObject, drop_gone, find_gone, list_gone_objects
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import OBJECTS_REMOVED

log = get_logger()


class ObjectRemoval:
    """Remembers how far it is in the oldest list; a process that takes over starts at its beginning."""

    def __init__(self, database: Database, objects: Objects | None) -> None:
        self._database = database.patient
        self._objects = objects
        self._name: str | None = None
        self._after: GoneObject | None = None

    async def one_pass(self) -> int:
        """Delete a batch; returns whether there may be more."""
        if self._objects is None:
            return 0
        async with self._database.connection() as connection:
            names = await find_gone(connection)
        if not names:
            return 0
        if names[0] != self._name:
            self._name, self._after = names[0], None
        async with self._database.connection() as connection:
            batch = await list_gone_objects(connection, self._name, self._after)
        if not batch:
            async with self._database.connection() as connection:
                await drop_gone(connection, self._name)
            return 1
        try:
            await self._objects.delete([entry.key for entry in batch])
        except Unavailable as error:
            log.warning("history.objects_left", place=self._objects.place, why=str(error), then="tried again")
            return 0
        OBJECTS_REMOVED.inc(len(batch))
        self._after = batch[-1]
        return 1
