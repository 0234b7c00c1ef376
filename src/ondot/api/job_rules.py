"""What a caller's key says about the jobs that it may write and see (T1): its pools, and the scopes `shell` and
`private-targets`."""

from collections.abc import Iterable, Sequence

from msgspec import structs

from ondot.api.dependencies import Services
from ondot.model.access import Caller, Right
from ondot.model.errors import Conflict, Fault, InvalidBody
from ondot.model.job import JobSpec, replace_http_targets
from ondot.model.target import HttpTarget, ShellTarget
from ondot.model.workflow.spec import WorkflowTarget
from ondot.model.workflow.step_spec import list_attempt_specs
from ondot.store.jobs import find_pools_of_keys


def check_jobs(caller: Caller, specs: Iterable[JobSpec]) -> None:
    """Refuse jobs that the caller may not write: those of pools beyond its key's, which are unknown to it, and shell
    commands without the scope."""
    if caller.pools is None and Right.SHELL in caller.rights:
        return
    for spec in specs:
        _check_pool(caller, spec.pool, "/pool")
        if isinstance(spec.target, WorkflowTarget):
            for name, step in list_attempt_specs(spec):
                _check_pool(caller, step.pool, f"/target/workflow/steps/{name}/pool")
                if isinstance(step.target, ShellTarget):
                    caller.require(Right.SHELL)
        elif isinstance(spec.target, ShellTarget):
            caller.require(Right.SHELL)


def _check_pool(caller: Caller, pool: str, pointer: str) -> None:
    if not caller.sees(pool):
        known = ", ".join(sorted(caller.pools or ()))
        fault = f"Unknown pool {pool!r}. Use one of: {known}; or ask an owner of the installation to grant it."
        raise InvalidBody(fault, (Fault(pointer, fault),), pool=pool)


def limit_reach(caller: Caller, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
    """The specs as they are stored: without the scope `private-targets` their calls never reach a private address,
    whatever the worker allows. The writer of a version decides, so that a patch cannot borrow the right of another."""
    if Right.PRIVATE_TARGETS in caller.rights:
        return specs
    return [replace_http_targets(spec, _only_public) for spec in specs]


def _only_public(target: HttpTarget) -> HttpTarget:
    return structs.replace(target, only_public=True)


async def check_step_pools(services: Services, caller: Caller, specs: Iterable[JobSpec]) -> None:
    """Refuse workflows with a step in a pool that the tenant may not use. (A job's own pool is checked where it is
    stored.)"""
    pools = {
        step.pool
        for spec in specs
        if isinstance(spec.target, WorkflowTarget)
        for _, step in list_attempt_specs(spec)
        if step.pool != spec.pool
    }
    if pools:
        async with services.database.transaction() as connection:
            await services.database.pools.numbers(connection, caller.tenant_no, sorted(pools))


async def check_keys(services: Services, caller: Caller, specs: Sequence[JobSpec]) -> None:
    """A job with the `key` of another is a new version of it: a key that is limited to pools must not take a job away
    from a pool that it does not see."""
    keys = [spec.key for spec in specs if spec.key is not None]
    if not keys:
        return
    async with services.database.connection() as connection:
        pools = await find_pools_of_keys(connection, caller.tenant_no, keys)
    for key, pool in pools.items():
        if not caller.sees(pool):
            raise Conflict(f"The key {key!r} belongs to a job of a pool that your API key does not reach. Use another.")
