"""Removes seals of the audit log whose entries are all gone (O1, T6).

The chain then starts after a cut: the number and hash of the last seal that was removed, signed as seals are. So the
first seal that is left is still verified against the hash before it, and seals cannot be removed from the start of a
chain without the key. The newest seal stays: the next one follows it.
"""

from datetime import datetime
from typing import Final

from ondot.model.audit_chain import Cut, SealKey, make_cut
from ondot.model.ids import TenantNo, first_id_at
from ondot.store.audit_seals import cut_seals, find_removable_seal, try_seal_lock
from ondot.store.database import Database
from ondot.store.day_rewrite import list_kept_from
from ondot.telemetry.log import get_logger

SEALS_AT_ONCE: Final = 1_000

log = get_logger()


class SealRemoval:
    """Remembers up to which instant each log was looked at: it moves once a day."""

    def __init__(self, database: Database, key: SealKey | None) -> None:
        self._database = database.patient
        self._key = key
        self._done: dict[TenantNo, datetime] = {}

    async def one_pass(self) -> int:
        """A batch of one log; returns whether there may be more."""
        async with self._database.connection() as connection:
            kept_from = await list_kept_from(connection)
        due = next((no for no, at in kept_from.items() if self._done.get(no) != at), None)
        if due is None:
            return 0
        cut = await self._remove_some(due, kept_from[due])
        if cut is None:
            self._done[due] = kept_from[due]
        return 1

    async def _remove_some(self, tenant_no: TenantNo, kept_from: datetime) -> Cut | None:
        async with self._database.transaction() as connection:
            if not await try_seal_lock(connection):
                return None  # with the next instant
            found = await find_removable_seal(connection, tenant_no, first_id_at(kept_from), SEALS_AT_ONCE)
            if found is None:
                return None
            cut = make_cut(tenant_no, *found, self._key)
            removed = await cut_seals(connection, cut)
        log.info("audit.seals_removed", tenant_no=tenant_no, count=removed, through=cut.seq)
        return cut
