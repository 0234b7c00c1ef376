"""Pools of the jobs that a caller writes which have to be looked up (T1); the rest is in `model.job_access`."""

from collections.abc import Iterable, Sequence

from ondot.api.dependencies import Services
from ondot.model.access import Caller
from ondot.model.errors import Conflict
from ondot.model.job import JobSpec
from ondot.model.workflow.spec import WorkflowTarget
from ondot.model.workflow.step_spec import list_attempt_specs
from ondot.store.jobs import find_pools_of_keys


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
