"""Secrets: set, delete, and wrap their data keys with another master key (T5). No function here returns a value."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ondot.flow.sealing import wrapping_context
from ondot.flow.vault import Vault
from ondot.model.errors import Conflict, InvalidBody, NotFound
from ondot.model.ids import TenantNo
from ondot.model.secret import Destinations
from ondot.ports.kms import Kms
from ondot.store.audit import By, record, record_change
from ondot.store.connection import TAKEN
from ondot.store.database import Database
from ondot.store.secrets import (
    NewSecret,
    SecretRow,
    WrappedKey,
    count_secrets,
    delete_secret,
    find_other_masters,
    list_secrets,
    lock_secret,
    rewrap_data_key,
    write_secret,
)

INSTALLATION: Final = TenantNo(0)
MOST: Final = 10_000
"""Secrets of a tenant."""
REWRAPPED_AT_ONCE: Final = 100


async def set_secret(
    vault: Vault,
    tenant_no: TenantNo,
    name: str,
    value: str | None,
    change: Callable[[Destinations], Destinations],
    *,
    by: By,
) -> SecretRow:
    """Create a secret, or change it. `value` None: it stays; the same value makes no new version.

    `change` computes where it may go from where it may go now.
    """
    key = await vault.writing_key(tenant_no)
    async with vault.database.transaction() as connection:
        before = await lock_secret(connection, tenant_no, name)
        if before is None and value is None:
            raise InvalidBody(f"There is no secret {name!r} yet: give a `value`.")
        destinations = change(before.destinations if before else Destinations())
        version = before.version if before else 1
        number, sealed, mark = (before.key_no, before.sealed, before.mark) if before else (0, b"", b"")
        if value is not None and mark != (new_mark := key.mark(value, "secret", name)):
            version, number, mark = (before.version + 1 if before else 1), key.number, new_mark
            sealed = key.seal(value, "secret", name, version)
        if before is None or version != before.version or destinations != before.destinations:
            if before is None and await count_secrets(connection, tenant_no) >= MOST:
                raise Conflict(f"There are {MOST:,} secrets, which is the limit: delete those that nothing uses.")
            secret = NewSecret(name, version, number, sealed, mark, destinations, by.actor)
            try:
                await write_secret(connection, tenant_no, secret, is_new=before is None)
            except TAKEN:
                raise Conflict(f"Another request creates the secret {name!r} at this moment: try again.") from None
            detail = _describe(name, version, destinations, None if before is None else before.destinations)
            await record_change(connection, tenant_no, by, "secret.set", None, detail)
        [row] = await list_secrets(connection, tenant_no, limit=1, name=name)
    return row


async def remove_secret(database: Database, tenant_no: TenantNo, name: str, *, by: By) -> SecretRow:
    """Delete a secret; returns it with the jobs that refer to it. Their next attempts fail."""
    async with database.transaction() as connection:
        rows = await list_secrets(connection, tenant_no, limit=1, name=name)
        if not rows or await delete_secret(connection, tenant_no, name) is None:
            raise unknown_secret(name)
        detail = {"name": name, "version": rows[0].version}
        await record_change(connection, tenant_no, by, "secret.delete", None, detail)
    return rows[0]


async def get_secret(database: Database, tenant_no: TenantNo, name: str) -> SecretRow:
    async with database.connection() as connection:
        rows = await list_secrets(connection, tenant_no, limit=1, name=name)
    if not rows:
        raise unknown_secret(name)
    return rows[0]


def unknown_secret(name: str) -> NotFound:
    return NotFound(f"There is no secret {name!r}. Create it with `ondot secret set {name}`.")


async def rotate_master(database: Database, kms: Kms, *, actor: str) -> int:
    """Wrap every data key with the first master key; returns how many. It may be run again after an interruption.

    Values are not touched, and every role goes on: it has both master keys in its settings.
    """
    after, rewrapped = (-1, -1), 0
    while True:
        async with database.connection() as connection:
            keys = await find_other_masters(connection, kms.master, after=after, limit=REWRAPPED_AT_ONCE)
        if not keys:
            break
        for key in keys:
            context = wrapping_context(key.tenant_no, key.number)
            wrapped = await kms.wrap(await kms.unwrap(key.master, key.wrapped, context), context)
            again = WrappedKey(key.tenant_no, key.number, kms.master, wrapped)
            async with database.connection() as connection:
                rewrapped += await rewrap_data_key(connection, again, key.master)
            after = (key.tenant_no, key.number)
    async with database.connection() as connection:
        detail = {"master": kms.master, "rewrapped": rewrapped}
        await record(connection, INSTALLATION, actor, "secret.rotate_master", None, detail)
    return rewrapped


def _describe(name: str, version: int, destinations: Destinations, before: Destinations | None) -> Mapping[str, Any]:
    lists = {field: getattr(destinations, field) for field in Destinations.__struct_fields__}
    if before is None:
        return {"name": name, "version": version, **lists}
    changes = {
        field: {"from": getattr(before, field) or "any", "to": lists[field] or "any"}
        for field in lists
        if getattr(before, field) != lists[field]
    }
    return {"name": name, "version": version, **changes}
