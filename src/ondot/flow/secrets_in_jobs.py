"""①c Secrets in a job that is written (T5): who may refer to them, whether they exist, and headers that are sealed.

Only specs with `secrets` come here, so a job without any costs nothing. A reference to an unknown secret, or to one
that may not go to the job's target, is rejected when the job is written: each of its attempts would fail. Credentials
in headers are sealed with the tenant's data key. Without a master key they are stored as they came, and every answer
that shows the job carries a warning.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import assert_never

from msgspec import structs

from ondot.flow.vault import Vault
from ondot.model.errors import InvalidBody
from ondot.model.headers import is_sensitive
from ondot.model.ids import JobId, TenantNo
from ondot.model.job import FunctionTarget, HttpTarget, JobSpec, ShellTarget
from ondot.model.secret import Hidden, Reach
from ondot.model.urls import host_of
from ondot.store.connection import Connection
from ondot.store.secrets import find_secrets, list_secret_names, replace_uses

NAMES_SEARCHED = 1_000


def have_secrets(specs: Sequence[JobSpec]) -> bool:
    return any(spec.secrets is not None for spec in specs)


async def admit_secrets(vault: Vault, tenant_no: TenantNo, specs: Sequence[JobSpec]) -> list[JobSpec]:
    """These specs as they are stored. The caller has checked the right to refer to secrets."""
    await _check_references(vault, tenant_no, specs)
    return [spec if spec.secrets is None else await _seal(vault, tenant_no, spec) for spec in specs]


async def record_uses(
    connection: Connection, tenant_no: TenantNo, jobs: Sequence[tuple[JobId, JobSpec]], *, are_new: bool
) -> None:
    """Record which secrets these jobs refer to: jobs that recur or have a key."""
    uses = [(job_id, spec.secrets or ()) for job_id, spec in jobs if spec.secrets or not are_new]
    if uses:
        await replace_uses(connection, tenant_no, uses, are_new=are_new)


def why_refused(reach: Reach, spec: JobSpec) -> str | None:
    """Why a secret may not go to this job, as the end of a sentence; None if it may."""
    if not reach.allows_pool(spec.pool):
        return f"may not be used in the pool {spec.pool!r}; allowed: {', '.join(reach.pools or ())}"
    match spec.target:
        case HttpTarget():
            host = host_of(spec.target.url)
            if not reach.allows_host(host):
                return f"may not be sent to {host}; allowed: {_allowed(reach)}"
        case FunctionTarget():
            if not reach.allows_function(spec.target.name):
                return f"may not be passed to the function {spec.target.name!r}; allowed: {_allowed(reach)}"
        case ShellTarget():
            if not reach.allows_programs:
                return f"may not be passed to programs; allowed: {_allowed(reach)}"
        case _:
            assert_never(spec.target)
    return None


def _allowed(reach: Reach) -> str:
    hosts = [f"the host {host}" for host in reach.hosts or ()]
    return ", ".join([*hosts, *(f"the function {name}" for name in reach.functions or ())]) or "none"


async def _check_references(vault: Vault, tenant_no: TenantNo, specs: Sequence[JobSpec]) -> None:
    names = {name for spec in specs for name in spec.secrets or ()}
    if not names:
        return
    async with vault.database.connection() as connection:
        rows = await find_secrets(connection, tenant_no, names)
        known = await list_secret_names(connection, tenant_no, NAMES_SEARCHED) if names - rows.keys() else []
    for name in sorted(names - rows.keys()):
        close = get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InvalidBody(f"Unknown secret {name!r}.{hint} Create it with `ondot secret set {name}`, then try again.")
    for spec in specs:
        for name in spec.secrets or ():
            if (why := why_refused(rows[name].reach, spec)) is not None:
                raise InvalidBody(f"The secret {name!r} {why}.")


async def _seal(vault: Vault, tenant_no: TenantNo, spec: JobSpec) -> JobSpec:
    target = spec.target
    if not isinstance(target, HttpTarget) or vault.kms is None:
        return spec
    headers: dict[str, str | Hidden] = {}
    for name, value in target.headers.items():
        is_plain = isinstance(value, str) and is_sensitive(name)
        headers[name] = await vault.seal_header(tenant_no, name, value) if is_plain else value  # type: ignore[arg-type]
    return structs.replace(spec, target=structs.replace(target, headers=headers))
