"""Tenants are created, changed, suspended, resumed and deleted, by an owner of the installation (T1, T2).

Each is one transaction on the tenant's row; every process notices within a second (`store.tenants`). A suspended tenant
can be read: nothing of it is planned or started, and running work finishes (`flow.suspension`). A deleted one loses its
keys in the same transaction, and its rows in the background (`flow.removal`); its name is free at once, its number is
never used again. The first tenant owns what the installation owns, so it cannot be deleted. The audit log of the
installation has every change; the tenant's own log has those that it should know of.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ondot.document.tenants import NewTenant, render_quotas, render_targets
from ondot.flow.history.kept import MOST_RETENTIONS
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.work import Work, begin
from ondot.model.errors import Conflict, Fault, InvalidBody, NotFound, PreconditionFailed, Unavailable
from ondot.model.ids import DEFAULT_TENANT, INSTALLATION, TenantNo
from ondot.model.tenant import ALL_POOLS, Tenant, TenantState
from ondot.store.alerts import raise_generation
from ondot.store.audit import Action, By, record_change
from ondot.store.connection import TAKEN
from ondot.store.database import Database
from ondot.store.day_rewrite import list_retentions
from ondot.store.pools import find_pools
from ondot.store.removal import count_by_day, count_rows, limit_count_time
from ondot.store.tenants import (
    TenantRow,
    add_tenant,
    change_tenant,
    find_tenant,
    lock_tenant,
    revoke_keys,
)
from ondot.telemetry.log import get_logger

COUNTED_BY_DAY: Final = {"one_time_jobs": "once_jobs", "history": "history"}

Compute = Callable[[Tenant], Tenant]
"""A tenant as it is to be."""

log = get_logger()


def unknown_tenant(name: str) -> NotFound:
    return NotFound(f"There is no tenant {name[:64]!r}. List them with `ondot tenant list`.")


async def read_tenant(database: Database, name: str) -> TenantRow:
    """The tenant of a name, else the one of that name that was deleted last."""
    async with database.connection() as connection:
        row = await find_tenant(connection, name)
    if row is None:
        raise unknown_tenant(name)
    return row


async def create_tenant(
    database: Database,
    caller_no: TenantNo,
    new: NewTenant,
    *,
    render: Callable[[TenantRow], str],
    idempotency: Idempotency | None = None,
    by: By | None = None,
) -> str:
    """Returns the response. `caller_no`: the tenant whose idempotency key it is."""
    try:
        async with begin(database, caller_no) as work:
            if (earlier := await find_response(work, idempotency)) is not None:
                return earlier
            await _check_pools(work, new.pools)
            await _check_retention(work, new.retention_days)
            tenant_no = await add_tenant(
                work.connection, new.name, new.weight, new.pools, new.quotas, new.targets, new.retention_days
            )
            row = await find_tenant(work.connection, new.name)
            assert row is not None
            detail, after = {"tenant": new.name, "tenant_no": tenant_no}, describe(row.tenant)
            await record_change(work.connection, INSTALLATION, by, "tenant.create", None, detail, after=after)
            text = render(row)
            await store_response(work, idempotency, text)
    except TAKEN as error:
        raise Conflict(f"There is a tenant {new.name!r} already: choose another name, or change that one.") from error
    database.tenants.forget()
    log.info("tenant.created", tenant_no=tenant_no, name=new.name)
    return text


async def update_tenant(
    database: Database, name: str, compute: Compute, *, if_version: int | None = None, by: By | None = None
) -> TenantRow:
    """A change that changes nothing makes no new version."""
    async with begin(database, DEFAULT_TENANT) as work:
        row = await _lock(work, name, if_version)
        before = row.tenant
        after = compute(before)
        if before.tenant_no == DEFAULT_TENANT and after.targets != before.targets:
            message = "`targets`: the first tenant's calls are limited by the workers: set ONDOT_ALLOW_PRIVATE_TARGETS."
            raise InvalidBody(message, (Fault("/targets", message),))
        await _check_pools(work, after.pools - before.pools)
        if after.retention_days != before.retention_days:
            await _check_retention(work, after.retention_days, other_than=before.tenant_no)
        if after != before:
            await _write(work, before, after, "tenant.update", by)
    return await _changed(database, name)


async def suspend_tenant(
    database: Database, name: str, *, if_version: int | None = None, by: By | None = None
) -> TenantRow:
    """Nothing of it is planned or started any more. Suspending a suspended tenant changes nothing."""
    return await _set_state(database, name, TenantState.SUSPENDED, "tenant.suspend", if_version, by)


async def resume_tenant(
    database: Database, name: str, *, if_version: int | None = None, by: By | None = None
) -> TenantRow:
    """The fires of the suspension are settled by each job's misfire policy. Resuming an active one changes nothing."""
    return await _set_state(database, name, TenantState.ACTIVE, "tenant.resume", if_version, by)


