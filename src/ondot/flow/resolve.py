"""⑤b The secrets of one attempt (T5): read at the attempt, checked against its target, and filled in.

A replay or a retry gets the value of that moment. A reference in a payload that a run, a replay, an event or the result
of a step brought is plain data: only references that the spec has are filled in. A missing secret, or one that may not
go to this target, fails the execution without retries. A worker without the master key fails the attempt, which is
retried: another worker may have the key.
"""

from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Struct, structs

from ondot.flow.lease import Assignment
from ondot.flow.secrets_in_jobs import why_refused
from ondot.flow.vault import NO_KEY, Vault
from ondot.model.errors import NoSecretKey, Unavailable
from ondot.model.headers import is_sensitive
from ondot.model.ids import TenantNo
from ondot.model.job import JobSpec
from ondot.model.outcome import AttemptError, Failed, NotBegun
from ondot.model.scrub import SecretValues
from ondot.model.secret import Hidden, fill_in, fill_in_written, may_refer
from ondot.model.target import RemoteTarget
from ondot.store.secrets import find_secrets

_ENCODER: Final = msgspec.json.Encoder()


class Resolved(Struct, frozen=True):
    """The attempt with the values filled in, and the values, which are scrubbed from what it reports."""

    assignment: Assignment
    secrets: SecretValues


async def resolve_secrets(
    vault: Vault | None, assignment: Assignment, spec: JobSpec, declared: Collection[str]
) -> Resolved | Failed | NotBegun:
    """`declared`: secrets that the function reads by `ctx.secret`."""
    if vault is None:
        return Failed(AttemptError("secret_unreadable", NO_KEY))
    try:
        return await _resolve(vault, assignment, spec, sorted({*(spec.secrets or ()), *declared}))
    except NoSecretKey as error:
        return Failed(AttemptError("secret_unreadable", error.message))
    except Unavailable as error:
        return NotBegun(f"Its secrets could not be read: {error.message}")


async def _resolve(vault: Vault, assignment: Assignment, spec: JobSpec, names: Collection[str]) -> Resolved | Failed:
    tenant_no = assignment.leased.tenant_no
    values: dict[str, str] = {}
    if names:
        found = await _read_values(vault, tenant_no, spec, names)
        if isinstance(found, Failed):
            return found
        values = found
    target, hidden = spec.target, []
    if isinstance(target, RemoteTarget):
        headers: dict[str, str | Hidden] = {}
        for name, header in target.headers.items():
            value = await _header_value(vault, tenant_no, name, header, values)
            headers[name] = value
            if isinstance(header, Hidden) or is_sensitive(name):
                # Of "Bearer …" also the part that is secret.
                hidden += [value, value.partition(" ")[2]]
        target = structs.replace(target, headers=headers)
    payload = assignment.payload
    if values and may_refer(payload):
        if not assignment.leased.own_payload:
            payload = _ENCODER.encode(fill_in(msgspec.json.decode(payload), values.__getitem__))
        elif assignment.step is not None and may_refer(template := bytes(spec.payload)):
            decoded = msgspec.json.decode(template), msgspec.json.decode(payload)
            payload = _ENCODER.encode(fill_in_written(*decoded, values.__getitem__))
    filled = structs.replace(assignment, spec=structs.replace(spec, target=target), payload=payload)
    return Resolved(filled, SecretValues(values, hidden))


async def _read_values(
    vault: Vault, tenant_no: TenantNo, spec: JobSpec, names: Collection[str]
) -> dict[str, str] | Failed:
    async with vault.database.connection() as connection:
        rows = await find_secrets(connection, tenant_no, names)
    for name in names:
        if name not in rows:
            message = f"There is no secret {name!r}. Create it with `ondot secret set {name}`, then retry the run."
            return Failed(AttemptError("secret_missing", message), retryable=False)
        if (why := why_refused(rows[name].destinations, spec)) is not None:
            message = f"The secret {name!r} {why}."
            return Failed(AttemptError("secret_not_allowed", message), retryable=False)
    values = {}
    for name, row in rows.items():
        key = await vault.key(tenant_no, row.key_no)
        values[name] = key.open(row.sealed, "secret", name, row.version)
    return values


async def _header_value(
    vault: Vault, tenant_no: TenantNo, name: str, header: str | Hidden, values: dict[str, str]
) -> str:
    if isinstance(header, str):
        return header
    if header.secret is not None:
        return header.prefix + values[header.secret]
    return await vault.open_header(tenant_no, name, header.sealed or "")
