"""①c Secrets in a job that is written (T5): who may refer to them, whether they exist, and headers that are sealed.

Only specs with `secrets` come here, so a job without any costs nothing. A reference to an unknown secret, or to one
that may not go to the job's target, is rejected when the job is written: each of its attempts would fail. Credentials
in headers are sealed with the tenant's data key. Without a master key they are stored as they came, and every answer
that shows the job carries a warning.
"""

import asyncio
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import assert_never

from msgspec import structs

from ondot.flow.connections.manage import describe_unknown
from ondot.flow.sealing import DataKey
from ondot.flow.vault import Vault, seal_header
from ondot.model.errors import InvalidBody
from ondot.model.headers import is_sensitive
from ondot.model.ids import JobId, TenantNo
from ondot.model.job import JobSpec, find_unsealed, list_connections_named, replace_remote_targets
from ondot.model.secret import Destinations, Hidden
from ondot.model.target import ConnectedTarget, FunctionTarget, RemoteTarget, ShellTarget, connection_kind
from ondot.model.workflow.spec import WorkflowTarget
from ondot.model.workflow.step_spec import list_attempt_specs
from ondot.store.connection import Connection
from ondot.store.connections import find_connections, replace_connection_uses
from ondot.store.database import Database
from ondot.store.secrets import SecretRow, find_secrets, list_secret_names, replace_uses

NAMES_SEARCHED = 1_000
FEW = 100
"""Jobs whose headers are sealed on the event loop."""


def have_secrets(specs: Sequence[JobSpec]) -> bool:
    return any(spec.secrets is not None for spec in specs)


async def admit_secrets(vault: Vault, tenant_no: TenantNo, specs: Sequence[JobSpec]) -> list[JobSpec]:
    """These specs as they are stored. The caller has checked the right to refer to secrets."""
    await _check_references(vault, tenant_no, specs)
    await check_connections(vault.database, tenant_no, specs)
    if vault.kms is None or not any(find_unsealed(spec) for spec in specs):
        return list(specs)
    key = await vault.writing_key(tenant_no)
    sealed: dict[tuple[str, str], Hidden] = {}

    def seal_all() -> list[JobSpec]:
        return [_seal(key, spec, sealed) if find_unsealed(spec) else spec for spec in specs]

    # In a thread: to seal ten thousand different headers took 0.3 s.
    return seal_all() if len(specs) <= FEW else await asyncio.to_thread(seal_all)


async def check_connections(database: Database, tenant_no: TenantNo, specs: Sequence[JobSpec]) -> None:
    """Raises InvalidBody for a connection that does not exist, or that is of another kind than the target."""
    if not any(map(list_connections_named, specs)):
        return
    names = frozenset(name for spec in specs for name in list_connections_named(spec))
    async with database.connection() as connection:
        rows = await find_connections(connection, tenant_no, names)
        for name in sorted(names - rows.keys()):
            raise InvalidBody(await describe_unknown(connection, tenant_no, name))
    for spec in specs:
        for step, attempt in list_attempt_specs(spec):
            target = attempt.target
            if isinstance(target, ConnectedTarget) and target.connection is not None:
                wanted, kind = connection_kind(target), rows[target.connection].spec.kind
                if kind != wanted:
                    words = f"The connection {target.connection!r} leads to {kind}, and the target is {wanted}."
                    raise InvalidBody(words if step is None else f"Step {step}: {words}")


async def record_uses(
    connection: Connection, tenant_no: TenantNo, jobs: Sequence[tuple[JobId, JobSpec]], *, are_new: bool
) -> None:
    """Record which secrets these jobs refer to, and which connections they name: jobs that recur or have a key."""
    uses = [(job_id, spec.secrets or ()) for job_id, spec in jobs if spec.secrets or not are_new]
    if uses:
        await replace_uses(connection, tenant_no, uses, are_new=are_new)
    named = [(job_id, names) for job_id, spec in jobs if (names := list_connections_named(spec)) or not are_new]
    if named:
        await replace_connection_uses(connection, tenant_no, named, are_new=are_new)


def why_refused(destinations: Destinations, spec: JobSpec) -> str | None:
    """Why a secret may not go to this job, as the end of a sentence; None if it may."""
    if not destinations.allows_pool(spec.pool):
        return f"may not be used in the pool {spec.pool!r}; allowed: {', '.join(destinations.pools or ())}"
    match spec.target:
        case target if isinstance(target, RemoteTarget):
            host = target.host
            if not destinations.allows_host(host):
                return f"may not be sent to {host}; allowed: {_allowed(destinations)}"
        case FunctionTarget():
            if not destinations.allows_function(spec.target.name):
                return f"may not be passed to the function {spec.target.name!r}; allowed: {_allowed(destinations)}"
        case ShellTarget():
            if not destinations.allows_programs:
                return f"may not be passed to programs; allowed: {_allowed(destinations)}"
        case WorkflowTarget():
            pass  # each of its steps is judged by itself
        case _:
            assert_never(spec.target)
    return None


def _allowed(destinations: Destinations) -> str:
    hosts = [f"the host {host}" for host in destinations.hosts or ()]
    return ", ".join([*hosts, *(f"the function {name}" for name in destinations.functions or ())]) or "none"


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
        if spec.secrets is not None:
            _check_destinations(spec, rows)


def _check_destinations(spec: JobSpec, rows: Mapping[str, SecretRow]) -> None:
    for step, attempt in list_attempt_specs(spec):
        for name in attempt.secrets or ():
            if (why := why_refused(rows[name].destinations, attempt)) is not None:
                raise InvalidBody(f"{'' if step is None else f'Step {step}: '}The secret {name!r} {why}.")


def _seal(key: DataKey, spec: JobSpec, sealed: dict[tuple[str, str], Hidden]) -> JobSpec:
    """`sealed`: headers of the same request, which nearly always share one value."""

    def seal_target(target: RemoteTarget) -> RemoteTarget:
        headers: dict[str, str | Hidden] = {}
        for name, value in target.headers.items():
            headers[name] = value
            if isinstance(value, str) and is_sensitive(name):
                if (name, value) not in sealed:
                    sealed[name, value] = seal_header(key, name, value)
                headers[name] = sealed[name, value]
        return structs.replace(target, headers=headers)

    return replace_remote_targets(spec, seal_target)
