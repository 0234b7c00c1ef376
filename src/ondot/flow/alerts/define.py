"""Create, change, mute and delete alerts (O4). Each change raises the generation, so the next pass sees it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final
from uuid import UUID

from ondot.document.alerts import AlertBody, MuteBody, alert_base, muted_until, read_alert_patch
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.work import begin
from ondot.model.access import Caller, Right
from ondot.model.alerts.kinds import KINDS, About
from ondot.model.errors import Conflict, Fault, InvalidBody, NotFound, PreconditionFailed
from ondot.model.ids import TenantNo
from ondot.store.alerts import (
    AlertRow,
    add_alert,
    change_alert,
    count_alerts,
    delete_alert,
    lock_alert,
    raise_generation,
)
from ondot.store.audit import By, record_change
from ondot.store.channels import find_channels, list_channels
from ondot.store.connection import TAKEN, Connection
from ondot.store.database import Database

NAMES_SHOWN: Final = 20
MOST: Final = 500
"""Alerts of a tenant."""


def require_owner(caller: Caller, body: AlertBody) -> None:
    """Raises `Forbidden` if the alert looks at more than the caller's tenant."""
    if KINDS[body.kind].about is About.INSTALLATION or body.covers.is_of_all_tenants:
        caller.require(Right.FLEET_MANAGE)


async def create_alert(
    database: Database,
    tenant_no: TenantNo,
    body: AlertBody,
    *,
    render: Callable[[AlertRow], str],
    idempotency: Idempotency | None,
    by: By,
) -> str:
    """Returns the answer; for a repeated Idempotency-Key the stored one."""
    now = database.clock.now()
    alert = _with_body(
        AlertRow(
            id=database.clock.new_id(),
            tenant_no=tenant_no,
            name="",
            when={},
            scope=body.covers,
            for_s=0.0,
            repeat_s=None,
            notify=(),
            muted_until=None,
            version=1,
            created_at=now,
            created_by=by.actor,
            updated_at=now,
        ),
        body,
    )
    async with begin(database, tenant_no) as work:
        if (stored := await find_response(work, idempotency)) is not None:
            return stored
        await _check_channels(work.connection, tenant_no, body)
        await raise_generation(work.connection)
        if await count_alerts(work.connection, tenant_no) >= MOST:
            raise Conflict(f"There are {MOST:,} alerts, which is the limit: delete those that nobody needs.")
        row = await add_alert(work.connection, alert)
        if row is None:
            raise _taken(body.name)
        await record_change(
            work.connection, tenant_no, by, "alert.create", row.id, {"name": row.name}, after=base_of(row)
        )
        text = render(row)
        await store_response(work, idempotency, text)
    return text


async def update_alert(
    database: Database,
    tenant_no: TenantNo,
    id_: UUID,
    patch: object,
    *,
    check: Callable[[AlertBody], None],
    if_version: int | None,
    by: By,
) -> AlertRow:
    """`check` may refuse what the alert would become."""
    try:
        async with begin(database, tenant_no) as work:
            await raise_generation(work.connection)
            before = await _locked(await lock_alert(work.connection, tenant_no, id_), id_, if_version)
            body = read_alert_patch(patch, base_of(before))
            check(body)
            await _check_channels(work.connection, tenant_no, body)
            is_muted = isinstance(patch, dict) and ("muted_until" in patch or "mutedUntil" in patch)
            after = _with_body(before, body)
            if not is_muted:
                after = replace(after, muted_until=before.muted_until)
            row = await change_alert(work.connection, after)
            await record_change(
                work.connection,
                tenant_no,
                by,
                "alert.update",
                id_,
                {"name": row.name},
                before=base_of(before),
                after=base_of(row),
            )
    except TAKEN:
        raise _taken(body.name) from None
    return row


async def mute_alert(database: Database, tenant_no: TenantNo, id_: UUID, body: MuteBody, *, by: By) -> AlertRow:
    """No opening and no reminder is sent until then. What is open stays open, and its recovery is sent."""
    async with begin(database, tenant_no) as work:
        await raise_generation(work.connection)
        before = await _locked(await lock_alert(work.connection, tenant_no, id_), id_, None)
        until = muted_until(body, database.clock.now())
        row = await change_alert(work.connection, replace(before, muted_until=until))
        detail = {"name": row.name, "until": None if until is None else until.isoformat()}
        await record_change(work.connection, tenant_no, by, "alert.mute", id_, detail)
    return row


async def remove_alert(database: Database, tenant_no: TenantNo, id_: UUID, *, by: By) -> AlertRow:
    """Its open incidents recover with the next pass."""
    async with begin(database, tenant_no) as work:
        await raise_generation(work.connection)
        row = await delete_alert(work.connection, tenant_no, id_)
        if row is None:
            raise unknown_alert(id_)
        await record_change(
            work.connection, tenant_no, by, "alert.delete", id_, {"name": row.name}, before=base_of(row)
        )
    return row


def base_of(row: AlertRow) -> dict[str, Any]:
    """An alert in the form in which it is written."""
    return alert_base(
        name=row.name,
        when=row.when,
        scope=row.scope,
        for_s=row.for_s,
        repeat_s=row.repeat_s,
        notify=list(row.notify),
    )


def unknown_alert(which: object) -> NotFound:
    return NotFound(f"There is no alert {str(which)[:200]!r}.")


def is_muted(row: AlertRow, now: datetime) -> bool:
    return row.muted_until is not None and row.muted_until > now


async def _locked(row: AlertRow | None, id_: UUID, if_version: int | None) -> AlertRow:
    if row is None:
        raise unknown_alert(id_)
    if if_version is not None and row.version != if_version:
        raise PreconditionFailed(
            f"The alert has version {row.version} by now, not {if_version}. Read it again, and repeat the change."
        )
    return row


def _with_body(row: AlertRow, body: AlertBody) -> AlertRow:
    return replace(
        row,
        name=body.name,
        when=body.thresholds,
        scope=body.covers,
        for_s=body.for_,
        repeat_s=body.repeat,
        notify=tuple(dict.fromkeys(body.notify)),
        muted_until=body.muted_until,
    )


async def _check_channels(connection: Connection, tenant_no: TenantNo, body: AlertBody) -> None:
    known = await find_channels(connection, tenant_no, body.notify) if body.notify else {}
    faults = []
    for number, name in enumerate(body.notify):
        if name in known:
            continue
        names = [row.name for row in await list_channels(connection, tenant_no, limit=NAMES_SHOWN)]
        close = get_close_matches(name, names, n=1)
        others = f"Use one of: {', '.join(names)}." if names else "Create it with `ondot channel create`."
        advice = f"Did you mean {close[0]!r}?" if close else others
        faults.append(Fault(f"/notify/{number}", f"There is no channel {name!r}. {advice}"))
    if faults:
        raise InvalidBody(" ".join(fault.message for fault in faults), faults=tuple(faults))


def _taken(name: str) -> Conflict:
    return Conflict(f"There is an alert {name!r} already. Choose another name, or change that one.")