async def count_tenant(database: Database, name: str) -> dict[str, int | None]:
    """What a deletion would remove, by kind. None: too many to count in two seconds."""
    async with database.connection() as connection:
        row = await find_tenant(connection, name)
        if row is None or row.tenant.state is TenantState.DELETED:
            raise unknown_tenant(name)
        counts: dict[str, int | None] = dict(await count_rows(connection, row.tenant.tenant_no))
    for kind, table in COUNTED_BY_DAY.items():
        try:
            async with database.transaction() as connection:
                await limit_count_time(connection)
                counts[kind] = await count_by_day(connection, table, row.tenant.tenant_no, row.created_at)
        except Unavailable:
            counts[kind] = None
    return counts


async def delete_tenant(
    database: Database, name: str, *, home_no: TenantNo, if_version: int | None = None, by: By | None = None
) -> TenantRow:
    """Its keys die and its work stops at once; its rows are removed in the background. `home_no`: the caller's own."""
    async with begin(database, DEFAULT_TENANT) as work:
        row = await _lock(work, name, if_version)
        before = row.tenant
        if before.tenant_no == DEFAULT_TENANT:
            raise Conflict(f"The first tenant, {name!r}, cannot be deleted. Suspend it, or delete its jobs.")
        if before.tenant_no == home_no:
            raise Conflict(f"Your own key or user belongs to {name!r}. Delete it as an owner of another tenant.")
        await revoke_keys(work.connection, before.tenant_no)
        await _write(work, before, replace(before, state=TenantState.DELETED), "tenant.delete", by)
    log.info("tenant.deleted", tenant_no=before.tenant_no, name=name)
    return await _changed(database, name)


async def _set_state(
    database: Database, name: str, state: TenantState, action: Action, if_version: int | None, by: By | None
) -> TenantRow:
    async with begin(database, DEFAULT_TENANT) as work:
        row = await _lock(work, name, if_version)
        if row.tenant.state is not state:
            await _write(work, row.tenant, replace(row.tenant, state=state), action, by)
    return await _changed(database, name)


async def _lock(work: Work, name: str, if_version: int | None) -> TenantRow:
    row = await lock_tenant(work.connection, name)
    if row is None:
        raise unknown_tenant(name)
    if if_version is not None and row.tenant.version != if_version:
        raise PreconditionFailed(
            f"The tenant {name!r} is at version {row.tenant.version}, not {if_version}: read it again, then change it."
        )
    return row


async def _write(work: Work, before: Tenant, after: Tenant, action: Action, by: By | None) -> None:
    await change_tenant(work.connection, after)
    if after.state is not before.state:
        # Alerts of a tenant that is suspended or deleted send nothing.
        await raise_generation(work.connection)
    changed = {key for key, value in describe(after).items() if describe(before)[key] != value}
    detail = {"tenant": after.name, "tenant_no": after.tenant_no}
    was = {key: value for key, value in describe(before).items() if key in changed}
    is_now = {key: value for key, value in describe(after).items() if key in changed}
    logs = [INSTALLATION] if after.state is TenantState.DELETED else [INSTALLATION, after.tenant_no]
    for log_no in logs:
        await record_change(work.connection, log_no, by, action, None, detail, before=was, after=is_now)


async def _changed(database: Database, name: str) -> TenantRow:
    database.tenants.forget()
    return await read_tenant(database, name)


async def _check_pools(work: Work, pools: frozenset[str]) -> None:
    named = sorted(pools - {ALL_POOLS})
    known = await find_pools(work.connection, named) if named else {}
    faults = tuple(
        Fault(
            "/pools", f"`pools`: there is no pool {name!r}. Start a worker with --pool {name} first, or leave it out."
        )
        for name in named
        if name not in known
    )
    if faults:
        raise InvalidBody(" ".join(fault.message for fault in faults), faults)


async def _check_retention(work: Work, days: int | None, *, other_than: TenantNo | None = None) -> None:
    """Each retention rewrites every day once more, so there are few."""
    own = await list_retentions(work.connection)
    others = {work.database.settings.retention_days, *(of for no, of in own.items() if no != other_than)}
    if days is not None and len(others | {days}) > MOST_RETENTIONS:
        there = ", ".join(map(str, sorted(others)))
        message = (
            f"`retention_days`: an installation has at most {MOST_RETENTIONS} retentions, and {days} would be one more."
            f" Use one of: {there}."
        )
        raise InvalidBody(message, (Fault("/retention_days", message),))


def describe(tenant: Tenant) -> Mapping[str, object]:
    """What can change of a tenant, for the audit log."""
    return {
        "state": tenant.state.value,
        "weight": tenant.weight,
        "pools": sorted(tenant.pools),
        "quotas": render_quotas(tenant.quotas),
        "targets": render_targets(tenant.targets),
        "retention_days": tenant.retention_days,
    }
