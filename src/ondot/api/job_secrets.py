"""Secrets in a job that a caller writes (T5): the right to refer to them, then `flow.secrets_in_jobs`."""

from collections.abc import Sequence

from ondot.api.dependencies import Services
from ondot.flow.secrets_in_jobs import admit_secrets
from ondot.model.access import Caller, Right
from ondot.model.job import JobSpec


async def admit_secrets_of(services: Services, caller: Caller, specs: Sequence[JobSpec]) -> list[JobSpec]:
    """The specs as they are stored. A new version that still refers to secrets needs the right too: another address
    in it would receive them."""
    if any(spec.secrets for spec in specs):
        caller.require(Right.SECRETS_USE)
    return await admit_secrets(services.vault, caller.tenant_no, specs)


async def admit_secrets_of_one(services: Services, caller: Caller, spec: JobSpec) -> JobSpec:
    if spec.secrets is None:
        return spec
    [admitted] = await admit_secrets_of(services, caller, [spec])
    return admitted
