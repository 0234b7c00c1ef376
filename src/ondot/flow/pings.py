"""Pings (O4): URLs that jobs elsewhere call, and what follows from a call, or from one that does not come.

Calls are many and writes are few: a repetition of the last call is written at most once in `WRITTEN_EVERY_S` by each
API process; a change is written at once. A ping that fails or is late is reported as a condition of the kind `ping`,
and the next success ends it.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

from ondot.flow.alerts.conditions import clear_condition, report_condition
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.work import begin
from ondot.model.errors import Conflict, NotFound
from ondot.model.hook import hash_token
from ondot.model.ids import TenantNo
from ondot.model.ping import CallKind, Expected, PingState, after_call, is_token, new_token
from ondot.store.audit import By, record_change
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.lookup import Lookup
from ondot.store.pings import (
    PingCallRow,
    PingRow,
    add_ping,
    add_ping_call,
    change_ping,
    count_pings,
    delete_ping,
    find_pings,
    lock_ping,
    mark_late_pings,
    rotate_ping,
)

MOST: Final = 1_000
"""Pings of a tenant."""
WRITTEN_EVERY_S: Final = 5.0
REMEMBERED: Final = 10_000
LATE_A_PASS: Final = 500
KIND: Final = "ping"

Render = Callable[[PingRow, str | None], str]
"""The answer with the token, or without it."""


class Pings:
    """The pings of an installation, as one API process knows them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lookup: Lookup[bytes, PingRow] = Lookup(database, find_pings, bytes, name="pings")
        self._written: dict[object, tuple[float, CallKind]] = {}
        """By ping: when its last call was written, and which one it was. The oldest are forgotten first."""

    async def create(
        self,
        tenant_no: TenantNo,
        name: str,
        expected: Expected,
        *,
        render: Render,
        idempotency: Idempotency | None,
        by: By,
    ) -> str:
        """Returns the answer with the token; for a repeated Idempotency-Key the stored one, without."""
        token, id_ = new_token(), self._database.clock.new_id()
        async with begin(self._database, tenant_no) as work:
            if (stored := await find_response(work, idempotency)) is not None:
                return stored
            if await count_pings(work.connection, tenant_no) >= MOST:
                raise Conflict(f"There are {MOST:,} pings, which is the limit: delete those that nothing calls.")
            row = await add_ping(
                work.connection, id_, tenant_no, name, hash_token(token), expected, created_by=by.actor
            )
            if row is None:
                raise Conflict(f"There is a ping {name!r} already. Choose another name, or rotate its token.")
            await record_change(work.connection, tenant_no, by, "ping.create", id_, {"name": name})
            await store_response(work, idempotency, render(row, None))
        return render(row, token)

    async def rotate(self, tenant_no: TenantNo, name: str, *, by: By) -> tuple[PingRow, str]:
        """A new token; the one before is refused within a second."""
        token = new_token()
        async with begin(self._database, tenant_no) as work:
            row = await rotate_ping(work.connection, tenant_no, name, hash_token(token))
            if row is None:
                raise unknown_ping(name)
            await record_change(work.connection, tenant_no, by, "ping.rotate", row.id, {"name": name})
        self._lookup.clear()
        return row, token

    async def delete(self, tenant_no: TenantNo, name: str, *, by: By) -> PingRow:
        async with begin(self._database, tenant_no) as work:
            row = await delete_ping(work.connection, tenant_no, name)
            if row is None:
                raise unknown_ping(name)
            await clear_condition(work.connection, KIND, tenant_no, name)
            await record_change(work.connection, tenant_no, by, "ping.delete", row.id, {"name": name})
        self._lookup.clear()
        return row

    async def find(self, token: str) -> PingRow | None:
        """The ping of a token. Text that is no token costs no statement."""
        return await self._lookup.get(hash_token(token)) if is_token(token) else None

    async def record(
        self, ping: PingRow, kind: CallKind, exit_code: int | None, body: str | None, address: str | None
    ) -> bool:
        """Write a call, unless the same was written a moment ago; returns whether it was written."""
        now_s = monotonic()
        written_s, last = self._written.get(ping.id, (0.0, None))
        if last == kind and kind != "log" and now_s - written_s < WRITTEN_EVERY_S:
            return False
        self._written.pop(ping.id, None)
        if len(self._written) >= REMEMBERED:
            del self._written[next(iter(self._written))]
        self._written[ping.id] = now_s, kind
        try:
            async with self._database.transaction() as connection:
                found = await lock_ping(connection, ping.tenant_no, ping.id)
                if found is not None:
                    row, at = found
                    standing = after_call(row.standing, kind, row.expected, at)
                    took_s = standing.took_s if kind in {"success", "fail"} else None
                    id_ = self._database.clock.new_id()
                    call = PingCallRow(id_, kind, exit_code, took_s, body, address)
                    if kind != "log":
                        await change_ping(connection, row, standing)
                        await _report(connection, row, standing.state, kind, exit_code)
                    await add_ping_call(connection, row, call)
        except BaseException:
            self._written.pop(ping.id, None)  # not written: the next one is
            raise
        return True


async def _report(
    connection: Connection, ping: PingRow, state: PingState, kind: CallKind, exit_code: int | None
) -> None:
    if kind == "fail":
        how = "reported a failure" if exit_code is None else f"ended with exit code {exit_code}"
        message = f"The ping {ping.name}: its job {how}."
        await report_condition(connection, KIND, ping.tenant_no, ping.name, message, {"state": state.value})
    elif kind == "success" and ping.standing.state in {PingState.LATE, PingState.FAILED}:
        await clear_condition(connection, KIND, ping.tenant_no, ping.name)


async def late_pass(database: Database) -> int:
    """Mark pings that are late, and report them; returns how many."""
    async with database.transaction() as connection:
        late = await mark_late_pings(connection, LATE_A_PASS)
        for ping in late:
            due = ping.due_at.isoformat(timespec="seconds")
            last = "never" if ping.pinged_at is None else ping.pinged_at.isoformat(timespec="seconds")
            message = f"The ping {ping.name} is late: a call was due by {due}, the last one came {last}."
            if ping.started_at is not None:
                started = ping.started_at.isoformat(timespec="seconds")
                message = f"The ping {ping.name} is late: its job started at {started} and did not report its end."
            details = {"state": PingState.LATE.value}
            await report_condition(connection, KIND, ping.tenant_no, ping.name, message, details, since=ping.due_at)
    return len(late)


def unknown_ping(name: str) -> NotFound:
    return NotFound(f"There is no ping {name!r}. List them with `ondot ping list`.")
